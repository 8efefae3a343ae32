/* Creation and destruction of a preconditioner; what happens in a step. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

/* ---- creation ---- */

static void free_layers(dsc_kfac *k) {
    for (int64_t i = 0; k->layers && i < k->layer_count; i++) {
        char *name = (char *)(uintptr_t)k->layers[i].name;
        dsc_memory_free(&name);
    }
    dsc_memory_free(&k->layers);
}

void dsc_kfac_destroy(dsc_kfac **kfac) {
    if (!kfac || !*kfac)
        return;
    dsc_kfac *k = *kfac;
    dsc_buckets_destroy(&k->buckets);
    dsc_kfac_state_destroy(k);
    dsc_kfac_memory_destroy(k);
    for (int i = 0; i < 2; i++)
        dsc_kfac_plan_destroy(&k->layouts[i].plan);
    dsc_comm_destroy(&k->row);
    dsc_comm_destroy(&k->column);
    dsc_comm_destroy(&k->control);
    dsc_comm_destroy(&k->exchange);
    dsc_memory_free(&k->first_unit);
    dsc_memory_free(&k->passes_done);
    free_layers(k);
    dsc_memory_free(kfac);
}

/* A layer that is preconditioned has its gradients where they can be rewritten. */
static dsc_status check_gradients(const dsc_kfac *k, const dsc_kfac_layer *l) {
    if (!l->weight_grad.data || l->weight_grad.device != k->device ||
        (l->bias_grad.data && l->bias_grad.device != k->device))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its gradients are not on the queue's device",
                        l->name);
    if (l->weight_grad.dtype != k->dtype || (l->bias_grad.data && l->bias_grad.dtype != k->dtype))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its gradients are %s, those before it %s", l->name,
                        dsc_dtype_name(l->weight_grad.dtype), dsc_dtype_name(k->dtype));
    return DSC_OK;
}

static dsc_status copy_layers(dsc_kfac *k, const dsc_kfac_layer *layers, int64_t count) {
    DSC_TRY(dsc_memory_alloc(count, sizeof *k->layers, &k->layers));
    DSC_TRY(dsc_memory_alloc(count + 1, sizeof *k->first_unit, &k->first_unit));
    DSC_TRY(dsc_memory_alloc(count, sizeof *k->passes_done, &k->passes_done));
    for (int64_t i = 0; i < count; i++) {
        char *name = NULL;
        if (!layers[i].name)
            return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer %lld has no name", (long long)i);
        DSC_TRY(dsc_memory_strdup(layers[i].name, &name));
        k->layers[i] = layers[i];
        k->layers[i].name = name;
        k->layer_count = i + 1;
    }
    return DSC_OK;
}

/* "As the gradients are", or a half type. */
static dsc_dtype stored_type(const dsc_kfac *k, dsc_dtype asked) {
    return asked == DSC_F32 ? k->dtype : asked;
}

static dsc_status make_plans(dsc_kfac *k) {
    const dsc_kfac_options *o = &k->options;
    DSC_TRY(dsc_kfac_plan_create(k->layers, k->layer_count, k->ranks, o, 1, &k->layouts[0].plan));
    if (o->diag_blocks > 1)
        DSC_TRY(dsc_kfac_plan_create(k->layers, k->layer_count, k->ranks, o, o->diag_blocks,
                                     &k->layouts[1].plan));
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
    for (int64_t u = 0; u < plan->unit_count; u++)
        DSC_TRY(check_gradients(k, &k->layers[plan->units[u].layer]));
    k->factor_dtype = stored_type(k, o->factor_dtype);
    k->inverse_dtype = stored_type(k, o->inverse_dtype);
    return DSC_OK;
}

static dsc_status make_local(dsc_kfac *k, const dsc_kfac_layer *layers, int64_t count,
                             const dsc_kfac_options *options) {
    if (!k->queue)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: no queue to work in");
    if (count < 0 || (count > 0 && !layers))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: %lld layers%s", (long long)count, layers ? "" : " at NULL");
    DSC_TRY(dsc_kfac_options_read(options, k->ranks, &k->options));
    DSC_TRY(copy_layers(k, layers, count));
    DSC_TRY(make_plans(k));
    k->solver = k->options.method == DSC_KFAC_EIGEN ? &dsc_solver_eigen : &dsc_solver_inverse;
    k->options.skip_layers = NULL; /* read; the caller may free it now */
    return DSC_OK;
}

/* One number that differs when the ranks were given different things. */
static int64_t fingerprint(const dsc_kfac *k) {
    const dsc_kfac_options *o = &k->options;
    const int64_t choices[] = {k->layer_count,   k->rows,          o->method, o->symmetric,
                               o->outer_product, o->diag_blocks,   o->passes, (int64_t)o->bucket_bytes,
                               k->factor_dtype,  k->inverse_dtype, k->dtype,  o->scaling,
                               o->factor_freq,   o->update_freq};
    const double numbers[] = {o->damping, o->stat_decay, o->kl_clip};
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

/* Groups of ranks; collective, so it comes after everything that can fail on one rank alone. */
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
    DSC_TRY(dsc_kfac_factors_create(k));
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
                                              [DSC_KFAC_CLIP] = k->hyper.kl_clip};
    return dsc_tensor_upload(q, numbers, sizeof numbers, &k->numbers);
}

