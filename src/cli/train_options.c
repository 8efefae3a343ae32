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
    {DSC_CLI_IMAGE_SIZE(AT(o.image_size)), .shown = "what the model is made for",
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
    {DSC_CLI_BATCH_SIZE(AT(o.batch_size)), .help = "images per rank and step"},
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
    {DSC_CLI_DEVICE(AT(device)),
     .help = "where to compute; auto: a GPU where there is one; ref is slow and plain",
     .group = "Where to run"},
    {DSC_CLI_THREADS(AT(threads))},
    {.name = "comm",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(comm),
     .choices = "auto|mpi|nccl",
     .help =
         "what carries tensors of GPUs between ranks; mpi copies them over the host; auto: nccl where every "
         "rank has a GPU of its own, mpi for adpsgd"},
    {DSC_CLI_DATA_THREADS(AT(o.data_threads))},
    {DSC_CLI_PRECISION(AT(precision))},
    {.name = "tune",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(tune),
     .help =
         "on a GPU, time what could run each convolution at the start and keep the fastest; a run that is "
         "resumed keeps its choices"},
    {.name = "optimizer",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(optimizer),
     .choices = "sgd|adam|adamw|lars|lamb",
     .help = "how gradients become steps",
     .group = "Optimiser"},
    {.name = "momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.momentum),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "sgd, lars"},
    {.name = "nesterov",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(part.optim.nesterov),
     .help = "sgd: Nesterov's momentum"},
    {.name = "weight-decay",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.weight_decay),
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "pull of all parameters towards 0"},
    {.name = "beta1",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.beta1),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the mean of gradients"},
    {.name = "beta2",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.beta2),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the mean of their squares"},
    {.name = "eps",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.eps),
     .placeholder = "X",
     .range = "[0, inf)",
     .shown = "1e-8, with lamb 1e-6",
     .help = "adam, adamw, lamb: added to the root of the mean square"},
    {.name = "trust",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.trust),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "lars: size of a step relative to the weights"},
    {.name = "clip-norm",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.optim.clip_norm),
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
    {.name = "kfac-update-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(part.kfac.update_freq),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between decompositions; 0 turns K-FAC off",
     .group = "Preconditioner (K-FAC)"},
    {.name = "kfac-cov-update-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(part.kfac.factor_freq),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between updates of the factors; 0: never"},
    {.name = "kfac-damping",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.kfac.damping),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "added to the products of eigenvalues (inverse: to both factors)"},
    {.name = "kfac-stat-decay",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.kfac.stat_decay),
     .placeholder = "X",
     .range = "[0, 1]",
     .help = "what a factor keeps of itself in an update"},
    {.name = "kfac-kl-clip",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.kfac.kl_clip),
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "bound of the change that a step makes to the model's output; 0: none"},
    {.name = "kfac-damping-alpha",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.kfac_damping_alpha),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "what the damping is multiplied by at each of its decay epochs"},
    {.name = "kfac-damping-decay",
     .kind = DSC_OPTION_LIST,
     .offset = AT(o.kfac_damping_decay),
     .count_offset = AT(o.kfac_damping_decay_count),
     .capacity = DSC_MAX_DECAYS,
     .placeholder = "E...",
     .range = "[0, inf)",
     .shown = "none",
     .help = "those epochs"},
    {.name = "kfac-update-freq-alpha",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.kfac_update_freq_alpha),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "what both numbers of steps are multiplied by at each of their decay epochs"},
    {.name = "kfac-update-freq-decay",
     .kind = DSC_OPTION_LIST,
     .offset = AT(o.kfac_update_freq_decay),
     .count_offset = AT(o.kfac_update_freq_decay_count),
     .capacity = DSC_MAX_DECAYS,
     .placeholder = "E...",
     .range = "[0, inf)",
     .shown = "none",
     .help = "those epochs"},
    {.name = "kfac-fisher",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(kfac_fisher),
     .choices = "empirical|sampled",
     .help = "factors of the true labels' gradients, or of labels drawn from the model's output (one more "
             "backward pass when factors are updated)"},
    {.name = "kfac-scaling",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(kfac_scaling),
     .choices = "paper|kfac-pytorch",
     .help = "size of a convolution's factors; kfac-pytorch's vanish beside common dampings"},
    {.name = "kfac-scope",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(gossip.kfac_scope),
     .choices = "global|gossip|local",
     .help =
         "with gossip: factors are averaged over all ranks (every step waits for all), with the peers, or "
         "not at all"},
    DSC_CLI_KFAC_OPTIONS(dsc_cli_train_values, kfac, NULL),
    {.name = "kfac-diag-warmup",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.kfac_diag_warmup),
     .placeholder = "E",
     .range = "[0, inf)",
     .help = "whole factors before this epoch, diagonal blocks from it on"},
    {.name = "consensus",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(gossip.consensus),
     .choices = "allreduce|sgp|osgp|dpsgd|adpsgd",
     .help = "how ranks agree: gradients are averaged over all of them, or parameters with a few peers by "
             "gossip: stochastic gradient push, the same overlapped with computing, exchange in pairs, pairs "
             "at any moment",
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
     .help = "type in which gradients, or the parameters of gossip, travel"},
    {.name = "bucket-mb",
     .kind = DSC_OPTION_MIB,
     .offset = AT(part.consensus.bucket_bytes),
     .placeholder = "X",
     .range = "(0, 1e6]",
     .help = "MiB of gradients, parameters or factors that travel together"},
    {.name = "check-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.check_every),
     .placeholder = "N",
     .range = "[0, inf)",
     .help = "steps between comparisons of the ranks' parameters; 0: never"},
    {DSC_CLI_PEER_TIMEOUT(AT(part.consensus.peer_timeout))},
    {.name = "on-peer-loss",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(gossip.on_peer_loss),
     .choices = "stop|continue",
     .help = "what then; continue: with gossip the others go on, where the launcher lets them (mpirun "
             "--enable-recovery)"},
    {.name = "graph",
     .kind = DSC_OPTION_STRING,
     .offset = AT(part.consensus.graph),
     .placeholder = "NAME|FILE",
     .shown = "exponential; dpsgd, adpsgd: bipartite-exponential, dpsgd on an odd number of ranks: base-2",
     .help = "who sends to whom: exponential, exponential-pm, linear, ring, static-exponential, complete, "
             "bipartite-exponential, bipartite-linear, hypercube, base-2, or a file (with a / in its name or "
             "ending in .graph)",
     .group = "Gossip"},
    {.name = "peers-per-step",
     .kind = DSC_OPTION_INT,
     .offset = AT(part.consensus.peers),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "peers that a rank sends to in a step"},
    {.name = "peers-schedule",
     .kind = DSC_OPTION_STRING,
     .offset = AT(gossip.peers_schedule),
     .placeholder = "E:N...",
     .shown = "none",
     .help = "peers per step from the start of epochs on, as '0:1 30:2' or 0:1,30:2"},
    {.name = "synch-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(part.consensus.synch_freq),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "osgp: steps that messages may be late before a rank waits for them"},
    {.name = "gossip-group",
     .kind = DSC_OPTION_INT,
     .offset = AT(part.consensus.group),
     .placeholder = "N",
     .range = "[0, 1e6]",
     .help = "ranks that average their gradients and gossip as one, neighbours in rank order; 0: those of a "
             "node"},
    {.name = "average-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(part.consensus.average_every),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between exact averages over all ranks; 0: never"},
    {.name = "slow-momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.consensus.slow_momentum),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "momentum of the way from one exact average to the next (SlowMo)"},
    {.name = "slow-rate",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(part.consensus.slow_rate),
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "and its learning rate"},
    {.name = "bn-average",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(o.bn_average),
     .help = "evaluate and save batch-norm statistics averaged over the ranks, not rank 0's"},
    {.name = "eval-ranks",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(o.eval_ranks),
     .help = "evaluate every rank's own model, too, beside their average"},
    {.name = "distance-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(o.distance_every),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between measurements of how far the ranks are apart, at which all meet; 0: at "
             "evaluations only"},
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
    dsc_optim_options_init(&v->part.optim);
    dsc_consensus_options_init(&v->part.consensus);
    dsc_kfac_options_init(&v->part.kfac);
    v->part.kfac.update_freq = 0;
    v->o.optim = &v->part.optim;
    v->o.consensus = &v->part.consensus;
    v->o.kfac = &v->part.kfac;
    v->device = "auto";
    v->comm = "auto";
    v->precision = "fp32";
    v->optimizer = dsc_optim_name(v->part.optim.kind);
    v->lr_schedule = v->o.lr_schedule == DSC_SCHEDULE_COSINE ? "cosine" : "step";
    v->lr_scaling = v->o.lr_scaling ? "ranks" : "none";
    v->allreduce_dtype = dsc_dtype_name(v->part.consensus.wire);
    v->kfac_fisher = dsc_fisher_name(v->o.kfac_fisher);
    v->kfac_scaling = dsc_kfac_scaling_name(v->part.kfac.scaling);
    dsc_cli_gossip_init(&v->gossip, &v->o);
    dsc_cli_kfac_init(&v->kfac);
}

/* What only a GPU has. */
static dsc_status check_supported(const dsc_cli_train_values *v) {
    int host = strcmp(v->device, "cpu") == 0 || strcmp(v->device, "ref") == 0;
    if (host && v->tune)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "--tune: device %s has nothing to tune; use --device cuda or leave the option out",
                        v->device);
    if (host && strcmp(v->precision, "fp32") != 0)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "--precision %s: device %s computes in fp32 only; use --device cuda or leave the option "
            "out (gradients alone can travel as %s: --allreduce-dtype %s)",
            v->precision, v->device, v->precision, v->precision);
    return DSC_OK;
}

