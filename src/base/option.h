/* What option.c (values) and option_parse.c (command lines and files) share. */
#ifndef DSC_BASE_OPTION_H
#define DSC_BASE_OPTION_H

#include "descent/options.h"

enum { DSC_OPTION_CANDIDATES = 256 }; /* names compared with a misspelt one */

/* 1 when the value is the option's default. */
int dsc_option_is_default(const dsc_option *option, const void *values);

/* Sets one option to its default. */
void dsc_option_set_default(const dsc_option *option, void *values);

/* Where a value was given, for messages: a line of a file, or (file NULL) after a name with this prefix. */
typedef struct dsc_option_place {
    const char *file, *prefix;
    int line;
} dsc_option_place;

/* "--batch-size" or "train.conf:3: batch-size", as a message starts. Returns `text`. */
const char *dsc_option_where(const dsc_option *option, dsc_option_place at, char *text, size_t size);
dsc_status dsc_option_unknown(const dsc_option *table, const char *name, dsc_option_place at);
/* What the help shows as the value: "N", "on|off", "fp32|bf16". Returns `text`. */
const char *dsc_option_value_text(const dsc_option *option, char *text, size_t size);
/* Stores the value of an option given as `count` words; only lists take more than one. */
dsc_status dsc_option_apply(const dsc_option *option, dsc_option_place at, const char *const *words,
                            int count, void *values) DSC_MUST_CHECK;
/* 1 when the rule holds for `values`. `given` says which options were given; if it is NULL, that is not
 * known, and a rule that only asks whether an option was given holds. */
int dsc_option_rule_holds(const dsc_option *table, const dsc_option_rule *rule, const void *values,
                          const dsc_option_set *given);
dsc_status dsc_option_rule_broken(const dsc_option *table, const dsc_option *option,
                                  const dsc_option_rule *rule, const void *values, const char *prefix);

/* 1 when all rules of an option hold. What only has to be given must be above 0 here. */
int dsc_option_applies(const dsc_option *table, const dsc_option *option, const void *values);

/* dsc_option_check without the rules, for a part that checks its own options. */
dsc_status dsc_option_check_values(const dsc_option *table, const void *values,
                                   const char *prefix) DSC_MUST_CHECK;

/* Convert between the values of an enum and their names. `what` describes the enum in messages. */
dsc_status dsc_option_choice_parse(const char *what, const char *const *choices, const char *name,
                                   int *out) DSC_MUST_CHECK;
const char *dsc_option_choice_name(const char *const *choices, int value);

#endif
