/* The options of descent train. */
#include "cli/train_options.h"

#include "base/error.h"
#include "cli/outdir.h"
#include "descent/model.h"

#include <string.h>

#define AT(member) offsetof(dsc_cli_train_values, member)

const dsc_option dsc_cli_train_options[] = {
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(o.model),
     .placeholder = "NAME",
     .help = "mlp, lenet, resnet20/32/44/56/110 (CIFAR), resnet18/34/50/101/152 (ImageNet)",
     .group = "What to train"},
    {.name = "data",
     .kind = DSC_OPTION_STRING,
     .offset = AT(o.data),
     .placeholder = "SPEC",
     .help = "synthetic (needs no files; synthetic:N has N images), cifar10:DIR, cifar100:DIR, mnist:DIR "
             "(any IDX set), imagefolder:DIR"},
    {.name = "image-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.image_size),
     .placeholder = "N",
     .range = "[0, 65536]",
     .shown = "224",
     .help = "imagefolder: side of the crop in pixels"},
    {.name = "no-augment",
     .kind = DSC_OPTION_NO_FLAG,
     .offset = AT(o.augment),
     .help = "train on the images as they are, without random crops and flips"},
    {.name = "epochs",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.epochs),
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "passes over the training set"},
    {.name = "steps",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.steps),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .shown = "no limit",
     .help = "end after so many steps in all"},
    {.name = "batch-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.batch_size),
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "images per rank and step"},
    {.name = "val-batch-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.val_batch_size),
     .placeholder = "N",
     .range = "[0, 1e9]",
     .shown = "--batch-size",
     .help = "images per rank and step of evaluation"},
    {.name = "seed",
     .kind = DSC_OPTION_UINT64,
     .offset = AT(o.seed),
     .placeholder = "N",
     .help = "of weights, order, augmentation and synthetic images"},
    {.name = "device",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(device),
     .choices = "auto|ref|cpu",
     .help = "where to compute; ref is slow and plain",
     .group = "Where to run"},
    {.name = "threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(threads),
     .placeholder = "N",
     .range = "[0, 4096]",
     .shown = "the CPUs of this rank",
     .help = "CPU threads per rank"},
    {.name = "data-threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(o.data_threads),
     .placeholder = "N",
     .range = "[1, 1024]",
     .help = "threads per rank that prepare batches"},
    {.name = "precision",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(precision),
     .choices = "fp32|bf16|fp16",
     .help = "of activations; bf16 and fp16 need a GPU"},
    {.name = "optimizer",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(optimizer),
     .choices = "sgd|adam|adamw|lars|lamb",
     .help = "how gradients become steps",
     .group = "Optimiser"},
    {.name = "momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.momentum),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "sgd, lars"},
    {.name = "nesterov",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(o.optim.nesterov),
     .help = "sgd: Nesterov's momentum"},
    {.name = "weight-decay",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.weight_decay),
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "pull of all parameters towards 0"},
    {.name = "beta1",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.beta1),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the mean of gradients"},
    {.name = "beta2",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.beta2),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the mean of their squares"},
    {.name = "eps",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.eps),
     .placeholder = "X",
     .range = "[0, inf)",
     .shown = "1e-8, with lamb 1e-6",
     .help = "adam, adamw, lamb: added to the root of the mean square"},
    {.name = "trust",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.trust),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "lars: size of a step relative to the weights"},
    {.name = "clip-norm",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.optim.clip_norm),
     .placeholder = "X",
     .range = "[0, inf)",
     .shown = "off",
     .help = "scale gradients so that their joint norm is at most X"},
    {.name = "label-smoothing",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.label_smoothing),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "share of the label spread over all classes"},
    {.name = "kfac-update-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(kfac_update_freq),
     .placeholder = "N",
     .range = "[0, inf)",
     .help = "steps between K-FAC decompositions; 0 turns K-FAC off, and this build has none"},
    {.name = "lr",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.lr),
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "rate of one rank",
     .group = "Learning rate"},
    {.name = "lr-scaling",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(lr_scaling),
     .choices = "ranks|none",
     .help = "ranks: the target is lr x ranks x batches-per-allreduce; none: lr"},
    {.name = "warmup-epochs",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.warmup_epochs),
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "epochs in which the rate rises to its target, step by step"},
    {.name = "warmup-start",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.warmup_start),
     .placeholder = "X",
     .range = "[0, inf)",
     .shown = "--lr",
     .help = "rate of the first step"},
    {.name = "lr-schedule",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(lr_schedule),
     .choices = "step|cosine",
     .help = "after warm-up: decay at given epochs, or half a cosine to 0"},
    {.name = "lr-decay",
     .kind = DSC_OPTION_LIST,
     .offset = AT(o.lr_decay),
     .count_offset = AT(o.lr_decay_count),
     .capacity = DSC_MAX_DECAYS,
     .placeholder = "E...",
     .range = "[0, inf)",
     .shown = "none",
     .help = "step: epochs at which the rate is multiplied by the decay rate"},
    {.name = "lr-decay-rate",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.lr_decay_rate),
     .placeholder = "X",
     .range = "[0, 1]",
     .help = "step: what it is multiplied by"},
    {.name = "consensus",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(consensus),
     .choices = "allreduce",
     .help = "how ranks agree: gradients are averaged over all ranks",
     .group = "Many ranks"},
    {.name = "batches-per-allreduce",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.batches_per_allreduce),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "batches whose gradients are added up for one step"},
    {.name = "allreduce-dtype",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(allreduce_dtype),
     .choices = "fp32|bf16|fp16",
     .help = "type in which gradients travel"},
    {.name = "bucket-mb",
     .kind = DSC_OPTION_MIB,
     .offset = AT(o.consensus.bucket_bytes),
     .placeholder = "X",
     .range = "(0, 1e6]",
     .help = "MiB of gradients that travel together"},
    {.name = "check-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.check_every),
     .placeholder = "N",
     .range = "[0, inf)",
     .help = "steps between comparisons of the ranks' parameters; 0: never"},
    {.name = "out",
     .kind = DSC_OPTION_STRING,
     .offset = AT(o.out),
     .placeholder = "DIR",
     .shown = "runs/MODEL-DATA-SEED",
     .help = "directory of metrics.jsonl and checkpoints; none: write nothing",
     .group = "Output"},
    {.name = "resume",
     .kind = DSC_OPTION_STRING,
     .offset = AT(o.resume),
     .placeholder = "auto|FILE",
     .bare = "auto",
     .shown = "",
     .help = "go on from the latest checkpoint in the output directory, if there is one, or from FILE"},
    {.name = "overwrite",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(overwrite),
     .help = "remove a run that is in the output directory"},
    {.name = "checkpoint-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.checkpoint_every),
     .placeholder = "N",
     .range = "[-1, inf)",
     .help = "steps between checkpoints; 0: every epoch, -1: only at the end"},
    {.name = "keep",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.keep),
     .placeholder = "K",
     .range = "[0, inf)",
     .help = "checkpoints kept besides the best and the last"},
    {.name = "eval-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.eval_every),
     .placeholder = "N",
     .range = "[0, inf)",
     .help = "epochs between evaluations; 0: never"},
    {.name = "log-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.log_every),
     .placeholder = "N",
     .range = "[1, inf)",
     .help = "steps between step lines in metrics.jsonl"},
    {.name = "plot",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(plot),
     .help = "plot the accuracy over the epochs at the end"},
    DSC_CLI_COMMON_OPTIONS,
};