/* Options that some optimisers do not have. */
static const struct fit {
    const char *name;
    unsigned kinds;
    const char *text; /* of `kinds` */
} fits[] = {
    {"momentum", 1u << DSC_SGD | 1u << DSC_LARS, "one of sgd, lars"},
    {"nesterov", 1u << DSC_SGD, "sgd"},
    {"beta1", 1u << DSC_ADAM | 1u << DSC_ADAMW | 1u << DSC_LAMB, "one of adam, adamw, lamb"},
    {"beta2", 1u << DSC_ADAM | 1u << DSC_ADAMW | 1u << DSC_LAMB, "one of adam, adamw, lamb"},
    {"eps", 1u << DSC_ADAM | 1u << DSC_ADAMW | 1u << DSC_LAMB, "one of adam, adamw, lamb"},
    {"trust", 1u << DSC_LARS, "lars"},
};

/* What would be ignored. */
static dsc_status check_fits(const dsc_cli_train_values *v, const dsc_option_set *set) {
    static const char *const steps[] = {"lr-decay", "lr-decay-rate"};
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++)
        if (dsc_option_given(set, fits[i].name) && !(fits[i].kinds & 1u << v->part.optim.kind))
            return DSC_FAIL(DSC_E_INVALID, "--%s does not go with --optimizer %s: choose %s or leave it out",
                            fits[i].name, v->optimizer, fits[i].text);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (dsc_option_given(set, steps[i]) && strcmp(v->lr_schedule, "cosine") == 0)
            return DSC_FAIL(DSC_E_INVALID,
                            "--%s does not go with --lr-schedule cosine: give step or leave it out",
                            steps[i]);
    return DSC_OK;
}

