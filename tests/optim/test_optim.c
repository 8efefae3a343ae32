/* Optimisers against a transcription of their papers' formulas in double, on every device. */
#include "chosen.h"

#include "base/memory.h"
#include "base/rng.h"
#include "optim/optim_parts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { PARAMS = 5, TOTAL = 7 + 15 + 1 + 18 + 1001, STEPS = 200 };

static const struct {
    const char *name;
    int ndim;
    int64_t dim[4];
} shapes[PARAMS] = {{"conv.weight", 1, {7}},
                    {"bn.weight", 2, {3, 5}},
                    {"bn.bias", 1, {1}},
                    {"conv2.weight", 4, {2, 3, 3, 1}},
                    {"linear.weight", 3, {7, 11, 13}}};

/* How the parameters lie in memory. */
typedef enum layout {
    TOGETHER,    /* values in a row, gradients in a row */
    APART,       /* a gap after every one */
    GAPS,        /* a gap after the second and the fourth */
    GRADS_APART, /* values in a row, gradients not */
    LAYOUTS
} layout;

typedef struct net {
    dsc_device *device;
    dsc_queue *queue;
    dsc_dtype dtype;
    dsc_tensor values, grads, reads; /* memory, gaps included */
    dsc_param params[PARAMS];
    dsc_tensor read[PARAMS];
} net;

static int64_t count_of(int p) {
    int64_t count = 1;
    for (int d = 0; d < shapes[p].ndim; d++)
        count *= shapes[p].dim[d];
    return count;
}

/* ref and cpu, or those of the environment; terminated by NULL. */
static const char *const *devices(void) {
    static const char *const usual[] = {"ref", "cpu", NULL};
    static const char *other[] = {NULL, NULL};
    other[0] = chosen();
    return chosen() ? other : usual;
}

static void make_net(const char *device, dsc_dtype dtype, layout lay, net *n) {
    *n = (net){.dtype = dtype, .device = chosen_open(device, 2)};
    assert_ok(dsc_queue_create(n->device, &n->queue));
    const int64_t room = TOTAL + PARAMS;
    assert_ok(dsc_tensor_alloc(n->device, dtype, 1, &room, &n->values));
    assert_ok(dsc_tensor_alloc(n->device, dtype, 1, &room, &n->grads));
    assert_ok(dsc_tensor_alloc(n->device, dtype, 1, &room, &n->reads));
    int64_t value_at = 0, grad_at = 0;
    for (int p = 0; p < PARAMS; p++) {
        int64_t count = count_of(p);
        dsc_tensor value = dsc_tensor_slice(&n->values, value_at, count);
        dsc_tensor grad = dsc_tensor_slice(&n->grads, grad_at, count);
        dsc_tensor read = dsc_tensor_slice(&n->reads, value_at, count);
        n->params[p] =
            (dsc_param){.name = shapes[p].name,
                        .value = dsc_tensor_view(n->device, value.data, dtype, shapes[p].ndim, shapes[p].dim),
                        .grad = dsc_tensor_view(n->device, grad.data, dtype, shapes[p].ndim, shapes[p].dim)};
        n->read[p] = dsc_tensor_view(n->device, read.data, dtype, shapes[p].ndim, shapes[p].dim);
        int gap = lay == APART || (lay == GAPS && p % 2 == 1);
        value_at += count + gap;
        grad_at += count + (gap || lay == GRADS_APART);
    }
}

static void free_net(net *n) {
    dsc_tensor_free(&n->values);
    dsc_tensor_free(&n->grads);
    dsc_tensor_free(&n->reads);
    assert_int_equal(dsc_device_bytes(n->device), 0);
    dsc_queue_destroy(&n->queue);
    dsc_device_destroy(&n->device);
}

