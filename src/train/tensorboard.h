/* Writes event files for TensorBoard, from the lines of metrics.jsonl: every number of a line becomes a scalar,
 * a `run` line the hyper-parameters, and a `kfac` line a histogram over the layers. The names of the scalars:
 *
 *   step lines        train/KEY; phase_ms/PHASE; sent_bytes/KIND; kfac/nu
 *   eval, epoch, consensus, kfac, checkpoint, ranks lines    KIND/KEY */
#ifndef DSC_TRAIN_TENSORBOARD_H
#define DSC_TRAIN_TENSORBOARD_H

#include "kfac/kfac_parts.h"

typedef struct dsc_tensorboard dsc_tensorboard;
struct json_t;

/* DSC_E_UNSUPPORTED where the library was built without protobuf-c. `prefix` as in options.h. */
dsc_status dsc_tensorboard_check(const char *prefix) DSC_MUST_CHECK;
/* Makes a new file in `directory`, which is made if it does not exist. */
dsc_status dsc_tensorboard_open(const char *directory, dsc_tensorboard **out) DSC_MUST_CHECK;
void dsc_tensorboard_close(dsc_tensorboard **tensorboard);
/* errno of the first record that could not be written, and the file; 0: there is none. Accepts NULL. */
int dsc_tensorboard_error(const dsc_tensorboard *tensorboard, const char **path);

/* Both accept NULL and do nothing then. `line`: an object of metrics.jsonl. */
void dsc_tensorboard_line(dsc_tensorboard *tensorboard, const struct json_t *line);
void dsc_tensorboard_spectrum(dsc_tensorboard *tensorboard, int64_t step, const dsc_kfac_spectrum *spectrum);

#endif
