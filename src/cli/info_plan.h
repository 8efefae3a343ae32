/* Prints the K-FAC plan for `descent info`. */
#ifndef DSC_CLI_INFO_PLAN_H
#define DSC_CLI_INFO_PLAN_H

#include "descent/kfac.h"

#include <jansson.h>

/* Prints grid, assignment, loads and totals. `options` are those the plan was made with, `layer_count` is the number of
 * layers it was made from. */
void dsc_info_plan_print(const dsc_kfac_plan *plan, const dsc_kfac_options *options, int64_t layer_count);
/* The same as a new JSON object, NULL when memory runs out. */
json_t *dsc_info_plan_json(const dsc_kfac_plan *plan, const dsc_kfac_options *options);

#endif
