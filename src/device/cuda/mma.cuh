/* Asynchronous copies and tensor-core products, for sm_80 and newer, with plain versions of the same layout for
 * the emulator.
 *
 * A warp holds matrices as fragments. With g = lane / 4 and t = lane % 4:
 *
 *   tf32, 16x8x8     A[16,8]:  a0 = [g][t]  a1 = [g+8][t]  a2 = [g][t+4]  a3 = [g+8][t+4]
 *                    B[8,8]:   b0 = [t][g]  b1 = [t+4][g]                 (row = k, column = n)
 *   half, 16x8x16    A[16,16]: a0 = [g][2t,2t+1]  a1 = [g+8][2t,2t+1]  a2 = [g][2t+8,2t+9]  a3 = [g+8][..]
 *                    B[16,8]:  b0 = [2t,2t+1][g]  b1 = [2t+8,2t+9][g]     (the lower k in the lower 16 bits)
 *   both             C[16,8]:  c0 = [g][2t]  c1 = [g][2t+1]  c2 = [g+8][2t]  c3 = [g+8][2t+1]
 *
 * All 32 lanes of a warp call a product or dsc_ldmatrix together. Blocks are one-dimensional. Tensor cores truncate
 * when they add: code that needs the precision of float32 adds up fragments of a few products by ordinary sums. */
#ifndef DSC_DEVICE_CUDA_MMA_CUH
#define DSC_DEVICE_CUDA_MMA_CUH

#include "device/cuda/launch.h"

#include <cuda_fp16.h>
#include <stdint.h>

#define DSC_MMA static __device__ __forceinline__

/* ---- the position of the element that a lane holds in register i ---- */

DSC_MMA int dsc_lane(void) {
    return (int)(threadIdx.x & 31u);
}

DSC_MMA int dsc_a_row(int lane, int i) {
    return (lane >> 2) + (i & 1) * 8;
}

DSC_MMA int dsc_b_column(int lane) {
    return lane >> 2;
}

DSC_MMA int dsc_c_row(int lane, int i) {
    return (lane >> 2) + (i >> 1) * 8;
}

DSC_MMA int dsc_c_column(int lane, int i) {
    return (lane & 3) * 2 + (i & 1);
}

DSC_MMA int dsc_tf32_a_k(int lane, int i) {
    return (lane & 3) + (i >> 1) * 4;
}

DSC_MMA int dsc_tf32_b_k(int lane, int i) {
    return (lane & 3) + i * 4;
}

/* The k of the first element of the pair. */
DSC_MMA int dsc_half_a_k(int lane, int i) {
    return (lane & 3) * 2 + (i >> 1) * 8;
}

DSC_MMA int dsc_half_b_k(int lane, int i) {
    return (lane & 3) * 2 + i * 8;
}

#ifndef DSC_EMULATED

/* ---- copies from global to shared memory ----
 *
 * They copy 16, 8 or 4 bytes; both addresses are aligned to that. If `there` is 0 they write zeros: `from` is then not
 * read, but must point into a matrix all the same. */

DSC_MMA uint32_t dsc_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

