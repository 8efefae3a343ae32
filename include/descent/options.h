/* Options as data: tables that describe every option of training and evaluation by its name (its key), type,
 * default, valid values, when it applies and what it does. Defaults, checks, command lines, configuration
 * files, help texts and manual pages all come from these tables, so a program can offer the options of this
 * library, or options of its own, without listing them itself.
 *
 * A table describes the members of one struct. dsc_option_join joins the tables of several structs, which are
 * members of one larger struct; all functions take a table and the address of the struct that it describes.
 * Failures are DSC_E_INVALID (for a missing file DSC_E_NOT_FOUND); messages name the option, the value and what
 * would be valid. A function's `prefix` is put before every key in its messages: "" for the bare keys, "--" for a
 * command line. */
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
    DSC_OPTION_FLAG,     /* int: given alone, which means on, or with on|off; on stores 1 */
    DSC_OPTION_NO_FLAG,  /* int: the same, but on stores 0 */
    DSC_OPTION_ON_OFF,   /* int: on or off, which must be given */
    DSC_OPTION_INT,      /* int */
    DSC_OPTION_INT64,    /* int64_t */
    DSC_OPTION_UINT64,   /* uint64_t */
    DSC_OPTION_DOUBLE,   /* double, finite */
    DSC_OPTION_FRACTION, /* double: a number from 0 to 1, such as 0.25 or 1/4 */
    DSC_OPTION_MIB,      /* size_t in bytes; written in MiB, fractions allowed */
    DSC_OPTION_CHOICE,   /* an enum: the index of one of `choices`, or its number in `values` */
    DSC_OPTION_WORD,     /* const char *: one of `choices` */
    DSC_OPTION_STRING,   /* const char * */
    DSC_OPTION_LIST,     /* double[capacity] at `offset`, their number (int) at `count_offset` */
    DSC_OPTION_PAIRS,    /* "0:1 30:2": int64_t[capacity] at `offset`, int[capacity] at `second_offset` */
    DSC_OPTION_CONFIG    /* const char *: a file of `key = value` lines; the command line overrides it */
} dsc_option_kind;

/* Values of dsc_option.flags, which can be combined. */
enum {
    DSC_OPTION_NOT_SAVED = 1,   /* dsc_option_write leaves it out */
    DSC_OPTION_OWN = 2,         /* ranks may have different values */
    DSC_OPTION_OWN_TEXT = 4,    /* the same, but either all ranks or none must have a value */
    DSC_OPTION_OWN_PLACE = 8,   /* "KIND:PLACE": ranks may differ in PLACE, unless KIND is synthetic */
    DSC_OPTION_MAY_CHANGE = 16, /* not reported when a resumed run has another value than the saved one */
    DSC_OPTION_FIXED = 32       /* a resumed run must have the value of the saved one */
};

/* A condition for an option to apply. `when` is "consensus=sgp|osgp" (the other option has one of these values),
 * "average-every>0", or "kfac-update-freq" (that option is given as well, or is above 0). `why` is the end of a
 * message that begins "... does not go with {consensus} allreduce: " or "... needs {average-every}: ". */
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
    const char *value;          /* the default, as text; NULL: 0, an empty list or a NULL string */
    const char *placeholder;    /* for the value in the help: "N", "X", "DIR" */
    const char *help;           /* one line, no full stop */
    const char *range;          /* numbers: an interval, "[1, inf)" or "(0, 1)"; NULL: any */
    const char *const *choices; /* names, terminated by NULL */
    const int *values;          /* DSC_OPTION_CHOICE: the numbers of the choices; NULL: 0, 1, 2, ... */
    const char *bare;           /* the value of an option given without one; NULL: one must be given */
    /* The default in words; NULL: the value; "": nothing is shown; "none": shown, and may also be given as a value. */
    const char *default_text;
    const char *group;    /* the heading in the help; NULL: that of the entry before */
    size_t count_offset;  /* lists and pairs: offset of the int that holds their number */
    size_t second_offset; /* pairs: offset of the second numbers */
    int capacity;         /* lists and pairs: the most there can be */
    char letter;          /* -v for --verbose; 0: none */
    unsigned flags;       /* DSC_OPTION_NOT_SAVED ... */
    const char *json;     /* path in the `config` object of the metrics: "optimizer.momentum" */
    dsc_option_rule rules[DSC_OPTION_RULES];
} dsc_option;

/* Return the table of the struct of the same name (dsc_train_options for dsc_train_option_table), which belongs to the
 * library. A later library may have more options, for members that the caller's struct does not have yet:
 * dsc_option_join leaves them out. */
DSC_API const dsc_option *dsc_train_option_table(void);
DSC_API const dsc_option *dsc_eval_option_table(void);
DSC_API const dsc_option *dsc_predict_option_table(void);
DSC_API const dsc_option *dsc_generate_option_table(void);
DSC_API const dsc_option *dsc_optim_option_table(void);
DSC_API const dsc_option *dsc_consensus_option_table(void);
DSC_API const dsc_option *dsc_kfac_option_table(void);

