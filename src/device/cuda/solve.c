/* Eigenvalue problems by cuSOLVER, in float32 and float64. Small ones of equal size are solved in one call, large ones
 * by a crew of threads (solve_crew.h), each with its own stream. In a batch of float32, the host solves some of them
 * meanwhile (solve_plan.h, solve_host.h).
 *
 * cuSOLVER is column-major: a row-major matrix appears transposed there, so the lower triangle is called the upper one,
 * and eigenvectors come back as rows. A matrix that is not finite is replaced by the identity before the solver sees
 * it, and counts as failed. Matrices that are solved together are scaled first: unlike the solver for one matrix, the
 * one for many loses the eigenvectors of tiny elements. The host reads the outcomes at the end of a call. */
#include "device/cuda/entries.h"
#include "device/cuda/jacobi_kernels.h"
#include "device/cuda/solve_crew.h"
#include "device/cuda/solve_kernels.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static const cublasFillMode_t triangle = CUBLAS_FILL_MODE_UPPER;
static const cusolverEigMode_t vectors = CUSOLVER_EIG_MODE_VECTOR;

/* A call in progress. Problems are numbered by their turn: first the `by_crew` problems of the crew, then the `by_host`
 * problems of the host, then those that are solved together, each with the largest first. s->numbers holds `count`
 * scales of matrices (solve_kernels.h), then `count` outcomes of cuSOLVER. */
typedef struct call {
    const char *op;
    dsc_cuda_solver *s;
    dsc_queue *q;
    dsc_cuda_launch at;
    dsc_solve_item *items;
    int64_t count, by_crew, by_host;
    int wide;
    cudaDataType type;
    char *work; /* for the copies of small problems that are solved together; large ones use s->room */
} call;

static const dsc_solve_item *item_of(const call *c, int64_t turn) {
    return &c->items[c->s->turns[turn].item];
}

static int *outcome_of(const call *c, int64_t turn) {
    return c->s->numbers + c->count + turn;
}

static size_t element_size(const call *c) {
    return c->wide ? sizeof(double) : sizeof(float);
}

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *align(const dsc_tensor *work) {
    return (void *)round_up((size_t)work->data);
}

/* ---- one problem ---- */

static dsc_cuda_launch launch_of(const call *c, const dsc_cuda_worker *w) {
    dsc_cuda_launch at = c->at;
    at.stream = w->stream;
    return at;
}

static dsc_status eigen_bytes(dsc_cuda_worker *w, const call *c, int64_t turn, size_t *device_bytes,
                              size_t *host_bytes) {
    const dsc_tensor *a = &item_of(c, turn)->a, *v = &item_of(c, turn)->v;
    int64_t n = a->dim[0];
    DSC_SOLVER_TRY(cusolverDnXsyevd_bufferSize(w->handle, w->params, vectors, triangle, n, c->type, a->data,
                                               n, c->type, v->data, c->type, device_bytes, host_bytes));
    return DSC_OK;
}

/* Reserves workspace for this turn. If there is too little, it grows to the size that the first turn, the largest,
 * needs: another time this worker may be the one to get that. */
static dsc_status reserve_eigen(dsc_cuda_worker *w, const call *c, size_t device_bytes, size_t host_bytes,
                                void **space) {
    size_t most_device, most_host;
    if ((device_bytes > w->borrowed_bytes && device_bytes > w->device_bytes) || host_bytes > w->host_bytes) {
        DSC_TRY(eigen_bytes(w, c, 0, &most_device, &most_host));
        device_bytes = most_device > device_bytes ? most_device : device_bytes;
        host_bytes = most_host > host_bytes ? most_host : host_bytes;
    }
    return dsc_cuda_worker_reserve(w, device_bytes, host_bytes, space);
}

/* A[n,n] := its eigenvectors, v := its eigenvalues. */
static dsc_status solve_eigen(dsc_cuda_worker *w, void *context, int64_t turn) {
    const call *c = context;
    const dsc_tensor *a = &item_of(c, turn)->a, *v = &item_of(c, turn)->v;
    int64_t n = a->dim[0];
    size_t device_bytes, host_bytes;
    void *space;
    DSC_TRY(eigen_bytes(w, c, turn, &device_bytes, &host_bytes));
    DSC_TRY(reserve_eigen(w, c, device_bytes, host_bytes, &space));
    DSC_SOLVER_TRY(cusolverDnXsyevd(w->handle, w->params, vectors, triangle, n, c->type, a->data, n, c->type,
                                    v->data, c->type, space, device_bytes, w->host_space, host_bytes,
                                    outcome_of(c, turn)));
    dsc_cuda_launch at = launch_of(c, w);
    dsc_cuda_solve_places p = {.place = {{.from = a->data, .to = a->data, .n = n}}, .count = 1};
    DSC_CUDA_TRY(dsc_cuda_launch_solve_transpose(&at, c->wide, &p, c->s->numbers));
    return DSC_OK;
}

