/* Creation and destruction of a preconditioner, and the stages of a step:
 *
 *   begin -> captures -> prepare -> absorb -> decompose -> apply -> finish
 *
 * The work itself is in capture.c (captures), factor.c (absorb), decompose.c and apply.c. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/table.h"

#include <math.h>
#include <string.h>

/* ---- creation ---- */

/* Frees everything except the communicators, the buckets and the asynchronous decompositions. */
static void free_local(dsc_kfac **kfac) {
    dsc_kfac *k = *kfac;
    dsc_kfac_beside_destroy(k);
    dsc_kfac_state_destroy(k);
    dsc_kfac_cut_destroy(k);
    dsc_kfac_refresh_destroy(k);
    dsc_kfac_compare_destroy(k);
    dsc_kfac_health_destroy(k);
    dsc_kfac_split_destroy(k);
    dsc_kfac_clip_destroy(k);
    dsc_kfac_ekfac_destroy(k);
    dsc_kfac_norm_destroy(k);
    dsc_kfac_tables_destroy(k);
    dsc_kfac_padding_destroy(k);
    dsc_kfac_memory_destroy(k);
    for (int i = 0; i < 2; i++)
        dsc_kfac_plan_destroy(&k->layouts[i].plan);
    dsc_memory_free(&k->first_unit);
    dsc_memory_free(&k->progress);
    dsc_kfac_layers_release(&k->layers, k->layer_count);
    dsc_memory_free(kfac);
}

void dsc_kfac_destroy(dsc_kfac **kfac) {
    if (!kfac || !*kfac)
        return;
    dsc_kfac *k = *kfac;
    dsc_kfac_async_destroy(k);
    dsc_buckets_destroy(&k->buckets);
    dsc_buckets_destroy(&k->moments.buckets);
    dsc_buckets_destroy(&k->norms.buckets);
    dsc_buckets_destroy(&k->tables.buckets);
    for (int i = 0; i < 2; i++)
        dsc_kfac_layout_settle(&k->layouts[i]);
    dsc_comm_destroy(&k->row);
    dsc_comm_destroy(&k->column);
    dsc_comm_destroy(&k->control);
    dsc_comm_destroy(&k->exchange);
    free_local(kfac);
}

/* Returns 1 if messages may be under way: between the captures of a step that updates the averages and the end of its
 * exchange, or after a failure. */
static int has_messages(const dsc_kfac *k) {
    if (k->ranks == 1)
        return 0;
    int requests = k->broken || (k->buckets && k->updating && !k->absorbed && k->begun);
    for (int i = 0; i < 2; i++)
        requests |= dsc_kfac_layout_has_messages(&k->layouts[i]);
    return requests;
}

void dsc_kfac_abandon(dsc_kfac **kfac) {
    if (!kfac || !*kfac)
        return;
    dsc_kfac *k = *kfac;
    dsc_kfac_async_destroy(k);
    if (has_messages(k)) { /* they may still use the memory */
        dsc_comm_release(&k->row);
        dsc_comm_release(&k->column);
        dsc_comm_release(&k->control);
        dsc_comm_release(&k->exchange);
        dsc_memory_keep(k);
        *kfac = NULL;
        return;
    }
    dsc_buckets_destroy(&k->buckets);
    dsc_buckets_destroy(&k->moments.buckets);
    dsc_buckets_destroy(&k->norms.buckets);
    dsc_buckets_destroy(&k->tables.buckets);
    dsc_comm_release(&k->row);
    dsc_comm_release(&k->column);
    dsc_comm_release(&k->control);
    dsc_comm_release(&k->exchange);
    free_local(kfac);
}

