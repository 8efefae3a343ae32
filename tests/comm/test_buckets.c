/* Fusion buckets on any number of ranks: random sizes and layouts, several bucket sizes and wire types,
 * compared exactly. Rank r's element is m + (2r - (n-1)) c with m, c small multiples of 1/4: the mean over n
 * ranks is m, and all partial sums are exact in bf16 and fp16. */
#include "comm/place.h"

#include "base/memory.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>

enum { TENSORS = 23, MOST = 300 };

typedef enum layout { FALLING, RISING, SHUFFLED, GAPS, LAYOUT_COUNT } layout;
/* Who gets the means: everybody; or of each tensor one rank: the next one each time, the same for a few
 * tensors, the last rank always, anyone. */
typedef enum owners { EVERYBODY, IN_TURN, IN_ROWS, LAST_RANK, ANYONE, OWNERS_COUNT } owners;

/* Tensors in one block of memory, which is written and read through a copy on the host. */
typedef struct list {
    dsc_tensor block;
    void *host;
    int64_t elements; /* of the block */
    dsc_tensor tensors[TENSORS];
    int64_t bytes; /* of the tensors */
} list;

static dsc_device *device;
static dsc_queue *queue;
static dsc_comm *world;
static int rank, size;

static double mean_of(int64_t tensor, int64_t i, int round) {
    return (double)((tensor * 3 + i * 5 + round * 7) % 15 - 7) / 4;
}

static double own_value(int64_t tensor, int64_t i, int round) {
    return mean_of(tensor, i, round) + (double)((2 * rank - (size - 1)) * ((tensor + i) % 3)) / 4;
}

/* Element i of tensor k, in the copy. */
static void store(list *l, int64_t k, int64_t i, double value) {
    int64_t at = (char *)l->tensors[k].data - (char *)l->block.data;
    if (l->block.dtype == DSC_F64)
        ((double *)l->host)[at / 8 + i] = value;
    else
        ((float *)l->host)[at / 4 + i] = (float)value;
}

static double load(const list *l, int64_t k, int64_t i) {
    int64_t at = (char *)l->tensors[k].data - (char *)l->block.data;
    return l->block.dtype == DSC_F64 ? ((const double *)l->host)[at / 8 + i]
                                     : (double)((const float *)l->host)[at / 4 + i];
}

/* The place in memory of the i-th tensor of the ready order. */
static int64_t position_of(layout how, int64_t i) {
    return how == RISING ? i : how == SHUFFLED ? i * 5 % TENSORS : TENSORS - 1 - i;
}

static void make_list(layout how, dsc_dtype dtype, list *out) {
    dsc_rng rng = dsc_rng_start(11, DSC_RNG_TEST, (uint32_t)how, (uint64_t)dtype);
    int64_t counts[TENSORS], starts[TENSORS]; /* by position in memory */
    out->elements = 0;
    for (int p = 0; p < TENSORS; p++) {
        counts[p] = p == 4 ? 0 : 1 + (int64_t)dsc_rng_below(&rng, p % 6 == 0 ? MOST : 20);
        starts[p] = out->elements;
        out->elements += counts[p] + (how == GAPS ? 1 : 0);
    }
    size_t element = dsc_dtype_size(dtype);
    out->block = dsc_tensor_view(device, memory_take(device, (size_t)out->elements * element), dtype, 1,
                                 &out->elements);
    out->host = calloc((size_t)out->elements, element);
    assert_non_null(out->host);
    write_tensor(&out->block, out->host);
    out->bytes = 0;
    for (int64_t i = 0; i < TENSORS; i++) {
        int64_t p = position_of(how, i);
        out->tensors[i] = dsc_tensor_view(device, (char *)out->block.data + (size_t)starts[p] * element,
                                          dtype, 1, &counts[p]);
        out->bytes += (int64_t)dsc_tensor_bytes(&out->tensors[i]);
    }
}

static void drop_list(list *l) {
    memory_drop(device, l->block.data);
    free(l->host);
}

