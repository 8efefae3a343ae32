/* Loaders: the right samples in the right order for any number of ranks and threads; seeking; errors; ends.
 */
#include "chosen.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { COUNT = 53, BATCH = 5, SAMPLE = 32 * 32 * 3 };

static dsc_device *device;
static dsc_queue *queue;

static int make_device(void **state) {
    (void)state;
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    return 0;
}

static int free_device(void **state) {
    (void)state;
    assert_int_equal(dsc_device_bytes(device), 0);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* Contents of a tensor, through `queue`; to be freed. */
static void *contents(const dsc_tensor *t) {
    void *host = malloc(dsc_tensor_bytes(t));
    assert_non_null(host);
    assert_ok(dsc_tensor_download(queue, t, dsc_tensor_bytes(t), host));
    assert_ok(dsc_queue_sync(queue));
    return host;
}

/* Compares a sample exactly; on a GPU, which computes pixels itself with one rounding less, up to rounding. */
static void check_sample(const float *got, const float *wanted) {
    if (dsc_device_is_host(device)) {
        assert_memory_equal(got, wanted, SAMPLE * sizeof *got);
        return;
    }
    for (int i = 0; i < SAMPLE; i++)
        if (!(fabsf(got[i] - wanted[i]) <= 4 * FLT_EPSILON))
            fail_msg("pixel %d is %.9g instead of %.9g", i, (double)got[i], (double)wanted[i]);
}

static dsc_dataset *open_set(const char *spec) {
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    return set;
}

static dsc_loader_options options_of(int rank, int ranks, int threads) {
    dsc_loader_options o;
    dsc_loader_options_init(&o);
    o.batch = BATCH;
    o.rank = rank;
    o.ranks = ranks;
    o.threads = threads;
    o.seed = 7;
    return o;
}

static dsc_loader *make_loader(const dsc_dataset *set, const dsc_loader_options *o) {
    dsc_loader *loader = NULL;
    assert_ok(dsc_loader_create(set, device, o, &loader));
    return loader;
}

/* The batch holds exactly these samples of the data set, at the position it says. */
static void check_batch(const dsc_dataset *set, const dsc_loader_options *o, const dsc_batch *batch) {
    uint32_t order[COUNT];
    dsc_sampler_permute(o->seed, batch->epoch, COUNT, order);
    assert_int_equal(batch->x.ndim, 4);
    assert_int_equal(batch->x.dim[0], BATCH);
    assert_int_equal(dsc_tensor_count(&batch->x), BATCH * SAMPLE);
    assert_int_equal(batch->labels.dim[0], BATCH);
    assert_int_equal(batch->labels.dtype, DSC_I32);
    float *x = contents(&batch->x);
    int32_t *labels = contents(&batch->labels);
    for (int i = 0; i < BATCH; i++) {
        static float wanted[SAMPLE];
        int64_t place = batch->position + o->rank * BATCH + i;
        int32_t label = -1;
        memset(wanted, 0, sizeof wanted);
        if (place < COUNT)
            assert_ok(dsc_dataset_sample(set, o->shuffle ? order[place] : place, o->augment, batch->epoch,
                                         wanted, &label));
        assert_int_equal(labels[i], label);
        if (place < COUNT || dsc_device_is_host(device)) /* else nobody looks at it */
            check_sample(x + i * SAMPLE, wanted);
    }
    free(x);
    free(labels);
}

/* p = 1..5 ranks and 1 or 4 threads give the samples that the data set and the permutation define, bit by bit, and so
 * depend neither on ranks nor on threads. */
static void test_batches(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:53");
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (int threads = 1; threads <= 4; threads += 3) {
            for (int keep_last = 0; keep_last < 2; keep_last++) {
                for (int rank = 0; rank < ranks; rank++) {
                    dsc_loader_options o = options_of(rank, ranks, threads);
                    o.keep_last = keep_last;
                    o.shuffle = threads == 4 || rank == 0;
                    o.augment = ranks != 2;
                    dsc_loader *loader = make_loader(set, &o);
                    int64_t global = ranks * BATCH;
                    int64_t batches = keep_last ? (COUNT + global - 1) / global : COUNT / global;
                    assert_int_equal(dsc_loader_batches(loader), batches);
                    for (int64_t step = 0; step < 2 * batches + 1; step++) {
                        dsc_batch batch;
                        assert_ok(dsc_loader_next(loader, queue, &batch));
                        assert_int_equal(batch.epoch, step / batches);
                        assert_int_equal(batch.position, step % batches * global);
                        check_batch(set, &o, &batch);
                    }
                    dsc_loader_destroy(&loader);
                    assert_null(loader);
                }
            }
        }
    }
    dsc_dataset_close(&set);
}

