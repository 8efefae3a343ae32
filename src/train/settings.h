/* All options of a run in one struct: those of the caller, with defaults filled in. */
#ifndef DSC_TRAIN_SETTINGS_H
#define DSC_TRAIN_SETTINGS_H

#include "descent/options.h"
#include "descent/train.h"

enum { DSC_SETTINGS_STRINGS = 14, DSC_SETTINGS_OPTIONS = 256 };

typedef struct dsc_settings {
    /* Its pointers optim, consensus and kfac point to the members below: do not copy this struct. */
    dsc_train_options train;
    dsc_optim_options optim;
    dsc_consensus_options consensus;
    dsc_kfac_options kfac; /* update_freq is 0 without K-FAC */
    char *strings[DSC_SETTINGS_STRINGS];
} dsc_settings;

/* The quantity that options.stop_at sets a target for. */
typedef enum dsc_target_kind {
    DSC_TARGET_NONE,
    DSC_TARGET_TOP1,
    DSC_TARGET_TOP5,
    DSC_TARGET_LOSS
} dsc_target_kind;
typedef struct dsc_target {
    dsc_target_kind kind;
    double value; /* accuracies: a share from 0 to 1 */
} dsc_target;
/* `prefix` stands before the name of the option in the message of DSC_E_INVALID. */
dsc_status dsc_target_parse(const char *text, const char *prefix, dsc_target *out) DSC_MUST_CHECK;

/* Copies the caller's options (NULL: the defaults), strings included, and checks them. A shorter struct of an
 * older version keeps the defaults after its end. On failure, too, dsc_settings_clear frees the copies. */
dsc_status dsc_settings_read(const dsc_train_options *given, dsc_settings *out) DSC_MUST_CHECK;
void dsc_settings_clear(dsc_settings *settings);
/* Writes them to DIRECTORY/config, which `descent train --config` reads. */
dsc_status dsc_settings_write(const dsc_settings *settings, const char *directory) DSC_MUST_CHECK;

/* One option table and its values for each part of a run; the list is terminated by a NULL table. */
typedef struct dsc_settings_part {
    const dsc_option *table;
    const void *values;
} dsc_settings_part;
enum { DSC_SETTINGS_PARTS = 5 };
void dsc_settings_parts(const dsc_train_options *options, dsc_settings_part parts[DSC_SETTINGS_PARTS]);

/* The options of all parts as one table for the whole of dsc_settings. */
dsc_status dsc_settings_table(dsc_option table[DSC_SETTINGS_OPTIONS]) DSC_MUST_CHECK;
/* An option's value without the part in which ranks may differ (DSC_OPTION_OWN_TEXT, DSC_OPTION_OWN_PLACE).
 * Returns `text`. */
const char *dsc_settings_shared_value(const dsc_option *option, const void *values, char *text, size_t size);

#endif
