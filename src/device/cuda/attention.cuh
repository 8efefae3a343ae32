/* What the kernels of attention.cu and of attention_half.cu share: the call, and where in it a block works. */
#ifndef DSC_DEVICE_CUDA_ATTENTION_CUH
#define DSC_DEVICE_CUDA_ATTENTION_CUH

#include "device/cuda/layer.cuh"

/* A tensor has rows of d channels, and x and dx of 3 d; lse and delta are [n, heads, t]. */
typedef struct dsc_cuda_attention {
    int64_t n, t, heads, dh;
    int causal, add; /* add: to dx */
    double scale;    /* 1 / sqrt(dh) */
    const void *x, *dy;
    void *y, *lse, *delta, *dx;
    const int32_t *lengths;  /* NULL: none */
    const int64_t *position; /* NULL: nothing is dropped */
    dsc_dropout_stream dropout;
    double kept; /* 1 / (1 - rate) */
} dsc_cuda_attention;

/* Where a block works: first row of its tile, and the first numbers of its head. */
struct attention_place {
    int64_t first;      /* position */
    int64_t x, y, rows; /* of the head's position 0 in x, in y, and in lse and delta */
    int64_t d;
    int64_t length; /* positions before the padding */
    int64_t number; /* dropout: of the head, counted through all samples of the step */

    __device__ __forceinline__ attention_place(const dsc_cuda_attention &a, int side) {
        int64_t tiles = (a.t + side - 1) / side, head = blockIdx.x, tile = dsc_peel(head, tiles);
        rows = head * a.t;
        first = (tiles - 1 - tile) * side; /* with a causal mask the last queries take longest */
        int64_t sample = head, number = dsc_peel(sample, a.heads);
        d = a.heads * a.dh;
        x = sample * a.t * 3 * d + number * a.dh;
        y = sample * a.t * d + number * a.dh;
        length = a.lengths && a.lengths[sample] < a.t ? a.lengths[sample] : a.t;
        this->number = a.position ? (a.position[1] + sample) * a.heads + number : 0;
    }
};

/* ---- halves on tensor cores ---- */

extern "C" {

/* 1: the next two take the call. */
int dsc_cuda_attention_is_half(const dsc_cuda_attention *a, dsc_dtype dtype);
cudaError_t dsc_cuda_attention_half_forward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                            dsc_dtype dtype);
cudaError_t dsc_cuda_attention_half_backward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                             dsc_dtype dtype);

/* 1: the next one takes the call, on GPUs of capability 9.0 alone. */
int dsc_cuda_attention_is_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype);
cudaError_t dsc_cuda_attention_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype,
                                      int backward);
}

#endif