/* Appends the entries of `table` to `out`, a terminated table (empty at first: out[0].name is NULL) with space for
 * `capacity` entries, including the terminating one. `offset`: the offset of the table's struct in the larger one; it
 * is added to the offsets of the entries. `size`: sizeof the table's struct; entries for members after its end are
 * left out. `only`: the names to take, separated by blanks; NULL: all. Every entry gets its group's name. */
DSC_API dsc_status dsc_option_join(dsc_option *out, int64_t capacity, const dsc_option *table, size_t offset,
                                   size_t size, const char *only) DSC_MUST_CHECK;
/* Returns the entry of this name, or NULL if there is none. */
DSC_API const dsc_option *dsc_option_find(const dsc_option *table, const char *name);

/* Sets every option in the struct `values` to its default; other members of the struct stay as they are. */
DSC_API void dsc_option_defaults(const dsc_option *table, void *values);
/* Sets the option `name` from text. If the option is a string, the struct points to `text`, which must outlive it. */
DSC_API dsc_status dsc_option_set_value(const dsc_option *table, void *values, const char *name,
                                        const char *text) DSC_MUST_CHECK;
/* Writes the value to text[size] in the form that dsc_option_set_value takes, exact for numbers; "" for a NULL string
 * and for an empty list. Returns `text`. */
DSC_API const char *dsc_option_get_value(const dsc_option *option, const void *values, char *text,
                                         size_t size);
/* Checks all values: their types, ranges and choices, and that every option whose value is not the default applies. */
DSC_API dsc_status dsc_option_check(const dsc_option *table, const void *values,
                                    const char *prefix) DSC_MUST_CHECK;
/* Writes the options to `out` as lines `key = value`, those of each group under a comment with its heading. An option
 * that does not apply, or has no value, is written as a comment. */
DSC_API void dsc_option_write(const dsc_option *table, const void *values, FILE *out);

/* The result of parsing: the positional arguments, which options were given, and the memory of strings. The caller
 * frees it with dsc_option_set_destroy. */
typedef struct dsc_option_set dsc_option_set;

/* Parses argv[0 .. argc), without the names of program and command, into `values`, which must hold the defaults.
 * Files named by options of kind DSC_OPTION_CONFIG are read first, in their order, and then the command line, which
 * overrides them. If an option is given twice, the last value counts; "--" ends the options. Strings in `values`
 * point into argv or *out: both must outlive them. After a failure `values` may hold some of the new values. */
DSC_API dsc_status dsc_option_parse(const dsc_option *table, int argc, char *const *argv, void *values,
                                    dsc_option_set **out) DSC_MUST_CHECK;
/* Parses text[length], the text of a configuration file, which needs no final zero; `file` is its name in messages. */
DSC_API dsc_status dsc_option_parse_text(const dsc_option *table, const char *file, const char *text,
                                         size_t length, void *values, dsc_option_set **out) DSC_MUST_CHECK;
/* Adds the options of a configuration file's text after the command line has been parsed: an option that was given
 * keeps its value, and one that does not apply to the resulting values gets its default. */
DSC_API dsc_status dsc_option_restore(dsc_option_set *set, const char *file, const char *text, size_t length,
                                      void *values) DSC_MUST_CHECK;
/* Frees a set and sets *set to NULL. Accepts NULL and *set == NULL. */
DSC_API void dsc_option_set_destroy(dsc_option_set **set);

/* Returns DSC_E_INVALID if an option was given that does not apply; the message names the first. */
DSC_API dsc_status dsc_option_check_given(const dsc_option_set *set, const void *values,
                                          const char *prefix) DSC_MUST_CHECK;
/* Returns 1 if the option was given, on the command line or in a file, otherwise 0. */
DSC_API int dsc_option_given(const dsc_option_set *set, const char *name);
/* Return the number of positional arguments, and the one with this index, counted from 0; NULL if there is none. */
DSC_API int64_t dsc_option_positional_count(const dsc_option_set *set);
DSC_API const char *dsc_option_positional(const dsc_option_set *set, int64_t index);

/* For help texts. All three write to text[size] and return `text`. default_text writes the default, taken from
 * `values`, or "" if there is nothing to show. expand writes `source` with every {key} replaced by prefix and key.
 * range_text writes an interval in words: "at least 1" for "[1, inf)", "" for NULL. */
DSC_API const char *dsc_option_default_text(const dsc_option *option, const void *values, const char *prefix,
                                            char *text, size_t size);
DSC_API const char *dsc_option_expand(const char *source, const char *prefix, char *text, size_t size);
DSC_API const char *dsc_option_range_text(const char *range, char *text, size_t size);
/* Returns the one of candidates[count] that `word` is most likely a misspelling of; NULL if none is similar. */
DSC_API const char *dsc_option_nearest(const char *word, const char *const *candidates, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