/* Tensors from and to doubles, through host memory of the tensor's own type. */
static void put(net *n, const double *from, dsc_tensor *t) {
    static float rounded[TOTAL];
    int64_t count = dsc_tensor_count(t);
    for (int64_t i = 0; i < count; i++)
        rounded[i] = (float)from[i];
    const void *host = n->dtype == DSC_F32 ? (const void *)rounded : from;
    assert_ok(dsc_tensor_upload(n->queue, host, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(n->queue));
}

static void get(net *n, const dsc_tensor *t, double *to) {
    static float rounded[TOTAL];
    int single = n->dtype == DSC_F32;
    assert_ok(dsc_tensor_download(n->queue, t, dsc_tensor_bytes(t), single ? (void *)rounded : to));
    assert_ok(dsc_queue_sync(n->queue));
    int64_t count = dsc_tensor_count(t);
    for (int64_t i = 0; i < count && single; i++)
        to[i] = rounded[i];
}

/* Numbers that both types hold exactly, so that both sides start from the same. */
static double draw(int purpose, int step, int64_t element) {
    dsc_rng rng = dsc_rng_start(7, DSC_RNG_TEST, (uint32_t)(1000 * purpose + step), (uint64_t)element);
    return (float)dsc_rng_normal(&rng);
}

static double start_value(int64_t element) {
    return draw(1, 0, element);
}

static float gradients[STEPS][TOTAL];

/* A mean that is not 0, or momentum would mean little; element 3 never gets a gradient. */
static int draw_gradients(void **state) {
    (void)state;
    for (int step = 0; step < STEPS; step++)
        for (int64_t i = 0; i < TOTAL; i++)
            gradients[step][i] = i == 3 ? 0 : (float)(0.25 * draw(2, step, i) + 0.125 * draw(3, 0, i));
    return 0;
}

static void put_all(net *n, double (*value)(int64_t element), int step) {
    static double host[TOTAL];
    int64_t at = 0;
    for (int p = 0; p < PARAMS; p++) {
        int64_t count = count_of(p);
        for (int64_t i = 0; i < count; i++)
            host[i] = value ? value(at + i) : gradients[step][at + i];
        put(n, host, value ? &n->params[p].value : &n->params[p].grad);
        at += count;
    }
}

/* read = 1.5 value */
static void put_read(net *n) {
    static double host[TOTAL];
    for (int p = 0; p < PARAMS; p++) {
        get(n, &n->params[p].value, host);
        for (int64_t i = 0; i < count_of(p); i++)
            host[i] *= 1.5;
        put(n, host, &n->read[p]);
    }
}

/* The learning rate changes from step to step. */
static double rate_of(double lr, int step) {
    return lr * (1 + step % 3);
}

static dsc_optim *make_optim(net *n, const dsc_optim_options *options) {
    dsc_optim *optim = NULL;
    assert_ok(dsc_optim_create(n->queue, n->params, PARAMS, options, &optim));
    return optim;
}

static void run_steps(net *n, dsc_optim *optim, double lr, int from, int to, int with_read) {
    for (int step = from; step < to; step++) {
        put_all(n, NULL, step);
        if (with_read)
            put_read(n);
        assert_ok(dsc_optim_step(optim, n->queue, rate_of(lr, step), with_read ? n->read : NULL));
    }
    assert_ok(dsc_queue_sync(n->queue));
}

/* ---- the papers, in double ---- */

typedef struct paper {
    double x[TOTAL], m[TOTAL], v[TOTAL], g[TOTAL], z[TOTAL], u[TOTAL];
    double largest_x, largest_update;
} paper;

static double norm(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Sutskever et al. 2013 in the form PyTorch made usual: the rate multiplies the velocity. */
static void paper_sgd(const dsc_optim_options *o, double lr, const paper *p, int64_t i, double *m,
                      double *u) {
    double d = p->g[i] + o->weight_decay * p->z[i];
    *m = o->momentum * *m + d;
    *u = lr * (o->nesterov ? d + o->momentum * *m : *m);
}

/* Kingma and Ba 2015, algorithm 1: the direction for the gradient d. */
static double paper_moments(const dsc_optim_options *o, int t, double d, double *m, double *v) {
    *m = o->beta1 * *m + (1 - o->beta1) * d;
    *v = o->beta2 * *v + (1 - o->beta2) * d * d;
    double m_hat = *m / (1 - pow(o->beta1, t)), v_hat = *v / (1 - pow(o->beta2, t));
    return m_hat / (sqrt(v_hat) + o->eps);
}

/* One parameter, elements [from, to): sets u, what is taken from x. */
static void paper_update(const dsc_optim_options *o, double lr, int t, paper *p, int64_t from, int64_t to) {
    double z_norm = norm(p->z + from, to - from), g_norm = norm(p->g + from, to - from),
           decay = o->weight_decay;
    /* You et al. 2017: eta |w| / (|g| + beta |w|) */
    double local = z_norm > 0 && g_norm > 0 ? o->trust * z_norm / (g_norm + decay * z_norm) : 1;
    for (int64_t i = from; i < to; i++) {
        double *m = &p->m[i], *v = &p->v[i], *u = &p->u[i], g = p->g[i], z = p->z[i];
        switch (o->kind) {
        case DSC_SGD:
            paper_sgd(o, lr, p, i, m, u);
            break;
        case DSC_ADAM:
            *u = lr * paper_moments(o, t, g + decay * z, m, v);
            break;
        case DSC_ADAMW: /* Loshchilov and Hutter 2019: decay beside the moments */
            *u = lr * (paper_moments(o, t, g, m, v) + decay * z);
            break;
        case DSC_LARS:
            *m = o->momentum * *m + lr * local * (g + decay * z);
            *u = *m;
            break;
        case DSC_LAMB: /* You et al. 2020, algorithm 2, phi(x) = x; without decay no trust ratio, as in apex */
            *u = paper_moments(o, t, g, m, v) + decay * z;
            break;
        }
    }
    if (o->kind == DSC_LAMB) {
        double u_norm = norm(p->u + from, to - from);
        for (int64_t i = from; i < to; i++)
            p->u[i] *= lr * (decay > 0 && z_norm > 0 && u_norm > 0 ? z_norm / u_norm : 1);
    }
}

static double factor_of(const dsc_optim_options *o, int k) {
    return o->factors ? o->factors[k] : 1;
}

static void paper_step(const dsc_optim_options *o, double lr, int t, int with_read, paper *p) {
    for (int64_t i = 0; i < TOTAL; i++) {
        p->g[i] = gradients[t - 1][i];
        p->z[i] = with_read ? 1.5 * p->x[i] : p->x[i];
    }
    int64_t at = 0;
    double squares = 0;
    for (int k = 0; k < PARAMS; at += count_of(k++))
        squares += factor_of(o, k) > 0 ? pow(norm(p->g + at, count_of(k)), 2) : 0;
    double length = sqrt(squares);
    if (o->clip_norm > 0 && length > o->clip_norm)
        for (int64_t i = 0; i < TOTAL; i++)
            p->g[i] *= o->clip_norm / length;
    at = 0;
    for (int k = 0; k < PARAMS; k++) {
        dsc_optim_options own = *o;
        if (o->decay_on == DSC_DECAY_WEIGHTS && shapes[k].ndim == 1)
            own.weight_decay = 0;
        if (factor_of(o, k) > 0)
            paper_update(&own, lr * factor_of(o, k), t, p, at, at + count_of(k));
        at += count_of(k);
    }
    for (int64_t i = 0; i < TOTAL; i++) {
        p->x[i] -= p->u[i];
        p->largest_x = fmax(p->largest_x, fabs(p->x[i]));
        p->largest_update = fmax(p->largest_update, fabs(p->u[i]));
    }
}

/* ---- the cases ---- */

typedef struct test_case {
    const char *name;
    dsc_optim_options options; /* eps and betas left 0 stand for the defaults */
    double lr;
    int with_read;
    layout lay;
} test_case;

static const double some_factors[PARAMS] = {1, 0, 10, 0.5, 0};

static const test_case cases[] = {
    {"sgd factors",
     {.kind = DSC_SGD, .momentum = 0.9, .weight_decay = 0.05, .clip_norm = 2, .factors = some_factors},
     0.01,
     0,
     TOGETHER},
    {"adamw factors read",
     {.kind = DSC_ADAMW, .weight_decay = 0.05, .decay_on = DSC_DECAY_WEIGHTS, .factors = some_factors},
     0.005,
     1,
     TOGETHER},
    {"lars factors",
     {.kind = DSC_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02, .factors = some_factors},
     0.1,
     0,
     GAPS},
    {"sgd", {.kind = DSC_SGD}, 0.01, 0, TOGETHER},
    {"sgd momentum", {.kind = DSC_SGD, .momentum = 0.9}, 0.01, 0, GAPS},
    {"sgd decay", {.kind = DSC_SGD, .momentum = 0.9, .weight_decay = 0.05}, 0.01, 0, TOGETHER},
    {"sgd nesterov", {.kind = DSC_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.05}, 0.01, 0, APART},
    {"sgd read", {.kind = DSC_SGD, .momentum = 0.9, .weight_decay = 0.05}, 0.01, 1, TOGETHER},
    {"sgd clipped", {.kind = DSC_SGD, .momentum = 0.9, .clip_norm = 2}, 0.01, 0, GRADS_APART},
    {"sgd hardly clipped", {.kind = DSC_SGD, .momentum = 0.5, .clip_norm = 1e6}, 0.01, 0, TOGETHER},
    {"adam", {.kind = DSC_ADAM}, 0.005, 0, TOGETHER},
    {"adam decay", {.kind = DSC_ADAM, .weight_decay = 0.05}, 0.005, 0, GRADS_APART},
    {"adam betas", {.kind = DSC_ADAM, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-3}, 0.005, 0, APART},
    {"adam read", {.kind = DSC_ADAM, .weight_decay = 0.05}, 0.005, 1, GAPS},
    {"adamw", {.kind = DSC_ADAMW, .weight_decay = 0.05}, 0.005, 0, TOGETHER},
    {"adamw weights",
     {.kind = DSC_ADAMW, .weight_decay = 0.05, .decay_on = DSC_DECAY_WEIGHTS},
     0.005,
     0,
     TOGETHER},
    {"sgd weights read",
     {.kind = DSC_SGD, .momentum = 0.9, .weight_decay = 0.05, .decay_on = DSC_DECAY_WEIGHTS},
     0.01,
     1,
     GAPS},
    {"lamb weights",
     {.kind = DSC_LAMB, .weight_decay = 0.05, .decay_on = DSC_DECAY_WEIGHTS},
     0.002,
     0,
     TOGETHER},
    {"adamw read clipped", {.kind = DSC_ADAMW, .weight_decay = 0.05, .clip_norm = 2}, 0.005, 1, GAPS},
    {"lars", {.kind = DSC_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02}, 0.1, 0, TOGETHER},
    {"lars plain", {.kind = DSC_LARS, .trust = 0.02}, 0.1, 0, APART},
    {"lars read", {.kind = DSC_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02}, 0.1, 1, GAPS},
    {"lamb", {.kind = DSC_LAMB, .weight_decay = 0.01}, 0.002, 0, TOGETHER},
    {"lamb read clipped", {.kind = DSC_LAMB, .weight_decay = 0.01, .clip_norm = 2}, 0.002, 1, APART},
};
enum { CASES = sizeof cases / sizeof *cases };

static dsc_optim_options options_of(const test_case *c) {
    dsc_optim_options defaults, options = c->options;
    dsc_optim_options_init(&defaults);
    options.size = sizeof options;
    options.beta1 = options.beta1 > 0 ? options.beta1 : defaults.beta1;
    options.beta2 = options.beta2 > 0 ? options.beta2 : defaults.beta2;
    options.eps = options.eps > 0 ? options.eps : defaults.eps;
    options.trust = options.trust > 0 ? options.trust : defaults.trust;
    return options;
}

/* Every step rounds x (to eps |x|) and makes an update from state that carries the roundings of the steps
 * before, at most STEPS of them: after all steps c * STEPS * eps * (|x| + STEPS |update|), where c = 4 counts
 * the operations of one element. */
static void compare(net *n, const test_case *c, const paper *p) {
    static double x[TOTAL];
    double eps = n->dtype == DSC_F32 ? FLT_EPSILON : DBL_EPSILON;
    double bound = 4 * STEPS * eps * (p->largest_x + STEPS * p->largest_update);
    int64_t at = 0;
    for (int k = 0; k < PARAMS; k++) {
        get(n, &n->params[k].value, x);
        for (int64_t i = 0; i < count_of(k); i++)
            if (!(fabs(x[i] - p->x[at + i]) <= bound))
                fail_msg("%s, %s, %s: %s[%lld] is %.9g instead of %.9g, more than %g away", c->name,
                         dsc_device_name(n->device), dsc_dtype_name(n->dtype), shapes[k].name, (long long)i,
                         x[i], p->x[at + i], bound);
        at += count_of(k);
    }
}

static void check_case(const char *device, dsc_dtype dtype, const test_case *c) {
    static paper p;
    net n;
    make_net(device, dtype, c->lay, &n);
    put_all(&n, start_value, 0);
    dsc_optim_options options = options_of(c);
    dsc_optim *optim = make_optim(&n, &options);
    run_steps(&n, optim, c->lr, 0, STEPS, c->with_read);
    assert_int_equal(dsc_optim_steps(optim), STEPS);

    memset(&p, 0, sizeof p);
    for (int64_t i = 0; i < TOTAL; i++)
        p.x[i] = start_value(i);
    if (options.eps < 0)
        options.eps = options.kind == DSC_LAMB ? 1e-6 : 1e-8;
    for (int step = 0; step < STEPS; step++)
        paper_step(&options, rate_of(c->lr, step), step + 1, c->with_read, &p);
    compare(&n, c, &p);
    dsc_optim_destroy(&optim);
    free_net(&n);
}

static void test_papers(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        for (const char *const *name = devices(); *name; name++)
            check_case(*name, DSC_F32, &cases[i]);
        check_case(chosen_or("ref"), DSC_F64, &cases[i]);
    }
}

/* Where norms are 0 the trust ratios are 1; a parameter at 0 without a gradient stays there. */
static double zero_value(int64_t element) {
    (void)element;
    return 0;
}

static void test_zero(void **state) {
    (void)state;
    static double x[TOTAL];
    for (int kind = DSC_SGD; kind <= DSC_LAMB; kind++) {
        net n;
        make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
        put_all(&n, zero_value, 0);
        dsc_optim_options options;
        dsc_optim_options_init(&options);
        options.kind = (dsc_optim_kind)kind;
        options.clip_norm = 1;
        dsc_optim *optim = make_optim(&n, &options);
        for (int step = 0; step < 3; step++)
            assert_ok(dsc_optim_step(optim, n.queue, 0.1, NULL));
        for (int p = 0; p < PARAMS; p++) {
            get(&n, &n.params[p].value, x);
            for (int64_t i = 0; i < count_of(p); i++)
                assert_true(x[i] == 0);
        }
        dsc_optim_destroy(&optim);
        free_net(&n);
    }
}

/* ---- clipping ---- */

static void test_clipping(void **state) {
    (void)state;
    static double g[TOTAL], before[TOTAL];
    double length = 0;
    for (int64_t i = 0; i < TOTAL; i++)
        before[i] = gradients[0][i];
    length = norm(before, TOTAL);
    for (const char *const *name = devices(); *name; name++)
        for (int lay = 0; lay < LAYOUTS; lay++)
            for (int active = 0; active < 2; active++) {
                net n;
                make_net(*name, DSC_F32, (layout)lay, &n);
                dsc_optim_options options;
                dsc_optim_options_init(&options);
                options.clip_norm = active ? length / 4 : length * 1.0625;
                dsc_optim *optim = make_optim(&n, &options);
                put_all(&n, NULL, 0);
                assert_ok(dsc_optim_step(optim, n.queue, 0, NULL));
                double sumsq;
                assert_ok(dsc_tensor_download(n.queue, dsc_optim_grad_sumsq(optim), sizeof sumsq, &sumsq));
                assert_true(fabs(sumsq - length * length) <= TOTAL * DBL_EPSILON * length * length);
                int64_t at = 0;
                for (int p = 0; p < PARAMS; at += count_of(p), p++) {
                    get(&n, &n.params[p].grad, g);
                    for (int64_t i = 0; i < count_of(p); i++) {
                        double expected = before[at + i] * (active ? 0.25 : 1);
                        assert_true(fabs(g[i] - expected) <= (active ? 2 * FLT_EPSILON * fabs(expected) : 0));
                    }
                }
                dsc_optim_destroy(&optim);
                free_net(&n);
            }
}

static void test_no_clipping(void **state) {
    (void)state;
    net n;
    make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
    dsc_optim *optim = make_optim(&n, NULL);
    assert_null(dsc_optim_grad_sumsq(optim));
    dsc_optim_destroy(&optim);
    free_net(&n);
}

/* ---- state ---- */

static void test_state_names(void **state) {
    (void)state;
    net n;
    make_net(chosen_or("ref"), DSC_F32, GAPS, &n);
    dsc_optim *optim = make_optim(&n, NULL);
    assert_int_equal(dsc_optim_state_count(optim), PARAMS);
    const dsc_param *entries = dsc_optim_state(optim);
    assert_string_equal(entries[0].name, "momentum.conv.weight");
    assert_string_equal(entries[4].name, "momentum.linear.weight");
    assert_null(entries[0].grad.data);
    dsc_optim_destroy(&optim);

    dsc_optim_options options;
    dsc_optim_options_init(&options);
    options.kind = DSC_ADAM;
    optim = make_optim(&n, &options);
    assert_int_equal(dsc_optim_state_count(optim), 2 * PARAMS);
    entries = dsc_optim_state(optim);
    assert_string_equal(entries[0].name, "exp_avg.conv.weight");
    assert_string_equal(entries[1].name, "exp_avg_sq.conv.weight");
    assert_string_equal(entries[7].name, "exp_avg_sq.conv2.weight");
    for (int p = 0; p < PARAMS; p++)
        for (int s = 0; s < 2; s++) {
            assert_int_equal(entries[2 * p + s].value.ndim, shapes[p].ndim);
            assert_memory_equal(entries[2 * p + s].value.dim, shapes[p].dim,
                                (size_t)shapes[p].ndim * sizeof(int64_t));
        }
    dsc_optim_destroy(&optim);
    dsc_optim_destroy(&optim);
    dsc_optim_destroy(NULL);
    free_net(&n);
}

/* Copies values and state of one run into a fresh one, through the host, as a checkpoint does. */
static void restore(net *from, const dsc_optim *old, net *to, dsc_optim *fresh) {
    static double buffer[TOTAL];
    for (int p = 0; p < PARAMS; p++) {
        size_t bytes = dsc_tensor_bytes(&from->params[p].value);
        assert_ok(dsc_tensor_download(from->queue, &from->params[p].value, bytes, buffer));
        assert_ok(dsc_tensor_upload(to->queue, buffer, bytes, &to->params[p].value));
    }
    for (int64_t i = 0; i < dsc_optim_state_count(old); i++) {
        dsc_tensor target = dsc_optim_state(fresh)[i].value;
        size_t bytes = dsc_tensor_bytes(&target);
        assert_ok(dsc_tensor_download(from->queue, &dsc_optim_state(old)[i].value, bytes, buffer));
        assert_ok(dsc_tensor_upload(to->queue, buffer, bytes, &target));
    }
    dsc_optim_set_steps(fresh, dsc_optim_steps(old));
}

/* A number of steps out of a damaged file is cut to what can be counted on from. */
static void test_set_steps(void **state) {
    (void)state;
    const int64_t most = (int64_t)1 << 53;
    net n;
    make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
    dsc_optim *optim = make_optim(&n, NULL);
    dsc_optim_set_steps(optim, -5);
    assert_int_equal(dsc_optim_steps(optim), 0);
    dsc_optim_set_steps(optim, INT64_MAX);
    assert_int_equal(dsc_optim_steps(optim), most);
    assert_ok(dsc_optim_step(optim, n.queue, 0.1, NULL));
    assert_int_equal(dsc_optim_steps(optim), most + 1);
    dsc_optim_destroy(&optim);
    free_net(&n);
}

/* Stopping and going on in a fresh optimiser gives the bits of the run that never stopped. */
static void test_restore(void **state) {
    (void)state;
    static double whole[TOTAL], resumed[TOTAL];
    for (int i = 0; i < CASES; i++)
        for (const char *const *name = devices(); *name; name++) {
            net a, b;
            make_net(*name, DSC_F32, cases[i].lay, &a);
            make_net(*name, DSC_F32, cases[i].lay, &b);
            dsc_optim_options options = options_of(&cases[i]);
            dsc_optim *first = make_optim(&a, &options), *second = make_optim(&b, &options);
            put_all(&a, start_value, 0);
            run_steps(&a, first, cases[i].lr, 0, 7, cases[i].with_read);
            restore(&a, first, &b, second);
            run_steps(&a, first, cases[i].lr, 7, 20, cases[i].with_read);
            run_steps(&b, second, cases[i].lr, 7, 20, cases[i].with_read);
            for (int p = 0; p < PARAMS; p++) {
                get(&a, &a.params[p].value, whole);
                get(&b, &b.params[p].value, resumed);
                assert_memory_equal(whole, resumed, (size_t)count_of(p) * sizeof *whole);
            }
            dsc_optim_destroy(&first);
            dsc_optim_destroy(&second);
            free_net(&a);
            free_net(&b);
        }
}

/* Merged or one by one, the layout does not change a bit (clipping aside: its sum is ordered by it). */
static void test_layouts_agree(void **state) {
    (void)state;
    static double expected[PARAMS][TOTAL], x[TOTAL];
    for (int kind = DSC_SGD; kind <= DSC_LAMB; kind++)
        for (const char *const *name = devices(); *name; name++)
            for (int lay = 0; lay < LAYOUTS; lay++) {
                net n;
                make_net(*name, DSC_F32, (layout)lay, &n);
                dsc_optim_options options;
                dsc_optim_options_init(&options);
                options.kind = (dsc_optim_kind)kind;
                dsc_optim *optim = make_optim(&n, &options);
                put_all(&n, start_value, 0);
                run_steps(&n, optim, 0.01, 0, 5, 0);
                for (int p = 0; p < PARAMS; p++) {
                    get(&n, &n.params[p].value, lay == 0 ? expected[p] : x);
                    if (lay > 0)
                        assert_memory_equal(x, expected[p], (size_t)count_of(p) * sizeof *x);
                }
                dsc_optim_destroy(&optim);
                free_net(&n);
            }
}

/* ---- memory ---- */

static void test_step_allocates_nothing(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (const char *const *name = devices(); *name; name++) {
            net n;
            make_net(*name, DSC_F32, cases[i].lay, &n);
            dsc_optim_options options = options_of(&cases[i]);
            dsc_optim *optim = make_optim(&n, &options);
            put_all(&n, start_value, 0);
            run_steps(&n, optim, cases[i].lr, 0, 2, cases[i].with_read);
            int64_t allocations = dsc_memory_allocations();
            size_t bytes = dsc_device_bytes(n.device);
            for (int step = 2; step < 10; step++)
                assert_ok(dsc_optim_step(optim, n.queue, cases[i].lr, cases[i].with_read ? n.read : NULL));
            assert_int_equal(dsc_memory_allocations(), allocations);
            assert_int_equal(dsc_device_bytes(n.device), bytes);
            dsc_optim_destroy(&optim);
            free_net(&n);
        }
}

/* Each allocation of create fails once; nothing leaks and *out is left alone. */
static void test_create_survives_failures(void **state) {
    (void)state;
    for (int kind = DSC_SGD; kind <= DSC_LAMB; kind++) {
        net n;
        make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
        size_t bytes = dsc_device_bytes(n.device);
        dsc_optim_options options;
        dsc_optim_options_init(&options);
        options.kind = (dsc_optim_kind)kind;
        options.clip_norm = 1;
        int64_t nth = 1;
        for (;; nth++) {
            dsc_optim *optim = NULL;
            dsc_memory_fail_at(nth);
            dsc_status status = dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim);
            dsc_memory_fail_at(0);
            if (status == DSC_OK) {
                dsc_optim_destroy(&optim);
                break;
            }
            assert_int_equal(status, DSC_E_MEMORY);
            assert_null(optim);
            assert_int_equal(dsc_device_bytes(n.device), bytes);
        }
        assert_true(nth > 5);
        free_net(&n);
    }
}

