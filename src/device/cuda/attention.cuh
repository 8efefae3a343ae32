/* Shared by the kernels of attention.cu, attention_half.cu and attention_hopper.cu: a call's arguments, and the part of
 * the work that a block does. */
#ifndef DSC_DEVICE_CUDA_ATTENTION_CUH
#define DSC_DEVICE_CUDA_ATTENTION_CUH

#include "device/cuda/layer.cuh"

/* The arguments of a call. Tensors have rows of d channels, x and dx rows of 3 d; lse and delta are [n, heads, t]. */
typedef struct dsc_cuda_attention {
    int64_t n, t, heads, dh;
    int causal, add; /* add: 1 to add to dx */
    double scale;    /* 1 / sqrt(dh) */
    const void *x, *dy;
    void *y, *lse, *delta, *dx;
    const int32_t *lengths;  /* NULL: no padding */
    const int64_t *position; /* of the dropout; NULL: no dropout */
    dsc_dropout_stream dropout;
    double kept; /* 1 / (1 - rate) */
} dsc_cuda_attention;

/* The part of the work that a block does: one tile of rows of one head. */
struct attention_place {
    int64_t first;      /* position of the tile's first row */
    int64_t x, y, rows; /* offsets of the head's position 0 in x, in y, and in lse and delta */
    int64_t d;
    int64_t length; /* positions before the padding */
    int64_t number; /* dropout: index of the head among those of all samples of the step */

    __device__ __forceinline__ attention_place(const dsc_cuda_attention &a, int side) {
        int64_t tiles = (a.t + side - 1) / side, head = blockIdx.x, tile = dsc_peel(head, tiles);
        rows = head * a.t;
        first = (tiles - 1 - tile) * side; /* last tiles first: with a causal mask they take longest */
        int64_t sample = head, number = dsc_peel(sample, a.heads);
        d = a.heads * a.dh;
        x = sample * a.t * 3 * d + number * a.dh;
        y = sample * a.t * d + number * a.dh;
        length = a.lengths && a.lengths[sample] < a.t ? a.lengths[sample] : a.t;
        this->number = a.position ? (a.position[1] + sample) * a.heads + number : 0;
    }
};

/* ---- half precision, on tensor cores ---- */

extern "C" {

/* Returns 1 if the next two functions can run this call. */
int dsc_cuda_attention_is_half(const dsc_cuda_attention *a, dsc_dtype dtype);
cudaError_t dsc_cuda_attention_half_forward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                            dsc_dtype dtype);
cudaError_t dsc_cuda_attention_half_backward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                             dsc_dtype dtype);

/* Returns 1 if the next function can run this call; only on GPUs of compute capability 9.0. */
int dsc_cuda_attention_is_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype);
cudaError_t dsc_cuda_attention_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype,
                                      int backward);
}

#endif