DSC_MMA void dsc_async16(void *to, const void *from, int there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dsc_shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

DSC_MMA void dsc_async8(void *to, const void *from, int there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(dsc_shared_address(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}

DSC_MMA void dsc_async4(void *to, const void *from, int there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dsc_shared_address(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Closes a group of copies (which may be empty). */
DSC_MMA void dsc_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's groups are in flight. To read what other threads copy, use a barrier, too. */
template <int N> DSC_MMA void dsc_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- tf32: 8 exponent and 10 fraction bits in the upper bits of a float ---- */

DSC_MMA uint32_t dsc_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* Returns 2^x with a relative error of about 2^-22; results below 2^-126 are 0. */
DSC_MMA float dsc_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- products: c += a b ---- */

DSC_MMA void dsc_mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DSC_MMA void dsc_mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DSC_MMA void dsc_mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- four 8x8 matrices of 16-bit elements from shared memory ----
 *
 * Lane l passes the address (16-byte aligned) of row l % 8 of matrix l / 8. Register i gets the pair [g][2t,2t+1] of
 * matrix i, or [2t,2t+1][g] with the transpose. Without it, rows of four 32-bit elements come as [g][t]: a fragment of
 * tf32. */

DSC_MMA void dsc_ldmatrix(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dsc_shared_address(row))
                 : "memory");
}

DSC_MMA void dsc_ldmatrix_transposed(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dsc_shared_address(row))
                 : "memory");
}

#else

#include "device/half.h"

#include <math.h>
#include <string.h>

DSC_MMA void dsc_async_plain(void *to, const void *from, size_t bytes, int there) {
    if (there)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

DSC_MMA void dsc_async16(void *to, const void *from, int there) {
    dsc_async_plain(to, from, 16, there);
}

DSC_MMA void dsc_async8(void *to, const void *from, int there) {
    dsc_async_plain(to, from, 8, there);
}

DSC_MMA void dsc_async4(void *to, const void *from, int there) {
    dsc_async_plain(to, from, 4, there);
}

DSC_MMA void dsc_async_commit(void) {
}

template <int N> DSC_MMA void dsc_async_wait(void) {
}

/* Rounds to nearest, ties away from zero. */
DSC_MMA uint32_t dsc_tf32(float x) {
    uint32_t bits = dsc_float_bits(x);
    return x == x ? (bits + 0x1000u) & ~0x1FFFu : 0x7FFFE000u;
}

DSC_MMA float dsc_exp2(float x) {
    return exp2f(x);
}

/* Rounds a sum as the tensor cores do: towards zero. */
DSC_MMA float dsc_mma_truncate(double x) {
    float nearest = (float)x;
    return fabs((double)nearest) > fabs(x) ? nextafterf(nearest, 0) : nearest;
}

DSC_MMA float dsc_mma_tf32_of(uint32_t bits) {
    return dsc_float_from_bits(bits & ~0x1FFFu);
}

DSC_MMA float dsc_mma_bf16_of(uint32_t pair, int high) {
    return dsc_bf16_to_float((uint16_t)(high ? pair >> 16 : pair));
}

DSC_MMA float dsc_mma_f16_of(uint32_t pair, int high) {
    return dsc_f16_to_float((uint16_t)(high ? pair >> 16 : pair));
}

/* The registers that a lane shows to the others of its warp. */
typedef struct dsc_mma_shown {
    uint32_t a[4], b[2];
} dsc_mma_shown;

DSC_MMA dsc_mma_shown dsc_mma_show(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_shown shown;
    memcpy(shown.a, a, sizeof shown.a);
    memcpy(shown.b, b, sizeof shown.b);
    return shown;
}

DSC_MMA void dsc_mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_shown all[32], mine = dsc_mma_show(a, b);
    int lane = dsc_lane();
    dsc_emulate_warp_gather(mine, all);
    for (int i = 0; i < 4; i++) {
        double sum = c[i];
        for (int k = 0; k < 8; k++) {
            uint32_t x = all[lane / 4 * 4 + k % 4].a[(i >> 1) + k / 4 * 2];
            uint32_t y = all[dsc_c_column(lane, i) * 4 + k % 4].b[k / 4];
            sum += (double)dsc_mma_tf32_of(x) * dsc_mma_tf32_of(y);
        }
        c[i] = dsc_mma_truncate(sum);
    }
}

DSC_MMA void dsc_mma_half(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          float (*of)(uint32_t pair, int high)) {
    dsc_mma_shown all[32], mine = dsc_mma_show(a, b);
    int lane = dsc_lane();
    dsc_emulate_warp_gather(mine, all);
    for (int i = 0; i < 4; i++) {
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            uint32_t x = all[lane / 4 * 4 + k % 8 / 2].a[(i >> 1) + k / 8 * 2];
            uint32_t y = all[dsc_c_column(lane, i) * 4 + k % 8 / 2].b[k / 8];
            sum += (double)of(x, k & 1) * of(y, k & 1);
        }
        c[i] = dsc_mma_truncate(sum);
    }
}

DSC_MMA void dsc_mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_half(c, a, b, dsc_mma_bf16_of);
}

DSC_MMA void dsc_mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_half(c, a, b, dsc_mma_f16_of);
}

DSC_MMA void dsc_ldmatrix(uint32_t (&r)[4], const void *row) {
    const void *rows[32];
    dsc_emulate_warp_gather(row, rows);
    for (int i = 0; i < 4; i++)
        r[i] = ((const uint32_t *)rows[i * 8 + dsc_lane() / 4])[dsc_lane() % 4];
}

DSC_MMA void dsc_ldmatrix_transposed(uint32_t (&r)[4], const void *row) {
    const void *rows[32];
    int g = dsc_lane() / 4, t = dsc_lane() % 4;
    dsc_emulate_warp_gather(row, rows);
    for (int i = 0; i < 4; i++) {
        uint32_t low = ((const uint16_t *)rows[i * 8 + 2 * t])[g];
        uint32_t high = ((const uint16_t *)rows[i * 8 + 2 * t + 1])[g];
        r[i] = low | high << 16;
    }
}

#endif

/* Splits x into high + low, each a tf32, with an error of about 2^-23 |x|. */
DSC_MMA void dsc_tf32_split(float x, uint32_t &high, uint32_t &low) {
    high = dsc_tf32(x) & ~0x1FFFu;
    low = dsc_tf32(x - __uint_as_float(high));
}

/* c += (a + a_low) (b + b_low) without a_low b_low, which has about the precision of float32. The small products come
 * first. */
DSC_MMA void dsc_mma_tf32_split(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&a_low)[4],
                                const uint32_t (&b)[2], const uint32_t (&b_low)[2]) {
    dsc_mma_tf32(c, a_low, b);
    dsc_mma_tf32(c, a, b_low);
    dsc_mma_tf32(c, a, b);
}

/* ---- elements of half types, represented by their bits ---- */

struct dsc_half_bf16 {
    uint16_t bits;
};

struct dsc_half_f16 {
    uint16_t bits;
};

DSC_MMA float dsc_half_value(float x) {
    return x;
}

DSC_MMA float dsc_half_value(dsc_half_bf16 x) {
    return __uint_as_float((uint32_t)x.bits << 16);
}

DSC_MMA float dsc_half_value(dsc_half_f16 x) {
    return __half2float(__ushort_as_half(x.bits));
}

#endif