/* A step that is skipped leaves all parameters as they are, those without weight decay, too. */
static void test_skip(void **state) {
    (void)state;
    static double before[TOTAL], after[TOTAL];
    for (int on = DSC_DECAY_ALL; on <= DSC_DECAY_WEIGHTS; on++) {
        net n;
        const double yes = 1;
        dsc_optim_options options;
        make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
        dsc_optim_options_init(&options);
        options.decay_on = (dsc_decay_on)on;
        dsc_optim *optim = make_optim(&n, &options);
        put_all(&n, start_value, 0);
        put_all(&n, NULL, 0);
        dsc_tensor values = dsc_tensor_slice(&n.values, 0, TOTAL);
        get(&n, &values, before);
        assert_ok(dsc_optim_prepare(optim, n.queue, 0.1));
        dsc_tensor skip = *dsc_optim_skip(optim);
        assert_ok(dsc_tensor_upload(n.queue, &yes, sizeof yes, &skip));
        assert_ok(dsc_optim_apply(optim, n.queue, NULL));
        get(&n, &values, after);
        assert_memory_equal(before, after, sizeof before);
        dsc_optim_destroy(&optim);
        free_net(&n);
    }
}

static void test_default_rates(void **state) {
    (void)state;
    const double rates[] = {0.1, 0.001, 0.001, 1, 0.005};
    for (int kind = DSC_SGD; kind <= DSC_LAMB; kind++)
        assert_true(dsc_optim_default_rate((dsc_optim_kind)kind) == rates[kind]);
    assert_true(dsc_optim_default_rate((dsc_optim_kind)77) == 0.1);
}

