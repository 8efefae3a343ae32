/* Which files of a directory belong to a run, by their names. */
#include "cli/outdir.h"
#include "cli/support.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *dsc_outdir_default(const char *model, const char *data, uint64_t seed, char *text, size_t size) {
    snprintf(text, size, "runs/%s-%.*s-%llu", model, (int)strcspn(data, ":"), data, (unsigned long long)seed);
    return text;
}

static int ends_with(const char *name, const char *end) {
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* metrics.jsonl, latest, checkpoint-*.safetensors and what was being written when a run was killed. */
static int belongs_to_run(const char *name) {
    if (strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "latest") == 0)
        return 1;
    if (strncmp(name, "latest.", 7) == 0 || strncmp(name, "config.", 7) == 0)
        return ends_with(name, ".tmp");
    return strncmp(name, "checkpoint-", 11) == 0 &&
           (ends_with(name, ".safetensors") || ends_with(name, ".tmp"));
}

static dsc_status open_directory(const char *directory, DIR **out) {
    *out = opendir(directory);
    if (!*out && errno != ENOENT)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--out %s: %s; name a directory that can be written", directory,
                            strerror(errno));
    return DSC_OK;
}

dsc_status dsc_outdir_find_run(const char *directory, char *file, size_t size) {
    DIR *entries;
    file[0] = '\0';
    DSC_CLI_TRY(open_directory(directory, &entries));
    if (!entries)
        return DSC_OK;
    for (const struct dirent *entry; (entry = readdir(entries)) && !file[0];)
        if (belongs_to_run(entry->d_name))
            snprintf(file, size, "%s", entry->d_name);
    closedir(entries);
    return DSC_OK;
}

dsc_status dsc_outdir_remove_run(const char *directory) {
    DIR *entries;
    dsc_status status = DSC_OK;
    DSC_CLI_TRY(open_directory(directory, &entries));
    if (!entries)
        return DSC_OK;
    for (const struct dirent *entry; status == DSC_OK && (entry = readdir(entries));)
        if ((belongs_to_run(entry->d_name) || strcmp(entry->d_name, "config") == 0) &&
            unlinkat(dirfd(entries), entry->d_name, 0) != 0)
            status = DSC_CLI_FAIL(DSC_E_IO, "cannot remove '%s/%s': %s", directory, entry->d_name,
                                  strerror(errno));
    closedir(entries);
    return status;
}
