/* descent info --checkpoint: what a checkpoint says about itself, and whether it is intact. */
#ifndef DSC_CLI_INFO_CHECKPOINT_H
#define DSC_CLI_INFO_CHECKPOINT_H

#include "descent/status.h"

/* Prints the description of a checkpoint to the standard output, as text or as one JSON object. DSC_E_FORMAT when the
 * checkpoint is damaged. */
dsc_status dsc_info_checkpoint_print(const char *checkpoint, int json) DSC_MUST_CHECK;

#endif