/* A batch stays as it is until the next call, however far the threads get. */
static void test_batch_is_lent(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:53");
    dsc_loader_options o = options_of(0, 1, 4);
    o.depth = 1;
    dsc_loader *loader = make_loader(set, &o);
    for (int step = 0; step < 30; step++) {
        dsc_batch batch;
        assert_ok(dsc_loader_next(loader, queue, &batch));
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        check_batch(set, &o, &batch);
        if (step % 7 == 3) { /* seeking keeps it, too */
            assert_ok(dsc_loader_seek(loader, step, 11));
            nanosleep(&(struct timespec){0, 2000000}, NULL);
            check_batch(set, &o, &batch);
        }
    }
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&set);
}

static void test_seek(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:53");
    for (int threads = 1; threads <= 4; threads += 3) {
        dsc_loader_options o = options_of(1, 2, threads);
        dsc_loader *loader = make_loader(set, &o);
        dsc_batch batch;
        for (int i = 0; i < 60; i++) {
            dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, (uint64_t)i);
            int64_t epoch = dsc_rng_below(&rng, 5), position = dsc_rng_below(&rng, COUNT + 1);
            int follow = (int)dsc_rng_below(&rng, 4);
            assert_ok(dsc_loader_seek(loader, epoch, position));
            for (int k = 0; k < follow; k++) {
                if (COUNT - position < 2 * BATCH) {
                    position = 0;
                    epoch++;
                }
                assert_ok(dsc_loader_next(loader, queue, &batch));
                assert_int_equal(batch.epoch, epoch);
                assert_int_equal(batch.position, position);
                check_batch(set, &o, &batch);
                position += 2 * BATCH;
            }
        }
        assert_fails(DSC_E_INVALID, "position 54 of an epoch of 53", dsc_loader_seek(loader, 0, 54));
        assert_ok(dsc_loader_seek(loader, 2, 0));
        assert_ok(dsc_loader_next(loader, queue, &batch));
        assert_fails(DSC_E_INVALID, "epoch -1", dsc_loader_seek(loader, -1, 0));
        assert_ok(dsc_loader_next(loader, queue, &batch)); /* a refused seek changes nothing */
        assert_int_equal(batch.epoch, 2);
        assert_int_equal(batch.position, 2 * BATCH);
        dsc_loader_destroy(&loader);
    }
    dsc_dataset_close(&set);
}

/* Threads are in the middle of a batch when it is forgotten: drawing these images takes them a while. */
static void test_seek_while_busy(void **state) {
    (void)state;
    enum { MANY = 10000, ROWS = 40, STRIDE = 49 };
    dsc_dataset *set = open_set("synthetic:10000");
    dsc_loader_options o = options_of(0, 1, 4);
    o.batch = ROWS;
    o.augment = 0;
    dsc_loader *loader = make_loader(set, &o);
    static uint32_t order[MANY];
    dsc_sampler_permute(o.seed, 0, MANY, order);
    for (int64_t i = 0; i < 200; i++) {
        static float wanted[SAMPLE];
        dsc_batch batch;
        int32_t label;
        assert_ok(dsc_loader_seek(loader, 0, i * STRIDE));
        if (i % 2)
            continue;
        assert_ok(dsc_loader_next(loader, queue, &batch));
        float *got = contents(&batch.x); /* at once: a row that comes too late is missed */
        int32_t *labels = contents(&batch.labels);
        assert_int_equal(batch.position, i * STRIDE);
        for (int64_t row = 0; row < ROWS; row++) {
            assert_ok(dsc_dataset_sample(set, order[i * STRIDE + row], 0, 0, wanted, &label));
            assert_int_equal(labels[row], label);
            check_sample(got + row * SAMPLE, wanted);
        }
        free(got);
        free(labels);
    }
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&set);
}