dsc_status dsc_kfac_begin(dsc_kfac *kfac, double loss_scale) {
    dsc_kfac *k = kfac;
    if (!isfinite(loss_scale) || loss_scale <= 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: loss scale %g: must be a positive number", loss_scale);
    int exchanging = dsc_kfac_wants_factors(k) && !k->absorbed;
    k->begun = 0;
    if (exchanging)
        DSC_TRY(dsc_kfac_factors_finish(k, k->queue));
    k->hyper = dsc_kfac_hyper_of(&k->options);
    if (k->options.schedule)
        DSC_TRY(k->options.schedule(k->options.context, k->step, &k->hyper));
    if (k->hyper.diag_blocks == 0)
        k->hyper.diag_blocks = k->options.diag_blocks;
    DSC_TRY(dsc_kfac_hyper_check(&k->options, &k->hyper));
    DSC_TRY(upload_numbers(k, k->queue, 0));
    k->loss_scale = loss_scale;
    k->updating = k->hyper.factor_freq > 0 && k->step % k->hyper.factor_freq == 0;
    memset(k->passes_done, 0, (size_t)k->layer_count * sizeof *k->passes_done);
    memset(k->ms, 0, sizeof k->ms);
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

/* Adds the milliseconds since *mark to a phase and moves the mark. */
static void lap(dsc_kfac *k, int phase, double *mark) {
    double now = dsc_clock_now();
    k->ms[phase] += 1000 * (now - *mark);
    *mark = now;
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
    kfac->decomposed_now = 0;
    kfac->nu = 1;
    return upload_numbers(kfac, queue, lr);
}

int dsc_kfac_recipe(const dsc_kfac *kfac) {
    return kfac->hyper.update_freq == 0 ? 2 : kfac->active;
}

int dsc_kfac_wants_decomposition(const dsc_kfac *kfac) {
    return kfac->begun && kfac->deciding;
}

dsc_status dsc_kfac_absorb(dsc_kfac *kfac, dsc_queue *queue) {
    double mark = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    dsc_status status = dsc_kfac_factors_finish(kfac, queue);
    kfac->absorbed = 1; /* after a failure, too: the exchange is over, the step may be begun again */
    kfac->begun = status == DSC_OK;
    lap(kfac, 0, &mark);
    return status;
}

void dsc_kfac_captured(dsc_kfac *kfac, int64_t passes) {
    for (int64_t i = 0; i < kfac->layer_count; i++)
        kfac->passes_done[i] = passes;
}

void dsc_kfac_absorbed(dsc_kfac *kfac) {
    kfac->absorbed = 1;
}

dsc_status dsc_kfac_decompose(dsc_kfac *kfac, dsc_queue *queue) {
    double mark = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    dsc_status status = DSC_OK;
    if (kfac->deciding)
        status = dsc_kfac_decompose_layout(kfac, queue, kfac->hyper.diag_blocks > 1);
    kfac->begun = status == DSC_OK;
    lap(kfac, 1, &mark);
    return status;
}

dsc_status dsc_kfac_apply(dsc_kfac *kfac, dsc_queue *queue) {
    double mark = dsc_clock_now();
    DSC_TRY(check_step(kfac, queue));
    dsc_status status = kfac->hyper.update_freq > 0 ? dsc_kfac_precondition(kfac, queue) : DSC_OK;
    kfac->begun = status == DSC_OK;
    lap(kfac, 2, &mark);
    return status;
}

dsc_status dsc_kfac_finish(dsc_kfac *kfac, dsc_queue *queue) {
    DSC_TRY(check_step(kfac, queue));
    kfac->begun = 0;
    kfac->step++;
    return DSC_OK;
}

dsc_status dsc_kfac_step(dsc_kfac *kfac, dsc_queue *queue, double lr) {
    dsc_status status = dsc_kfac_prepare(kfac, queue, lr);
    if (status == DSC_OK)
        status = dsc_kfac_absorb(kfac, queue);
    if (status == DSC_OK)
        status = dsc_kfac_decompose(kfac, queue);
    if (status == DSC_OK)
        status = dsc_kfac_apply(kfac, queue);
    if (status == DSC_OK)
        status = dsc_kfac_finish(kfac, queue);
    return status == DSC_OK ? DSC_OK : dsc_error_pass(status, __FILE__, __LINE__);
}

/* ---- what came out ---- */

const dsc_tensor *dsc_kfac_averages(const dsc_kfac *kfac) {
    return &kfac->averages;
}

const dsc_kfac_hyper *dsc_kfac_hyper_now(const dsc_kfac *kfac) {
    return &kfac->hyper;
}

const dsc_tensor *dsc_kfac_nu_tensor(const dsc_kfac *kfac) {
    return &kfac->nu_tensor;
}

dsc_status dsc_kfac_nu(dsc_kfac *kfac, dsc_queue *queue, double *nu) {
    if (!dsc_device_is_host(kfac->device)) { /* else it was read in the step */
        DSC_TRY(dsc_tensor_download(queue, &kfac->nu_tensor, sizeof kfac->nu, &kfac->nu));
        DSC_TRY(dsc_queue_sync(queue));
    }
    *nu = kfac->nu;
    return DSC_OK;
}

void dsc_kfac_scale_g(dsc_kfac *kfac, const dsc_tensor *scale) {
    kfac->g_scale = scale;
}

void dsc_kfac_times(const dsc_kfac *kfac, double ms[3]) {
    for (int i = 0; i < 3; i++)
        ms[i] = kfac->ms[i];
}

int dsc_kfac_decomposed(const dsc_kfac *kfac) {
    return kfac->decomposed_now;
}