static dsc_status make_plans(dsc_kfac *k) {
    const dsc_kfac_options *o = &k->options;
    DSC_TRY(dsc_kfac_plan_make(k->layers, k->layer_count, k->ranks, o, 1, &k->layouts[0].plan));
    if (o->diag_blocks > 1)
        DSC_TRY(
            dsc_kfac_plan_make(k->layers, k->layer_count, k->ranks, o, o->diag_blocks, &k->layouts[1].plan));
    k->layout_count = o->diag_blocks > 1 ? 2 : 1;
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    k->unit_count = plan->unit_count;
    k->rows = plan->rows;
    k->columns = plan->columns;
    k->my_row = k->rank / k->columns;
    k->my_column = k->rank % k->columns;
    for (int64_t u = 0, l = 0; l <= k->layer_count; l++) {
        while (u < plan->unit_count && plan->units[u].layer < l)
            u++;
        k->first_unit[l] = u;
    }
    k->dtype = DSC_F32;
    if (plan->unit_count > 0)
        k->dtype = k->layers[plan->units[0].layer].weight_grad.dtype;
    for (int64_t u = 0; u < plan->unit_count; u++) {
        const dsc_kfac_layer *l = &k->layers[plan->units[u].layer]; /* checked: gradients of one type */
        if (!l->weight_grad.data || l->weight_grad.device != k->device)
            return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its gradients are not on the queue's device",
                            l->name);
    }
    k->factor_dtype = o->factor_dtype == DSC_F32 ? k->dtype : o->factor_dtype;
    k->inverse_dtype = o->inverse_dtype == DSC_F32 ? k->dtype : o->inverse_dtype;
    return DSC_OK;
}

static dsc_status make_local(dsc_kfac *k, const dsc_kfac_layer *layers, int64_t count,
                             const dsc_kfac_options *options) {
    if (!k->queue)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: no queue to work in");
    DSC_TRY(dsc_kfac_options_read(options, k->ranks, &k->options));
    k->options.refresh = dsc_kfac_resolve_refresh(&k->options, k->device);
    DSC_TRY(dsc_kfac_layers_copy(layers, count, &k->layers));
    k->layer_count = count;
    DSC_TRY(dsc_memory_alloc(count + 1, sizeof *k->first_unit, &k->first_unit));
    DSC_TRY(dsc_memory_alloc(count, sizeof *k->progress, &k->progress));
    for (int64_t l = 0; l < count; l++) {
        k->progress[l].uses = 1;
        k->any_late |= k->layers[l].late_gradients != 0;
    }
    DSC_TRY(make_plans(k));
    DSC_TRY(dsc_kfac_norm_find(k));
    DSC_TRY(dsc_kfac_tables_find(k));
    k->solver = k->options.method == DSC_KFAC_EIGEN ? &dsc_solver_eigen : &dsc_solver_inverse;
    k->options.skip_layers = NULL; /* not needed any more, and owned by the caller */
    k->next_passes = k->options.passes;
    return DSC_OK;
}

/* Returns a hash of everything that must be the same on all ranks. */
static int64_t fingerprint(const dsc_kfac *k) {
    const dsc_kfac_options *o = &k->options;
    const int64_t choices[] = {
        k->layer_count,   k->rows,          o->method,          o->symmetric,
        o->outer_product, o->diag_blocks,   o->passes,          (int64_t)o->bucket_bytes,
        k->factor_dtype,  k->inverse_dtype, k->dtype,           o->scaling,
        o->factor_freq,   o->update_freq,   o->damping_split,   o->warmup_factors,
        o->ekfac,         o->refresh,       o->kl_clip_scaling, o->factor_samples,
        o->norm,          k->norms.count,   k->norms.widest,    o->clip,
        o->async_steps,   o->loss_terms,    o->sharing,         o->embeddings,
        o->tied_head,     k->tables.count};
    const double numbers[] = {o->damping, o->stat_decay, o->kl_clip, o->rank};
    uint64_t hash = dsc_hash_bytes(0, choices, sizeof choices);
    hash = dsc_hash_bytes(hash, numbers, sizeof numbers);
    for (int j = 0; j < k->layout_count; j++) {
        const dsc_kfac_plan *plan = k->layouts[j].plan;
        for (int64_t i = 0; i < plan->item_count; i++) {
            const dsc_kfac_item *item = &plan->items[i];
            const int64_t facts[] = {item->n, item->owner, plan->units[item->unit].layer};
            hash = dsc_hash_bytes(hash, facts, sizeof facts);
            hash = dsc_hash_bytes(hash, plan->units[item->unit].name, strlen(plan->units[item->unit].name));
        }
    }
    for (int64_t i = 0; i < k->tables.count; i++) {
        const dsc_kfac_table *t = &k->tables.list[i];
        const int64_t facts[] = {t->layer, t->is_head, t->rows, t->width};
        hash = dsc_hash_bytes(hash, facts, sizeof facts);
        hash = dsc_hash_bytes(hash, k->layers[t->layer].name, strlen(k->layers[t->layer].name));
    }
    return (int64_t)(hash >> 2);
}

