/* Images of a set that cannot be read: how many are allowed, and naming each of them once.
 *
 * A loader replaces such an image (dsc_loader_options.skip_bad) and reports it once an epoch, on whatever rank
 * has it in its batch. The sum of these reports over the ranks is therefore the number of different bad images
 * that the epoch has met so far, which does not depend on the number of ranks. */
#ifndef DSC_TRAIN_BAD_IMAGES_H
#define DSC_TRAIN_BAD_IMAGES_H

#include "descent/comm.h"
#include "descent/data.h"

typedef struct dsc_bad_images {
    const char *what;        /* "training" or "validation", for messages */
    int64_t count, limit;    /* images of the set; how many of them may be bad */
    dsc_bad_sample *pending; /* reported by this rank's loader, not named yet */
    int64_t pending_count, pending_capacity;
    int64_t *known; /* indices of the images that were named */
    int64_t known_count, known_capacity;
    char first[DSC_BAD_MESSAGE]; /* the message of the first that was named; "": none yet */
} dsc_bad_images;

/* Checks `rule`: "stop", "skip", "skip:N", or NULL, which is "skip". `prefix` stands before the option's
 * name. */
dsc_status dsc_bad_images_check_rule(const char *rule, const char *prefix) DSC_MUST_CHECK;
/* Starts without any bad images. `rule` must have been checked. */
void dsc_bad_images_init(dsc_bad_images *bad, const char *what, int64_t count, const char *rule);
void dsc_bad_images_free(dsc_bad_images *bad);

/* Moves the loader's reports to `pending`; *found is their number. */
dsc_status dsc_bad_images_take(dsc_bad_images *bad, dsc_loader *loader, int64_t *found) DSC_MUST_CHECK;
/* Writes a warning to rank 0's log for every pending image of all ranks that was not named before.
 * Collective; blocks. */
dsc_status dsc_bad_images_name(dsc_bad_images *bad, dsc_comm *comm, dsc_queue *queue) DSC_MUST_CHECK;
/* DSC_E_FORMAT when `found` are more than the limit. `more`: the end of the message, or "". */
dsc_status dsc_bad_images_check(const dsc_bad_images *bad, int64_t found, const char *more) DSC_MUST_CHECK;

#endif