static void fill_list(list *l, int round) {
    for (int64_t k = 0; k < TENSORS; k++) {
        for (int64_t i = 0; i < dsc_tensor_count(&l->tensors[k]); i++)
            store(l, k, i, own_value(k, i, round));
    }
    write_tensor(&l->block, l->host);
}

static void choose_roots(owners who, int *roots) {
    dsc_rng rng = dsc_rng_start(12, DSC_RNG_TEST, (uint32_t)size, 0);
    for (int k = 0; k < TENSORS; k++) {
        int any = (int)dsc_rng_below(&rng, (uint32_t)size);
        roots[k] = who == IN_TURN ? k % size : who == IN_ROWS ? k / 6 % size : who == ANYONE ? any : size - 1;
    }
}

/* 1 when this rank gets the mean of tensor k. */
static int is_mine(const int *roots, int64_t k) {
    return !roots || roots[k] == rank;
}

static int holds_means(list *l, const int *roots, int round) {
    read_tensor(&l->block, l->host);
    for (int64_t k = 0; k < TENSORS; k++) {
        if (!is_mine(roots, k))
            continue;
        for (int64_t i = 0; i < dsc_tensor_count(&l->tensors[k]); i++) {
            if (load(l, k, i) != mean_of(k, i, round))
                return 0;
        }
    }
    return 1;
}

/* Buckets and bytes as comm.h describes them, reckoned again. */
typedef struct reckoning {
    int64_t buckets;
    uint64_t sent[TENSORS]; /* when tensors up to this one have become ready in order */
} reckoning;

/* What this rank sends for a bucket. */
static uint64_t bucket_cost(uint64_t bytes, int root) {
    uint64_t n = (uint64_t)size;
    return root < 0 ? 2 * (n - 1) * bytes / n : rank == root ? 0 : bytes;
}

/* The buckets of one root, -1: of the one list that everybody gets. */
static void reckon_root(const list *l, const dsc_bucket_options *options, int root, reckoning *out) {
    size_t element = options->wire == DSC_F32 ? dsc_dtype_size(l->tensors[0].dtype) : 2;
    size_t open = 0;
    int64_t last = -1;
    for (int64_t k = 0; k < TENSORS; k++) {
        size_t bytes = (size_t)dsc_tensor_count(&l->tensors[k]) * element;
        if (root >= 0 && options->roots[k] != root)
            continue;
        int full = last >= 0 && open + bytes > options->bytes;
        if (full)
            out->sent[last] += bucket_cost(open, root);
        out->buckets += last < 0 || full;
        open = full ? bytes : open + bytes;
        last = k;
    }
    if (last >= 0)
        out->sent[last] += bucket_cost(open, root);
}

static reckoning reckon(const list *l, const dsc_bucket_options *options) {
    reckoning result = {0};
    for (int root = options->roots ? 0 : -1; root < (options->roots ? size : 0); root++)
        reckon_root(l, options, root, &result);
    for (int k = 1; k < TENSORS; k++)
        result.sent[k] += result.sent[k - 1];
    return result;
}

/* Announces all tensors: in an order of this rank's own; or in order, and what was sent on the way shows that
 * each bucket starts with its last tensor. */
static void announce(dsc_buckets *buckets, int mixed, const reckoning *expected) {
    uint64_t before = dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS);
    for (int64_t k = 0; k < TENSORS; k++) {
        EXPECT_OK(dsc_buckets_ready(buckets, mixed ? (k * (rank + 2) + 1) % TENSORS : k));
        if (!mixed)
            EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) - before == expected->sent[k]);
    }
    EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) - before == expected->sent[TENSORS - 1]);
}

