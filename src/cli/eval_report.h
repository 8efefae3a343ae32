/* The parts of `descent eval` that print single classes, confusions and the calibration. */
#ifndef DSC_CLI_EVAL_REPORT_H
#define DSC_CLI_EVAL_REPORT_H

#include "descent/train.h"

#include <jansson.h>

/* Prints the calibration error, the classes with the lowest accuracy and the most frequent confusions. */
void dsc_eval_report_print(const dsc_eval_report *report);
/* For segmentation: prints a line for every class with Dice coefficient and intersection over union. */
void dsc_eval_report_print_masks(const dsc_eval_report *report);
/* Computes the means of both over the classes; 0 with too many classes for a confusion matrix. */
void dsc_eval_report_masks(const dsc_eval_report *report, double *dice, double *overlap);
/* Prints a line for each class, or the whole confusion matrix. `what` names the things that are classified: "image",
 * "token" or "pixel". */
void dsc_eval_report_print_classes(const dsc_eval_report *report, const char *what);
void dsc_eval_report_print_confusion(const dsc_eval_report *report, const char *what);
/* The whole report, as members of one object; NULL when there is no memory. */
json_t *dsc_eval_report_json(const dsc_eval_report *report);

#endif