/* ---- preparing a call and reading its results ---- */

static int by_size(const void *first, const void *second) {
    const dsc_cuda_turn *a = first, *b = second;
    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

static int by_way(const void *first, const void *second) {
    const dsc_cuda_turn *a = first, *b = second;
    return a->method != b->method ? (a->method < b->method ? -1 : 1) : by_size(first, second);
}

static int64_t count_method(const call *c, dsc_cuda_method method) {
    int64_t found = 0;
    for (int64_t i = 0; i < c->count; i++)
        found += c->s->turns[i].method == method;
    return found;
}

/* Sorts the problems, the largest first. Those with at most `small` rows are solved together, the others by the crew.
 * Leaves out quick problems, which are not solved here. */
static void order_items(call *c, int64_t small) {
    int64_t turns = 0;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t n = c->items[i].a.dim[0];
        if (!dsc_cuda_is_quick(c->q, &c->items[i]))
            c->s->turns[turns++] = (dsc_cuda_turn){n, i, n <= small ? DSC_CUDA_TOGETHER : DSC_CUDA_BY_CREW};
    }
    c->count = turns;
    qsort(c->s->turns, (size_t)c->count, sizeof *c->s->turns, by_size);
    c->by_crew = count_method(c, DSC_CUDA_BY_CREW);
}

/* Chooses methods by a plan, and sorts the problems by them. */
static void plan_items(call *c) {
    (void)dsc_cuda_plan(c->s->turns, c->count, c->s->host.threads);
    qsort(c->s->turns, (size_t)c->count, sizeof *c->s->turns, by_way);
    c->by_crew = count_method(c, DSC_CUDA_BY_CREW);
    c->by_host = count_method(c, DSC_CUDA_BY_HOST);
}

/* Problems of one size that are solved in one call. Their copies, and then their values, lie at `offset` in the memory
 * for small or for large problems. */
typedef struct group {
    int64_t first, end, n;
    size_t offset;
} group;

static size_t copies_bytes(const call *c, const group *g) {
    return round_up((size_t)((g->end - g->first) * g->n * g->n) * element_size(c));
}

static size_t group_bytes(const call *c, const group *g) {
    return copies_bytes(c, g) + round_up((size_t)((g->end - g->first) * g->n) * element_size(c));
}

static char *copies_of(const call *c, const group *g) {
    return (g->n > DSC_CUDA_SMALL ? (char *)c->s->room : c->work) + g->offset;
}

static char *values_of(const call *c, const group *g) {
    return copies_of(c, g) + copies_bytes(c, g);
}

static group first_group(const call *c) {
    return (group){.end = c->by_crew + c->by_host};
}

/* Advances to the next group; returns 0 after the last. */
static int next_group(const call *c, group *g) {
    int64_t before = g->n, left = 1;
    if (g->end == c->count)
        return 0;
    if (before > 0)
        g->offset += group_bytes(c, g);
    g->first = g->end;
    g->n = c->s->turns[g->first].n;
    while (g->first + left < c->count && c->s->turns[g->first + left].n == g->n)
        left++;
    g->end = g->first + dsc_cuda_plan_together(g->n, left);
    if (before > DSC_CUDA_SMALL && g->n <= DSC_CUDA_SMALL)
        g->offset = 0;
    return 1;
}

/* Returns the place of a turn's matrix and, if it is in a group, of its copy. */
static dsc_cuda_solve_place place_of(const call *c, const group *g, int64_t turn) {
    const dsc_solve_item *item = item_of(c, turn);
    int64_t n = item->a.dim[0];
    dsc_cuda_solve_place place = {.from = item->a.data, .to = item->a.data, .n = n, .index = turn};
    if (g)
        place.to = copies_of(c, g) + (size_t)((turn - g->first) * n * n) * element_size(c);
    return place;
}