static void run_round(dsc_buckets *buckets, list *l, const int *roots, int round, const reckoning *expected) {
    fill_list(l, round);
    if (size == 1) { /* not a bit changes, whatever travels elsewhere */
        store(l, 0, 0, 1e30);
        write_tensor(&l->block, l->host);
    }
    announce(buckets, round % 2, expected);
    EXPECT_OK(dsc_buckets_wait(buckets));
    if (size == 1) {
        read_tensor(&l->block, l->host);
        EXPECT(load(l, 0, 0) == (l->block.dtype == DSC_F64 ? 1e30 : (double)1e30f));
        store(l, 0, 0, mean_of(0, 0, round));
        write_tensor(&l->block, l->host);
    }
    EXPECT(holds_means(l, roots, round));
}

static void run_case(layout how, owners who, dsc_dtype dtype, dsc_dtype wire, size_t bytes) {
    list l;
    int given[TENSORS], kept[TENSORS];
    const int *roots = who == EVERYBODY ? NULL : kept;
    dsc_buckets *buckets = NULL;
    dsc_bucket_options options;
    make_list(how, dtype, &l);
    choose_roots(who, given);
    memcpy(kept, given, sizeof kept);
    dsc_bucket_options_init(&options);
    options.bytes = bytes;
    options.wire = wire;
    options.traffic = DSC_TRAFFIC_FACTORS;
    options.roots = roots ? given : NULL;
    reckoning expected = reckon(&l, &options);
    assert_ok(dsc_buckets_create(world, queue, l.tensors, TENSORS, &options, &buckets));
    memset(given, 0x7f, sizeof given); /* they were read */
    EXPECT(dsc_buckets_count(buckets) == expected.buckets);
    int64_t allocations = 0;
    for (int round = 0; round < 4; round++) {
        run_round(buckets, &l, roots, round, &expected);
        if (round == 1)
            allocations = dsc_memory_allocations();
    }
    EXPECT(dsc_memory_allocations() == allocations);
    dsc_buckets_destroy(&buckets);
    EXPECT(buckets == NULL);
    drop_list(&l);
}

static void run_cases(owners who) {
    static const size_t sizes[] = {1, 100, 1000, 4 << 20};
    static const dsc_dtype wires[] = {DSC_F32, DSC_BF16, DSC_F16};
    for (int how = 0; how < LAYOUT_COUNT; how++) {
        for (int s = 0; s < 4; s++)
            run_case((layout)how, who, DSC_F32, wires[(how + s) % 3], sizes[s]);
        for (int w = 0; w < 3; w++) {
            run_case((layout)how, who, DSC_F32, wires[w], 400);
            run_case((layout)how, who, DSC_F64, wires[w], 800);
        }
    }
}

static void test_means(void **state) {
    (void)state;
    run_cases(EVERYBODY);
    all_fine(world);
}

static void test_means_at_roots(void **state) {
    (void)state;
    for (int who = EVERYBODY + 1; who < OWNERS_COUNT; who++)
        run_cases((owners)who);
    all_fine(world);
}

/* Two sets of buckets share a communicator: a list that everybody gets, a list with roots, ready in turn. */
static void test_two_lists(void **state) {
    (void)state;
    list lists[2];
    dsc_buckets *buckets[2] = {NULL, NULL};
    reckoning expected[2];
    int roots[TENSORS];
    choose_roots(IN_TURN, roots);
    for (int i = 0; i < 2; i++) {
        dsc_bucket_options options;
        make_list(i ? SHUFFLED : FALLING, DSC_F32, &lists[i]);
        dsc_bucket_options_init(&options);
        options.bytes = 300;
        options.traffic = i ? DSC_TRAFFIC_FACTORS : DSC_TRAFFIC_GRADIENTS;
        options.roots = i ? roots : NULL;
        expected[i] = reckon(&lists[i], &options);
        assert_ok(dsc_buckets_create(world, queue, lists[i].tensors, TENSORS, &options, &buckets[i]));
    }
    for (int round = 0; round < 3; round++) {
        uint64_t gradients = dsc_comm_bytes(world, DSC_TRAFFIC_GRADIENTS);
        uint64_t factors = dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS);
        fill_list(&lists[0], round);
        fill_list(&lists[1], round);
        for (int64_t k = 0; k < TENSORS; k++) {
            EXPECT_OK(dsc_buckets_ready(buckets[1], k));
            EXPECT_OK(dsc_buckets_ready(buckets[0], k));
        }
        EXPECT_OK(dsc_buckets_wait(buckets[round % 2]));
        EXPECT_OK(dsc_buckets_wait(buckets[1 - round % 2]));
        EXPECT(holds_means(&lists[0], NULL, round));
        EXPECT(holds_means(&lists[1], roots, round));
        EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_GRADIENTS) - gradients == expected[0].sent[TENSORS - 1]);
        EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) - factors == expected[1].sent[TENSORS - 1]);
    }
    for (int i = 0; i < 2; i++) {
        dsc_buckets_destroy(&buckets[i]);
        drop_list(&lists[i]);
    }
    all_fine(world);
}

