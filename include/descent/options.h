/* Options as data: tables that describe every option of training and evaluation by its name (its key), type,
 * default, valid values, when it applies and what it does. Defaults, checks, command lines, configuration
 * files, help texts and manual pages all come from these tables, so a program can offer the options of this
 * library, or options of its own, without a list of them.
 *
 * A table describes the members of one struct. dsc_option_join puts tables of several structs, which are
 * members of one larger struct, together: all functions take such a table and the address of the struct.
 * Failures are DSC_E_INVALID (a file that is missing: DSC_E_NOT_FOUND); messages name option, value and what
 * would be valid. Where a function has a `prefix`, it stands before every key in its messages: "" for keys as
 * they are, "--" for a command line. */
#ifndef DSC_OPTIONS_H
#define DSC_OPTIONS_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_option_kind {
    DSC_OPTION_FLAG,     /* int: bare, or with on|off; on stores 1 */
    DSC_OPTION_NO_FLAG,  /* int: the same, but on stores 0 */
    DSC_OPTION_ON_OFF,   /* int: on or off must be given */
    DSC_OPTION_INT,      /* int */
    DSC_OPTION_INT64,    /* int64_t */
    DSC_OPTION_UINT64,   /* uint64_t */
    DSC_OPTION_DOUBLE,   /* double, finite */
    DSC_OPTION_FRACTION, /* double: a number from 0 to 1, as 0.25 or 1/4 */
    DSC_OPTION_MIB,      /* size_t in bytes, given in MiB, fractions allowed */
    DSC_OPTION_CHOICE,   /* an enum: the number of one of `choices` (or the one in `values`) */
    DSC_OPTION_WORD,     /* const char *: one of `choices` */
    DSC_OPTION_STRING,   /* const char * */
    DSC_OPTION_LIST,     /* double[capacity] at `offset`, int at `count_offset` */
    DSC_OPTION_PAIRS,    /* "0:1 30:2": int64_t[capacity] at `offset`, int[capacity] at `second_offset` */
    DSC_OPTION_CONFIG    /* const char *: a file of `key = value` lines; the command line overrides it */
} dsc_option_kind;

enum {
    DSC_OPTION_NOT_SAVED = 1, /* dsc_option_write leaves it out */
    DSC_OPTION_OWN = 2,       /* ranks may have different values */
    DSC_OPTION_OWN_TEXT = 4,  /* the same, but either all ranks have a value or none has */
    DSC_OPTION_OWN_PLACE = 8, /* "KIND:PLACE": ranks may differ in the place, unless the kind is synthetic */
    DSC_OPTION_MAY_CHANGE = 16, /* not reported when a resumed run has another value than the saved one */
    DSC_OPTION_FIXED = 32       /* a resumed run must have the value of the saved one */
};

/* When an option applies: "consensus=sgp|osgp" (another option has one of these values), "average-every>0",
 * or "kfac-update-freq" (that option is given as well, or is above 0). `why` is the end of a message that
 * begins "... does not go with {consensus} allreduce: " or "... needs {average-every}: ". */
typedef struct dsc_option_rule {
    const char *when, *why;
} dsc_option_rule;

enum { DSC_OPTION_RULES = 2 };

/* One option. In help, default_text and why, {key} stands for the name of another option. No version of the
 * library will add members to this struct. */
typedef struct dsc_option {
    const char *name; /* without dashes; NULL ends a table */
    dsc_option_kind kind;
    size_t offset;              /* of the value in the struct */
    const char *value;          /* the default, as text; NULL: 0, none */
    const char *placeholder;    /* of the value in the help: "N", "X", "DIR" */
    const char *help;           /* one line, no full stop */
    const char *range;          /* numbers: an interval, "[1, inf)" or "(0, 1)"; NULL: any */
    const char *const *choices; /* names, terminated by NULL */
    const int *values;          /* DSC_OPTION_CHOICE: the numbers of the choices; NULL: 0, 1, 2, ... */
    const char *bare;           /* the value when none is given; NULL: one must be given */
    /* The default in words; NULL: the value; "": nothing is shown; "none": which may also be given as a value. */
    const char *default_text;
    const char *group;    /* heading in the help; NULL: that of the entry before */
    size_t count_offset;  /* lists and pairs: int, how many there are */
    size_t second_offset; /* pairs */
    int capacity;         /* lists and pairs */
    char letter;          /* -v for --verbose; 0: none */
    unsigned flags;       /* DSC_OPTION_NOT_SAVED ... */
    const char *json;     /* place in the `config` object of the metrics: "optimizer.momentum" */
    dsc_option_rule rules[DSC_OPTION_RULES];
} dsc_option;

/* The options of the structs of the same names. A later library may have more options, of members that the
 * caller's struct does not have yet: dsc_option_join leaves them out. */
