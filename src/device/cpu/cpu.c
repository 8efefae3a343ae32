/* The fast CPU device: vectorised kernels, OpenBLAS and LAPACK, oneDNN; for float32, and in the solvers for float64
 * (the fronts call ref for the rest). Whatever it does not override comes from ref. */
#include "device/cpu/cpu.h"

#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "device/cpu/conv.h"

#include <cblas.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The device's names: "cpu", and "cpu:VARIANT" with some features switched off, for comparisons. */
typedef struct variant {
    const char *name;
    int onednn, blas;
    const dsc_cpu_kernels *(*kernels)(void);
} variant;

static const dsc_cpu_kernels *base_kernels(void) {
    return &dsc_cpu_kernels_base;
}

#ifdef __x86_64__
static const dsc_cpu_kernels *avx2_kernels(void) {
    int there = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return there ? &dsc_cpu_kernels_avx2 : base_kernels();
}

static const dsc_cpu_kernels *best_kernels(void) {
    int there = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return there ? &dsc_cpu_kernels_avx512 : avx2_kernels();
}
#else
static const dsc_cpu_kernels *avx2_kernels(void) {
    return base_kernels();
}

static const dsc_cpu_kernels *best_kernels(void) {
    return base_kernels();
}
#endif

/* Everything; without oneDNN; and without oneDNN and OpenBLAS, on fewer instruction sets. */
static const variant variants[] = {{"cpu", 1, 1, best_kernels},
                                   {"auto", 1, 1, best_kernels},
                                   {"cpu:plain", 0, 1, best_kernels},
                                   {"cpu:avx2", 0, 0, avx2_kernels},
                                   {"cpu:base", 0, 0, base_kernels}};

