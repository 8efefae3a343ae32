#include "device/trial.h"

#include "device/half.h"
#include "device/table.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

void trial_start(trial *tr, const char *name, trial_function run, const void *params) {
    *tr = (trial){.name = name, .run = run, .params = params};
}

static operand *add_operand(trial *tr, const char *name, operand_role role, int ndim, const int64_t *dim) {
    assert_true(tr->count < MAX_OPERANDS);
    operand *o = &tr->operands[tr->count++];
    *o = (operand){.name = name, .role = role, .real = 1, .ndim = ndim, .count = 1, .scale = 1};
    for (int i = 0; i < ndim; i++) {
        o->dim[i] = dim[i];
        o->count *= dim[i];
    }
    o->values = test_array(o->count, sizeof *o->values);
    return o;
}

static double *add_random(trial *tr, const char *name, operand_role role, int ndim, const int64_t *dim) {
    operand *o = add_operand(tr, name, role, ndim, dim);
    random_values(++tr->stream, o->count, o->values);
    return o->values;
}

double *trial_in(trial *tr, const char *name, int ndim, const int64_t *dim) {
    return add_random(tr, name, ROLE_IN, ndim, dim);
}

double *trial_inout(trial *tr, const char *name, double scale, int ndim, const int64_t *dim) {
    double *values = add_random(tr, name, ROLE_INOUT, ndim, dim);
    tr->operands[tr->count - 1].scale = scale;
    return values;
}

void trial_out(trial *tr, const char *name, double scale, int ndim, const int64_t *dim) {
    operand *o = add_operand(tr, name, ROLE_OUT, ndim, dim);
    o->scale = scale;
    for (int64_t i = 0; i < o->count; i++)
        o->values[i] = NAN;
}

void trial_beta(trial *tr, const char *name, double scale, double beta, int ndim, const int64_t *dim) {
    if (beta == 0)
        trial_out(tr, name, scale, ndim, dim);
    else
        trial_inout(tr, name, scale, ndim, dim);
}

double *trial_typed(trial *tr, const char *name, operand_role role, dsc_dtype dtype, double scale, int ndim,
                    const int64_t *dim) {
    operand *o = add_operand(tr, name, role, ndim, dim);
    o->real = 0;
    o->dtype = dtype;
    o->scale = scale;
    if (role == ROLE_OUT && dtype == DSC_F64)
        for (int64_t i = 0; i < o->count; i++)
            o->values[i] = NAN;
    return o->values;
}

void trial_param(trial *tr) {
    tr->operands[tr->count - 1].param = 1;
}

static int is_half(dsc_dtype dtype) {
    return dtype == DSC_BF16 || dtype == DSC_F16;
}

/* The type of an operand in a run of this type. */
static dsc_dtype type_of(const operand *o, dsc_dtype dtype) {
    if (!o->real)
        return o->dtype;
    return o->param && is_half(dtype) ? DSC_F32 : dtype;
}

/* Results of one run: per operand, the values afterwards. */
typedef struct outcome {
    double *values[MAX_OPERANDS];
} outcome;

static void outcome_free(outcome *o) {
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(o->values[i]);
    *o = (outcome){{0}};
}

/* An operation must not change how many threads the caller's next parallel region gets. */
static void check_next_team(const trial *tr, const rig *r) {
    int before = omp_get_max_threads(), team = 0;
    omp_set_num_threads(2);
#pragma omp parallel
#pragma omp single
    team = omp_get_num_threads();
    omp_set_num_threads(before);
    if (team != 2 && omp_get_thread_limit() >= 2 && omp_get_max_active_levels() >= 1)
        fail_msg("%s on %s: the next region has a team of %d instead of 2", tr->name, r->label, team);
}

