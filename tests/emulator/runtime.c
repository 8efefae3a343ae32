/* The CUDA runtime as far as the cuda backend uses it: memory, copies, properties, errors. Work has been done
 * when the call returns.
 *
 * Device memory is one range of addresses that may be touched only while the device works: host code that
 * follows a pointer to it crashes, as it would with a GPU. Fresh memory is full of 0xCB, a number near -3e7
 * in float32 and of no use in any other type.
 *
 * There are DESCENT_EMULATOR_GPUS of them, one unless it is set. As in CUDA, memory, streams and events belong
 * to the GPU that was the thread's current one when they were made, and a kernel can be launched into a stream
 * of the current GPU only. With several GPUs, a program that ends with another current GPU than it began with
 * fails: the library has to leave it as it was. */
#define _GNU_SOURCE

#include "emulator/engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(p, bytes) __asan_poison_memory_region(p, bytes)
#define PERMIT(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define FORBID(p, bytes) ((void)(p), (void)(bytes))
#define PERMIT(p, bytes) ((void)(p), (void)(bytes))
#endif

static const size_t ARENA_BYTES = (size_t)8 << 30;
enum {
    GRAIN = 512,
    PAGE = 4096,
    PATTERN_BYTES = 4 << 20,
    KEPT_BYTES = 1 << 20, /* free memory at the end of the arena that stays there */
    MAX_KERNELS = 256,
    MULTIPROCESSORS = 8
};

static _Thread_local cudaError_t last_error;

cudaError_t dsc_emulated_error(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* ---- device memory ---- */

/* Blocks, used and free, cover [0, end) of the arena in the order of their addresses. */
typedef struct block {
    size_t start, bytes; /* bytes: as many as it takes up */
    int used;
    int gpu;
    struct block *next;
} block;

static struct {
    pthread_mutex_t lock;
    int ready, depth;
    char *base;
    size_t end; /* mapped pages, from base on */
    block *blocks;
    struct sigaction before; /* what handled SIGSEGV */
} arena;

static void set_up(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&arena.lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    arena.base = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena.base == MAP_FAILED) {
        perror("emulator: no room for device memory");
        abort();
    }
}

static void lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up);
    pthread_mutex_lock(&arena.lock);
}

static void unlock(void) {
    pthread_mutex_unlock(&arena.lock);
}

static int is_device(const void *p) {
    return arena.base && (const char *)p >= arena.base && (const char *)p < arena.base + ARENA_BYTES;
}

/* Says what happened, then lets the former handler (ASan's, cmocka's or the default) see it. */
static void on_fault(int number, siginfo_t *info, void *context) {
    static const char text[] =
        "emulator: the host touched device memory, or a copy of it went past its end\n";
    (void)number;
    (void)context;
    if (is_device(info->si_addr) && write(STDERR_FILENO, text, sizeof text - 1) < 0)
        abort();
    sigaction(SIGSEGV, &arena.before, NULL);
}

/* A handler that was installed since the last time is called after ours. */
static void watch(void) {
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault))
        return;
    arena.before = now;
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &ours, NULL);
}

static void protect(int how) {
    if (arena.end > 0 && mprotect(arena.base, arena.end, how)) {
        perror("emulator: mprotect");
        abort();
    }
}

void dsc_emulated_open(void) {
    lock();
    if (arena.depth++ == 0)
        protect(PROT_READ | PROT_WRITE);
}

void dsc_emulated_close(void) {
    if (--arena.depth == 0) {
        protect(PROT_NONE);
        watch();
    }
    unlock();
}

/* After the last block: the arena's end grows. */
static block *append(block *last, size_t bytes) {
    size_t start = last ? last->start + last->bytes : 0;
    if (bytes > ARENA_BYTES - start)
        return NULL;
    block *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *b = (block){start, bytes, 0, 0, NULL};
    size_t end = (start + bytes + PAGE - 1) / PAGE * PAGE;
    if (end > arena.end) {
        mprotect(arena.base + arena.end, end - arena.end, PROT_READ | PROT_WRITE);
        arena.end = end;
    }
    if (last)
        last->next = b;
    else
        arena.blocks = b;
    return b;
}

