/* Option tables: one table describes the options of a command; the command line, configuration files, the
 * help text and the manual pages are read or written from it.
 *
 * Values are stored in a struct of the caller, which holds the defaults before parsing: what the help shows
 * as default is what stands there. Every failure is DSC_E_INVALID (a file that is missing: DSC_E_NOT_FOUND)
 * with a message that names option, value and what would be valid. */
#ifndef DSC_BASE_OPTION_H
#define DSC_BASE_OPTION_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum dsc_option_kind {
    DSC_OPTION_FLAG,    /* int: bare, or with on|off; on stores 1 */
    DSC_OPTION_NO_FLAG, /* int: the same, but on stores 0 */
    DSC_OPTION_ON_OFF,  /* int: on or off must be given */
    DSC_OPTION_INT,     /* int */
    DSC_OPTION_INT64,   /* int64_t */
    DSC_OPTION_UINT64,  /* uint64_t */
    DSC_OPTION_DOUBLE,  /* double, finite */
    DSC_OPTION_MIB,     /* size_t in bytes, given in MiB, fractions allowed */
    DSC_OPTION_CHOICE,  /* const char *: one of `choices` */
    DSC_OPTION_STRING,  /* const char * */
    DSC_OPTION_LIST,    /* double[capacity] at `offset`, int at `count_offset` */
    DSC_OPTION_CONFIG   /* const char *: a file of `key = value` lines, read before the command line counts */
} dsc_option_kind;

typedef struct dsc_option {
    const char *name; /* without dashes; NULL ends a table */
    dsc_option_kind kind;
    size_t offset;           /* of the value in the caller's struct */
    const char *placeholder; /* of the value in the help: "N", "X", "DIR" */
    const char *help;        /* one line, no full stop */
    const char *range;       /* numbers: an interval, "[1, inf)" or "(0, 1)"; NULL: any */
    const char *choices;     /* "a|b|c" */
    const char *bare;        /* the value when none is given; NULL: one must be given */
    const char *shown;       /* the default in words; NULL: what the struct holds; "": nothing is shown */
    const char *group;       /* starts a group of the help with this heading; NULL: goes on with the last */
    size_t count_offset;     /* lists */
    int capacity;            /* lists */
    char letter;             /* -v for --verbose; 0: none */
} dsc_option;

/* What was given: positional arguments, which options, and the memory that stored strings point into. */
typedef struct dsc_option_set dsc_option_set;

/* Parses argv[0 .. argc) (the program's name and the command's left out by the caller) into `values`. Files
 * named by a DSC_OPTION_CONFIG come first, in their order, then the command line, so that it wins. Of an
 * option given twice the last counts; "--" ends the options. Strings in `values` point into argv or *out:
 * both must outlive them. On failure `values` may hold some of the new values. */
dsc_status dsc_option_parse(const dsc_option *table, int argc, char *const *argv, void *values,
                            dsc_option_set **out) DSC_MUST_CHECK;
/* Parses the text of a configuration file, `length` bytes that need no 0 behind them; `file` is its name in
 * messages. For tests and for texts that are not in a file. */
dsc_status dsc_option_parse_text(const dsc_option *table, const char *file, const char *text, size_t length,
                                 void *values, dsc_option_set **out) DSC_MUST_CHECK;
/* Accepts NULL and *set == NULL. */
void dsc_option_set_destroy(dsc_option_set **set);

/* 1 when the option was given, on the command line or in a file. */
int dsc_option_given(const dsc_option_set *set, const char *name);
int64_t dsc_option_positional_count(const dsc_option_set *set);
const char *dsc_option_positional(const dsc_option_set *set, int64_t index);

/* The default as the help shows it, "" when there is nothing to show. Returns `text`. */
const char *dsc_option_default_text(const dsc_option *option, const void *values, char *text, size_t size);
/* An interval in words: "[1, inf)" is "at least 1". Returns `text`; "" for NULL. */
const char *dsc_option_range_text(const char *range, char *text, size_t size);
/* The candidate (of `count`) that `word` is most likely a misspelling of, NULL when none is near. */
const char *dsc_option_nearest(const char *word, const char *const *candidates, int64_t count);

#endif