static outcome run_once(const trial *tr, const rig *r, dsc_dtype dtype, int magnitudes) {
    outcome result = {{0}};
    place places[MAX_OPERANDS];
    dsc_tensor tensors[MAX_OPERANDS];
    for (int i = 0; i < tr->count; i++) {
        const operand *o = &tr->operands[i];
        result.values[i] = test_array(o->count, sizeof(double));
        for (int64_t j = 0; j < o->count; j++)
            result.values[i][j] = magnitudes && o->real ? fabs(o->values[j]) : o->values[j];
        places[i] = place_of(r, type_of(o, dtype), o->ndim, o->dim, result.values[i]);
        tensors[i] = places[i].t;
    }
    dsc_status status = tr->run(r->q, tensors, tr->params);
    if (status != DSC_OK)
        fail_msg("%s on %s in %s: %s", tr->name, r->label, dsc_dtype_name(dtype), dsc_error_message());
    assert_ok(dsc_queue_sync(r->q));
    check_next_team(tr, r);
    for (int i = 0; i < tr->count; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s in %s: %s", tr->name, dsc_dtype_name(dtype), tr->operands[i].name);
        if (tr->operands[i].role == ROLE_IN)
            place_expect(r, &places[i], result.values[i], what);
        place_check_guards(r, &places[i], what);
        place_read(r, &places[i], result.values[i]);
        place_free(&places[i]);
    }
    return result;
}

static void check_same_bits(const trial *tr, const rig *r, const outcome *a, const outcome *b) {
    for (int i = 0; i < tr->count; i++)
        for (int64_t j = 0; j < tr->operands[i].count; j++)
            if (memcmp(&a->values[i][j], &b->values[i][j], sizeof(double)) != 0)
                fail_msg("%s on %s: %s[%lld] is %.17g, then %.17g", tr->name, r->label, tr->operands[i].name,
                         (long long)j, a->values[i][j], b->values[i][j]);
}

/* Half a unit in the last place of a half type. */
static double rounding_of(dsc_dtype dtype, double value) {
    if (dtype == DSC_BF16)
        return 0x1p-8 * fabs(value);
    return dtype == DSC_F16 ? fmax(0x1p-11 * fabs(value), 0x1p-25) : 0;
}

static void compare(const trial *tr, const rig *r, dsc_dtype dtype, const outcome *got, const outcome *want,
                    const outcome *scale) {
    for (int i = 0; i < tr->count; i++) {
        const operand *o = &tr->operands[i];
        for (int64_t j = 0; o->role != ROLE_IN && j < o->count; j++) {
            double size = tr->linear ? fabs(scale->values[i][j]) : o->scale;
            double eps = dtype_eps(o->real || o->coarse ? dtype : o->dtype);
            double share = 2 * (tr->terms + 4) * eps + (tr->conv && r->loose ? tf32_share : 0);
            double limit = share * size + rounding_of(type_of(o, dtype), want->values[i][j]);
            limit += tr->rounded * rounding_of(dtype, size);
            if ((o->dtype == DSC_I32 || o->dtype == DSC_U8) && !o->real)
                limit = 0;
            double g = got->values[i][j], w = want->values[i][j];
            if (!(fabs(g - w) <= limit) && !(isnan(g) && isnan(w)))
                fail_msg("%s on %s in %s: %s[%lld] is %.9g instead of %.9g (limit %.3g)", tr->name, r->label,
                         dsc_dtype_name(dtype), o->name, (long long)j, g, w, limit);
        }
    }
}

/* Sums of squares of a block of a part, [rows, width] numbers `pitch` apart. */
static double sum_of_squares(const double *x, const double *less, int64_t rows, int64_t width,
                             int64_t pitch) {
    double sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
            double d = x[i * pitch + j] - (less ? less[i * pitch + j] : 0);
            sum += d * d;
        }
    return sum;
}

