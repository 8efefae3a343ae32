/* With p ranks of batch b, batch t of an epoch is samples [t p b, (t + 1) p b) of its permutation, rank r the
 * r-th b of them. The state is the global position, so it means the same at any number of ranks. */
#include "data/sampler.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"

#include <string.h>

/* Fisher-Yates; each position with a draw of its own, numbered from `first` on. */
static void shuffle(uint64_t seed, dsc_rng_purpose purpose, int64_t epoch, int64_t first, int64_t count,
                    uint32_t *order) {
    for (int64_t i = count - 1; i > 0; i--) {
        dsc_rng rng = dsc_rng_start(seed, purpose, (uint32_t)epoch, (uint64_t)(first + i));
        uint32_t j = dsc_rng_below(&rng, (uint32_t)(i + 1));
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

void dsc_sampler_permute(uint64_t seed, int64_t epoch, int64_t count, uint32_t *order) {
    for (int64_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    shuffle(seed, DSC_RNG_SHUFFLE, epoch, 0, count, order);
}

void dsc_sampler_permute_groups(const dsc_sampler_options *o, int64_t epoch, uint32_t *shuffled,
                                uint32_t *order) {
    int64_t used = 0;
    for (int64_t g = 0; g < o->groups; g++)
        shuffled[g] = (uint32_t)g;
    shuffle(o->seed, DSC_RNG_GROUP, epoch, 0, o->groups, shuffled);
    for (int64_t g = 0; g < o->groups; g++)
        for (int64_t i = o->group_start[shuffled[g]]; i < o->group_start[shuffled[g] + 1]; i++)
            order[used++] = (uint32_t)i;
    for (int64_t first = 0; first < used; first += o->buffer)
        shuffle(o->seed, DSC_RNG_SHUFFLE, epoch, first, used - first < o->buffer ? used - first : o->buffer,
                order + first);
}

static int64_t global_batch(const dsc_sampler *sampler) {
    return sampler->options.batch * sampler->options.ranks;
}

dsc_status dsc_sampler_init(const dsc_sampler_options *options, dsc_sampler *sampler) {
    if (options->batch < 1 || options->batch > UINT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "batch size %lld: must be 1 to %lld", (long long)options->batch,
                        (long long)UINT32_MAX);
    if (options->ranks < 1 || options->rank < 0 || options->rank >= options->ranks)
        return DSC_FAIL(DSC_E_INVALID, "rank %d of %d does not exist", options->rank, options->ranks);
    if (options->count < 1 || options->count > UINT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "a data set of %lld samples: must be 1 to %lld",
                        (long long)options->count, (long long)UINT32_MAX);
    int64_t global = options->batch * options->ranks;
    if (!options->keep_last && options->count < global)
        return DSC_FAIL(DSC_E_INVALID,
                        "%lld samples are fewer than one global batch of %lld (%d ranks of %lld): lower the "
                        "batch size",
                        (long long)options->count, (long long)global, options->ranks,
                        (long long)options->batch);
    *sampler = (dsc_sampler){.options = *options, .order_epoch = -1};
    if (options->shuffle)
        DSC_TRY(dsc_memory_alloc(options->count, sizeof *sampler->order, &sampler->order));
    if (options->buffer == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(options->groups, sizeof *sampler->groups, &sampler->groups));
    DSC_TRY(dsc_memory_alloc(options->groups + 1, sizeof *sampler->start, &sampler->start));
    memcpy(sampler->start, options->group_start, (size_t)(options->groups + 1) * sizeof *sampler->start);
    sampler->options.group_start = sampler->start;
    return DSC_OK;
}

void dsc_sampler_free(dsc_sampler *sampler) {
    dsc_memory_free(&sampler->order);
    dsc_memory_free(&sampler->start);
    dsc_memory_free(&sampler->groups);
}

int64_t dsc_sampler_batches(const dsc_sampler *sampler) {
    int64_t count = sampler->options.count, global = global_batch(sampler);
    return sampler->options.keep_last ? (count + global - 1) / global : count / global;
}

int64_t dsc_sampler_places(const dsc_sampler *sampler) {
    int64_t all = dsc_sampler_batches(sampler) * global_batch(sampler);
    return all < sampler->options.count ? all : sampler->options.count;
}

int64_t dsc_sampler_at(const dsc_sampler *sampler, int64_t place) {
    return sampler->options.shuffle ? sampler->order[place] : place;
}

dsc_status dsc_sampler_seek(dsc_sampler *sampler, int64_t epoch, int64_t position) {
    if (epoch < 0 || epoch >= UINT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "epoch %lld: must be in 0 to %lld", (long long)epoch,
                        (long long)UINT32_MAX - 1);
    if (position < 0 || position > sampler->options.count)
        return DSC_FAIL(DSC_E_INVALID, "position %lld of an epoch of %lld samples does not exist",
                        (long long)position, (long long)sampler->options.count);
    sampler->epoch = epoch;
    sampler->position = position;
    return DSC_OK;
}

void dsc_sampler_next(dsc_sampler *sampler, int64_t *index, int64_t *epoch, int64_t *position) {
    const dsc_sampler_options *o = &sampler->options;
    int64_t global = global_batch(sampler), left = o->count - sampler->position;
    if (left < (o->keep_last ? 1 : global)) {
        sampler->epoch++;
        sampler->position = 0;
    }
    if (o->shuffle && sampler->order_epoch != sampler->epoch) {
        if (o->buffer > 0)
            dsc_sampler_permute_groups(o, sampler->epoch, sampler->groups, sampler->order);
        else
            dsc_sampler_permute(o->seed, sampler->epoch, o->count, sampler->order);
        sampler->order_epoch = sampler->epoch;
    }
    int64_t first = sampler->position + o->rank * o->batch;
    for (int64_t i = 0; i < o->batch; i++) {
        int64_t place = first + i;
        index[i] = place >= o->count ? -1 : dsc_sampler_at(sampler, place);
    }
    *epoch = sampler->epoch;
    *position = sampler->position;
    sampler->position = sampler->position + global < o->count ? sampler->position + global : o->count;
}
