/* Includes all public headers. These rules hold for all of them:
 *
 * A function that can fail returns a dsc_status; after a failure dsc_error_message() says what went wrong. A pointer
 * argument must not be NULL unless the function's comment allows it; functions that destroy, close or free accept NULL
 * and set the caller's pointer to NULL. Options structs are initialised by their _init macro, which sets the defaults.
 * Result structs start with their size, which the caller sets. Both kinds may grow at their end in later versions.
 * Strings and structs that are passed in are copied unless a comment says that the pointer is kept. */
#ifndef DSC_DESCENT_H
#define DSC_DESCENT_H

#include "descent/checkpoint.h"
#include "descent/comm.h"
#include "descent/consensus.h"
#include "descent/data.h"
#include "descent/device.h"
#include "descent/generate.h"
#include "descent/kfac.h"
#include "descent/layer.h"
#include "descent/log.h"
#include "descent/model.h"
#include "descent/ops.h"
#include "descent/optim.h"
#include "descent/options.h"
#include "descent/predict.h"
#include "descent/random.h"
#include "descent/status.h"
#include "descent/tokens.h"
#include "descent/topology.h"
#include "descent/train.h"
#include "descent/trainer.h"
#include "descent/version.h"

#endif