static dsc_status check_alike(dsc_kfac *k) {
    int64_t two = 2, own = fingerprint(k), seen[2] = {own, -own};
    dsc_tensor t;
    DSC_TRY(dsc_tensor_alloc(k->device, DSC_I64, 1, &two, &t));
    dsc_status status = dsc_tensor_upload(k->queue, seen, sizeof seen, &t);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    if (status == DSC_OK)
        status = dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, DSC_MIN, &t);
    if (status == DSC_OK)
        status = dsc_tensor_download(k->queue, &t, sizeof seen, seen);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    dsc_tensor_free(&t);
    DSC_TRY(status);
    if (seen[0] != -seen[1])
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: the ranks were given different layers or options");
    return DSC_OK;
}

/* Creates the communicators of the grid. Collective, so it comes after everything that can fail on one rank alone. */
static dsc_status make_groups(dsc_kfac *k, dsc_comm *comm) {
    DSC_TRY(dsc_comm_split(comm, 0, k->rank, &k->control));
    DSC_TRY(dsc_comm_split(comm, 0, k->rank, &k->exchange));
    DSC_TRY(check_alike(k));
    if (k->rows > 1)
        DSC_TRY(dsc_comm_split(comm, k->my_column, k->my_row, &k->column));
    if (k->columns > 1)
        DSC_TRY(dsc_comm_split(comm, k->my_row, k->my_column, &k->row));
    return DSC_OK;
}

static dsc_status make_rest(dsc_kfac *k) {
    DSC_TRY(dsc_kfac_memory_create(k));
    DSC_TRY(dsc_kfac_refresh_create(k));
    DSC_TRY(dsc_kfac_cut_create(k));
    DSC_TRY(dsc_kfac_compare_create(k));
    DSC_TRY(dsc_kfac_health_create(k));
    DSC_TRY(dsc_kfac_split_create(k));
    DSC_TRY(dsc_kfac_clip_create(k));
    DSC_TRY(dsc_kfac_factors_create(k));
    DSC_TRY(dsc_kfac_ekfac_create(k));
    DSC_TRY(dsc_kfac_norm_create(k));
    DSC_TRY(dsc_kfac_tables_create(k));
    DSC_TRY(dsc_kfac_async_create(k));
    DSC_TRY(dsc_kfac_report_create(k));
    return dsc_kfac_state_create(k);
}

