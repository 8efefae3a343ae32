/* What a layer is to K-FAC: its shapes, checked, and the sizes of its factors.
 *
 * Per group of a convolution (a linear layer has one, and a 1x1 kernel):
 *   A has kernel_h * kernel_w * in_c / groups rows, one more with a bias;  G has out_c / groups. */
#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "kfac/plan.h"

#include <regex.h>
#include <string.h>

enum {
    MAX_FACTOR_ROWS = 1 << 24, /* 10^15 bytes of float32: any sum over layers still fits into 64 bits */
    MAX_SIDE = 1 << 24         /* of images, kernels, strides, paddings, dilations */
};
/* Characters of a name: entries of a checkpoint add a few. */
enum { MAX_NAME = 400 };

void dsc_kfac_layer_init(dsc_kfac_layer *layer) {
    *layer = (dsc_kfac_layer){
        .kernel_h = 1,
        .kernel_w = 1,
        .stride_h = 1,
        .stride_w = 1,
        .dilation_h = 1,
        .dilation_w = 1,
        .groups = 1,
    };
}

/* ---- sizes ---- */

static int64_t output_side(int64_t in, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
    int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

void dsc_kfac_layer_output(const dsc_kfac_layer *layer, int64_t *out_h, int64_t *out_w) {
    const dsc_kfac_layer *l = layer;
    *out_h = *out_w = 1;
    if (l->kind == DSC_KFAC_LINEAR)
        return;
    *out_h = output_side(l->in_h, l->kernel_h, l->stride_h, l->pad_h, l->dilation_h);
    *out_w = output_side(l->in_w, l->kernel_w, l->stride_w, l->pad_w, l->dilation_w);
}

int64_t dsc_kfac_layer_groups(const dsc_kfac_layer *layer) {
    return layer->kind == DSC_KFAC_LINEAR ? 1 : layer->groups;
}

/* Columns of the weight matrix. */
static int64_t weight_columns(const dsc_kfac_layer *l) {
    return l->kind == DSC_KFAC_LINEAR ? l->in_c : l->kernel_h * l->kernel_w * (l->in_c / l->groups);
}

int64_t dsc_kfac_layer_a(const dsc_kfac_layer *layer) {
    return weight_columns(layer) + (layer->bias_grad.data != NULL);
}

int64_t dsc_kfac_layer_g(const dsc_kfac_layer *layer) {
    return layer->out_c / dsc_kfac_layer_groups(layer);
}

int64_t dsc_kfac_natural_column(const dsc_kfac_layer *layer, int64_t j) {
    if (layer->kind == DSC_KFAC_LINEAR || j >= weight_columns(layer))
        return j;
    int64_t patch = layer->kernel_h * layer->kernel_w, channels = layer->in_c / layer->groups;
    return j % patch * channels + j / patch;
}

/* ---- checks ---- */

static dsc_status check_side(const dsc_kfac_layer *l, const char *what, int64_t value, int64_t least) {
    if (value < least || value > MAX_SIDE)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': %s %lld: must be in %lld..%d", l->name, what,
                        (long long)value, (long long)least, MAX_SIDE);
    return DSC_OK;
}

static dsc_status check_rows(const dsc_kfac_layer *l, char factor, int64_t rows) {
    if (rows > MAX_FACTOR_ROWS)
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': factor %c would have %lld rows, at most %d are possible: skip the layer",
                        l->name, factor, (long long)rows, MAX_FACTOR_ROWS);
    return DSC_OK;
}

static dsc_status check_conv(const dsc_kfac_layer *l) {
    DSC_TRY(check_side(l, "input height", l->in_h, 1));
    DSC_TRY(check_side(l, "input width", l->in_w, 1));
    DSC_TRY(check_side(l, "kernel height", l->kernel_h, 1));
    DSC_TRY(check_side(l, "kernel width", l->kernel_w, 1));
    DSC_TRY(check_side(l, "stride", l->stride_h < l->stride_w ? l->stride_h : l->stride_w, 1));
    DSC_TRY(check_side(l, "padding", l->pad_h < l->pad_w ? l->pad_h : l->pad_w, 0));
    DSC_TRY(check_side(l, "padding", l->pad_h > l->pad_w ? l->pad_h : l->pad_w, 0));
    DSC_TRY(check_side(l, "dilation", l->dilation_h < l->dilation_w ? l->dilation_h : l->dilation_w, 1));
    DSC_TRY(check_side(l, "dilation", l->dilation_h > l->dilation_w ? l->dilation_h : l->dilation_w, 1));
    if (l->groups < 1 || l->in_c % l->groups || l->out_c % l->groups)
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': %lld groups: must divide its %lld input and %lld output channels",
                        l->name, (long long)l->groups, (long long)l->in_c, (long long)l->out_c);
    DSC_TRY(check_rows(l, 'A', l->kernel_h * l->kernel_w)); /* before it is multiplied by the channels */
    int64_t out_h, out_w;
    dsc_kfac_layer_output(l, &out_h, &out_w);
    if (out_h < 1 || out_w < 1)
        return DSC_FAIL(
            DSC_E_INVALID, "layer '%s': its kernel of %lld x %lld does not fit into its input of %lld x %lld",
            l->name, (long long)l->kernel_h, (long long)l->kernel_w, (long long)l->in_h, (long long)l->in_w);
    return DSC_OK;
}

