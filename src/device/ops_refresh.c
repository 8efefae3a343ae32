/* Fronts of the refresh of an eigenbasis: every item is checked before the first one is computed. */
#include "device/checks.h"

#include "base/error.h"

#include <math.h>

/* Checks a basis [n,k] with 1 <= k <= n and n <= INT32_MAX / 2. */
static dsc_status check_basis(const dsc_check *check, const char *name, const dsc_tensor *t) {
    DSC_TRY(dsc_check_real(check, name, t));
    DSC_TRY(dsc_check_dims(check, name, t, 2));
    if (t->dim[1] < 1 || t->dim[1] > t->dim[0] || t->dim[0] > INT32_MAX / 2)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: %s is [%lld,%lld]; 1 column at least and no more columns than rows are expected",
                        check->op, name, (long long)t->dim[0], (long long)t->dim[1]);
    return DSC_OK;
}

static dsc_status check_delta(const dsc_check *check, double delta) {
    if (!(delta > 0) || !isfinite(delta))
        return DSC_FAIL(DSC_E_INVALID, "%s: delta is %g; a positive number is expected", check->op, delta);
    return DSC_OK;
}

/* A tensor of an item, and its name in messages. */
typedef struct named {
    const char *name;
    const dsc_tensor *t;
} named;

/* Checks that no two of these tensors share memory. */
static dsc_status check_all_apart(const dsc_check *check, const named *list, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            DSC_TRY(dsc_check_apart(check, list[i].name, list[i].t, list[j].name, list[j].t));
    return DSC_OK;
}

static dsc_status check_rotation(dsc_check *check, int64_t i, const dsc_rotation_item *item) {
    DSC_TRY(dsc_check_first(check, i, "q", &item->q));
    DSC_TRY(check_basis(check, "q", &item->q));
    int64_t k = item->q.dim[1];
    DSC_TRY(dsc_check_real_shape(check, "b", &item->b, DSC_SHAPE(k, k)));
    DSC_TRY(dsc_check_real_like(check, "y", &item->y, "q", &item->q));
    DSC_TRY(dsc_check_real_like(check, "x", &item->x, "b", &item->b));
    DSC_TRY(dsc_check_real_like(check, "z", &item->z, "q", &item->q));
    DSC_TRY(check_delta(check, item->delta));
    const named list[] = {
        {"b", &item->b}, {"q", &item->q}, {"y", &item->y}, {"x", &item->x}, {"z", &item->z}};
    return check_all_apart(check, list, 5);
}

dsc_status dsc_op_rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_batch(&check, "rotation_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_rotation(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
    }
    if (count > 0)
        DSC_TRY(dsc_device_table_for(q->device, check.dtype)->rotation_batch(q, items, count));
    return DSC_OK;
}

static dsc_status check_orthonormal(dsc_check *check, int64_t i, const dsc_orthonormal_item *item) {
    DSC_TRY(dsc_check_first(check, i, "z", &item->z));
    DSC_TRY(check_basis(check, "z", &item->z));
    int64_t k = item->z.dim[1];
    DSC_TRY(dsc_check_real_shape(check, "h", &item->h, DSC_SHAPE(k, k)));
    return dsc_check_apart(check, "h", &item->h, "z", &item->z);
}

dsc_status dsc_op_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_batch(&check, "orthonormal_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_orthonormal(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
    }
    if (count > 0)
        DSC_TRY(q->device->table->orthonormal_batch(q, items, count));
    return DSC_OK;
}

static dsc_status check_rayleigh(dsc_check *check, int64_t i, const dsc_rayleigh_item *item) {
    DSC_TRY(dsc_check_first(check, i, "q", &item->q));
    DSC_TRY(check_basis(check, "q", &item->q));
    int64_t n = item->q.dim[0], k = item->q.dim[1];
    DSC_TRY(dsc_check_real_shape(check, "a", &item->a, DSC_SHAPE(n, n)));
    DSC_TRY(dsc_check_real_like(check, "y", &item->y, "q", &item->q));
    DSC_TRY(dsc_check_real_shape(check, "v", &item->v, DSC_SHAPE(k)));
    DSC_TRY(dsc_check_f64(check, "result", &item->result, 3));
    DSC_TRY(check_delta(check, item->delta));
    const named list[] = {
        {"a", &item->a}, {"q", &item->q}, {"y", &item->y}, {"v", &item->v}, {"result", &item->result}};
    return check_all_apart(check, list, 5);
}

dsc_status dsc_op_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_batch(&check, "rayleigh_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_rayleigh(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
    }
    if (count > 0)
        DSC_TRY(dsc_device_table_for(q->device, check.dtype)->rayleigh_batch(q, items, count));
    return DSC_OK;
}
