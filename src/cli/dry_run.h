/* descent train --dry-run. */
#ifndef DSC_CLI_DRY_RUN_H
#define DSC_CLI_DRY_RUN_H

#include "cli/train_options.h"

/* Opens data and model, plans everything, takes a few steps whose results are dropped, and prints how long a step takes
 * and how much memory is used. Writes no file. Collective. */
dsc_status dsc_cli_dry_run(dsc_cli_session *session, const dsc_cli_train_values *values) DSC_MUST_CHECK;

#endif
