/* The internal interface of option.c (values) and option_parse.c (command lines and files). */
#ifndef DSC_BASE_OPTION_H
#define DSC_BASE_OPTION_H

#include "descent/options.h"

enum { DSC_OPTION_CANDIDATES = 256 }; /* at most this many names are compared with a misspelt one */

/* Returns 1 if the option has its default value. */
int dsc_option_is_default(const dsc_option *option, const void *values);

/* Sets one option to its default. */
void dsc_option_set_default(const dsc_option *option, void *values);

/* Where a value was given, for messages: in a line of a file or, if `file` is NULL, after a name with this prefix. */
typedef struct dsc_option_place {
    const char *file, *prefix;
    int line;
} dsc_option_place;

/* Writes the start of a message: "--batch-size" or "train.conf:3: batch-size". Returns `text`. */
const char *dsc_option_where(const dsc_option *option, dsc_option_place at, char *text, size_t size);
dsc_status dsc_option_unknown(const dsc_option *table, const char *name, dsc_option_place at);
/* Writes what the help shows as the value: "N", "on|off", "fp32|bf16". Returns `text`. */
const char *dsc_option_value_text(const dsc_option *option, char *text, size_t size);
/* Parses and stores the value of an option, given as `count` words; only lists take more than one. */
dsc_status dsc_option_apply(const dsc_option *option, dsc_option_place at, const char *const *words,
                            int count, void *values) DSC_MUST_CHECK;
/* Returns 1 if the rule holds for `values`. `given` says which options were given. If it is NULL, this is not
 * known, and a rule that only requires an option to be given holds. */
int dsc_option_rule_holds(const dsc_option *table, const dsc_option_rule *rule, const void *values,
                          const dsc_option_set *given);
dsc_status dsc_option_rule_broken(const dsc_option *table, const dsc_option *option,
                                  const dsc_option_rule *rule, const void *values, const char *prefix);

/* Returns 1 if all rules of an option hold. An option that a rule only requires to be given must be above 0 here. */
int dsc_option_applies(const dsc_option *table, const dsc_option *option, const void *values);

/* Does the checks of dsc_option_check except for the rules, for parts of the library that check their own options. */
dsc_status dsc_option_check_values(const dsc_option *table, const void *values,
                                   const char *prefix) DSC_MUST_CHECK;

/* Convert between the values of an enum and their names. `what` describes the enum in messages. */
dsc_status dsc_option_choice_parse(const char *what, const char *const *choices, const char *name,
                                   int *out) DSC_MUST_CHECK;
const char *dsc_option_choice_name(const char *const *choices, int value);

#endif