/* ---- bad input ---- */

static void test_names(void **state) {
    (void)state;
    for (int kind = DSC_SGD; kind <= DSC_LAMB; kind++) {
        dsc_optim_kind parsed;
        assert_ok(dsc_optim_parse(dsc_optim_name((dsc_optim_kind)kind), &parsed));
        assert_int_equal(parsed, kind);
    }
    dsc_optim_kind kind;
    assert_fails(DSC_E_INVALID, "optimizer 'sdg' is unknown: choose one of sgd, adam, adamw, lars, lamb",
                 dsc_optim_parse("sdg", &kind));
    assert_fails(DSC_E_INVALID, "optimizer '' is unknown: choose one of sgd", dsc_optim_parse(NULL, &kind));
    assert_string_equal(dsc_optim_name((dsc_optim_kind)77), "unknown");
}

static void test_bad_options(void **state) {
    (void)state;
    net n;
    make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
    dsc_optim_options good;
    dsc_optim_options_init(&good);
    dsc_optim *optim = NULL;
    const struct {
        size_t offset;
        double value;
        const char *text;
    } bad[] = {
        {offsetof(dsc_optim_options, momentum), 1, "momentum 1: must be at least 0 and below 1"},
        {offsetof(dsc_optim_options, momentum), NAN, "momentum"},
        {offsetof(dsc_optim_options, weight_decay), -1, "weight-decay -1: must be at least 0"},
        {offsetof(dsc_optim_options, beta1), 1.5, "beta1 1.5: must be at least 0 and below 1"},
        {offsetof(dsc_optim_options, beta2), -0.5, "beta2 -0.5: must be at least 0"},
        {offsetof(dsc_optim_options, eps), INFINITY, "eps inf"},
        {offsetof(dsc_optim_options, trust), 0, "trust 0: must be above 0"},
        {offsetof(dsc_optim_options, clip_norm), -2, "clip-norm -2: must be at least 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dsc_optim_options options = good;
        memcpy((char *)&options + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        assert_fails(DSC_E_INVALID, bad[i].text,
                     dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim));
    }
    const double negative[PARAMS] = {1, 1, -1, 1, 1};
    dsc_optim_options options = good;
    options.factors = negative;
    assert_fails(DSC_E_INVALID, "parameter 'bn.bias': the factor of its rate is -1: must be 0 or more",
                 dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim));
    options = good;
    options.kind = (dsc_optim_kind)9;
    assert_fails(DSC_E_INVALID, "optimizer 9 is unknown: choose one of sgd, adam",
                 dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim));
    options = good;
    options.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_optim_options_init",
                 dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim));
    /* A caller built against a shorter struct gets the defaults for the rest. */
    options = (dsc_optim_options){.size = offsetof(dsc_optim_options, momentum), .kind = DSC_ADAM};
    assert_ok(dsc_optim_create(n.queue, n.params, PARAMS, &options, &optim));
    assert_fails(DSC_E_INVALID, "learning rate -1", dsc_optim_step(optim, n.queue, -1, NULL));
    assert_fails(DSC_E_INVALID, "learning rate nan", dsc_optim_step(optim, n.queue, NAN, NULL));
    assert_int_equal(dsc_optim_steps(optim), 0);
    dsc_optim_destroy(&optim);
    free_net(&n);
}

