/* The table of the options of an optimiser. */
#include "base/option.h"
#include "base/versioned.h"
#include "descent/optim.h"

#define AT(member) offsetof(dsc_optim_options, member)

/* In the order of dsc_optim_kind. */
static const char *const kinds[] = {"sgd", "adam", "adamw", "lars", "lamb", NULL};

/* In the order of dsc_decay_on. */
static const char *const decayed[] = {"all", "weights", NULL};

static const dsc_option table[] = {
    {.name = "optimizer",
     .flags = DSC_OPTION_FIXED,
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(kind),
     .value = "sgd",
     .choices = kinds,
     .help = "how gradients become steps",
     .json = "optimizer.name",
     .group = "Optimiser"},
    {.name = "momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(momentum),
     .value = "0.9",
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "sgd, lars: momentum",
     .json = "optimizer.momentum",
     .rules = {{"optimizer=sgd|lars", "this optimiser has no momentum"}}},
    {.name = "nesterov",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(nesterov),
     .help = "sgd: Nesterov's momentum",
     .json = "optimizer.nesterov",
     .rules = {{"optimizer=sgd", "this optimiser has no Nesterov momentum"},
               {"momentum>0", "without momentum there is nothing to look ahead with"}}},
    {.name = "weight-decay",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(weight_decay),
     .value = "5e-4",
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "pull of the parameters towards 0",
     .json = "optimizer.weight_decay"},
    {.name = "decay-on",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(decay_on),
     .value = "all",
     .choices = decayed,
     .help = "parameters that weight decay acts on; weights: neither biases nor the scale and shift of "
             "normalisations",
     .json = "optimizer.decay_on"},
    {.name = "beta1",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(beta1),
     .value = "0.9",
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the running mean of the gradients",
     .json = "optimizer.beta1",
     .rules = {{"optimizer=adam|adamw|lamb", "this optimiser keeps no running means"}}},
    {.name = "beta2",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(beta2),
     .value = "0.999",
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "adam, adamw, lamb: decay of the running mean of their squares",
     .json = "optimizer.beta2",
     .rules = {{"optimizer=adam|adamw|lamb", "this optimiser keeps no running means"}}},
    {.name = "eps",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(eps),
     .value = "-1", /* the optimiser's own default */
     .placeholder = "X",
     .range = "[0, inf)",
     .default_text = "1e-8, with lamb 1e-6",
     .help = "adam, adamw, lamb: added to the root of the mean square",
     .json = "optimizer.eps",
     .rules = {{"optimizer=adam|adamw|lamb", "this optimiser divides by no mean square"}}},
    {.name = "trust",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(trust),
     .value = "0.001",
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "lars: size of a step relative to the size of the weights",
     .json = "optimizer.trust",
     .rules = {{"optimizer=lars", "only lars scales steps by the size of the weights"}}},
    {.name = "clip-norm",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(clip_norm),
     .placeholder = "X",
     .range = "[0, inf)",
     .default_text = "off",
     .help = "scale gradients down so that their joint norm is at most X",
     .json = "optimizer.clip_norm"},
    {.name = NULL},
};

const dsc_option *dsc_optim_option_table(void) {
    return table;
}

void dsc_optim_options_init_sized(dsc_optim_options *options, size_t size) {
    dsc_optim_options defaults = {0};
    dsc_option_defaults(table, &defaults);
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_optim_parse(const char *name, dsc_optim_kind *out) {
    int kind = 0;
    dsc_status status = dsc_option_choice_parse("optimizer", kinds, name, &kind);
    if (status == DSC_OK)
        *out = (dsc_optim_kind)kind;
    return status;
}

const char *dsc_optim_name(dsc_optim_kind kind) {
    return dsc_option_choice_name(kinds, (int)kind);
}
