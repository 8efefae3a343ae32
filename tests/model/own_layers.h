/* Layers that a program defines itself through the public interface, and networks of them. */
#ifndef DSC_TESTS_MODEL_OWN_LAYERS_H
#define DSC_TESTS_MODEL_OWN_LAYERS_H

#include "descent/layer.h"
#include "model/nets.h"

/* y = scale x + shift, with one pair per channel. Host devices. */
dsc_status own_scale_shift(dsc_model *m, const char *name, dsc_value x, dsc_value *y);
/* y = a tanh(b), element by element; saves tanh(b), and goes through a temporary. Host devices. */
dsc_status own_gate(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y);
/* y = -x, in place where possible. */
dsc_status own_negate(dsc_model *m, dsc_value x, dsc_value *y);
/* dsc_model_linear again, from the operations that it uses; linear for K-FAC. */
dsc_status own_dense(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias, dsc_value *y);

/* Terminated by a NULL name; for host devices. */
extern const net own_nets[];

#endif