DSC_API const dsc_option *dsc_train_option_table(void);
DSC_API const dsc_option *dsc_eval_option_table(void);
DSC_API const dsc_option *dsc_predict_option_table(void);
DSC_API const dsc_option *dsc_generate_option_table(void);
DSC_API const dsc_option *dsc_optim_option_table(void);
DSC_API const dsc_option *dsc_consensus_option_table(void);
DSC_API const dsc_option *dsc_kfac_option_table(void);

/* Appends the entries of `table` to `out`, a table that is terminated (empty at first: out[0].name is NULL)
 * and has space for `capacity` entries, the terminating one included. `offset`: where the table's struct is
 * in the larger one; it is added to the offsets of the entries. `size`: sizeof the table's struct; entries
 * for members after its end are left out. `only`: the names to take, separated by blanks; NULL: all. Every
 * entry gets its group's name. */
DSC_API dsc_status dsc_option_join(dsc_option *out, int64_t capacity, const dsc_option *table, size_t offset,
                                   size_t size, const char *only) DSC_MUST_CHECK;
/* The entry of this name, or NULL. */
DSC_API const dsc_option *dsc_option_find(const dsc_option *table, const char *name);

/* Sets every option to its default; other members of the struct stay as they are. */
DSC_API void dsc_option_defaults(const dsc_option *table, void *values);
/* Sets one option from text, which must outlive the struct when the option is a string. */
DSC_API dsc_status dsc_option_set_value(const dsc_option *table, void *values, const char *name,
                                        const char *text) DSC_MUST_CHECK;
/* Writes the value to `text` as dsc_option_set_value takes it, exact for numbers; "" for a string that is
 * NULL and for an empty list. Returns `text`. */
DSC_API const char *dsc_option_get_value(const dsc_option *option, const void *values, char *text,
                                         size_t size);
/* Checks all values: type, range, choices; and that an option whose value is not the default applies. */
DSC_API dsc_status dsc_option_check(const dsc_option *table, const void *values,
                                    const char *prefix) DSC_MUST_CHECK;
/* Writes the options as lines `key = value`, under a comment with the heading of each group. An option that
 * does not apply, or has no value, is written as a comment. */
DSC_API void dsc_option_write(const dsc_option *table, const void *values, FILE *out);

/* The result of parsing: the positional arguments, which options were given, and the memory of strings. */
typedef struct dsc_option_set dsc_option_set;

/* Parses argv[0 .. argc), without the names of program and command, into `values`, which holds the defaults.
 * Files named by a DSC_OPTION_CONFIG are read first, in their order, and then the command line, which
 * overrides them. When an option is given twice, the last value counts; "--" ends the options. Strings in
 * `values` point into argv or *out: both must outlive them. On failure `values` may hold some of the new
 * values. */
DSC_API dsc_status dsc_option_parse(const dsc_option *table, int argc, char *const *argv, void *values,
                                    dsc_option_set **out) DSC_MUST_CHECK;
/* Parses the text of a configuration file, `length` bytes that need no 0 after them; `file` is its name in
 * messages. */
DSC_API dsc_status dsc_option_parse_text(const dsc_option *table, const char *file, const char *text,
                                         size_t length, void *values, dsc_option_set **out) DSC_MUST_CHECK;
/* Adds the options of a configuration file's text, after the command line was read: an option that was given
 * keeps its value, and one that does not apply to the values that result gets its default. */
DSC_API dsc_status dsc_option_restore(dsc_option_set *set, const char *file, const char *text, size_t length,
                                      void *values) DSC_MUST_CHECK;
/* Accepts NULL and *set == NULL. */
DSC_API void dsc_option_set_destroy(dsc_option_set **set);

/* DSC_E_INVALID when an option was given that does not apply; the message names the first. */
DSC_API dsc_status dsc_option_check_given(const dsc_option_set *set, const void *values,
                                          const char *prefix) DSC_MUST_CHECK;
/* 1 when the option was given, on the command line or in a file. */
DSC_API int dsc_option_given(const dsc_option_set *set, const char *name);
DSC_API int64_t dsc_option_positional_count(const dsc_option_set *set);
DSC_API const char *dsc_option_positional(const dsc_option_set *set, int64_t index);

/* For help texts; all three write to `text` and return it. default_text: the default, taken from `values`, or
 * "" when there is nothing to show. expand: `source` with every {key} replaced by prefix and key. range_text:
 * an interval in words, "at least 1" for "[1, inf)" and "" for NULL. */
DSC_API const char *dsc_option_default_text(const dsc_option *option, const void *values, const char *prefix,
                                            char *text, size_t size);
DSC_API const char *dsc_option_expand(const char *source, const char *prefix, char *text, size_t size);
DSC_API const char *dsc_option_range_text(const char *range, char *text, size_t size);
/* The candidate (of `count`) that `word` is most likely a misspelling of; NULL when none is similar. */
DSC_API const char *dsc_option_nearest(const char *word, const char *const *candidates, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