dsc_status dsc_kfac_create(dsc_comm *comm, dsc_queue *queue, const dsc_kfac_layer *layers, int64_t count,
                           const dsc_kfac_options *options, dsc_kfac **out) {
    dsc_kfac *k = NULL;
    if (!comm)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: no communicator");
    dsc_status status = dsc_comm_agree(comm, dsc_memory_alloc(1, sizeof *k, &k));
    if (status == DSC_OK) {
        k->device = queue ? dsc_queue_device(queue) : NULL;
        k->queue = queue;
        k->rank = dsc_comm_rank(comm);
        k->ranks = dsc_comm_size(comm);
        k->nu = 1;
        status = dsc_comm_agree(comm, make_local(k, layers, count, options));
    }
    if (status == DSC_OK)
        status = make_groups(k, comm);
    if (status == DSC_OK)
        status = dsc_comm_agree(k->control, make_rest(k));
    if (status != DSC_OK) {
        dsc_kfac_destroy(&k);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = k;
    return DSC_OK;
}

/* ---- a step ---- */

static dsc_status upload_numbers(dsc_kfac *k, dsc_queue *q, double lr) {
    const double numbers[DSC_KFAC_NUMBERS] = {[DSC_KFAC_DAMPING] = k->hyper.damping,
                                              [DSC_KFAC_DECAY] = k->hyper.stat_decay,
                                              [DSC_KFAC_RATE] = lr,
                                              [DSC_KFAC_CLIP] = dsc_kfac_clip_bound(k)};
    DSC_TRY(dsc_kfac_decays_upload(k, q));
    return dsc_tensor_upload(q, numbers, sizeof numbers, &k->numbers);
}

static dsc_status call_schedule(dsc_kfac *k) {
    unsigned errors = dsc_error_count();
    dsc_status status = k->options.schedule(k->options.context, k->step, &k->hyper);
    return status == DSC_OK
               ? DSC_OK
               : dsc_error_callback(status, errors, "schedule", "kfac, step %lld", (long long)k->step);
}

dsc_status dsc_kfac_begin(dsc_kfac *kfac, double loss_scale) {
    dsc_kfac *k = kfac;
    if (!isfinite(loss_scale) || loss_scale <= 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: loss scale %g: must be a positive number", loss_scale);
    DSC_TRY(dsc_kfac_compare_arrived(k));
    int exchanging = dsc_kfac_wants_factors(k) && !k->absorbed;
    k->begun = 0;
    if (exchanging)
        DSC_TRY(dsc_kfac_factors_finish(k, k->queue));
    k->hyper = dsc_kfac_hyper_of(&k->options);
    if (k->base_blocks > 0)
        k->hyper.diag_blocks = k->base_blocks;
    if (k->options.schedule)
        DSC_TRY(call_schedule(k));
    if (k->hyper.diag_blocks == 0)
        k->hyper.diag_blocks = k->options.diag_blocks;
    DSC_TRY(dsc_kfac_hyper_check(&k->options, &k->hyper));
    DSC_TRY(upload_numbers(k, k->queue, 0));
    k->options.passes = k->next_passes;
    k->loss_scale = loss_scale;
    k->updating = k->hyper.factor_freq > 0 && k->step % k->hyper.factor_freq == 0;
    for (int64_t l = 0; l < k->layer_count; l++)
        k->progress[l].captures = 0;
    k->times = (dsc_kfac_times){0};
    k->absorbed = 0;
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++)
        k->members[i / 2].factor[i % 2].announced = 0;
    k->deciding = k->hyper.update_freq > 0 && (k->step % k->hyper.update_freq == 0 || !k->decomposed);
    k->begun = 1;
    return DSC_OK;
}

int dsc_kfac_wants_factors(const dsc_kfac *kfac) {
    return kfac->begun && kfac->updating;
}

static dsc_status check_step(const dsc_kfac *k, const dsc_queue *queue) {
    if (!k->begun)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: step %lld was not begun: call dsc_kfac_begin before the captures",
                        (long long)k->step);
    if (queue != k->queue)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a step in another queue than that of its creation");
    return DSC_OK;
}

dsc_status dsc_kfac_prepare(dsc_kfac *kfac, dsc_queue *queue, double lr) {
    DSC_TRY(check_step(kfac, queue));
    if (!isfinite(lr))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: learning rate %g: must be a number", lr);
    DSC_TRY(dsc_kfac_late_check(kfac));
    DSC_TRY(dsc_kfac_compare_arrived(kfac));
    kfac->decomposed_now = 0;
    kfac->nu = 1;
    return upload_numbers(kfac, queue, lr);
}

int dsc_kfac_recipe(const dsc_kfac *kfac) {
    return kfac->hyper.update_freq == 0 ? 2 : kfac->active;
}

int64_t dsc_kfac_generation(const dsc_kfac *kfac) {
    return kfac->generation;
}

int dsc_kfac_wants_decomposition(const dsc_kfac *kfac) {
    return kfac->begun && (kfac->deciding || dsc_kfac_async_is_due(kfac));
}

dsc_status dsc_kfac_absorb(dsc_kfac *kfac, dsc_queue *queue) {
    double began = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    DSC_TRY(dsc_kfac_join_captures(kfac, queue));
    dsc_status status = dsc_kfac_factors_finish(kfac, queue);
    kfac->absorbed = 1; /* even after a failure: the exchange is over, and the step may be begun again */
    kfac->begun = status == DSC_OK;
    kfac->times.factor += 1000 * (dsc_clock_now() - began);
    return status;
}

void dsc_kfac_captured(dsc_kfac *kfac, int64_t passes) {
    for (int64_t i = 0; i < kfac->layer_count; i++)
        kfac->progress[i].captures = passes;
}

void dsc_kfac_absorbed(dsc_kfac *kfac) {
    dsc_kfac_factors_note(kfac);
    kfac->absorbed = 1;
}

