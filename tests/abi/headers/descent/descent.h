/* Everything public. */
#ifndef DSC_DESCENT_H
#define DSC_DESCENT_H

#include "descent/checkpoint.h"
#include "descent/comm.h"
#include "descent/consensus.h"
#include "descent/data.h"
#include "descent/device.h"
#include "descent/kfac.h"
#include "descent/layer.h"
#include "descent/log.h"
#include "descent/model.h"
#include "descent/ops.h"
#include "descent/optim.h"
#include "descent/options.h"
#include "descent/random.h"
#include "descent/status.h"
#include "descent/topology.h"
#include "descent/train.h"
#include "descent/trainer.h"
#include "descent/version.h"

#endif
