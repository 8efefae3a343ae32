/* Recordings: a sequence of operations that is recorded once and replayed as a whole, many times (a CUDA
 * graph).
 *
 * Between begin and end the operations of a queue do not run; they are recorded with their arguments. A
 * replay uses the same addresses and the same scalar arguments as the recording, but reads the current contents of the
 * memory. Nothing that waits, and no copy from or to the host, may be recorded. */
#ifndef DSC_DEVICE_RECORDING_H
#define DSC_DEVICE_RECORDING_H

#include "base/visible.h"
#include "descent/device.h"

typedef struct dsc_recording dsc_recording;

/* Returns 1 if the device can record. */
int dsc_device_records(const dsc_device *device);
/* Returns 1 between dsc_recording_begin and dsc_recording_end. */
DSC_MODULE_API int dsc_queue_is_recording(const dsc_queue *queue);

dsc_status dsc_recording_begin(dsc_queue *queue) DSC_MUST_CHECK;
/* Ends the recording. After a failure there is none, and the queue can be used as before. */
dsc_status dsc_recording_end(dsc_queue *queue, dsc_recording **out) DSC_MUST_CHECK;
/* Puts the recorded work into the queue. Asynchronous. */
dsc_status dsc_recording_replay(dsc_recording *recording, dsc_queue *queue) DSC_MUST_CHECK;
/* Accepts NULL and *recording == NULL. */
void dsc_recording_destroy(dsc_recording **recording);

#endif