static dsc_tensor make_tensor(dsc_dtype dtype, int64_t count) {
    void *data = memory_take(device, (size_t)count * dsc_dtype_size(dtype));
    return dsc_tensor_view(device, data, dtype, 1, &count);
}

/* Messages so large that MPI cuts them up, to every root. Rank r's element i is (i % 8 + r) / 4. */
static void test_large_messages(void **state) {
    (void)state;
    enum { LARGE = 300001 };
    static const dsc_dtype wires[] = {DSC_F32, DSC_BF16, DSC_F16};
    int64_t count = LARGE;
    float *data = malloc(LARGE * sizeof *data);
    assert_non_null(data);
    dsc_tensor t = make_tensor(DSC_F32, count);
    for (int c = 0; c < 3 * size; c++) {
        int root = c / 3;
        dsc_buckets *buckets = NULL;
        dsc_bucket_options options;
        dsc_bucket_options_init(&options);
        options.roots = &root;
        options.wire = wires[c % 3];
        for (int64_t i = 0; i < LARGE; i++)
            data[i] = (float)(i % 8 + rank) / 4;
        write_tensor(&t, data);
        assert_ok(dsc_buckets_create(world, queue, &t, 1, &options, &buckets));
        EXPECT_OK(dsc_buckets_ready(buckets, 0));
        EXPECT_OK(dsc_buckets_wait(buckets));
        dsc_buckets_destroy(&buckets);
        read_tensor(&t, data);
        int64_t wrong = 0; /* means are (i % 8) / 4 + (n - 1) / 8, as scaled by a rounded 1 / n */
        for (int64_t i = 0; rank == root && i < LARGE; i++) {
            double sum = (double)(size * (2 * (i % 8) + size - 1)) / 8;
            wrong += fabs((double)data[i] - sum / size) > 2 * FLT_EPSILON * sum / size;
        }
        EXPECT(wrong == 0);
    }
    free(data);
    memory_drop(device, t.data);
    all_fine(world);
}

