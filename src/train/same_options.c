/* Options of rank 0 and of another rank, compared as lines of text. */
#include "train/same_options.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/settings.h"
#include "train/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_line(FILE *stream, const char *key, const char *value) {
    fputs(key, stream);
    fputc(' ', stream);
    fputs(value, stream);
    fputc('\n', stream);
}

/* One line "key value" per option that all ranks must agree on; free with free(). NULL: no memory. */
static char *describe(const dsc_trainer *t) {
    dsc_settings_part parts[DSC_SETTINGS_PARTS];
    char *text = NULL, value[4096];
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream)
        return NULL;
    dsc_settings_parts(&t->options, parts);
    for (const dsc_settings_part *part = parts; part->table; part++)
        for (const dsc_option *o = part->table; o->name; o++) {
            dsc_settings_shared_value(o, part->values, value, sizeof value);
            if (!(o->flags & DSC_OPTION_OWN))
                write_line(stream, o->name, *value ? value : "(none)");
        }
    /* The size of data that no option names: with different sizes, gossip ranks would wait for each other at the ends
     * of epochs. */
    snprintf(value, sizeof value, "%lld", (long long)t->epoch_steps);
    write_line(stream, "steps-of-an-epoch", value);
    if (fclose(stream) == 0)
        return text;
    free(text);
    return NULL;
}

static dsc_status compare(const char *first, const char *own) {
    while (*first && *own) {
        int a = (int)strcspn(first, "\n"), b = (int)strcspn(own, "\n"), key = (int)strcspn(own, " ") + 1;
        if (a != b || strncmp(first, own, (size_t)a) != 0)
            return DSC_FAIL(DSC_E_INVALID,
                            "started with other options than rank 0: %.*s instead of %.*s; give every rank "
                            "the same (configuration files may differ between nodes)",
                            b, own, a > key ? a - key : 0, first + key);
        first += a + (first[a] == '\n');
        own += b + (own[b] == '\n');
    }
    return DSC_OK;
}

dsc_status dsc_same_options_check(dsc_trainer *t) {
    char *text = NULL;
    if (t->ranks == 1)
        return DSC_OK;
    char *own = describe(t);
    dsc_status status =
        own ? DSC_OK : DSC_FAIL(DSC_E_MEMORY, "no memory to compare the options of the ranks");
    if (status == DSC_OK && t->rank == 0)
        status = dsc_memory_strdup(own, &text);
    status = dsc_share_text(t->comm, t->queue, status, &text);
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, compare(text, own));
    free(own);
    dsc_memory_free(&text);
    return status;
}
