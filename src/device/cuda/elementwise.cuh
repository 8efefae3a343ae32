/* Shared by elementwise.cu, second.cu and optim.cu: loops over the elements of tensors, 16 bytes at a time, and
 * batches.
 *
 * A batch is a list of items, each with a number of elements. Every block takes `chunk` elements of one item;
 * first[i] is the index of the first block of item i. */
#ifndef DSC_DEVICE_CUDA_ELEMENTWISE_CUH
#define DSC_DEVICE_CUDA_ELEMENTWISE_CUH

#include "device/cuda/layer.cuh"

/* The number of elements in 16 bytes, also for use in kernels. */
template <typename T> constexpr int dsc_width = 16 / (int)sizeof(T);

/* ---- one loop ---- */

/* A body's start() loads what it needs from device memory and returns whether there is anything to do; run<N>(at)
 * does elements at .. at + N - 1. */
template <class Body, int N>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) dsc_flat_loop(Body given, int64_t count) {
    Body body = given;
    if (!body.start())
        return;
    int64_t vectors = count / N;
    for (int64_t i = dsc_flat_first(); i < vectors; i += dsc_flat_step())
        body.template run<N>(i * N);
    if (N > 1)
        for (int64_t i = vectors * N + dsc_flat_first(); i < count; i += dsc_flat_step())
            body.template run<1>(i);
}

/* Runs a body on vectors of N elements if `aligned`, else on single elements. Launches enough blocks for one vector per
 * thread, but no more than run at once. */
template <int N, class Body>
cudaError_t dsc_flat_run(const dsc_cuda_launch *at, const Body &body, int64_t count, bool aligned) {
    if (aligned)
        DSC_LAUNCH((dsc_flat_loop<Body, N>), dsc_flat_blocks(at, (count + N - 1) / N), DSC_FLAT_THREADS, 0,
                   at->stream)
    (body, count);
    else DSC_LAUNCH((dsc_flat_loop<Body, 1>), dsc_flat_blocks(at, count), DSC_FLAT_THREADS, 0,
                    at->stream)(body, count);
    return cudaGetLastError();
}

/* Returns true if all pointers are multiples of 16 bytes. */
template <typename... P> bool dsc_aligned(P... pointers) {
    return ((uintptr_t)0 | ... | (uintptr_t)pointers) % 16 == 0;
}

/* ---- batches ---- */

/* Passed by value: at most 4000 bytes. Item has a member `count`, its number of elements. */
template <class Item, int MOST> struct dsc_batch {
    Item item[MOST];
    unsigned first[MOST + 1];
    int items;
    int64_t chunk; /* a multiple of 1024 */
};

/* The number of the `left` remaining items that go into the next launch. */
static inline int dsc_batch_part(int64_t left, int most) {
    return left < most ? (int)left : most;
}

enum { DSC_BATCH_LEAST = 1024 };

/* Fills in a batch and returns its number of blocks: at least one per item. */
template <class Item, int MOST>
unsigned dsc_batch_plan(const dsc_cuda_launch *at, const Item *items, int count, dsc_batch<Item, MOST> *b) {
    int64_t total = 0, blocks = 0, most = (int64_t)at->multiprocessors * 8;
    for (int i = 0; i < count; i++)
        total += items[i].count;
    b->chunk = (total / most / DSC_BATCH_LEAST + 1) * DSC_BATCH_LEAST;
    b->items = count;
    for (int i = 0; i < count; i++) {
        int64_t own = (items[i].count + b->chunk - 1) / b->chunk;
        b->item[i] = items[i];
        b->first[i] = (unsigned)blocks;
        blocks += own < 1 ? 1 : own;
    }
    b->first[count] = (unsigned)blocks;
    return (unsigned)blocks;
}

/* A block's work: elements begin .. end - 1 of item number `item`, as block number `block` of the item's `blocks`. */
typedef struct dsc_batch_place {
    int item;
    unsigned block, blocks;
    int64_t begin, end;
} dsc_batch_place;

template <class Item, int MOST>
__device__ __forceinline__ dsc_batch_place dsc_batch_find(const dsc_batch<Item, MOST> &b) {
    dsc_batch_place p;
    int low = 0, high = b.items - 1;
    while (low < high) { /* the last item that begins here or before */
        int middle = (low + high + 1) / 2;
        if (b.first[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    int64_t count = b.item[low].count;
    p.item = low;
    p.block = blockIdx.x - b.first[low];
    p.blocks = b.first[low + 1] - b.first[low];
    p.begin = (int64_t)p.block * b.chunk;
    p.end = p.begin + b.chunk < count ? p.begin + b.chunk : count;
    return p;
}

/* ---- sums ---- */

/* Returns to thread 0 the sum over the block's DSC_FLAT_THREADS threads, always in the same order. All threads must
 * call it. */
static __device__ __forceinline__ double dsc_flat_sum(double mine) {
    __shared__ double warps[DSC_FLAT_THREADS / 32];
    for (int apart = 16; apart > 0; apart /= 2)
        mine += __shfl_xor_sync(0xFFFFFFFFu, mine, apart);
    __syncthreads(); /* until an earlier sum has been read */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = mine;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0)
        for (int w = 0; w < DSC_FLAT_THREADS / 32; w++)
            sum += warps[w];
    return sum;
}

/* Adds up the sums of an item's blocks, which their threads 0 pass. Returns 1 to the one thread that then has the
 * total in `sum`. All threads must call it. */
static __device__ __forceinline__ int dsc_batch_total(const dsc_batch_place &p, double *partials,
                                                      unsigned *tickets, double &sum) {
    __shared__ int last;
    if (p.blocks == 1)
        return threadIdx.x == 0;
    double *own = partials + (blockIdx.x - p.block);
    if (threadIdx.x == 0) {
        own[p.block] = sum;
        __threadfence();
        last = atomicAdd(&tickets[p.item], 1u) == p.blocks - 1;
        if (last)
            tickets[p.item] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!last)
        return 0;
    double mine = 0;
    for (unsigned i = threadIdx.x; i < p.blocks; i += DSC_FLAT_THREADS)
        mine += __ldcg(&own[i]);
    sum = dsc_flat_sum(mine);
    return threadIdx.x == 0;
}

#endif
