/* Dividing the machine among the runs of a sweep. */
#include "cli/sweep_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dsc_sweep_ranks_of(const char *launcher) {
    static const char *const names[] = {"-n", "-np", "--np", "--ntasks", NULL};
    const char *const blanks = " \t=";
    int is_number = 0, ranks = 1;
    for (const char *p = launcher + strspn(launcher, blanks); *p; p += strspn(p, blanks)) {
        size_t length = strcspn(p, blanks);
        if (is_number && atoi(p) > 0)
            ranks = atoi(p);
        is_number = 0;
        for (int i = 0; names[i]; i++)
            is_number |= strlen(names[i]) == length && strncmp(names[i], p, length) == 0;
        p += length;
    }
    return ranks;
}

const char *dsc_sweep_gpus_of(int place, int jobs, int gpus, const char *names, char *text, size_t size) {
    int share = gpus / jobs > 0 ? gpus / jobs : 1, first = place * share % gpus;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < first + share; i++) {
        size_t length = strcspn(names, ",");
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (i >= first && used < size)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%.*s", used ? "," : "",
                                 length > 0 ? (int)length : (int)strlen(number), length > 0 ? names : number);
        names += length + (names[length] == ',');
    }
    return text;
}