dsc_status dsc_kfac_decompose(dsc_kfac *kfac, dsc_queue *queue) {
    double began = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    dsc_status status = DSC_OK;
    int index = kfac->hyper.diag_blocks > 1;
    if (dsc_kfac_wants_decomposition(kfac))
        status = dsc_kfac_health_read(kfac);
    if (kfac->deciding && kfac->tables.count > 0 && status == DSC_OK)
        status = dsc_comm_agree(kfac->control, dsc_kfac_tables_decompose(kfac, queue));
    if (dsc_kfac_async_is_due(kfac) && status == DSC_OK)
        status = dsc_kfac_async_finish(kfac, queue);
    int beside = kfac->async && kfac->decomposed && kfac->active == index;
    if (kfac->deciding && status == DSC_OK)
        status =
            beside ? dsc_kfac_async_start(kfac, queue, index) : dsc_kfac_decompose_layout(kfac, queue, index);
    kfac->begun = status == DSC_OK;
    kfac->times.decompose += 1000 * (dsc_clock_now() - began);
    return status;
}

dsc_status dsc_kfac_apply(dsc_kfac *kfac, dsc_queue *queue) {
    double began = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    dsc_status status = kfac->hyper.update_freq > 0 ? dsc_kfac_precondition(kfac, queue) : DSC_OK;
    kfac->begun = status == DSC_OK;
    kfac->times.precondition += 1000 * (dsc_clock_now() - began);
    return status;
}

dsc_status dsc_kfac_finish(dsc_kfac *kfac, dsc_queue *queue) {
    DSC_TRY(check_step(kfac, queue));
    if (kfac->decomposed_now && kfac->unit_count > 0)
        DSC_TRY(dsc_kfac_health_copy(kfac, queue));
    dsc_kfac_late_finish(kfac);
    kfac->begun = 0;
    kfac->step++;
    return DSC_OK;
}

dsc_status dsc_kfac_step(dsc_kfac *kfac, dsc_queue *queue, double lr) {
    DSC_TRY(dsc_kfac_prepare(kfac, queue, lr));
    DSC_TRY(dsc_kfac_absorb(kfac, queue));
    DSC_TRY(dsc_kfac_decompose(kfac, queue));
    DSC_TRY(dsc_kfac_apply(kfac, queue));
    return dsc_kfac_finish(kfac, queue);
}

/* ---- results ---- */

const dsc_tensor *dsc_kfac_averages(const dsc_kfac *kfac) {
    return &kfac->averages;
}

const dsc_kfac_hyper *dsc_kfac_hyper_now(const dsc_kfac *kfac) {
    return &kfac->hyper;
}

const dsc_tensor *dsc_kfac_nu_tensor(const dsc_kfac *kfac) {
    return &kfac->nu_tensor;
}

int dsc_kfac_covers(const dsc_kfac *kfac, int64_t layer) {
    return kfac->first_unit[layer] < kfac->first_unit[layer + 1] || dsc_kfac_is_norm(kfac, layer) ||
           dsc_kfac_is_table(kfac, layer);
}

dsc_status dsc_kfac_nu(dsc_kfac *kfac, dsc_queue *queue, double *nu) {
    if (!dsc_device_is_host(kfac->device)) { /* on the host, the step has read it already */
        DSC_TRY(dsc_tensor_download(queue, &kfac->nu_tensor, sizeof kfac->nu, &kfac->nu));
        DSC_TRY(dsc_queue_sync(queue));
    }
    *nu = kfac->nu;
    return DSC_OK;
}

void dsc_kfac_scale_g(dsc_kfac *kfac, const dsc_tensor *scale) {
    kfac->g_scale = scale;
}

int64_t dsc_kfac_steps(const dsc_kfac *kfac) {
    return kfac->step;
}

dsc_status dsc_kfac_set_hyper(dsc_kfac *kfac, const dsc_kfac_hyper *hyper) {
    dsc_kfac_options *o = &kfac->options;
    if (!hyper)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: no hyper-parameters to set");
    DSC_TRY(dsc_kfac_hyper_check(o, hyper));
    o->damping = hyper->damping;
    o->stat_decay = hyper->stat_decay;
    o->kl_clip = hyper->kl_clip;
    o->factor_freq = hyper->factor_freq;
    o->update_freq = hyper->update_freq;
    if (hyper->diag_blocks > 0)
        kfac->base_blocks = hyper->diag_blocks;
    return DSC_OK;
}

const dsc_kfac_times *dsc_kfac_get_times(const dsc_kfac *kfac) {
    return &kfac->times;
}

int dsc_kfac_decomposed(const dsc_kfac *kfac) {
    return kfac->decomposed_now;
}
