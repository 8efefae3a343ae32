/* Mixup, CutMix, erasing and RandAugment, on samples whose values show what they were made of. */
#include "base/rng.h"
#include "data/mix.h"
#include "descent/descent.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 96, SIDE = 8, CHANNELS = 2, PIXELS = SIDE * SIDE, SIZE = PIXELS * CHANNELS, BATCH = 12 };

static dsc_device *device;
static dsc_queue *queue;
static dsc_dataset *numbers, *bytes; /* all values of sample i are i + 1, its class is i */
static float images[COUNT * SIZE];
static uint8_t grey[COUNT * SIZE];
static int32_t labels[COUNT];

static int setup(void **state) {
    dsc_device_options d;
    dsc_memory_data m;
    (void)state;
    dsc_device_options_init(&d);
    d.name = "cpu";
    d.threads = 1;
    assert_ok(dsc_device_create(&d, &device));
    assert_ok(dsc_queue_create(device, &queue));
    for (int i = 0; i < COUNT * SIZE; i++) {
        images[i] = (float)(i / SIZE + 1);
        grey[i] = (uint8_t)(i * 37 % 251);
        labels[i / SIZE] = i / SIZE;
    }
    dsc_memory_data_init(&m);
    m.count = m.classes = COUNT;
    m.h = m.w = SIDE;
    m.c = CHANNELS;
    m.images = images;
    m.labels = labels;
    assert_ok(dsc_dataset_from_memory(&m, &numbers));
    m.images = grey;
    m.dtype = DSC_U8;
    m.mean = (const double[]){0.5, 0.25};
    m.std = (const double[]){0.25, 0.5};
    assert_ok(dsc_dataset_from_memory(&m, &bytes));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_dataset_close(&numbers);
    dsc_dataset_close(&bytes);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* The rows of one epoch, in its order. */
typedef struct rows {
    float x[COUNT][SIZE], share[COUNT];
    int32_t label[COUNT], other[COUNT];
} rows;

static void read_rank(const dsc_dataset *set, const dsc_loader_options *o, int64_t epoch, rows *out) {
    dsc_loader *loader = NULL;
    dsc_batch b;
    dsc_tensor others, shares;
    assert_ok(dsc_loader_create(set, device, o, &loader));
    assert_int_equal(dsc_loader_mixed_labels(loader, &others, &shares), 0);
    assert_ok(dsc_loader_seek(loader, epoch, 0));
    for (int64_t n = 0; n < dsc_loader_batches(loader); n++) {
        assert_ok(dsc_loader_next(loader, queue, &b));
        int64_t at = b.position + o->rank * o->batch;
        memcpy(out->x[at], b.x.data, (size_t)o->batch * sizeof out->x[0]);
        memcpy(&out->label[at], b.labels.data, (size_t)o->batch * sizeof *out->label);
        int mixed = dsc_loader_mixed_labels(loader, &others, &shares);
        assert_int_equal(mixed, o->mixup > 0 || o->cutmix > 0);
        if (!mixed)
            continue;
        memcpy(&out->other[at], others.data, (size_t)o->batch * sizeof *out->other);
        memcpy(&out->share[at], shares.data, (size_t)o->batch * sizeof *out->share);
    }
    dsc_loader_destroy(&loader);
}

static void read_epoch(const dsc_dataset *set, const dsc_loader_options *like, int ranks, int threads,
                       int64_t epoch, rows *out) {
    dsc_loader_options o = *like;
    memset(out, 0, sizeof *out);
    o.ranks = ranks;
    o.batch = BATCH / ranks;
    o.threads = threads;
    for (o.rank = 0; o.rank < ranks; o.rank++)
        read_rank(set, &o, epoch, out);
}

/* x = (1 - s) own + s other in every pixel, to float32's rounding of two products and a sum. */
static void test_mixup(void **state) {
    (void)state;
    static rows r;
    dsc_loader_options o;
    double moved = 0;
    dsc_loader_options_init(&o);
    o.mixup = 1;
    read_epoch(numbers, &o, 1, 1, 0, &r);
    for (int i = 0; i < COUNT; i++) {
        double s = (double)r.share[i], want = (1 - s) * (r.label[i] + 1) + s * (r.other[i] + 1);
        assert_true(s >= 0 && s <= 0.5);
        for (int k = 0; k < SIZE; k++)
            if (!(fabs((double)r.x[i][k] - want) <= 4e-7 * COUNT))
                fail_msg("row %d: %g instead of %g", i, (double)r.x[i][k], want);
        moved += s * abs(r.label[i] - r.other[i]);
    }
    assert_true(moved > COUNT);
}

/* Checks that the other sample's pixels are a rectangle, whose part of the area is exactly the share. */
static void check_cut(const rows *r, int i) {
    int top = SIDE, left = SIDE, bottom = -1, right = -1, count = 0;
    const float own = (float)(r->label[i] + 1), other = (float)(r->other[i] + 1);
    for (int p = 0; p < PIXELS; p++) {
        assert_true(r->x[i][CHANNELS * p] == r->x[i][CHANNELS * p + 1]);
        if (r->x[i][CHANNELS * p] == own)
            continue;
        assert_true(r->x[i][CHANNELS * p] == other);
        count++;
        top = p / SIDE < top ? p / SIDE : top;
        bottom = p / SIDE > bottom ? p / SIDE : bottom;
        left = p % SIDE < left ? p % SIDE : left;
        right = p % SIDE > right ? p % SIDE : right;
    }
    if (r->other[i] == r->label[i])
        return;
    assert_true((float)count / PIXELS == r->share[i]);
    if (count > 0)
        assert_int_equal(count, (bottom - top + 1) * (right - left + 1));
}

static void test_cutmix(void **state) {
    (void)state;
    static rows r;
    dsc_loader_options o;
    int cut = 0;
    dsc_loader_options_init(&o);
    o.cutmix = 1;
    read_epoch(numbers, &o, 1, 1, 0, &r);
    for (int i = 0; i < COUNT; i++) {
        check_cut(&r, i);
        cut += r.share[i] > 0;
    }
    assert_true(cut > COUNT / 2);
}

/* With lambda from Beta(a, a): E min(lambda, 1 - lambda) = 1/2 - 4^-a / (a B(a, a)). A mean of n values between 0 and
 * 1/2 is off by less than 5 / (4 sqrt(n)). */
static void test_shares(void **state) {
    (void)state;
    const double alphas[] = {0.1, 0.2, 1, 4, 50};
    const dsc_dataset_info info = {.count = 1000, .h = 1, .w = 1, .c = 1};
    for (int a = 0; a < 5; a++) {
        dsc_loader_options o;
        double sum = 0, alpha = alphas[a], beta = exp(2 * lgamma(alpha) - lgamma(2 * alpha));
        const int n = 20000;
        dsc_loader_options_init(&o);
        o.mixup = alpha;
        for (int i = 0; i < n; i++)
            sum += dsc_mix_draw(&o, &info, COUNT, 3, i).share;
        double want = 0.5 - pow(4, -alpha) / (alpha * beta);
        if (!(fabs(sum / n - want) < 5 / (4 * sqrt(n))))
            fail_msg("alpha %g: mean share %g instead of %g", alpha, sum / n, want);
    }
}

/* Erased samples have one rectangle of zeros, of 2 to 33 % of the area up to the rounding of its sides. */
static void test_erasing(void **state) {
    (void)state;
    static rows r;
    dsc_loader_options o;
    int erased = 0;
    dsc_loader_options_init(&o);
    o.random_erasing = 0.5;
    read_epoch(numbers, &o, 1, 1, 0, &r);
    for (int i = 0; i < COUNT; i++) {
        r.other[i] = -1; /* 0 is "the other's" value */
        int zeros = 0;
        for (int p = 0; p < PIXELS; p++)
            zeros += r.x[i][CHANNELS * p] == 0;
        r.share[i] = (float)zeros / PIXELS;
        check_cut(&r, i);
        assert_true(zeros == 0 || (zeros >= 1 && zeros <= 0.45 * PIXELS));
        erased += zeros > 0;
    }
    assert_in_range(erased, COUNT / 4, 3 * COUNT / 4);
}

/* Rows depend on seed, epoch and sample alone: the same on any number of ranks and threads, others in another epoch. */
static void test_same_everywhere(void **state) {
    (void)state;
    static rows one, other;
    dsc_loader_options o;
    dsc_loader_options_init(&o);
    o.mixup = 0.4;
    o.cutmix = 1;
    o.random_erasing = 0.5;
    o.randaugment = 12;
    read_epoch(bytes, &o, 1, 1, 5, &one);
    read_epoch(bytes, &o, 1, 3, 5, &other);
    assert_memory_equal(&one, &other, sizeof one);
    read_epoch(bytes, &o, 3, 2, 5, &other);
    assert_memory_equal(&one, &other, sizeof one);
    read_epoch(bytes, &o, 1, 1, 6, &other);
    assert_memory_not_equal(one.share, other.share, sizeof one.share);
    o.seed++;
    read_epoch(bytes, &o, 1, 1, 5, &other);
    assert_memory_not_equal(one.share, other.share, sizeof one.share);
}

/* An operation that changes nothing leaves every bit as it is. */
static void test_through_bytes(void **state) {
    (void)state;
    static rows plain, varied;
    dsc_loader_options o;
    dsc_loader_options_init(&o);
    read_epoch(bytes, &o, 1, 1, 0, &plain);
    o.randaugment = 1e-9; /* operations of no strength: identity, equalisation, stretching */
    read_epoch(bytes, &o, 1, 1, 0, &varied);
    int same = 0;
    for (int i = 0; i < COUNT; i++)
        same += memcmp(plain.x[i], varied.x[i], sizeof plain.x[i]) == 0;
    assert_in_range(same, COUNT / 2, COUNT - 1); /* (12/14)^2 are expected to stay: 71 of 96 */
}

#define VARY(op, strength, h, w, c, ...)                                                                     \
    do {                                                                                                     \
        static const uint8_t want[] = {__VA_ARGS__};                                                         \
        uint8_t work[sizeof image];                                                                          \
        dsc_vary_apply(op, strength, h, w, c, image, work);                                                  \
        assert_memory_equal(image, want, sizeof want);                                                       \
    } while (0)

static void test_operations(void **state) {
    (void)state;
    {
        uint8_t image[] = {10, 20, 30, 40, 50, 60, 70, 80, 90};
        VARY(DSC_VARY_IDENTITY, 1, 3, 3, 1, 10, 20, 30, 40, 50, 60, 70, 80, 90);
        VARY(DSC_VARY_TRANSLATE_X, 1.0 / 3, 3, 3, 1, 20, 30, 0, 50, 60, 0, 80, 90, 0);
        VARY(DSC_VARY_TRANSLATE_Y, -1.0 / 3, 3, 3, 1, 0, 0, 0, 20, 30, 0, 50, 60, 0);
        VARY(DSC_VARY_ROTATE, 90, 3, 3, 1, 50, 20, 0, 60, 30, 0, 0, 0, 0); /* clockwise */
        VARY(DSC_VARY_SHEAR_X, 1, 3, 3, 1, 0, 50, 20, 60, 30, 0, 0, 0, 0);
        VARY(DSC_VARY_SHEAR_Y, -1, 3, 3, 1, 60, 50, 0, 0, 30, 20, 0, 0, 0);
    }
    {
        uint8_t image[] = {100, 200, 0, 10, 20, 30};
        VARY(DSC_VARY_BRIGHTNESS, 0.5, 1, 2, 3, 150, 255, 0, 15, 30, 45);
        /* Greys: 0.299 150 + 0.587 255 + 0 = 195; 0.299 15 + 0.587 30 + 0.114 45 = 27. */
        VARY(DSC_VARY_COLOUR, -1, 1, 2, 3, 195, 195, 195, 27, 27, 27);
        VARY(DSC_VARY_CONTRAST, -0.5, 1, 2, 3, 153, 153, 153, 69, 69, 69); /* half way to 111 */
    }
    {
        uint8_t image[] = {0, 0, 0, 0, 130, 0, 0, 0, 0};
        VARY(DSC_VARY_SHARPNESS, -1, 3, 3, 1, 0, 0, 0, 0, 50, 0, 0, 0, 0); /* 5 130 / 13 */
    }
    {
        uint8_t image[] = {255, 127, 64, 7};
        VARY(DSC_VARY_POSTERIZE, 3, 2, 2, 1, 248, 120, 64, 0);
        VARY(DSC_VARY_SOLARIZE, 128, 2, 2, 1, 7, 120, 64, 0);
        VARY(DSC_VARY_SOLARIZE, 256, 2, 2, 1, 248, 135, 191, 255);
    }
    {
        uint8_t image[] = {50, 100, 100, 150};
        VARY(DSC_VARY_AUTOCONTRAST, 0, 2, 2, 1, 0, 128, 128, 255);
        VARY(DSC_VARY_EQUALIZE, 0, 2, 2, 1, 0, 128, 128, 255); /* too few pixels for a level */
    }
}

/* 512 pixels of each of 0 and 200, and one of 255: a level is (1025 - 1) / 255 = 4 pixels. */
static void test_equalize(void **state) {
    (void)state;
    static uint8_t image[1025], work[1025];
    memset(image + 512, 200, 512);
    image[1024] = 255;
    dsc_vary_apply(DSC_VARY_EQUALIZE, 0, 1, 1025, 1, image, work);
    assert_int_equal(image[0], 0);
    assert_int_equal(image[600], (2 + 512) / 4);
    assert_int_equal(image[1024], 255);
}

static void test_refusals(void **state) {
    (void)state;
    dsc_loader_options o;
    dsc_loader *loader = NULL;
    dsc_loader_options_init(&o);
    o.randaugment = 9;
    assert_fails(DSC_E_INVALID, "randaugment needs images made of bytes",
                 dsc_loader_create(numbers, device, &o, &loader));
    o.randaugment = 31;
    assert_fails(DSC_E_INVALID, "must be 0 to 30", dsc_loader_create(bytes, device, &o, &loader));
    dsc_loader_options_init(&o);
    o.mixup = NAN;
    assert_fails(DSC_E_INVALID, "must be 0 to 100", dsc_loader_create(bytes, device, &o, &loader));
    dsc_loader_options_init(&o);
    o.random_erasing = 1.5;
    assert_fails(DSC_E_INVALID, "must be a probability", dsc_loader_create(bytes, device, &o, &loader));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixup),           cmocka_unit_test(test_cutmix),
        cmocka_unit_test(test_shares),          cmocka_unit_test(test_erasing),
        cmocka_unit_test(test_same_everywhere), cmocka_unit_test(test_through_bytes),
        cmocka_unit_test(test_operations),      cmocka_unit_test(test_equalize),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("mix", tests, setup, teardown);
}