static void compare_parts(const trial *tr, const rig *r, dsc_dtype dtype, const outcome *got,
                          const outcome *want) {
    enum { BLOCK = 64 };
    for (int i = 0; i < tr->count; i++) {
        const operand *o = &tr->operands[i];
        if (o->role == ROLE_IN || type_of(o, dtype) != dtype)
            continue;
        const int64_t pitch = o->dim[o->ndim - 1], rows = o->count / pitch, width = pitch / tr->parts;
        for (int part = 0; part < tr->parts; part++) {
            const double *g = got->values[i] + part * width, *w = want->values[i] + part * width;
            const double least = sum_of_squares(w, NULL, rows, width, pitch) / (double)rows / 16;
            for (int64_t row = 0; row < rows; row += BLOCK) {
                const int64_t some = rows - row < BLOCK ? rows - row : BLOCK, at = row * pitch;
                const double size = sum_of_squares(w + at, NULL, some, width, pitch) / (double)some;
                const double error = sum_of_squares(g + at, w + at, some, width, pitch) / (double)some;
                const double limit = tr->typical * rounding_of(dtype, sqrt(fmax(size, least)));
                if (!(sqrt(error) <= limit))
                    fail_msg("%s on %s in %s: %s: in part %d of rows %lld to %lld the root mean square of "
                             "the errors "
                             "is %.3g (limit %.3g)",
                             tr->name, r->label, dsc_dtype_name(dtype), o->name, part, (long long)row,
                             (long long)(row + some - 1), sqrt(error / (double)width),
                             limit / sqrt((double)width));
            }
        }
    }
}

static void check_on(const trial *tr, const rig *r, dsc_dtype dtype, const outcome *want,
                     const outcome *scale) {
    outcome got = run_once(tr, r, dtype, 0);
    compare(tr, r, dtype, &got, want, scale);
    if (tr->parts && (dtype == DSC_F16 || dtype == DSC_BF16))
        compare_parts(tr, r, dtype, &got, want);
    if (dtype != DSC_F64) {
        outcome again = run_once(tr, r, dtype, 0);
        check_same_bits(tr, r, &got, &again);
        outcome_free(&again);
    }
    outcome_free(&got);
}

static void free_values(trial *tr) {
    for (int i = 0; i < tr->count; i++)
        free(tr->operands[i].values);
}

/* What ref makes of it in double. */
static void find_truth(const trial *tr, outcome *want, outcome *scale) {
    *want = run_once(tr, &rigs[0], DSC_F64, 0);
    *scale = (outcome){{0}};
    if (tr->linear)
        *scale = run_once(tr, &rigs[0], DSC_F64, 1);
}

void trial_check(trial *tr) {
    outcome want, scale;
    find_truth(tr, &want, &scale);
    for (int i = 0; i < rig_count; i++) {
        check_on(tr, &rigs[i], DSC_F32, &want, &scale);
        if (i > 0 && (!tr->conv || rig_convolves(&rigs[i], DSC_F64))) /* ref in double is the measure */
            check_on(tr, &rigs[i], DSC_F64, &want, &scale);
    }
    outcome_free(&want);
    outcome_free(&scale);
    free_values(tr);
}

static void round_values(trial *tr, dsc_dtype dtype) {
    for (int i = 0; i < tr->count; i++) {
        operand *o = &tr->operands[i];
        for (int64_t j = 0; is_half(type_of(o, dtype)) && j < o->count; j++)
            o->values[j] = dtype == DSC_BF16 ? (double)dsc_bf16_to_float(dsc_bf16_from_double(o->values[j]))
                                             : (double)dsc_f16_to_float(dsc_f16_from_double(o->values[j]));
    }
}

void trial_check_halves(trial *tr) {
    static const dsc_dtype halves[] = {DSC_F16, DSC_BF16}; /* what the first holds is rounded once more */
    for (int type = 0; type < 2; type++) {
        outcome want, scale;
        round_values(tr, halves[type]);
        find_truth(tr, &want, &scale);
        for (int i = 1; i < rig_count; i++)
            if (rigs[i].device->has_halves)
                check_on(tr, &rigs[i], halves[type], &want, &scale);
        outcome_free(&want);
        outcome_free(&scale);
    }
    free_values(tr);
}