static void test_no_allocation(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:53");
    dsc_loader_options o = options_of(0, 1, 2);
    dsc_loader *loader = make_loader(set, &o);
    dsc_batch batch;
    assert_ok(dsc_loader_next(loader, queue, &batch));
    int64_t before = dsc_memory_allocations();
    size_t bytes = dsc_device_bytes(device);
    for (int i = 0; i < 50; i++)
        assert_ok(dsc_loader_next(loader, queue, &batch));
    assert_int_equal(dsc_memory_allocations(), before);
    assert_int_equal(dsc_device_bytes(device), bytes);
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&set);
}

/* Destroyed while threads draw, wait, or have not begun. */
static void test_destroy_at_any_moment(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:5000");
    for (int i = 0; i < 150; i++) {
        dsc_loader_options o = options_of(0, 1, 1 + i % 4);
        o.batch = 64;
        dsc_loader *loader = make_loader(set, &o);
        dsc_batch batch;
        if (i % 3 == 1)
            nanosleep(&(struct timespec){0, 20000L * (i % 50)}, NULL);
        for (int k = 0; k < i % 3; k++)
            assert_ok(dsc_loader_next(loader, queue, &batch));
        if (i % 5 == 0)
            assert_ok(dsc_loader_seek(loader, 3, 100));
        dsc_loader_destroy(&loader);
    }
    dsc_loader *none = NULL;
    dsc_loader_destroy(&none);
    dsc_loader_destroy(NULL);
    dsc_dataset_close(&set);
}

/* dsc_loader_next fails with the status and message of a thread's failure, that of the first row if several fail; and
 * again until the caller seeks elsewhere. */
static void test_errors_in_threads(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    test_make_folder(folder);
    for (int i = 0; i < 20; i++) {
        char name[64];
        snprintf(name, sizeof name, "train/%c/%02d.png", i < 10 ? 'a' : 'b', i);
        test_write(folder, name, "no image", 8);
    }
    test_spec("imagefolder", folder, spec);
    dsc_error_set_rank(3);
    for (int threads = 1; threads <= 4; threads += 3) {
        dsc_data_options data;
        dsc_data_options_init(&data);
        data.image_size = 4;
        dsc_dataset *set = NULL;
        assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &data, &set));
        dsc_loader_options o = options_of(0, 1, threads);
        o.batch = 10;
        o.shuffle = 0;
        dsc_loader *loader = make_loader(set, &o);
        dsc_batch batch;
        for (int i = 0; i < 3; i++) {
            assert_fails(DSC_E_FORMAT,
                         "/train/a/00.png' is no JPEG, PNG or WebP (8 bytes, starts 6e 6f 20 69)",
                         dsc_loader_next(loader, queue, &batch));
            assert_int_equal(strncmp(dsc_error_message(), "rank 3: imagefolder: '", 22), 0);
        }
        assert_ok(dsc_loader_seek(loader, 0, 7));
        assert_fails(DSC_E_FORMAT, "/train/a/07.png'", dsc_loader_next(loader, queue, &batch));
        dsc_loader_destroy(&loader);
        dsc_dataset_close(&set);
    }
    dsc_error_set_rank(-1);
    test_remove(folder);
}