static dsc_status send_check(const call *c, dsc_cuda_solve_places *p) {
    if (p->count == 0)
        return DSC_OK;
    DSC_CUDA_TRY(dsc_cuda_launch_solve_check(&c->at, c->wide, p, c->s->numbers));
    DSC_CUDA_TRY(dsc_cuda_launch_solve_copy(&c->at, c->wide, p, c->s->numbers));
    p->count = 0;
    return DSC_OK;
}

static dsc_status check_one(const call *c, const group *g, int64_t turn, dsc_cuda_solve_places *p) {
    p->place[p->count++] = place_of(c, g, turn);
    return p->count == DSC_CUDA_SOLVE_PLACES ? send_check(c, p) : DSC_OK;
}

/* Finds the scales of all matrices, replaces those that are not finite, and copies those of groups together. */
static dsc_status prepare(const call *c) {
    dsc_cuda_solve_places p = {.count = 0};
    group g = first_group(c);
    DSC_CUDA_TRY(cudaMemsetAsync(c->s->numbers, 0, (size_t)(2 * c->count) * sizeof(int), c->at.stream));
    for (int64_t i = 0; i < c->by_crew + c->by_host; i++)
        DSC_TRY(check_one(c, NULL, i, &p));
    while (next_group(c, &g))
        for (int64_t i = g.first; i < g.end; i++)
            DSC_TRY(check_one(c, &g, i, &p));
    return send_check(c, &p);
}

static dsc_status solve_group(const call *c, const group *g) {
    dsc_cuda_worker *w = &c->s->caller;
    int64_t members = g->end - g->first;
    size_t device_bytes, host_bytes;
    void *space, *copies = copies_of(c, g), *values = values_of(c, g);
    DSC_SOLVER_TRY(cusolverDnXsyevBatched_bufferSize(w->handle, w->params, vectors, triangle, g->n, c->type,
                                                     copies, g->n, c->type, values, c->type, &device_bytes,
                                                     &host_bytes, members));
    DSC_TRY(dsc_cuda_worker_reserve(w, device_bytes, host_bytes, &space));
    DSC_SOLVER_TRY(cusolverDnXsyevBatched(w->handle, w->params, vectors, triangle, g->n, c->type, copies,
                                          g->n, c->type, values, c->type, space, device_bytes, w->host_space,
                                          host_bytes, outcome_of(c, g->first), members));
    return DSC_OK;
}

static dsc_status send_back(const call *c, dsc_cuda_solve_places *p) {
    if (p->count > 0)
        DSC_CUDA_TRY(dsc_cuda_launch_solve_transpose(&c->at, c->wide, p, c->s->numbers));
    p->count = 0;
    return DSC_OK;
}

/* Writes a group's results from the copies to where these came from. */
static dsc_status return_group(const call *c, const group *g, dsc_cuda_solve_places *p) {
    for (int64_t i = g->first; i < g->end; i++) {
        dsc_cuda_solve_place place = place_of(c, g, i);
        place.from = place.to;
        place.to = item_of(c, i)->a.data;
        place.values_from = values_of(c, g) + (size_t)((i - g->first) * g->n) * element_size(c);
        place.values_to = item_of(c, i)->v.data;
        p->place[p->count++] = place;
        if (p->count == DSC_CUDA_SOLVE_PLACES)
            DSC_TRY(send_back(c, p));
    }
    return DSC_OK;
}

static dsc_status solve_groups(const call *c) {
    dsc_cuda_solve_places p = {.count = 0};
    group g = first_group(c);
    while (next_group(c, &g))
        DSC_TRY(solve_group(c, &g));
    g = first_group(c);
    while (next_group(c, &g))
        DSC_TRY(return_group(c, &g, &p));
    return send_back(c, &p);
}

static int failed_on_host(const call *c, int64_t turn) {
    int64_t i = turn - c->by_crew;
    return i >= 0 && i < c->by_host && c->s->host.here[i].failed;
}

