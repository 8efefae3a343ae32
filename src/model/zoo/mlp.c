/* A multilayer perceptron with two hidden layers: flatten, fc1 (256 features), ReLU, fc2 (128), ReLU, fc3. */
#include "base/error.h"
#include "model/zoo/zoo.h"

dsc_status dsc_zoo_mlp(void *unused, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    (void)unused;
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 256, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc2", x, 128, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    return dsc_model_linear(m, "fc3", x, classes, 1, logits);
}