#ifdef DSC_HAVE_PNG
/* Row 8, which another thread prepares, fails long before row 7 does: reported is row 7. */
static void test_first_error_is_reported(void **state) {
    (void)state;
    enum { SIDE = 128 };
    static uint8_t pixels[SIDE * SIDE * 3], packed[2 * sizeof pixels];
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * i * 31 >> 5);
    test_image image = {SIDE, SIDE, pixels};
    size_t size = test_png(&image, TEST_PNG_RGB, 0, sizeof packed, packed);
    test_make_folder(folder);
    for (int i = 0; i < 16; i++) {
        char name[64];
        snprintf(name, sizeof name, "train/%c/%02d.png", i < 10 ? 'a' : 'b', i);
        test_write(folder, name, packed, i < 7 ? size : 8);
    }
    test_spec("imagefolder", folder, spec);
    dsc_dataset *set = open_set(spec);
    for (int i = 0; i < 5; i++) {
        dsc_loader_options o = options_of(0, 1, 2);
        o.batch = 16;
        o.shuffle = 0;
        o.depth = 1;
        dsc_loader *loader = make_loader(set, &o);
        dsc_batch batch;
        assert_fails(DSC_E_FORMAT, "/train/a/07.png'", dsc_loader_next(loader, queue, &batch));
        dsc_loader_destroy(&loader);
    }
    dsc_dataset_close(&set);
    test_remove(folder);
}

enum { SMALL = 16, FEW = 24 };

/* A folder of 24 images, of which `bad` cannot be read. */
static void write_folder(char folder[TEST_PATH], char spec[TEST_PATH + 32], const int *bad, int bad_count) {
    static uint8_t pixels[SMALL * SMALL * 3], packed[4 * sizeof pixels];
    test_make_folder(folder);
    for (int i = 0; i < FEW; i++) {
        char name[64];
        memset(pixels, 10 * i, sizeof pixels);
        test_image image = {SMALL, SMALL, pixels};
        size_t size = test_png(&image, TEST_PNG_RGB, 0, sizeof packed, packed);
        for (int b = 0; b < bad_count; b++)
            size = i == bad[b] ? size / 2 : size;
        snprintf(name, sizeof name, "train/%c/%02d.png", i < FEW / 2 ? 'a' : 'b', i);
        test_write(folder, name, packed, size);
    }
    test_spec("imagefolder", folder, spec);
}

/* The contents of one epoch of all ranks, in the order of the permutation: a pixel and the label of every sample, and
 * the samples that were reported as bad. */
typedef struct epoch_seen {
    float pixel[FEW];
    int32_t label[FEW];
    int bad[FEW];
} epoch_seen;

static void see_epoch(const dsc_dataset *set, dsc_loader_options o, int ranks, epoch_seen *seen) {
    memset(seen, 0, sizeof *seen);
    o.ranks = ranks;
    o.batch = FEW / (3 * ranks);
    for (o.rank = 0; o.rank < ranks; o.rank++) {
        dsc_loader *loader = make_loader(set, &o);
        dsc_bad_sample bad[FEW];
        for (int64_t step = 0; step < 3; step++) {
            dsc_batch batch;
            assert_ok(dsc_loader_next(loader, queue, &batch));
            float *x = contents(&batch.x);
            int32_t *labels = contents(&batch.labels);
            for (int64_t i = 0; i < o.batch; i++) {
                int64_t place = step * o.batch * ranks + o.rank * o.batch + i;
                seen->pixel[place] = x[i * 32 * 32 * 3];
                seen->label[place] = labels[i];
            }
            free(x);
            free(labels);
        }
        int64_t count = 0, got;
        while ((got = dsc_loader_take_bad(loader, bad + count, 2)) > 0) /* two at a time */
            count += got;
        for (int64_t i = 0; i < count; i++) {
            assert_non_null(strstr(bad[i].message, "is a broken PNG"));
            seen->bad[bad[i].index]++;
        }
        assert_int_equal(dsc_loader_take_bad(loader, NULL, 0), 0);
        dsc_loader_destroy(&loader);
    }
}

/* Bad samples are replaced by others, the same ones on any number of ranks and threads, and each is reported
 * once an epoch. */