void dsc_cli_train_init(void *values) {
    dsc_cli_train_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_train_options_init(&v->o);
    v->device = "auto";
    v->precision = "fp32";
    v->optimizer = dsc_optim_name(v->o.optim.kind);
    v->lr_schedule = v->o.lr_schedule == DSC_SCHEDULE_COSINE ? "cosine" : "step";
    v->lr_scaling = v->o.lr_scaling ? "ranks" : "none";
    v->allreduce_dtype = dsc_dtype_name(v->o.consensus.wire);
    v->consensus = dsc_consensus_name(v->o.consensus.kind);
}

static dsc_dtype dtype_of(const char *name) {
    return strcmp(name, "bf16") == 0 ? DSC_BF16 : strcmp(name, "fp16") == 0 ? DSC_F16 : DSC_F32;
}

/* What is a word of the contract, but not in this build. */
static dsc_status check_supported(const dsc_cli_train_values *v) {
    if (strcmp(v->precision, "fp32") != 0)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "--precision %s: the devices of this build are CPUs and compute in fp32 only; leave the "
            "option out (gradients alone can travel as %s: --allreduce-dtype %s)",
            v->precision, v->precision, v->precision);
    if (v->kfac_update_freq > 0)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "--kfac-update-freq %lld: this build has no K-FAC; leave the option out or give 0 to train "
            "with the plain gradient",
            (long long)v->kfac_update_freq);
    return DSC_OK;
}

dsc_status dsc_cli_train_finish(dsc_cli_train_values *v) {
    int64_t side, channels, classes;
    DSC_TRY(check_supported(v));
    DSC_TRY(dsc_zoo_default_input(v->o.model, &side, &channels, &classes));
    if (v->overwrite && v->o.resume)
        return DSC_FAIL(DSC_E_INVALID,
                        "--overwrite and --resume %s exclude each other: a run is either started anew "
                        "or continued",
                        v->o.resume);
    DSC_TRY(dsc_optim_parse(v->optimizer, &v->o.optim.kind));
    DSC_TRY(dsc_consensus_parse(v->consensus, &v->o.consensus.kind));
    v->o.consensus.wire = dtype_of(v->allreduce_dtype);
    v->o.lr_schedule = strcmp(v->lr_schedule, "cosine") == 0 ? DSC_SCHEDULE_COSINE : DSC_SCHEDULE_STEP;
    v->o.lr_scaling = strcmp(v->lr_scaling, "ranks") == 0;
    if (!v->o.out)
        v->o.out =
            dsc_outdir_default(v->o.model, v->o.data, v->o.seed, v->default_out, sizeof v->default_out);
    else if (strcmp(v->o.out, "none") == 0)
        v->o.out = NULL;
    if (!v->o.out && v->o.resume && strcmp(v->o.resume, "auto") == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "--resume auto looks into the output directory, but --out is none: name the "
                        "directory or a checkpoint file");
    return DSC_OK;
}
