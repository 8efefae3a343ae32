/* LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: two 5x5 convolutions with 6 and 16 channels, each
 * followed by 2x2 max pooling, then linear layers with 120, 84 and `classes` features. */
#include "base/error.h"
#include "model/zoo/zoo.h"

static dsc_status conv_block(dsc_model *m, const char *name, dsc_value x, int64_t channels, int64_t pad,
                             dsc_value *y) {
    dsc_conv2d_shape conv;
    dsc_conv2d_shape_init(&conv);
    conv.out_c = channels;
    conv.kernel_h = conv.kernel_w = 5;
    conv.pad_h = conv.pad_w = pad;
    DSC_TRY(dsc_model_conv2d(m, name, x, &conv, 1, y));
    DSC_TRY(dsc_model_relu(m, *y, y));
    return dsc_model_max_pool(m, *y, 2, 2, 0, y);
}

dsc_status dsc_zoo_lenet(void *unused, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    (void)unused;
    DSC_TRY(conv_block(m, "conv1", x, 6, 2, &x));
    DSC_TRY(conv_block(m, "conv2", x, 16, 0, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 120, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc2", x, 84, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    return dsc_model_linear(m, "fc3", x, classes, 1, logits);
}