static void test_bad_params(void **state) {
    (void)state;
    net n, other;
    make_net(chosen_or("ref"), DSC_F32, TOGETHER, &n);
    make_net(chosen_or("ref"), DSC_F64, TOGETHER, &other);
    dsc_optim *optim = NULL;
    dsc_param saved = n.params[2];
    n.params[2].grad = n.params[1].grad;
    assert_fails(DSC_E_INVALID, "parameter 'bn.bias' has 1 elements and its gradient 15",
                 dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.params[2] = other.params[2];
    assert_fails(DSC_E_INVALID, "parameter 'bn.bias' is not in memory",
                 dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.params[2] = saved;
    n.params[2].value.dtype = n.params[2].grad.dtype = DSC_I32;
    assert_fails(DSC_E_INVALID, "must be fp32 or fp64",
                 dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.params[2] = saved;
    n.params[2].grad.data = NULL;
    assert_fails(DSC_E_INVALID, "parameter 'bn.bias' is not in memory",
                 dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.params[2] = saved;
    n.params[2].name = NULL;
    assert_fails(DSC_E_INVALID, "parameter 2 has no name",
                 dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.params[2] = saved;
    assert_fails(DSC_E_INVALID, "no queue", dsc_optim_create(NULL, n.params, PARAMS, NULL, &optim));
    assert_fails(DSC_E_INVALID, "3 parameters at NULL", dsc_optim_create(n.queue, NULL, 3, NULL, &optim));
    assert_fails(DSC_E_INVALID, "-1 parameters", dsc_optim_create(n.queue, n.params, -1, NULL, &optim));
    assert_ok(dsc_optim_create(n.queue, NULL, 0, NULL, &optim));
    assert_ok(dsc_optim_step(optim, n.queue, 0.1, NULL));
    dsc_optim_destroy(&optim);
    assert_ok(dsc_optim_create(n.queue, n.params, PARAMS, NULL, &optim));
    n.read[1] = n.read[0];
    assert_fails(DSC_E_INVALID, "tensor 1 to read has 7 elements",
                 dsc_optim_step(optim, n.queue, 0.1, n.read));
    dsc_optim_destroy(&optim);
    free_net(&n);
    free_net(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_papers),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_no_clipping),
        cmocka_unit_test(test_state_names),
        cmocka_unit_test(test_restore),
        cmocka_unit_test(test_set_steps),
        cmocka_unit_test(test_layouts_agree),
        cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_default_rates),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_create_survives_failures),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_bad_params),
    };
    return cmocka_run_group_tests_name("optim", tests, draw_gradients, NULL);
}
