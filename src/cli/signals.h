/* Signals that ask a training to stop. */
#ifndef DSC_CLI_SIGNALS_H
#define DSC_CLI_SIGNALS_H

#include "descent/status.h"

/* From now on SIGINT, SIGTERM and SIGUSR1 ask for a checkpoint and the end (dsc_train_request_stop). Call
 * it before any other thread is started. */
dsc_status dsc_cli_catch_signals(void) DSC_MUST_CHECK;

#endif