/* A file of the pattern that fresh memory has. */
static int pattern_file(void) {
    static int file = -1;
    char page[PAGE];
    if (file >= 0)
        return file;
    memset(page, DSC_EMULATED_FILL, sizeof page);
    file = memfd_create("emulator", MFD_CLOEXEC);
    for (size_t done = 0; file >= 0 && done < PATTERN_BYTES; done += PAGE) {
        if (write(file, page, PAGE) != PAGE) {
            close(file);
            file = -1;
        }
    }
    return file;
}

/* Puts the pattern into whole pages without touching them: a touched page costs time at every open and close.
 * Returns how much was done. */
static size_t fill_pages(char *data, size_t bytes) {
    int file = bytes >= PATTERN_BYTES ? pattern_file() : -1;
    size_t done = 0;
    while (file >= 0 && done < bytes) {
        size_t part = bytes - done < PATTERN_BYTES ? bytes - done : PATTERN_BYTES;
        if (mmap(data + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file,
                 0) == MAP_FAILED)
            break;
        done += part;
    }
    return done;
}

static void fill(char *data, size_t bytes) {
    size_t head = (size_t)(-(uintptr_t)data % PAGE);
    head = head < bytes ? head : bytes;
    size_t done = head + fill_pages(data + head, (bytes - head) / PAGE * PAGE);
    memset(data, DSC_EMULATED_FILL, head);
    memset(data + done, DSC_EMULATED_FILL, bytes - done);
}

