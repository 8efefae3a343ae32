/* The `build` functions (dsc_zoo_entry) of the built-in models. */
#ifndef DSC_MODEL_ZOO_ZOO_H
#define DSC_MODEL_ZOO_ZOO_H

#include "descent/model.h"
#include "descent/options.h"

dsc_status dsc_zoo_mlp(void *unused, dsc_model *m, dsc_value x, int64_t classes,
                       dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_lenet(void *unused, dsc_model *m, dsc_value x, int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;
/* `depth` points to the number in the model's name, an int. */
dsc_status dsc_zoo_resnet_cifar(void *depth, dsc_model *m, dsc_value x, int64_t classes,
                                dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_resnet_imagenet(void *depth, dsc_model *m, dsc_value x, int64_t classes,
                                   dsc_value *logits) DSC_MUST_CHECK;

/* The design of a U-Net: what its spec can change, and batch_norm. */
typedef struct dsc_zoo_unet_design {
    int64_t width;  /* channels of the first block */
    int64_t depth;  /* how often the map is halved */
    double dropout; /* rate of dropout after the two blocks with the smallest maps */
    int batch_norm; /* 1: the padded variant with batch norm */
} dsc_zoo_unet_design;
extern const dsc_option dsc_zoo_unet_keys[];
/* Sets the margin of an entry to that of this design, and its side so that the output keeps its size. */
void dsc_zoo_unet_adapt(const void *design, dsc_zoo_entry *entry);
/* `design` is a dsc_zoo_unet_design. The logits are a map. */
dsc_status dsc_zoo_unet(void *design, dsc_model *m, dsc_value x, int64_t classes,
                        dsc_value *logits) DSC_MUST_CHECK;

/* The design of a GPT: what its spec can change, and gpt2. */
typedef struct dsc_zoo_gpt_design {
    int64_t layers, heads, width; /* number of blocks, heads per block, channels */
    double dropout;
    int bias; /* 1: linear layers and layer norms have biases */
    int gpt2; /* 1: the GELU of GPT-2 and the layout of its files; 0: those of nanoGPT */
} dsc_zoo_gpt_design;
extern const dsc_option dsc_zoo_gpt_keys[];
/* `design` is a dsc_zoo_gpt_design. x is tokens, `classes` the size of the vocabulary; the logits are a sequence. */
dsc_status dsc_zoo_gpt(void *design, dsc_model *m, dsc_value x, int64_t classes,
                       dsc_value *logits) DSC_MUST_CHECK;

/* DSC_E_INVALID unless `heads` divides `width`: all heads of a transformer have the same number of channels. */
dsc_status dsc_zoo_check_heads(int64_t width, int64_t heads) DSC_MUST_CHECK;

typedef struct dsc_zoo_bert_design {
    int64_t layers, heads, width;
    double dropout;
} dsc_zoo_bert_design;
extern const dsc_option dsc_zoo_bert_keys[];
/* `design` is a dsc_zoo_bert_design. Otherwise like dsc_zoo_gpt. */
dsc_status dsc_zoo_bert(void *design, dsc_model *m, dsc_value x, int64_t classes,
                        dsc_value *logits) DSC_MUST_CHECK;

/* Adds the input and the layers of the model with this spec to an empty model, without sealing it. */
dsc_status dsc_zoo_build(dsc_model *m, const char *spec, const int64_t shape[3], int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;

#endif