/* Waits until everything is done, and reads the outcomes. */
static dsc_status read_outcomes(const call *c) {
    const int *numbers = c->s->host_numbers;
    DSC_CUDA_TRY(cudaMemcpyAsync(c->s->host_numbers, c->s->numbers, (size_t)(2 * c->count) * sizeof(int),
                                 cudaMemcpyDeviceToHost, c->at.stream));
    DSC_CUDA_TRY(cudaStreamSynchronize(c->at.stream));
    for (int64_t i = 0; i < c->count; i++) {
        int outcome = numbers[c->count + i];
        if (outcome < 0)
            return DSC_FAIL(DSC_E_INTERNAL, "%s: argument %d of cuSOLVER is wrong", c->op, -outcome);
        c->items[c->s->turns[i].item].failed =
            numbers[i] == DSC_CUDA_SOLVE_NOT_FINITE || outcome != 0 || failed_on_host(c, i);
    }
    return DSC_OK;
}

/* The crew solves the large problems while the caller solves the groups; the caller also solves a single large one. */
static dsc_status solve_on_gpu(call *c) {
    dsc_status crew_status = DSC_OK;
    if (c->by_crew > 1)
        DSC_TRY(dsc_cuda_crew_begin(c->s, solve_eigen, c, c->by_crew));
    else if (c->by_crew == 1)
        DSC_TRY(solve_eigen(&c->s->caller, c, 0));
    dsc_status status = solve_groups(c);
    if (c->by_crew > 1)
        crew_status = dsc_cuda_crew_end(c->s, c->at.stream);
    DSC_TRY(status);
    return crew_status;
}

static dsc_status begin_host(call *c) {
    dsc_cuda_host *h = &c->s->host;
    DSC_TRY(dsc_cuda_host_reserve(h, c->by_host));
    for (int64_t i = 0; i < c->by_host; i++)
        h->there[i] = *item_of(c, c->by_crew + i);
    return dsc_cuda_host_begin(h, c->s->ready);
}

static dsc_status solve_all(call *c) {
    dsc_status host_status = DSC_OK;
    DSC_TRY(prepare(c));
    DSC_CUDA_TRY(cudaEventRecord(c->s->ready, c->at.stream));
    if (c->by_host > 0)
        DSC_TRY(begin_host(c));
    dsc_status status = solve_on_gpu(c);
    if (c->by_host > 0)
        host_status = dsc_cuda_host_end(&c->s->host, c->at.stream);
    DSC_TRY(status);
    DSC_TRY(host_status);
    return read_outcomes(c);
}

/* ---- the operations ---- */

static dsc_status begin(call *c, const char *op, dsc_queue *q, dsc_solve_item *items, int64_t count) {
    DSC_TRY(dsc_cuda_refuse_recording(q, op));
    *c = (call){.op = op, .q = q, .at = *dsc_cuda_at(q), .items = items, .count = count};
    c->wide = items[0].a.dtype == DSC_F64;
    c->type = c->wide ? CUDA_R_64F : CUDA_R_32F;
    DSC_TRY(dsc_cuda_solver_enter(q->device, &c->s));
    c->s->caller.stream = c->at.stream;
    return DSC_OK;
}

static dsc_status run_syev(call *c) {
    DSC_TRY(dsc_cuda_solver_reserve(c->s, c->count));
    DSC_SOLVER_TRY(cusolverDnSetStream(c->s->caller.handle, c->at.stream));
    order_items(c, 0);
    return solve_all(c);
}

static void end(call *c) {
    c->s->caller.borrowed = NULL;
    c->s->caller.borrowed_bytes = 0;
    dsc_cuda_solver_leave(c->s);
}

static dsc_status ask_syev_bytes(dsc_device *device, dsc_dtype dtype, int64_t n, size_t *bytes) {
    cudaDataType type = dtype == DSC_F64 ? CUDA_R_64F : CUDA_R_32F;
    dsc_cuda_solver *s;
    size_t host_bytes;
    DSC_TRY(dsc_cuda_solver_enter(device, &s));
    cusolverStatus_t status =
        cusolverDnXsyevd_bufferSize(s->caller.handle, s->caller.params, vectors, triangle, n, type,
                                    s->numbers, n, type, s->numbers, type, bytes, &host_bytes);
    dsc_cuda_solver_leave(s);
    DSC_SOLVER_TRY(status);
    return DSC_OK;
}

/* Returns 0 if cuSOLVER does not report the size: the solve itself then fails with the reason. */
size_t dsc_cuda_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    size_t bytes;
    return ask_syev_bytes(device, dtype, n, &bytes) == DSC_OK ? bytes + ALIGNMENT : 0;
}

