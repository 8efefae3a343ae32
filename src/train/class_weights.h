/* Weights of classes in the training loss. */
#ifndef DSC_TRAIN_CLASS_WEIGHTS_H
#define DSC_TRAIN_CLASS_WEIGHTS_H

#include "train/trainer_internal.h"

/* Gives t->exec the weights that options.class_weights asks for; does nothing without that option. They are scaled so
 * that their mean over the training samples is 1, and a learning rate means the same as without them. Collective;
 * fails on all ranks or on none. */
dsc_status dsc_class_weights_set(dsc_trainer *t) DSC_MUST_CHECK;

/* Reads `count` numbers of 0 or more, separated by white space, from a text of `length` bytes, which has a 0 after
 * them; # starts a comment. `file` is the name in messages. */
dsc_status dsc_class_weights_read(const char *file, const char *text, size_t length, double *weights,
                                  int64_t count) DSC_MUST_CHECK;

#endif
