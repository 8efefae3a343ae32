/* What `descent eval` shows of single classes, of confusions and of the calibration. */
#ifndef DSC_CLI_EVAL_REPORT_H
#define DSC_CLI_EVAL_REPORT_H

#include "descent/train.h"

#include <jansson.h>

/* The calibration error, the classes with the lowest accuracy and the most frequent confusions. */
void dsc_eval_report_print(const dsc_eval_report *report);
/* Segmentation: a line for every class with Dice coefficient and intersection over union. */
void dsc_eval_report_print_masks(const dsc_eval_report *report);
/* The means of both over the classes; 0 with too many classes. */
void dsc_eval_report_masks(const dsc_eval_report *report, double *dice, double *overlap);
/* A line for each class; the whole matrix. `what` has a class: an "image", "token" or "pixel". */
void dsc_eval_report_print_classes(const dsc_eval_report *report, const char *what);
void dsc_eval_report_print_confusion(const dsc_eval_report *report, const char *what);
/* All of it, as members of one object; NULL when there is no memory. */
json_t *dsc_eval_report_json(const dsc_eval_report *report);

#endif