/* K-FAC that was turned off by name may leave its other options, those of a file say. */
static dsc_status check_kfac_on(const dsc_option_set *set) {
    if (dsc_option_given(set, "kfac-update-freq"))
        return DSC_OK;
    for (const dsc_option *option = dsc_cli_train_options; option->name; option++)
        if (strncmp(option->name, "kfac-", 5) == 0 && dsc_option_given(set, option->name))
            return DSC_FAIL(DSC_E_INVALID,
                            "--%s is an option of K-FAC, which is off: give --kfac-update-freq N, too, or "
                            "leave it out",
                            option->name);
    return DSC_OK;
}

static dsc_status finish_kfac(dsc_cli_train_values *v, const dsc_option_set *set) {
    DSC_TRY(dsc_fisher_parse(v->kfac_fisher, &v->o.kfac_fisher));
    DSC_TRY(dsc_kfac_scaling_parse(v->kfac_scaling, &v->part.kfac.scaling));
    v->part.kfac.bucket_bytes = v->part.consensus.bucket_bytes;
    DSC_TRY(dsc_cli_kfac_finish(&v->kfac, &v->part.kfac));
    return check_kfac_on(set);
}

dsc_status dsc_cli_train_finish(dsc_cli_train_values *v, const dsc_option_set *set) {
    int64_t side, channels, classes;
    DSC_TRY(check_supported(v));
    DSC_TRY(dsc_zoo_default_input(v->o.model, &side, &channels, &classes));
    if (v->overwrite && v->o.resume)
        return DSC_FAIL(DSC_E_INVALID,
                        "--overwrite and --resume %s exclude each other: a run is either started anew "
                        "or continued",
                        v->o.resume);
    DSC_TRY(dsc_optim_parse(v->optimizer, &v->part.optim.kind));
    DSC_TRY(check_fits(v, set));
    DSC_TRY(dsc_cli_gossip_finish(&v->gossip, set, &v->o, &v->part.consensus));
    DSC_TRY(finish_kfac(v, set));
    v->part.consensus.wire = dsc_cli_dtype(v->allreduce_dtype);
    v->o.activations = dsc_cli_dtype(v->precision);
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