/* What the staging buffer takes: nothing when every bucket is one range of memory. */
static void test_no_copy_of_neighbours(void **state) {
    (void)state;
    static const struct {
        layout how;
        owners who;
        dsc_dtype wire;
        size_t bytes;
        int copied;
    } cases[] = {
        {FALLING, EVERYBODY, DSC_F32, 4 << 20, 0},
        {FALLING, EVERYBODY, DSC_F32, 500, 0},
        {RISING, EVERYBODY, DSC_F32, 500, 0},
        {SHUFFLED, EVERYBODY, DSC_F32, 4 << 20, 0}, /* one bucket of all, in any order */
        {GAPS, EVERYBODY, DSC_F32, 1, 0},           /* each tensor alone */
        {GAPS, EVERYBODY, DSC_F32, 4 << 20, 1},
        {FALLING, EVERYBODY, DSC_BF16, 500, 1},
        {FALLING, LAST_RANK, DSC_F32, 4 << 20, 0},
        {RISING, IN_ROWS, DSC_F32, 40, 0}, /* what goes to one rank lies together */
        {SHUFFLED, IN_TURN, DSC_F32, 1, 0},
        {FALLING, IN_TURN, DSC_F32, 4 << 20, 1}, /* each other tensor goes elsewhere */
        {FALLING, LAST_RANK, DSC_F16, 500, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        list l;
        dsc_buckets *buckets = NULL;
        dsc_bucket_options options;
        int roots[TENSORS];
        make_list(cases[c].how, DSC_F32, &l);
        choose_roots(cases[c].who, roots);
        dsc_bucket_options_init(&options);
        options.bytes = cases[c].bytes;
        options.roots = cases[c].who == EVERYBODY ? NULL : roots;
        options.wire = cases[c].wire;
        size_t before = dsc_device_bytes(device);
        assert_ok(dsc_buckets_create(world, queue, l.tensors, TENSORS, &options, &buckets));
        size_t taken = dsc_device_bytes(device) - before;
        size_t staged = (size_t)l.bytes / (cases[c].wire == DSC_F32 ? 1 : 2);
        if (size == 1)
            EXPECT(taken == 0);
        else if (cases[c].copied)
            EXPECT(taken >= staged);
        else
            EXPECT(taken <= 64); /* the factor 1 / ranks */
        dsc_buckets_destroy(&buckets);
        EXPECT(dsc_device_bytes(device) == before);
        drop_list(&l);
    }
    all_fine(world);
}

/* float32 and float64 in one list travel in buckets of their own. */
/* The sum over the ranks of numbers near fp16's largest does not fit into it; divided first, it does. */
static void test_divide_first(void **state) {
    (void)state;
    for (int rooted = 0; rooted < 2; rooted++) {
        for (int first = 0; first < 2; first++) {
            float values[2] = {60000, 2};
            int root = 0;
            dsc_tensor t = make_tensor(DSC_F32, 2);
            write_tensor(&t, values);
            dsc_bucket_options options;
            dsc_buckets *buckets;
            dsc_bucket_options_init(&options);
            options.wire = DSC_F16;
            options.divide_first = first;
            options.roots = rooted ? &root : NULL;
            assert_ok(dsc_buckets_create(world, queue, &t, 1, &options, &buckets));
            assert_ok(dsc_buckets_ready(buckets, 0));
            assert_ok(dsc_buckets_wait(buckets));
            read_tensor(&t, values);
            int here = !rooted || rank == root;
            EXPECT(!here || (first || size == 1 ? fabs(values[0] - 60000) <= 64 * size : isinf(values[0])));
            EXPECT(!here || fabs(values[1] - 2) <= 0.01);
            dsc_buckets_destroy(&buckets);
            memory_drop(device, t.data);
        }
    }
    all_fine(world);
}

static void test_mixed_types(void **state) {
    (void)state;
    float a[3] = {(float)rank, 1, 2}, c[2] = {4, 8};
    double b[2] = {3 * (double)rank, -1};
    void *values[3] = {a, b, c};
    dsc_tensor tensors[3] = {make_tensor(DSC_F32, 3), make_tensor(DSC_F64, 2), make_tensor(DSC_F32, 2)};
    for (int i = 0; i < 3; i++)
        write_tensor(&tensors[i], values[i]);
    dsc_buckets *buckets = NULL;
    assert_ok(dsc_buckets_create(world, queue, tensors, 3, NULL, &buckets));
    EXPECT(dsc_buckets_count(buckets) == 3);
    for (int i = 2; i >= 0; i--)
        EXPECT_OK(dsc_buckets_ready(buckets, i));
    EXPECT_OK(dsc_buckets_wait(buckets));
    for (int i = 0; i < 3; i++) {
        read_tensor(&tensors[i], values[i]);
        memory_drop(device, tensors[i].data);
    }
    EXPECT(b[1] == -1 && a[1] == 1 && a[2] == 2 && c[0] == 4 && c[1] == 8);
    EXPECT(2 * (double)a[0] == size - 1 && 2 * b[0] == 3 * (size - 1));
    dsc_buckets_destroy(&buckets);
    all_fine(world);
}

static void test_empty(void **state) {
    (void)state;
    dsc_buckets *buckets = NULL;
    assert_ok(dsc_buckets_create(world, queue, NULL, 0, NULL, &buckets));
    EXPECT(dsc_buckets_count(buckets) == 0);
    EXPECT_OK(dsc_buckets_wait(buckets));
    dsc_buckets_destroy(&buckets);
    dsc_buckets_destroy(&buckets);
    dsc_buckets_destroy(NULL);
    all_fine(world);
}

/* Left in the middle of a round: destroying waits for what runs. The tensors are ready in other orders on
 * every rank, but the same ones. */
static void test_left_early(void **state) {
    (void)state;
    for (int who = 0; who < OWNERS_COUNT; who++) {
        list l;
        int roots[TENSORS];
        make_list(SHUFFLED, DSC_F32, &l);
        choose_roots((owners)who, roots);
        for (int64_t missing = -1; missing < TENSORS; missing += 4) {
            dsc_buckets *buckets = NULL;
            dsc_bucket_options options;
            dsc_bucket_options_init(&options);
            options.bytes = 200;
            options.roots = who == EVERYBODY ? NULL : roots;
            assert_ok(dsc_buckets_create(world, queue, l.tensors, TENSORS, &options, &buckets));
            fill_list(&l, 0);
            for (int64_t k = 0; k < TENSORS; k++) {
                int64_t tensor = (k * (rank + 2) + 1) % TENSORS;
                if (tensor != missing)
                    EXPECT_OK(dsc_buckets_ready(buckets, tensor));
            }
            dsc_buckets_destroy(&buckets);
        }
        drop_list(&l);
    }
    all_fine(world);
}

static void test_misuse(void **state) {
    (void)state;
    list l;
    dsc_buckets *buckets = NULL;
    dsc_bucket_options options;
    make_list(FALLING, DSC_F32, &l);
    dsc_bucket_options_init(&options);
    options.bytes = 200;
    assert_ok(dsc_buckets_create(world, queue, l.tensors, TENSORS, &options, &buckets));
    fill_list(&l, 0);
    for (int64_t k = 0; k < TENSORS; k++) {
        if (k != 7)
            EXPECT_OK(dsc_buckets_ready(buckets, k));
    }
    EXPECT_FAILS(DSC_E_INVALID, "tensor 7 of 23 was never ready", dsc_buckets_wait(buckets));
    EXPECT_FAILS(DSC_E_INVALID, "second time", dsc_buckets_ready(buckets, 3));
    EXPECT_FAILS(DSC_E_INVALID, "tensor 23", dsc_buckets_ready(buckets, TENSORS));
    EXPECT_FAILS(DSC_E_INVALID, "tensor -1", dsc_buckets_ready(buckets, -1));
    EXPECT_OK(dsc_buckets_ready(buckets, 7)); /* nothing is lost */
    EXPECT_OK(dsc_buckets_wait(buckets));
    EXPECT(holds_means(&l, NULL, 0));
    dsc_buckets_destroy(&buckets);

    options.bytes = 0;
    EXPECT_FAILS(DSC_E_INVALID, "0 bytes",
                 dsc_buckets_create(world, queue, l.tensors, 1, &options, &buckets));
    dsc_bucket_options_init(&options);
    options.wire = DSC_I32;
    EXPECT_FAILS(DSC_E_INVALID, "i32", dsc_buckets_create(world, queue, l.tensors, 1, &options, &buckets));
    int roots[2] = {0, size};
    dsc_bucket_options_init(&options);
    options.roots = roots;
    EXPECT_FAILS(DSC_E_INVALID, "tensor 1 goes to rank",
                 dsc_buckets_create(world, queue, l.tensors, 2, &options, &buckets));
    roots[0] = -1;
    EXPECT_FAILS(DSC_E_INVALID, "tensor 0 goes to rank -1",
                 dsc_buckets_create(world, queue, l.tensors, 2, &options, &buckets));
    l.tensors[0].dtype = DSC_I64;
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "i64", dsc_buckets_create(world, queue, l.tensors, 1, NULL, &buckets));
    l.tensors[0].device = NULL;
    EXPECT_FAILS(DSC_E_INVALID, "not on the device",
                 dsc_buckets_create(world, queue, l.tensors, 1, NULL, &buckets));
    EXPECT(buckets == NULL);
    drop_list(&l);
    all_fine(world);
}