static dsc_status check_gradient(const dsc_kfac_layer *l, const char *what, const dsc_tensor *t,
                                 int64_t count) {
    if (!t->data)
        return DSC_OK;
    if (dsc_tensor_count(t) != count)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': the gradient of its %s has %lld numbers: must be %lld",
                        l->name, what, (long long)dsc_tensor_count(t), (long long)count);
    if (t->dtype != DSC_F32 && t->dtype != DSC_F64)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': the gradient of its %s is %s: must be fp32 or fp64",
                        l->name, what, dsc_dtype_name(t->dtype));
    if (l->weight_grad.data && (t->dtype != l->weight_grad.dtype || t->device != l->weight_grad.device))
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': the gradients of its weight and bias must be of one type and on one "
                        "device",
                        l->name);
    return DSC_OK;
}

static dsc_status check_name(const dsc_kfac_layer *l) {
    if (!l->name || !*l->name)
        return DSC_FAIL(DSC_E_INVALID, "a K-FAC layer without a name");
    if (strlen(l->name) > MAX_NAME)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC layer '%.40s...': its name has %zu characters, at most %d are possible",
                        l->name, strlen(l->name), MAX_NAME);
    return DSC_OK;
}

dsc_status dsc_kfac_layer_check(const dsc_kfac_layer *layer) {
    const dsc_kfac_layer *l = layer;
    DSC_TRY(check_name(l));
    if (l->kind != DSC_KFAC_LINEAR && l->kind != DSC_KFAC_CONV2D)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': kind %d: must be linear (%d) or conv2d (%d)", l->name,
                        (int)l->kind, DSC_KFAC_LINEAR, DSC_KFAC_CONV2D);
    DSC_TRY(check_side(l, "inputs", l->in_c, 1));
    DSC_TRY(check_side(l, "outputs", l->out_c, 1));
    if (l->kind == DSC_KFAC_CONV2D)
        DSC_TRY(check_conv(l));
    DSC_TRY(check_rows(l, 'A', dsc_kfac_layer_a(l)));
    DSC_TRY(check_rows(l, 'G', dsc_kfac_layer_g(l)));
    DSC_TRY(check_gradient(l, "weight", &l->weight_grad, l->out_c * weight_columns(l)));
    DSC_TRY(check_gradient(l, "bias", &l->bias_grad, l->out_c));
    return DSC_OK;
}

/* ---- layers left out ---- */

/* Marks the layers that one expression is found in. */
static dsc_status skip_one(const dsc_kfac_layer *layers, int64_t count, const char *expression,
                           unsigned char *skip) {
    regex_t regex;
    int code = regcomp(&regex, expression, REG_EXTENDED | REG_NOSUB);
    if (code) {
        char why[128];
        regerror(code, &regex, why, sizeof why);
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC layers to skip: '%s' is not a POSIX extended regular expression: %s",
                        expression, why);
    }
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *kind = layers[i].kind == DSC_KFAC_CONV2D ? "conv2d" : "linear";
        int matches =
            regexec(&regex, layers[i].name, 0, NULL, 0) == 0 || regexec(&regex, kind, 0, NULL, 0) == 0;
        skip[i] |= (unsigned char)matches;
        found |= matches;
    }
    regfree(&regex);
    if (!found)
        dsc_log(DSC_LOG_WARNING, "K-FAC layers to skip: '%s' is found in no layer's name or kind",
                expression);
    return DSC_OK;
}

dsc_status dsc_kfac_skip(const dsc_kfac_layer *layers, int64_t count, const char *expressions,
                         unsigned char *skip) {
    memset(skip, 0, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(check_name(&layers[i]));
    if (!expressions)
        return DSC_OK;
    char *text;
    DSC_TRY(dsc_memory_strdup(expressions, &text));
    dsc_status status = DSC_OK;
    for (char *word = text; status == DSC_OK;) {
        word += strspn(word, " \t\n");
        if (!*word)
            break;
        char *end = word + strcspn(word, " \t\n");
        int last = *end == '\0';
        *end = '\0';
        status = skip_one(layers, count, word, skip);
        word = last ? end : end + 1;
    }
    dsc_memory_free(&text);
    return status;
}