/* Returns 1 if OpenBLAS uses vectors as wide as those of our kernels. */
static int blas_is_modern(void) {
    static const char *const modern[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename();
    for (size_t i = 0; i < sizeof modern / sizeof modern[0]; i++)
        if (strcmp(core, modern[i]) == 0)
            return 1;
    return best_kernels() == base_kernels(); /* ours are not wide, either */
}

/* OpenBLAS chooses its kernels when it is loaded, from a list of processors that it knows; on a processor newer than
 * itself it falls back to the oldest kernels, with a tenth of the speed. It is then made to choose again, by the name
 * of a processor whose instructions are available. A choice of the user's (OPENBLAS_CORETYPE) is left alone. An
 * OpenBLAS that manages its own threads is limited to one, as dsc_cpu_use_threads does for an OpenBLAS with OpenMP. */
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

static void correct_blas(void) {
    static const char variable[] = "OPENBLAS_CORETYPE";
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        openblas_set_num_threads(1);
    if (blas_is_modern() || getenv(variable) || !gotoblas_dynamic_init || !gotoblas_dynamic_quit)
        return;
    setenv(variable, best_kernels() == avx2_kernels() ? "Haswell" : "SkylakeX", 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv(variable);
}

static const variant *find_variant(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (strcmp(variants[i].name, name) == 0)
            return &variants[i];
    return NULL;
}

/* ---- threads and scratch memory ---- */

dsc_cpu_threads dsc_cpu_use_threads(int count) {
    dsc_cpu_threads before = {omp_get_max_threads(), omp_get_dynamic()};
    omp_set_dynamic(0);
    omp_set_num_threads(count);
    return before;
}

void dsc_cpu_leave_threads(dsc_cpu_threads before) {
    omp_set_num_threads(before.count);
    omp_set_dynamic(before.dynamic);
}

/* The number of CPUs available to this process, or fewer if OpenMP is set to fewer. */
static int default_threads(void) {
    int cpus = omp_get_num_procs(), set = omp_get_max_threads();
    return set < cpus ? set : cpus;
}

/* The size of the team that OpenMP really starts for `wanted` threads; OMP_THREAD_LIMIT or other settings of the
 * environment may make it smaller. The device must not promise more: oneDNN plans for a fixed number of threads, which
 * then wait for each other. */
static int team_size(int wanted) {
    int started = 1;
    if (omp_in_parallel()) /* a nested team says nothing about regions outside the caller's */
        return wanted;
    dsc_cpu_threads before = dsc_cpu_use_threads(wanted);
#pragma omp parallel num_threads(wanted)
#pragma omp single
    started = omp_get_num_threads();
    dsc_cpu_leave_threads(before);
    if (started < wanted)
        dsc_log(DSC_LOG_WARNING, "cpu: OpenMP starts %d of %d threads; see OMP_THREAD_LIMIT", started,
                wanted);
    return started;
}

dsc_status dsc_cpu_scratch(dsc_queue *q, int64_t bytes, void *out) {
    dsc_cpu_queue *own = q->state;
    if (bytes > own->capacity) {
        dsc_memory_free(&own->scratch);
        own->capacity = 0;
        DSC_TRY(dsc_memory_alloc(bytes, 1, &own->scratch));
        own->capacity = bytes;
    }
    *(void **)out = own->scratch;
    return DSC_OK;
}

static void queue_close(dsc_queue *q) {
    dsc_cpu_queue *own = q->state;
    if (own)
        dsc_memory_free(&own->scratch);
    dsc_memory_free(&q->state);
}

/* Allocates enough scratch memory for batch norm over 2048 channels; it grows when more is first needed. */
static dsc_status queue_open(dsc_queue *q) {
    dsc_cpu_queue *own;
    void *scratch;
    DSC_TRY(dsc_memory_alloc(1, sizeof *own, &own));
    q->state = own;
    dsc_status status = dsc_cpu_scratch(q, (1 + (int64_t)q->device->threads) * 65536, &scratch);
    if (status != DSC_OK) {
        queue_close(q);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return DSC_OK;
}

/* ---- opening ---- */

static void destroy(dsc_device *device) {
    dsc_memory_free(&device->state);
}

static void fill_table(dsc_device_table *table) {
    *table = dsc_ref_table;
    table->destroy = destroy;
    table->queue_open = queue_open;
    table->queue_close = queue_close;
    dsc_cpu_table_elementwise(table);
    dsc_cpu_table_linalg(table);
    dsc_cpu_table_triangle(table);
    dsc_cpu_table_solve(table);
    dsc_cpu_table_batch(table);
    dsc_cpu_table_second(table);
    dsc_cpu_table_refresh(table);
    dsc_cpu_table_conv(table);
    dsc_cpu_table_gram(table);
    dsc_cpu_table_norm(table);
    dsc_cpu_table_attention(table);
    dsc_cpu_table_attention_step(table);
    dsc_cpu_table_group_norm(table);
    dsc_cpu_table_pool(table);
    dsc_cpu_table_parts(table);
    dsc_cpu_table_embedding(table);
    dsc_cpu_table_loss(table);
    dsc_cpu_table_pixel_loss(table);
    dsc_cpu_table_optim(table);
}

static void describe(dsc_device *device, const dsc_cpu *cpu) {
    char convolution[32] = "own convolution";
#ifdef DSC_HAVE_ONEDNN
    if (cpu->onednn) {
        char version[16];
        dsc_onednn_version(version, sizeof version);
        snprintf(convolution, sizeof convolution, "oneDNN %s", version);
    }
#endif
    const char *blas = openblas_get_config(), *end = strchr(blas, ' '); /* "OpenBLAS 0.3.21 ..." */
    end = end ? strchr(end + 1, ' ') : NULL;
    int blas_length = (int)(end ? end - blas : (ptrdiff_t)strlen(blas));
    snprintf(device->description, sizeof device->description, "%s: %d thread%s, %s, %s, %.*s for %s",
             device->name, device->threads, device->threads == 1 ? "" : "s", cpu->kernels->name, convolution,
             blas_length, blas, openblas_get_corename());
}

dsc_status dsc_cpu_open(dsc_device *device, const dsc_device_options *options) {
    const variant *chosen = find_variant(options->name);
    dsc_cpu *cpu;
    if (!chosen)
        return DSC_FAIL(DSC_E_INVALID, "device '%s' is unknown; choose cpu, cpu:plain, cpu:avx2 or cpu:base",
                        options->name);
    DSC_TRY(dsc_memory_alloc(1, sizeof *cpu, &cpu));
#ifdef DSC_HAVE_ONEDNN
    cpu->onednn = chosen->onednn;
#endif
    pthread_once(&blas_once, correct_blas);
    cpu->blas = chosen->blas && blas_is_modern();
    cpu->kernels = chosen->kernels();
    fill_table(&cpu->table);
    device->table = &cpu->table;
    device->name = "cpu";
    device->is_host = 1;
    device->threads = team_size(options->threads > 0 ? options->threads : default_threads());
    device->state = cpu;
    describe(device, cpu);
    return DSC_OK;
}
