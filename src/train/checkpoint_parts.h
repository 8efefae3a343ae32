/* What the state file holds, for the writer and the reader of checkpoints. */
#ifndef DSC_TRAIN_CHECKPOINT_PARTS_H
#define DSC_TRAIN_CHECKPOINT_PARTS_H

#include "train/checkpoint.h"

#define DSC_OPTIM_PREFIX "optimizer."
#define DSC_RANK_PREFIX  "rank.%d."

enum { DSC_SCALAR_COUNT = 15 };

/* A field of dsc_train_state: 8 bytes, I64 or F64, stored as a tensor without dimensions. */
typedef struct dsc_checkpoint_scalar {
    const char *name;
    dsc_dtype dtype;
    size_t offset;
} dsc_checkpoint_scalar;
extern const dsc_checkpoint_scalar dsc_checkpoint_scalars[DSC_SCALAR_COUNT];

/* prefix and name in new memory. */
dsc_status dsc_checkpoint_name(const char *prefix, const char *name, char **out) DSC_MUST_CHECK;
/* Bytes of the largest tensor of the state file, those of ranks and K-FAC's left out. */
size_t dsc_checkpoint_largest(const dsc_snapshot *s);
/* Name of the graph as the state file's metadata tells it. */
const char *dsc_checkpoint_graph(const dsc_snapshot *s);

#endif
