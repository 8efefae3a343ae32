/* Weights of gradients in bases that keep some eigenvectors and the mean of the other eigenvalues, against plain
 * sums in double, on every device, in both types. */
#include "device/rig.h"

#include <math.h>
#include <stdlib.h>

static const dsc_dtype types[] = {DSC_F32, DSC_F64};

/* Which vectors and scalars an item has: bits for rows, columns, other_row, other_column. */
static void check_weigh(const rig *r, dsc_dtype type, int64_t m, int64_t n, int has) {
    const double damping = 0.0078125, others[2] = {0.25, 0.75};
    double *rows = test_array(m, sizeof *rows), *columns = test_array(n, sizeof *columns);
    double *x = test_array(m * n, sizeof *x), *want = test_array(m * n, sizeof *x);
    double *limit = test_array(m * n, sizeof *x);
    random_values(1, m, rows);
    random_values(2, n, columns);
    random_values(3, m * n, x);
    for (int64_t e = 0; e < m * n; e++) {
        double weight = 0, size = 0;
        for (int term = 0; term < 4; term++) { /* rows or the other row, with columns or the other column */
            int other_row = term / 2, other_column = term % 2;
            if (!(has & (other_row ? 4 : 1)) || !(has & (other_column ? 8 : 2)))
                continue;
            int sign = (other_row && has & 1 ? -1 : 1) * (other_column && has & 2 ? -1 : 1);
            double row = other_row ? others[0] : fabs(rows[e / n]);
            double column = other_column ? others[1] : fabs(columns[e % n]);
            weight += sign / (row * column + damping);
            size += 1 / (row * column + damping);
        }
        want[e] = x[e] * weight;
        limit[e] = 8 * dtype_eps(type) * fabs(x[e]) * size;
    }
    for (int64_t i = 0; i < m; i++)
        rows[i] = fabs(rows[i]);
    for (int64_t j = 0; j < n; j++)
        columns[j] = fabs(columns[j]);
    place value = place_of(r, DSC_F64, SHAPE(1), &damping), from = place_of(r, type, SHAPE(m, n), x);
    place row = place_of(r, type, SHAPE(m), rows), column = place_of(r, type, SHAPE(n), columns);
    place first = place_of(r, type, SHAPE(1), others), second = place_of(r, type, SHAPE(1), others + 1);
    place out = place_make(r, type, SHAPE(m, n));
    const dsc_tensor none = {0};
    dsc_weigh_item items[2] = {{has & 1 ? row.t : none, has & 2 ? column.t : none, has & 4 ? first.t : none,
                                has & 8 ? second.t : none, from.t, out.t}};
    assert_ok(dsc_op_weigh_batch(r->q, &value.t, items, 1));
    place_expect_near(r, &out, want, limit, "weigh_batch: x");
    items[0].x = from.t; /* in place */
    assert_ok(dsc_op_weigh_batch(r->q, &value.t, items, 1));
    place_expect_near(r, &from, want, limit, "weigh_batch: x in place");
    items[0].rows = items[0].other_row = none;
    assert_fails(DSC_E_INVALID, "item 0: weigh_batch: other_row",
                 dsc_op_weigh_batch(r->q, &value.t, items, 1));
    place *all[] = {&value, &from, &row, &column, &first, &second, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    double *arrays[] = {rows, columns, x, want, limit};
    for (int i = 0; i < 5; i++)
        free(arrays[i]);
}

static void test_weigh_batch(void **state) {
    (void)state;
    static const int kinds[] = {1 | 2,     1 | 2 | 4, 1 | 2 | 8, 1 | 2 | 4 | 8, 1 | 8,
                                1 | 4 | 8, 2 | 4,     2 | 4 | 8, 4 | 8};
    for (int r = 0; r < rig_count; r++)
        for (int i = 0; i < 2 * 9; i++)
            check_weigh(&rigs[r], types[i % 2], 17, 65, kinds[i / 2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weigh_batch)};
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