/* The first free block that is large enough. */
static block *find_block(size_t bytes) {
    block *last = NULL;
    for (block *b = arena.blocks; b; last = b, b = b->next) {
        if (b->used || b->bytes < bytes)
            continue;
        block *rest = b->bytes > bytes ? calloc(1, sizeof *rest) : NULL;
        if (rest) {
            *rest = (block){b->start + bytes, b->bytes - bytes, 0, 0, b->next};
            b->bytes = bytes;
            b->next = rest;
        }
        return b;
    }
    return append(last, bytes);
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > ARENA_BYTES - GRAIN)
        return dsc_emulated_error(cudaErrorMemoryAllocation);
    dsc_emulated_open();
    size_t taken = (bytes + GRAIN) / GRAIN * GRAIN; /* at least one byte lies between two blocks */
    block *b = find_block(taken);
    if (b) {
        b->used = 1;
        b->gpu = dsc_emulated_gpu();
        *out = arena.base + b->start;
        PERMIT(*out, taken);
        fill(*out, taken);
        FORBID((char *)*out + bytes, taken - bytes);
    }
    dsc_emulated_close();
    return dsc_emulated_error(b ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* Joins b with the free blocks after it. */
static void join(block *b) {
    while (b->next && !b->next->used) {
        block *gone = b->next;
        b->bytes += gone->bytes;
        b->next = gone->next;
        free(gone);
    }
}

/* Gives the pages after the last block in use back, which would cost time at every open and close. Neighbouring free
 * blocks are joined, so there is at most one. */
static void trim(void) {
    block **link = &arena.blocks;
    while (*link && (*link)->next)
        link = &(*link)->next;
    if (!*link || (*link)->used)
        return;
    size_t end = ((*link)->start + PAGE - 1) / PAGE * PAGE;
    if (arena.end < end + KEPT_BYTES)
        return;
    if (mmap(arena.base + end, arena.end - end, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        perror("emulator: mmap");
        abort();
    }
    arena.end = end;
    free(*link);
    *link = NULL;
}

cudaError_t cudaFree(void *data) {
    cudaError_t error = data ? cudaErrorInvalidValue : cudaSuccess;
    dsc_emulated_open();
    block *before = NULL;
    for (block *b = arena.blocks; b && data; before = b, b = b->next) {
        if (arena.base + b->start != data || !b->used)
            continue;
        b->used = 0;
        FORBID(data, b->bytes);
        join(before && !before->used ? before : b);
        trim();
        error = cudaSuccess;
        break;
    }
    dsc_emulated_close();
    return dsc_emulated_error(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    size_t used = 0;
    lock();
    for (const block *b = arena.blocks; b; b = b->next)
        used += b->used ? b->bytes : 0;
    unlock();
    *free_bytes = ARENA_BYTES - used;
    *total = ARENA_BYTES;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    *out = NULL;
    if (bytes > 0 && posix_memalign(out, 256, bytes))
        return dsc_emulated_error(cudaErrorMemoryAllocation);
    if (bytes > 0)
        memset(*out, DSC_EMULATED_FILL, bytes);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *data) {
    free(data);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags) {
    (void)data;
    (void)bytes;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *data) {
    (void)data;
    return cudaSuccess;
}

/* Page-locked memory is not remembered as such: it looks like any other of the host. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
    *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
    if (!is_device(p)) {
        attributes->hostPointer = (void *)(uintptr_t)p;
        return cudaSuccess;
    }
    size_t at = (size_t)((const char *)p - arena.base);
    lock();
    for (const block *b = arena.blocks; b; b = b->next) {
        if (!b->used || at < b->start || at >= b->start + b->bytes)
            continue;
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = b->gpu;
        attributes->devicePointer = (void *)(uintptr_t)p;
    }
    unlock();
    return cudaSuccess;
}

/* ---- copies ---- */

/* [p, p + bytes) is inside one block in use. */
static int is_inside(const void *p, size_t bytes) {
    size_t start = (size_t)((const char *)p - arena.base);
    for (const block *b = arena.blocks; b; b = b->next)
        if (b->used && start >= b->start && start + bytes <= b->start + b->bytes)
            return 1;
    return 0;
}

/* An end of a copy is on the side where its kind says it is. */
static int is_right(const void *p, size_t bytes, int on_device) {
    return is_device(p) ? on_device && is_inside(p, bytes) : !on_device;
}

static int is_right_kind(const void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault)
        return (!is_device(dst) || is_inside(dst, bytes)) && (!is_device(src) || is_inside(src, bytes));
    int to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    int from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return is_right(dst, bytes, to_device) && is_right(src, bytes, from_device);
}

typedef struct copy {
    void *dst;
    const void *src; /* NULL: `value` everywhere */
    size_t bytes;
    enum cudaMemcpyKind kind;
    int value;
} copy;

static int run_copy(void *state) {
    const copy *c = state;
    if (c->src)
        memmove(c->dst, c->src, c->bytes);
    else
        memset(c->dst, c->value, c->bytes);
    return 0;
}

static cudaError_t submit_copy(copy c, cudaStream_t stream) {
    if (c.bytes == 0)
        return cudaSuccess;
    lock();
    int right = c.src ? is_right_kind(c.dst, c.src, c.bytes, c.kind) : is_right(c.dst, c.bytes, 1);
    unlock();
    if (right)
        dsc_emulated_submit(stream, run_copy, &c, sizeof c);
    return dsc_emulated_error(right ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (bytes > 0 && (!dst || !src))
        return dsc_emulated_error(cudaErrorInvalidValue);
    return submit_copy((copy){dst, src, bytes, kind, 0}, stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(dst, src, bytes, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream) {
    return submit_copy((copy){data, NULL, bytes, cudaMemcpyDefault, value}, stream);
}

cudaError_t cudaMemset(void *data, int value, size_t bytes) {
    return cudaMemsetAsync(data, value, bytes, NULL);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    if (width > dst_pitch || width > src_pitch)
        return dsc_emulated_error(cudaErrorInvalidPitchValue);
    for (size_t i = 0; i < height; i++) {
        cudaError_t error = cudaMemcpyAsync((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch,
                                            width, kind, stream);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

/* ---- devices ---- */

static _Thread_local int current_gpu;
static _Thread_local int has_context;

static int gpu_count(void) {
    const char *text = getenv("DESCENT_EMULATOR_GPUS");
    return text ? atoi(text) : 1;
}

int dsc_emulated_gpu(void) {
    has_context = 1;
    return current_gpu;
}

/* In the thread that ends the program. */
__attribute__((destructor)) static void check_current(void) {
    static const char text[] = "emulator: the thread's current GPU is not what it was at the beginning\n";
    if (current_gpu != 0 && write(STDERR_FILENO, text, sizeof text - 1) >= 0)
        _exit(70);
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = gpu_count();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_gpu;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= gpu_count())
        return dsc_emulated_error(cudaErrorInvalidDevice);
    current_gpu = device;
    has_context = 1;
    return cudaSuccess;
}

/* The driver's cuCtxGetCurrent and cuCtxSetCurrent, as far as they are used: a context is its GPU's number
 * plus 1. */
static int get_context(void **context) {
    *context = has_context ? (void *)(uintptr_t)(current_gpu + 1) : NULL;
    return 0;
}

static int set_context(void *context) {
    current_gpu = context ? (int)(uintptr_t)context - 1 : 0;
    has_context = context != NULL;
    return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    (void)version;
    (void)flags;
    *function = NULL;
    if (strcmp(name, "cuCtxGetCurrent") == 0)
        *(int (**)(void **))function = get_context;
    if (strcmp(name, "cuCtxSetCurrent") == 0)
        *(int (**)(void *))function = set_context;
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}

/* What a block may have: DESCENT_EMULATOR_SHARED bytes, as GPUs with less than this one. */
static size_t shared_limit(void) {
    const char *text = getenv("DESCENT_EMULATOR_SHARED");
    return text ? (size_t)strtoul(text, NULL, 10) : DSC_EMULATED_SHARED;
}

/* DESCENT_EMULATOR_CAPABILITY, as 80; this GPU's without it. */
static int capability(void) {
    const char *text = getenv("DESCENT_EMULATOR_CAPABILITY");
    return text ? (int)strtol(text, NULL, 10) : 90;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device < 0 || device >= gpu_count())
        return dsc_emulated_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated on the CPU");
    prop->totalGlobalMem = ARENA_BYTES;
    prop->sharedMemPerBlock = DSC_EMULATED_SHARED_DEFAULT;
    prop->sharedMemPerBlockOptin = shared_limit();
    prop->sharedMemPerMultiprocessor = shared_limit() + 1024;
    prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->major = capability() / 10;
    prop->minor = capability() % 10;
    prop->multiProcessorCount = MULTIPROCESSORS;
    prop->unifiedAddressing = 1;
    prop->l2CacheSize = 32 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, device);
    if (error != cudaSuccess)
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = prop.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = prop.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)prop.sharedMemPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)prop.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        break;
    case cudaDevAttrWarpSize:
        *value = prop.warpSize;
        break;
    case cudaDevAttrL2CacheSize:
        *value = prop.l2CacheSize;
        break;
    case cudaDevAttrUnifiedAddressing:
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
};

static size_t find_error(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == error)
            return i;
    return (size_t)-1;
}

const char *cudaGetErrorName(cudaError_t error) {
    size_t i = find_error(error);
    return i == (size_t)-1 ? "unrecognized error code" : errors[i].name;
}

const char *cudaGetErrorString(cudaError_t error) {
    size_t i = find_error(error);
    return i == (size_t)-1 ? "unrecognized error code" : errors[i].text;
}

/* ---- kernels ---- */

static struct {
    const void *kernel;
    size_t limit;
} limits[MAX_KERNELS];

static int limit_count;

static int find_limit(const void *kernel) {
    int i = 0;
    while (i < limit_count && limits[i].kernel != kernel)
        i++;
    return i;
}

size_t dsc_emulated_shared_limit(const void *kernel) {
    lock();
    int i = find_limit(kernel);
    size_t limit = i < limit_count ? limits[i].limit : DSC_EMULATED_SHARED_DEFAULT;
    unlock();
    return limit;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess; /* hints */
    if (value < 0 || (size_t)value > shared_limit())
        return dsc_emulated_error(cudaErrorInvalidValue);
    lock();
    int i = find_limit(kernel);
    int full = i == MAX_KERNELS;
    if (!full) {
        limits[i].kernel = kernel;
        limits[i].limit =
            (size_t)value > DSC_EMULATED_SHARED_DEFAULT ? (size_t)value : DSC_EMULATED_SHARED_DEFAULT;
        limit_count += i == limit_count;
    }
    unlock();
    return dsc_emulated_error(full ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
    (void)kernel;
    (void)flags;
    int by_threads = 2048 / (threads > 0 ? threads : 2048);
    int by_shared = (int)((shared_limit() + 1024) / (shared + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                          size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}