/* Memory that the host cannot reach needs the communicator to have a queue, unless nothing moves; the
 * buckets' own may be another one. */
static void test_far_queues(void **state) {
    (void)state;
    dsc_device *far = far_create();
    dsc_queue *own = NULL, *used = NULL;
    dsc_comm *group = NULL;
    dsc_buckets *buckets = NULL;
    float x[2] = {(float)(4 * rank), 8};
    int64_t two = 2;
    dsc_tensor t;
    assert_ok(dsc_queue_create(far, &own));
    assert_ok(dsc_queue_create(far, &used));
    assert_ok(dsc_tensor_alloc(far, DSC_F32, 1, &two, &t));
    EXPECT_OK(dsc_comm_split(world, 0, rank, &group));
    EXPECT_OK(dsc_comm_use_queue(group, NULL));
    if (size > 1)
        EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_use_queue first",
                     dsc_buckets_create(group, own, &t, 1, NULL, &buckets));
    EXPECT_OK(dsc_comm_use_queue(group, used));
    EXPECT_OK(dsc_buckets_create(group, own, &t, 1, NULL, &buckets));
    EXPECT_OK(dsc_tensor_upload(own, x, sizeof x, &t));
    EXPECT_OK(dsc_buckets_ready(buckets, 0));
    EXPECT_OK(dsc_buckets_wait(buckets));
    EXPECT_OK(dsc_tensor_download(own, &t, sizeof x, x));
    EXPECT_OK(dsc_queue_sync(own));
    EXPECT(fabs((double)x[0] - 2 * (size - 1)) < 1e-5 && fabs((double)x[1] - 8) < 1e-5);
    dsc_buckets_destroy(&buckets);
    dsc_comm_destroy(&group);
    dsc_tensor_free(&t);
    dsc_queue_destroy(&own);
    dsc_queue_destroy(&used);
    free(far);
    all_fine(world);
}

