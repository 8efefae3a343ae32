/* Parts of feature maps, and upsampling by 2. Gradients are gathered: every element of dx adds up the gradients of the
 * outputs to which it contributed, in their order. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

/* ---- parts ---- */

/* The sizes of the part and of the whole, and where the part begins in the whole. */
typedef struct dsc_cuda_part_shape {
    int64_t h, w, c, whole_h, whole_w, whole_c;
    dsc_part_desc at;
} dsc_cuda_part_shape;

/* Returns the index in the whole of element i of the part. */
__device__ __forceinline__ int64_t in_whole(const dsc_cuda_part_shape &s, int64_t i) {
    int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, s.w), row = dsc_peel(n, s.h);
    return ((n * s.whole_h + s.at.top + row) * s.whole_w + s.at.left + column) * s.whole_c + s.at.first + c;
}

template <typename T> struct part_move {
    dsc_cuda_part_shape s;
    int paste, add;
    const T *from;
    T *to;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t outer = in_whole(s, i);
        dsc_vector<T, N> value = dsc_load<T, N>(from + (paste ? i : outer));
        T *target = to + (paste ? outer : i);
        if (add) {
            dsc_vector<T, N> old = dsc_load<T, N>(target);
#pragma unroll
            for (int k = 0; k < N; k++)
                value.set(k, old.get(k) + value.get(k));
        }
        dsc_store<T, N>(target, value);
    }
};

template <typename T>
static cudaError_t run_move(const dsc_cuda_launch *at, int64_t n, const dsc_cuda_part_shape *s, int paste,
                            int add, const void *from, void *to) {
    part_move<T> operation = {*s, paste, add, (const T *)from, (T *)to};
    int wide = dsc_fits<T>(s->c, from, to) && dsc_fits<T>(s->whole_c) && dsc_fits<T>(s->at.first);
    return dsc_flat_run<T>(at, n * s->h * s->w * s->c, wide, operation);
}

static dsc_cuda_part_shape part_shape(const dsc_part_desc *desc, const dsc_tensor *part,
                                      const dsc_tensor *whole) {
    return (dsc_cuda_part_shape){.h = part->dim[1],
                                 .w = part->dim[2],
                                 .c = part->dim[3],
                                 .whole_h = whole->dim[1],
                                 .whole_w = whole->dim[2],
                                 .whole_c = whole->dim[3],
                                 .at = *desc};
}

dsc_status dsc_cuda_cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                        dsc_tensor *part) {
    dsc_cuda_part_shape shape = part_shape(desc, part, whole);
    DSC_CUDA_TRY(DSC_BY_TYPE(part->dtype, run_move, dsc_cuda_at(q), part->dim[0], &shape, 0, beta != 0,
                             dsc_data(whole), dsc_data(part)));
    return DSC_OK;
}

dsc_status dsc_cuda_paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                          dsc_tensor *whole) {
    dsc_cuda_part_shape shape = part_shape(desc, part, whole);
    DSC_CUDA_TRY(DSC_BY_TYPE(part->dtype, run_move, dsc_cuda_at(q), part->dim[0], &shape, 1, beta != 0,
                             dsc_data(part), dsc_data(whole)));
    return DSC_OK;
}

/* ---- upsampling ---- */

/* The shape of the smaller of the two maps. */
typedef struct dsc_cuda_upsample_shape {
    int64_t h, w, c;
} dsc_cuda_upsample_shape;

template <typename T> struct nearest_forward {
    dsc_cuda_upsample_shape s;
    const T *x;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, 2 * s.w), row = dsc_peel(n, 2 * s.h);
        dsc_store<T, N>(y + i, dsc_load<T, N>(x + ((n * s.h + row / 2) * s.w + column / 2) * s.c + c));
    }
};

template <typename T> struct bilinear_forward {
    dsc_cuda_upsample_shape s;
    const T *x;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        const A close = (A)DSC_UPSAMPLE_NEAR, away = (A)DSC_UPSAMPLE_FAR;
        int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, 2 * s.w), row = dsc_peel(n, 2 * s.h);
        const T *above = x + (n * s.h + row / 2) * s.w * s.c + c;
        const T *below = x + (n * s.h + dsc_upsample_neighbour(row, s.h)) * s.w * s.c + c;
        int64_t left = column / 2 * s.c, right = dsc_upsample_neighbour(column, s.w) * s.c;
        dsc_vector<T, N> a = dsc_load<T, N>(above + left), b = dsc_load<T, N>(above + right);
        dsc_vector<T, N> d = dsc_load<T, N>(below + left), e = dsc_load<T, N>(below + right), out = {};
