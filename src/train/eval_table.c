/* The options of evaluation. */
#include "base/option.h"
#include "base/versioned.h"
#include "descent/train.h"

#define AT(member) offsetof(dsc_eval_options, member)
static const dsc_option table[] = {
    {.name = "checkpoint",
     .kind = DSC_OPTION_STRING,
     .offset = AT(checkpoint),
     .placeholder = "FILE|DIR[:best|:latest|:STEP]",
     .default_text = "",
     .help =
         "a model file, or the directory of a run and which of its checkpoints; latest unless it is given",
     .group = "What to evaluate"},
    {.name = "data",
     .kind = DSC_OPTION_STRING,
     .offset = AT(data),
     .placeholder = "SPEC",
     .default_text = "what the checkpoint says",
     .help = "data set whose validation split is used: synthetic, cifar10:DIR, cifar100:DIR, mnist:DIR, "
             "imagefolder:DIR, webdataset:DIR or PATTERN, text:PATH, tokens:DIR, masks:DIR"},
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .default_text = "what the checkpoint says",
     .help = "model of the zoo"},
    {.name = "image-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(image_size),
     .placeholder = "N",
     .range = "[0, 4096]",
     .default_text = "what the checkpoint says",
     .help = "side of the centre crop of image folders, or of the tiles of masks, in pixels"},
    {.name = "seed",
     .kind = DSC_OPTION_UINT64,
     .offset = AT(seed),
     .value = "18446744073709551615",
     .placeholder = "N",
     .default_text = "what the checkpoint says",
     .help = "seed of synthetic images, which must be that of the training"},
    {.name = "val-split",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(val_split),
     .value = "-1",
     .placeholder = "X",
     .range = "[-1, 1)",
     .default_text = "what the checkpoint says",
     .help = "evaluate on this part of the training images, as train --val-split chose it; 0: the set's own "
             "validation images"},
    {.name = "context",
     .kind = DSC_OPTION_INT64,
     .offset = AT(context),
     .placeholder = "N",
     .range = "[0, 1e6]",
     .default_text = "what the checkpoint says",
     .help = "tokens, text: tokens of a sequence, at most as many as the model has positions"},
    {.name = "vocabulary",
     .kind = DSC_OPTION_INT64,
     .offset = AT(vocabulary),
     .placeholder = "N",
     .range = "[0, 16777215]",
     .default_text = "what the checkpoint says",
     .help = "tokens, text: tokens that the model has"},
    {.name = "mask",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(mask),
     .value = "-1",
     .placeholder = "RATE",
     .range = "[-1, 1]",
     .default_text = "what the checkpoint says",
     .help = "tokens, text: predict this part of the tokens, which are masked"},
    {.name = "mask-token",
     .kind = DSC_OPTION_INT64,
     .offset = AT(mask_token),
     .value = "-1",
     .placeholder = "N",
     .range = "[-1, 16777214]",
     .default_text = "what the checkpoint says",
     .help = "the number of the token that masks others: 103 in the vocabulary of BERT's files"},
    {.name = "bad-images",
     .kind = DSC_OPTION_STRING,
     .offset = AT(bad_images),
     .placeholder = "stop|skip:N",
     .default_text = "skip, up to 0.1 % of the set",
     .help = "image files that cannot be read: stop at the first, or skip up to N of a set, each named once, "
             "and then fail"},
    {.name = "batch-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(batch_size),
     .value = "128",
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "images per rank and batch",
     .group = "How to run"},
    {.name = "data-threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(data_threads),
     .value = "1",
     .placeholder = "N",
     .range = "[1, 1024]",
     .help = "threads per rank that prepare batches"},
    {.name = NULL},
};
#undef AT

const dsc_option *dsc_eval_option_table(void) {
    return table;
}

void dsc_eval_options_init_sized(dsc_eval_options *options, size_t size) {
    dsc_eval_options defaults = {0};
    dsc_option_defaults(table, &defaults);
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}