static void test_bad_samples(void **state) {
    (void)state;
    static const int bad[] = {3, 12, 13, 20};
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    write_folder(folder, spec, bad, 4);
    dsc_data_options small;
    dsc_data_options_init(&small);
    small.image_size = 32;
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &small, &set));
    static const struct {
        int ranks, threads, shuffle, keep_last;
    } cases[] = {{1, 1, 1, 0}, {1, 4, 1, 0}, {2, 2, 1, 0}, {4, 1, 1, 0}, {1, 1, 0, 1}, {2, 3, 0, 1}};
    epoch_seen first = {{0}, {0}, {0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epoch_seen now;
        dsc_loader_options o = options_of(0, 1, cases[i].threads);
        o.shuffle = cases[i].shuffle;
        o.keep_last = cases[i].keep_last;
        o.augment = 0;
        o.skip_bad = 1;
        see_epoch(set, o, cases[i].ranks, &now);
        for (int s = 0; s < FEW; s++)
            assert_int_equal(now.bad[s], s == 3 || s == 12 || s == 13 || s == 20);
        for (int s = 0; s < FEW && o.keep_last; s++)
            assert_int_equal(now.label[s], now.bad[s] ? -1 : s >= FEW / 2);
        if (i == 0)
            first = now;
        else if (!o.keep_last)
            assert_memory_equal(&now, &first, sizeof now);
    }
    for (int s = 0; s < FEW; s++)
        assert_true(first.label[s] == 0 || first.label[s] == 1);
    dsc_dataset_close(&set);
    test_remove(folder);
}

/* The shares of the other samples in the rows of one epoch with mixup, and the number of reports. */
static int see_shares(const dsc_dataset *set, dsc_loader_options o, float shares[FEW]) {
    int reports = 0;
    memset(shares, 0, FEW * sizeof *shares);
    for (o.rank = 0; o.rank < o.ranks; o.rank++) {
        dsc_loader *loader = make_loader(set, &o);
        dsc_bad_sample some[FEW];
        for (int64_t n = 0; n < dsc_loader_batches(loader); n++) {
            dsc_batch batch;
            dsc_tensor others, values;
            assert_ok(dsc_loader_next(loader, queue, &batch));
            assert_int_equal(dsc_loader_mixed_labels(loader, &others, &values), 1);
            float *share = contents(&values);
            memcpy(shares + batch.position + o.rank * o.batch, share, (size_t)o.batch * sizeof *share);
            free(share);
        }
        reports += (int)dsc_loader_take_bad(loader, some, FEW);
        dsc_loader_destroy(&loader);
    }
    return reports;
}

/* A sample that cannot be read is left out of the mixtures of others, in the same way on any number of ranks and
 * threads, and reported once. A sample that the end of the epoch leaves out is not mixed into any row. */
static void test_bad_partners(void **state) {
    (void)state;
    static const int bad[] = {13}, cases[][3] = {{1, 20, 1}, {1, 20, 4}, {2, 10, 2}, {4, 5, 1}};
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    int cut = 0, left_out = 0; /* epochs without the bad sample; rows that miss it */
    write_folder(folder, spec, bad, 1);
    dsc_data_options small;
    dsc_data_options_init(&small);
    small.image_size = 8;
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &small, &set));
    for (uint64_t seed = 1; seed <= 12; seed++) {
        float shares[2][FEW];
        uint32_t order[FEW];
        int place = 0, unmixed = 0;
        dsc_sampler_permute(seed, 0, FEW, order);
        while (order[place] != 13)
            place++;
        for (int i = 0; i < 4; i++) {
            dsc_loader_options o = options_of(0, cases[i][0], cases[i][2]);
            o.seed = seed;
            o.batch = cases[i][1];
            o.mixup = 1;
            o.skip_bad = 1;
            assert_int_equal(see_shares(set, o, shares[i > 0]), place < 20);
            assert_memory_equal(shares[i > 0], shares[0], sizeof shares[0]);
        }
        for (int k = 0; k < 20; k++)
            unmixed += shares[0][k] == 0;
        assert_true(place < 20 || unmixed == 0);
        cut += place >= 20;
        left_out += unmixed;
    }
    assert_true(cut > 0 && left_out > 0);
    dsc_dataset_close(&set);
    test_remove(folder);
}