#pragma unroll
        for (int k = 0; k < N; k++)
            out.set(k, close * (close * a.get(k) + away * b.get(k)) +
                           away * (close * d.get(k) + away * e.get(k)));
        dsc_store<T, N>(y + i, out);
    }
};

/* An input contributes to outputs 2 r and 2 r + 1 along each axis, and with bilinear upsampling also to the outputs
 * before and after these; if one of those lies beyond the border, it contributes to the border once more. */
template <typename T> struct upsample_backward {
    dsc_cuda_upsample_shape s;
    int bilinear, add;
    const T *dy;
    T *dx;

    static __device__ __forceinline__ int64_t place(int64_t r, int k, int64_t size) {
        int64_t i = 2 * r - 1 + k;
        return i < 0 ? 0 : i < 2 * size ? i : 2 * size - 1;
    }

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        const A outer = (A)DSC_UPSAMPLE_FAR, inner = bilinear ? (A)DSC_UPSAMPLE_NEAR : (A)1;
        int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, s.w), row = dsc_peel(n, s.h);
        const T *image = dy + n * 4 * s.h * s.w * s.c + c;
        int begin = bilinear ? 0 : 1;
        A sum[N] = {};
        for (int u = begin; u < 4 - begin; u++) {
            const T *line = image + place(row, u, s.h) * 2 * s.w * s.c;
            A part[N] = {};
            for (int v = begin; v < 4 - begin; v++) {
                dsc_vector<T, N> value = dsc_load<T, N>(line + place(column, v, s.w) * s.c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    part[k] += (v == 0 || v == 3 ? outer : inner) * value.get(k);
            }
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += (u == 0 || u == 3 ? outer : inner) * part[k];
        }
        dsc_vector<T, N> out = {};
        if (add)
            out = dsc_load<T, N>(dx + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            out.set(k, add ? out.get(k) + sum[k] : sum[k]);
        dsc_store<T, N>(dx + i, out);
    }
};

template <typename T>
static cudaError_t run_upsample_forward(const dsc_cuda_launch *at, int64_t n,
                                        const dsc_cuda_upsample_shape *s, dsc_upsample_kind kind,
                                        const void *x, void *y) {
    int64_t count = n * 4 * s->h * s->w * s->c;
    int wide = dsc_fits<T>(s->c, x, y);
    if (kind == DSC_UPSAMPLE_NEAREST)
        return dsc_flat_run<T>(at, count, wide, nearest_forward<T>{*s, (const T *)x, (T *)y});
    return dsc_flat_run<T>(at, count, wide, bilinear_forward<T>{*s, (const T *)x, (T *)y});
}

template <typename T>
static cudaError_t run_upsample_backward(const dsc_cuda_launch *at, int64_t n,
                                         const dsc_cuda_upsample_shape *s, dsc_upsample_kind kind, int add,
                                         const void *dy, void *dx) {
    upsample_backward<T> operation = {*s, kind == DSC_UPSAMPLE_BILINEAR, add, (const T *)dy, (T *)dx};
    return dsc_flat_run<T>(at, n * s->h * s->w * s->c, dsc_fits<T>(s->c, dy, dx), operation);
}

static dsc_cuda_upsample_shape upsample_shape(const dsc_tensor *x) {
    return (dsc_cuda_upsample_shape){.h = x->dim[1], .w = x->dim[2], .c = x->dim[3]};
}

dsc_status dsc_cuda_upsample_forward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *x,
                                     dsc_tensor *y) {
    dsc_cuda_upsample_shape shape = upsample_shape(x);
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_upsample_forward, dsc_cuda_at(q), x->dim[0], &shape, kind,
                             dsc_data(x), dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_upsample_backward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *dy, double beta,
                                      dsc_tensor *dx) {
    dsc_cuda_upsample_shape shape = upsample_shape(dx);
    DSC_CUDA_TRY(DSC_BY_TYPE(dx->dtype, run_upsample_backward, dsc_cuda_at(q), dx->dim[0], &shape, kind,
                             beta != 0, dsc_data(dy), dsc_data(dx)));
    return DSC_OK;
}