/* Every allocation of the plan fails once. */
static void test_allocation_failures(void **state) {
    (void)state;
    list l;
    int roots[TENSORS];
    dsc_bucket_options options;
    make_list(GAPS, DSC_F32, &l);
    choose_roots(IN_TURN, roots);
    dsc_bucket_options_init(&options);
    options.roots = roots;
    dsc_status status = DSC_E_MEMORY;
    size_t before = dsc_device_bytes(device);
    for (int nth = 1; status != DSC_OK && nth < 100; nth++) {
        dsc_buckets *buckets = NULL;
        dsc_memory_fail_at(nth);
        status = dsc_buckets_create(world, queue, l.tensors, TENSORS, &options, &buckets);
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK || status == DSC_E_MEMORY);
        EXPECT((status == DSC_OK) == (buckets != NULL));
        dsc_buckets_destroy(&buckets);
        EXPECT(dsc_device_bytes(device) == before);
    }
    EXPECT(status == DSC_OK);
    drop_list(&l);
    all_fine(world);
}

static int setup(void **state) {
    (void)state;
    assert_ok(dsc_comm_create(NULL, &world));
    place_open(&world);
    device = place_device;
    queue = place_queue;
    rank = dsc_comm_rank(world);
    size = dsc_comm_size(world);
    silence_other_ranks(world);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_comm_destroy(&world);
    place_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_means_at_roots),
        cmocka_unit_test(test_two_lists),
        cmocka_unit_test(test_large_messages),
        cmocka_unit_test(test_no_copy_of_neighbours),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_divide_first),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_left_early),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_far_queues),
        cmocka_unit_test(test_allocation_failures),
    };
    start_watchdog(120);
    return cmocka_run_group_tests_name("buckets", tests, setup, teardown);
}