/* A seek back drops the reports of batches that were prepared ahead; those of earlier batches are repeated. */
static void test_bad_samples_after_seek(void **state) {
    (void)state;
    static const int bad[] = {1, 9};
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    write_folder(folder, spec, bad, 2);
    dsc_dataset *set = open_set(spec);
    dsc_loader_options o = options_of(0, 1, 2);
    o.shuffle = 0;
    o.batch = 4;
    o.skip_bad = 1;
    dsc_loader *loader = make_loader(set, &o);
    dsc_bad_sample found[4];
    for (int i = 0; i < 3; i++) {
        dsc_batch batch;
        assert_ok(dsc_loader_next(loader, queue, &batch)); /* samples 0 to 3 */
        assert_int_equal(dsc_loader_take_bad(loader, found, 4), 1);
        assert_int_equal(found[0].index, 1);
        nanosleep(&(struct timespec){0, 20000000}, NULL); /* sample 9 is prepared ahead */
        assert_ok(dsc_loader_seek(loader, 0, 0));
        assert_int_equal(dsc_loader_take_bad(loader, found, 4), 0);
    }
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&set);
    test_remove(folder);
}
#endif

static void test_refusals(void **state) {
    (void)state;
    dsc_batch none;
    assert_fails(DSC_E_INVALID, "next batch: no loader", dsc_loader_next(NULL, queue, &none));
    assert_fails(DSC_E_INVALID, "seek: no loader", dsc_loader_seek(NULL, 0, 0));
    dsc_dataset *set = open_set("synthetic:53");
    dsc_loader *loader = NULL;
    dsc_loader_options o = options_of(0, 1, 0);
    assert_fails(DSC_E_INVALID, "0 data threads: must be 1", dsc_loader_create(set, device, &o, &loader));
    o = options_of(0, 1, 1), o.depth = 0;
    assert_fails(DSC_E_INVALID, "0 batches ahead", dsc_loader_create(set, device, &o, &loader));
    o = options_of(0, 11, 1);
    assert_fails(DSC_E_INVALID, "53 samples are fewer than one global batch of 55",
                 dsc_loader_create(set, device, &o, &loader));
    o = options_of(5, 5, 1);
    assert_fails(DSC_E_INVALID, "rank 5 of 5", dsc_loader_create(set, device, &o, &loader));
    o = options_of(0, 1, 1);
    assert_fails(DSC_E_INVALID, "loader: no data set", dsc_loader_create(NULL, device, &o, &loader));
    assert_fails(DSC_E_INVALID, "loader: no device", dsc_loader_create(set, NULL, &o, &loader));
    assert_null(loader);
    dsc_dataset_close(&set);
}

static void test_out_of_memory(void **state) {
    (void)state;
    dsc_dataset *set = open_set("synthetic:53");
    for (int64_t n = 1;; n++) {
        dsc_loader_options o = options_of(0, 1, 2);
        dsc_loader *loader = NULL;
        dsc_memory_fail_at(n);
        dsc_status status = dsc_loader_create(set, device, &o, &loader);
        dsc_memory_fail_at(0);
        dsc_loader_destroy(&loader);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_E_MEMORY);
        assert_true(n < 100);
    }
    dsc_dataset_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_batch_is_lent),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_seek_while_busy),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_destroy_at_any_moment),
        cmocka_unit_test(test_errors_in_threads),
#ifdef DSC_HAVE_PNG
        cmocka_unit_test(test_first_error_is_reported),
        cmocka_unit_test(test_bad_samples),
        cmocka_unit_test(test_bad_partners),
        cmocka_unit_test(test_bad_samples_after_seek),
#endif
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("data-loader", tests, make_device, free_device);
}