dsc_status dsc_cuda_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    dsc_solve_item item = {.a = *a, .v = *v};
    call c;
    DSC_TRY(begin(&c, "syev", q, &item, 1));
    size_t bytes = work ? dsc_tensor_bytes(work) : 0;
    if (bytes > ALIGNMENT) {
        c.s->caller.borrowed = align(work);
        c.s->caller.borrowed_bytes = bytes - ALIGNMENT;
    }
    dsc_status status = run_syev(&c);
    end(&c);
    DSC_TRY(status);
    if (item.failed)
        return DSC_FAIL(DSC_E_NUMERIC,
                        "syev: A[%lld,%lld] is not finite, or made the solver fail to converge",
                        (long long)a->dim[0], (long long)a->dim[0]);
    return DSC_OK;
}

/* Returns the size of the copies of small problems and of their values. The workspace of cuSOLVER itself belongs to the
 * workers: its size depends on which problems are solved at the same time. */
size_t dsc_cuda_syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n, int64_t count) {
    size_t rows = (size_t)(n < DSC_CUDA_SMALL ? n : DSC_CUDA_SMALL), size = dsc_dtype_size(dtype);
    (void)device;
    return (size_t)count * (round_up(rows * rows * size) + round_up(rows * size)) + ALIGNMENT;
}

static dsc_status reserve_room(call *c) {
    size_t bytes = 0;
    group g = first_group(c);
    while (next_group(c, &g))
        if (g.n > DSC_CUDA_SMALL)
            bytes += group_bytes(c, &g);
    return dsc_cuda_solver_reserve_room(c->s, bytes);
}

static dsc_status run_syev_batch(call *c, const dsc_tensor *work) {
    DSC_TRY(dsc_cuda_solver_reserve(c->s, c->count));
    DSC_SOLVER_TRY(cusolverDnSetStream(c->s->caller.handle, c->at.stream));
    order_items(c, DSC_CUDA_SMALL);
    if (c->count == 0)
        return DSC_OK;
    if (!c->wide)
        plan_items(c);
    DSC_TRY(reserve_room(c));
    c->work = align(work);
    return solve_all(c);
}

dsc_status dsc_cuda_syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    call c;
    DSC_TRY(dsc_cuda_jacobi_batch(q, items, count));
    DSC_TRY(begin(&c, "syev_batch", q, items, count));
    dsc_status status = run_syev_batch(&c, work);
    end(&c);
    DSC_TRY(status);
    return DSC_OK;
}

/* ---- the last resort: solving on the host ---- */

typedef struct host_copy {
    dsc_device *device;
    dsc_queue *q;
    dsc_tensor a, v;
} host_copy;

static void free_copy(host_copy *copy) {
    dsc_tensor_free(&copy->a);
    dsc_tensor_free(&copy->v);
    dsc_queue_destroy(&copy->q);
    dsc_device_destroy(&copy->device);
}

static dsc_status make_copy(const dsc_device *device, const dsc_tensor *a, const dsc_tensor *v,
                            host_copy *copy) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = "cpu";
    options.threads = dsc_device_threads(device);
    DSC_TRY(dsc_device_create(&options, &copy->device));
    DSC_TRY(dsc_queue_create(copy->device, &copy->q));
    DSC_TRY(dsc_tensor_alloc(copy->device, a->dtype, a->ndim, a->dim, &copy->a));
    DSC_TRY(dsc_tensor_alloc(copy->device, v->dtype, v->ndim, v->dim, &copy->v));
    return DSC_OK;
}

static dsc_status solve_copy(dsc_queue *q, host_copy *copy, dsc_tensor *a, dsc_tensor *v) {
    DSC_TRY(make_copy(q->device, a, v, copy));
    DSC_TRY(dsc_tensor_download(q, a, dsc_tensor_bytes(a), copy->a.data));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_op_syev_careful(copy->q, &copy->a, &copy->v));
    DSC_TRY(dsc_tensor_upload(q, copy->a.data, dsc_tensor_bytes(a), a));
    DSC_TRY(dsc_tensor_upload(q, copy->v.data, dsc_tensor_bytes(v), v));
    return dsc_queue_sync(q);
}

dsc_status dsc_cuda_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) {
    host_copy copy = {.device = NULL};
    dsc_status status = solve_copy(q, &copy, a, v);
    free_copy(&copy);
    DSC_TRY(status);
    return DSC_OK;
}
