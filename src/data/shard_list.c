/* Which files the shards of a set are. */
#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/shards.h"

#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN = 4096, MAX_BRACES = 16, MAX_LISTED = 4096, MAX_SHARDS = 1 << 20, MAX_DIGITS = 9 };

void dsc_shards_free(dsc_shard_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        dsc_memory_free(&list->path[i]);
    dsc_memory_free(&list->path);
    dsc_memory_free(&list->is_val);
    list->count = 0;
}

static dsc_status add(dsc_shard_list *list, const char *path) {
    if (list->count >= MAX_SHARDS)
        return DSC_FAIL(DSC_E_INVALID, "webdataset: more than %d shards", MAX_SHARDS);
    DSC_TRY(dsc_memory_grow(&list->path, &list->path_capacity, list->count + 1, sizeof *list->path));
    DSC_TRY(dsc_memory_grow(&list->is_val, &list->val_capacity, list->count + 1, 1));
    DSC_TRY(dsc_memory_strdup(path, &list->path[list->count]));
    list->is_val[list->count++] = 0;
    return DSC_OK;
}

/* Adds the files that match a pattern of glob(), in the order of their names. */
static dsc_status add_matches(dsc_shard_list *list, const char *pattern) {
    glob_t found;
    int result = glob(pattern, 0, NULL, &found);
    if (result == GLOB_NOMATCH)
        return DSC_OK;
    if (result != 0)
        return DSC_FAIL(result == GLOB_NOSPACE ? DSC_E_MEMORY : DSC_E_IO, "webdataset: cannot list '%s'",
                        pattern);
    dsc_status status = DSC_OK;
    for (size_t i = 0; i < found.gl_pathc && status == DSC_OK; i++)
        status = add(list, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

/* ---- patterns ---- */

/* "000..123": first and last number and the number of digits. Returns 0 when `text` is something else. */
static int read_range(const char *text, size_t length, long *first, long *last, int *digits) {
    size_t a = strspn(text, "0123456789"), b;
    if (a == 0 || a > MAX_DIGITS || strncmp(text + a, "..", 2) != 0)
        return 0;
    b = strspn(text + a + 2, "0123456789");
    if (b == 0 || b > MAX_DIGITS || a + 2 + b != length)
        return 0;
    *first = strtol(text, NULL, 10);
    *last = strtol(text + a + 2, NULL, 10);
    *digits = (int)a;
    return *last >= *first;
}

static dsc_status expand(dsc_shard_list *list, const char *pattern);

/* Lists the pattern with the part from `open` to `close` replaced by `middle`. */
static dsc_status expand_with(dsc_shard_list *list, const char *pattern, const char *open, const char *close,
                              const char *middle, size_t length) {
    char next[MAX_PATTERN];
    int size = snprintf(next, sizeof next, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)length, middle,
                        close + 1);
    if (size < 0 || (size_t)size >= sizeof next)
        return DSC_FAIL(DSC_E_INVALID, "webdataset: the pattern '%.64s...' is longer than %d bytes", pattern,
                        MAX_PATTERN - 1);
    return expand(list, next);
}

static dsc_status expand(dsc_shard_list *list, const char *pattern) {
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    long first, last;
    int digits;
    if (!close && !strpbrk(pattern, "*?[")) /* added even if it does not exist: reading it will fail */
        return add(list, pattern);
    if (!close && ++list->listed > MAX_LISTED)
        return DSC_FAIL(
            DSC_E_INVALID,
            "webdataset: the braces stand for more than %d names with '*', '?' or '[': use one '*' "
            "instead of them",
            MAX_LISTED);
    if (!close)
        return add_matches(list, pattern);
    if (read_range(open + 1, (size_t)(close - open - 1), &first, &last, &digits)) {
        if (last - first >= MAX_SHARDS)
            return DSC_FAIL(DSC_E_INVALID, "webdataset: '%s' stands for more than %d shards", pattern,
                            MAX_SHARDS);
        for (long i = first; i <= last; i++) {
            char number[32];
            int length = snprintf(number, sizeof number, "%0*ld", digits, i);
            DSC_TRY(expand_with(list, pattern, open, close, number, (size_t)length));
        }
        return DSC_OK;
    }
    for (const char *word = open + 1; word <= close;) {
        size_t length = strcspn(word, ",}");
        DSC_TRY(expand_with(list, pattern, open, close, word, length));
        word += length + 1;
    }
    return DSC_OK;
}

/* The files that a pattern stands for. */
static dsc_status list_pattern(dsc_shard_list *list, const char *pattern) {
    int braces = 0;
    for (const char *p = pattern; *p; p++)
        braces += *p == '{';
    if (braces > MAX_BRACES)
        return DSC_FAIL(DSC_E_INVALID,
                        "webdataset: the pattern '%.64s...' has %d pairs of braces: at most %d", pattern,
                        braces, MAX_BRACES);
    return expand(list, pattern);
}

/* The .tar files of a folder and of the folders in it. */
static dsc_status list_folder(dsc_shard_list *list, const char *folder) {
    static const char *const endings[] = {"/*.tar", "/*/*.tar"};
    char pattern[MAX_PATTERN];
    size_t used = 0;
    if (2 * strlen(folder) + 16 > sizeof pattern)
        return DSC_FAIL(DSC_E_INVALID, "webdataset: the path '%.64s...' is too long", folder);
    for (const char *p = folder; *p; p++) {
        if (strchr("*?[]\\", *p))
            pattern[used++] = '\\';
        pattern[used++] = *p;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(pattern + used, sizeof pattern - used, "%s", endings[i]);
        DSC_TRY(add_matches(list, pattern));
    }
    return DSC_OK;
}

/* ---- splits ---- */

/* 1 when one of the words is in text[length], with no letter before or after it. */
static int says_val(const char *text, size_t length) {
    static const char *const words[] = {"validation", "valid", "val", "test"};
    for (size_t at = 0; at < length; at++) {
        if (at > 0 && isalpha((unsigned char)text[at - 1]))
            continue;
        for (int i = 0; i < 4; i++) {
            size_t size = strlen(words[i]);
            if (at + size <= length && strncmp(text + at, words[i], size) == 0 &&
                (at + size == length || !isalpha((unsigned char)text[at + size])))
                return 1;
        }
    }
    return 0;
}

dsc_status dsc_shards_find(const char *argument, dsc_shard_list *list) {
    const int folder = dsc_file_is_directory(argument);
    dsc_status status = folder ? list_folder(list, argument) : list_pattern(list, argument);
    if (status == DSC_OK && list->count == 0)
        status = DSC_FAIL(DSC_E_NOT_FOUND,
                          "webdataset: '%s' %s: give a folder of .tar files, or a pattern as in "
                          "'DIR/train-{000000..000099}.tar'",
                          argument, folder ? "holds no .tar files" : "matches no files");
    if (status != DSC_OK) {
        dsc_shards_free(list);
        return status;
    }
    for (int64_t i = 0; i < list->count; i++) {
        const char *below = folder ? list->path[i] + strlen(argument) : strrchr(list->path[i], '/');
        below = below ? below : list->path[i];
        list->is_val[i] = (char)says_val(below, strlen(below));
    }
    return DSC_OK;
}
