/* The names that nvcc gives to a .cu file, for g++ -x c++ -DDSC_EMULATED: kernels run on the CPU, one block
 * after the other. Included by device/cuda/launch.h. What is missing here (inline assembly, cooperative
 * groups, __activemask, waiting for another block) is not to be used in kernels. */
#ifndef DSC_TESTS_EMULATOR_EMULATOR_H
#define DSC_TESTS_EMULATOR_EMULATOR_H

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#include "emulator/engine.h"

#undef __shared__
#define __shared__ static
#define __launch_bounds__(...)
#ifndef __noinline__
#define __noinline__ __attribute__((noinline))
#endif

enum { warpSize = 32 };

/* ---- launches ---- */

/* A kernel with its arguments, turned into parameters once, as in a launch; every thread gets copies. */
template <class... Parameters> struct dsc_emulated_bound {
    dsc_emulated_launch launch;
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> values;

    static void call(void *state) {
        dsc_emulated_bound *bound = (dsc_emulated_bound *)state;
        std::apply(bound->kernel, bound->values);
    }

    static int run(void *state) {
        dsc_emulated_bound *bound = (dsc_emulated_bound *)state;
        bound->launch.body = call;
        bound->launch.arguments = state;
        dsc_emulate_launch(&bound->launch);
        return 0;
    }
};

template <class... Parameters> struct dsc_emulated_call {
    dsc_emulated_launch launch;
    void (*kernel)(Parameters...);
    cudaStream_t stream;

    template <class... Arguments> void operator()(Arguments &&...arguments) {
        static_assert(sizeof...(Arguments) == sizeof...(Parameters), "wrong number of kernel arguments");
        static_assert((std::is_trivially_copyable<Parameters>::value && ...),
                      "parameters are copied as bytes");
        dsc_emulated_bound<Parameters...> bound = {
            launch, kernel, std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)};
        if (dsc_emulated_check(&launch) == cudaSuccess && dsc_emulated_is_current(stream))
            dsc_emulated_submit(stream, bound.run, &bound, sizeof bound);
    }
};

template <class... Parameters>
dsc_emulated_call<Parameters...> dsc_emulated_bind(const char *name, void (*kernel)(Parameters...), dim3 grid,
                                                   dim3 block, size_t shared, cudaStream_t stream) {
    return {{name, (const void *)kernel, nullptr, nullptr, grid, block, shared}, kernel, stream};
}

#define DSC_LAUNCH(kernel, grid, block, shared, stream)                                                      \
    dsc_emulated_bind(#kernel, (kernel), (grid), (block), (shared), (stream))
#define DSC_SHARED(type, name) type *name = reinterpret_cast<type *>(dsc_emulated_shared)

/* nvcc has these for kernels of any type. */
template <class T> cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

template <class T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *kernel, int threads,
                                                          size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, threads, shared);
}

/* ---- barriers and memory ---- */

static inline void __syncthreads() {
    dsc_emulate_barrier(0);
}

static inline int __syncthreads_count(int predicate) {
    return dsc_emulate_barrier(predicate).yes;
}

static inline int __syncthreads_or(int predicate) {
    return dsc_emulate_barrier(predicate).yes != 0;
}

static inline int __syncthreads_and(int predicate) {
    dsc_emulated_votes votes = dsc_emulate_barrier(predicate);
    return votes.yes == votes.total;
}

static inline void __threadfence() {
}

static inline void __threadfence_block() {
}

static inline void __threadfence_system() {
}

[[noreturn]] static inline void __trap() {
    __builtin_trap();
}

template <class T> T __ldg(const T *p) {
    return *p;
}

template <class T> T __ldcg(const T *p) {
    return *p;
}

template <class T> T __ldca(const T *p) {
    return *p;
}

template <class T> T __ldcs(const T *p) {
    return *p;
}

template <class T> T __ldlu(const T *p) {
    return *p;
}

template <class T> T __ldcv(const T *p) {
    return *p;
}

template <class T> void __stcg(T *p, std::common_type_t<T> value) {
    *p = value;
}

template <class T> void __stcs(T *p, std::common_type_t<T> value) {
    *p = value;
}

template <class T> void __stwb(T *p, std::common_type_t<T> value) {
    *p = value;
}

template <class T> void __stwt(T *p, std::common_type_t<T> value) {
    *p = value;
}

/* ---- warps ---- */

static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    dsc_emulated_wish wish = {"__syncwarp", DSC_EMULATED_SYNC, mask, 0, 0, nullptr, nullptr};
    dsc_emulate_warp(&wish);
}

template <class T> T dsc_emulated_shuffle(const char *name, unsigned mask, const T &mine, unsigned source) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 2, 4 or 8 bytes");
    T out;
    dsc_emulated_wish wish = {name, DSC_EMULATED_SHUFFLE, mask, source, sizeof(T), &mine, &out};
    dsc_emulate_warp(&wish);
    return out;
}

template <class T> T __shfl_sync(unsigned mask, T mine, int source, int width = 32) {
    unsigned first = dsc_emulated_lane() & ~((unsigned)width - 1);
    return dsc_emulated_shuffle("__shfl_sync", mask, mine,
                                first + ((unsigned)source & ((unsigned)width - 1)));
}

/* Where the other lane would be outside of this one's part of the warp, a lane gets its own value. */
template <class T> T __shfl_up_sync(unsigned mask, T mine, unsigned delta, int width = 32) {
    unsigned lane = dsc_emulated_lane(), place = lane & ((unsigned)width - 1);
    return dsc_emulated_shuffle("__shfl_up_sync", mask, mine, place < delta ? lane : lane - delta);
}

template <class T> T __shfl_down_sync(unsigned mask, T mine, unsigned delta, int width = 32) {
    unsigned lane = dsc_emulated_lane(), place = lane & ((unsigned)width - 1);
    return dsc_emulated_shuffle("__shfl_down_sync", mask, mine,
                                place + delta >= (unsigned)width ? lane : lane + delta);
}

/* Unlike the others, this reads from earlier parts, but not from later ones. */
template <class T> T __shfl_xor_sync(unsigned mask, T mine, int bits, int width = 32) {
    unsigned lane = dsc_emulated_lane(), last = lane | ((unsigned)width - 1), other = lane ^ (unsigned)bits;
    return dsc_emulated_shuffle("__shfl_xor_sync", mask, mine, other > last ? lane : other);
}

/* Every lane of the warp gets what all lanes have brought. */
template <class T> void dsc_emulate_warp_gather(const T &mine, T (&all)[32], unsigned mask = 0xFFFFFFFFu) {
    static_assert(std::is_trivially_copyable<T>::value, "lanes exchange plain bytes");
    T copy = mine; /* `mine` may be an element of `all` */
    dsc_emulated_wish wish = {"dsc_emulate_warp_gather", DSC_EMULATED_GATHER, mask, 0, sizeof(T), &copy, all};
    dsc_emulate_warp(&wish);
}

static inline unsigned dsc_emulated_ballot(const char *name, unsigned mask, int predicate) {
    unsigned char mine = predicate != 0, all[32];
    dsc_emulated_wish wish = {name, DSC_EMULATED_GATHER, mask, 0, 1, &mine, all};
    unsigned there = dsc_emulate_warp(&wish), votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        votes |= (unsigned)(all[lane] == 1) << lane;
    return votes & there;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return dsc_emulated_ballot("__ballot_sync", mask, predicate);
}

static inline int __any_sync(unsigned mask, int predicate) {
    return dsc_emulated_ballot("__any_sync", mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate) {
    return dsc_emulated_ballot("__all_sync", mask, !predicate) == 0;
}

template <class T, class F> T dsc_emulated_reduce(const char *name, unsigned mask, T mine, F combine) {
    static_assert(sizeof(T) == 4 && std::is_integral<T>::value, "warps reduce 32-bit integers");
    T all[32], sum = mine;
    dsc_emulated_wish wish = {name, DSC_EMULATED_GATHER, mask, 0, sizeof(T), &mine, all};
    unsigned others = dsc_emulate_warp(&wish) & ~(1u << dsc_emulated_lane());
    for (unsigned i = 0; i < 32; i++)
        if (others >> i & 1)
            sum = combine(sum, all[i]);
    return sum;
}

template <class T> T __reduce_add_sync(unsigned mask, T mine) {
    return dsc_emulated_reduce("__reduce_add_sync", mask, mine,
                               [](T a, T b) { return (T)((unsigned)a + (unsigned)b); });
}

template <class T> T __reduce_min_sync(unsigned mask, T mine) {
    return dsc_emulated_reduce("__reduce_min_sync", mask, mine, [](T a, T b) { return b < a ? b : a; });
}

template <class T> T __reduce_max_sync(unsigned mask, T mine) {
    return dsc_emulated_reduce("__reduce_max_sync", mask, mine, [](T a, T b) { return a < b ? b : a; });
}

template <class T> T __reduce_or_sync(unsigned mask, T mine) {
    return dsc_emulated_reduce("__reduce_or_sync", mask, mine, [](T a, T b) { return (T)(a | b); });
}

template <class T> T __reduce_and_sync(unsigned mask, T mine) {
    return dsc_emulated_reduce("__reduce_and_sync", mask, mine, [](T a, T b) { return (T)(a & b); });
}

/* ---- atomics: one thread runs at a time ---- */

template <class T, class F> T dsc_emulated_atomic(T *p, F change) {
    T old = *p;
    *p = change(old);
    return old;
}

/* std::common_type_t keeps the value from taking part in the deduction, as if T were written out. */
#define DSC_EMULATED_ATOMIC(name, expression)                                                                \
    template <class T> T name(T *p, std::common_type_t<T> value) {                                           \
        return dsc_emulated_atomic(p, [value](T old) -> T { return expression; });                           \
    }
DSC_EMULATED_ATOMIC(atomicAdd, old + value)
DSC_EMULATED_ATOMIC(atomicSub, old - value)
DSC_EMULATED_ATOMIC(atomicMax, old < value ? value : old)
DSC_EMULATED_ATOMIC(atomicMin, value < old ? value : old)
DSC_EMULATED_ATOMIC(atomicExch, ((void)old, value))
DSC_EMULATED_ATOMIC(atomicAnd, old &value)
DSC_EMULATED_ATOMIC(atomicOr, old | value)
DSC_EMULATED_ATOMIC(atomicXor, old ^ value)
#undef DSC_EMULATED_ATOMIC

static inline unsigned atomicInc(unsigned *p, unsigned limit) {
    return dsc_emulated_atomic(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}

static inline unsigned atomicDec(unsigned *p, unsigned limit) {
    return dsc_emulated_atomic(p,
                               [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

template <class T> T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> value) {
    return dsc_emulated_atomic(p, [=](T old) { return old == expected ? value : old; });
}

/* ---- arithmetic ---- */

template <class A, class B>
using dsc_emulated_both =
    std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, std::common_type_t<A, B>>;

/* The other one when one is NaN, as on the device. */
template <class A, class B> dsc_emulated_both<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    T x = (T)a, y = (T)b;
    return x < y || x != x ? y : x;
}

template <class A, class B> dsc_emulated_both<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    T x = (T)a, y = (T)b;
    return y < x || x != x ? y : x;
}

static inline unsigned umin(unsigned a, unsigned b) {
    return a < b ? a : b;
}

static inline unsigned umax(unsigned a, unsigned b) {
    return a < b ? b : a;
}

static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}

static inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}

static inline float __fdividef(float x, float y) {
    return x / y;
}

/* Macros: the C library has functions of these names, too. */
#define __expf(x)    expf(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __log10f(x)  log10f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __powf(x, y) powf(x, y)

/* A name of a device function that computes what an expression of its arguments does. */
#define DSC_EMULATED_1(result, name, type, expression)                                                       \
    static inline result name(type x) {                                                                      \
        return expression;                                                                                   \
    }
#define DSC_EMULATED_2(result, name, type, expression)                                                       \
    static inline result name(type x, type y) {                                                              \
        return expression;                                                                                   \
    }
DSC_EMULATED_1(float, __saturatef, float, x > 0 ? (x < 1 ? x : 1) : 0)
DSC_EMULATED_1(float, __frcp_rn, float, 1.0f / x)
DSC_EMULATED_1(float, __fsqrt_rn, float, sqrtf(x))
DSC_EMULATED_1(float, __frsqrt_rn, float, (float)(1.0 / sqrt((double)x)))
DSC_EMULATED_1(double, __drcp_rn, double, 1.0 / x)
DSC_EMULATED_1(double, __dsqrt_rn, double, sqrt(x))
DSC_EMULATED_2(float, __fadd_rn, float, x + y)
DSC_EMULATED_2(float, __fsub_rn, float, x - y)
DSC_EMULATED_2(float, __fmul_rn, float, x *y)
DSC_EMULATED_2(float, __fdiv_rn, float, x / y)
DSC_EMULATED_2(double, __dadd_rn, double, x + y)
DSC_EMULATED_2(double, __dsub_rn, double, x - y)
DSC_EMULATED_2(double, __dmul_rn, double, x *y)
DSC_EMULATED_2(double, __ddiv_rn, double, x / y)

static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}

static inline double __fma_rn(double x, double y, double z) {
    return fma(x, y, z);
}

/* Conversions; values out of range are clamped and NaN is 0, as on the device. */
template <class T, class F> T dsc_emulated_clamp(F x) {
    const F top = ldexp((F)1, (int)sizeof(T) * 8 - (std::is_signed<T>::value ? 1 : 0));
    const T highest = std::is_signed<T>::value ? (T) ~((T)1 << (sizeof(T) * 8 - 1)) : (T) ~(T)0;
    if (x != x)
        return 0;
    if (x >= top)
        return highest;
    if (x <= (std::is_signed<T>::value ? -top : 0))
        return (T)~highest;
    return (T)x;
}

DSC_EMULATED_1(int, __float2int_rn, float, dsc_emulated_clamp<int>(nearbyintf(x)))
DSC_EMULATED_1(int, __float2int_rz, float, dsc_emulated_clamp<int>(truncf(x)))
DSC_EMULATED_1(int, __float2int_rd, float, dsc_emulated_clamp<int>(floorf(x)))
DSC_EMULATED_1(int, __float2int_ru, float, dsc_emulated_clamp<int>(ceilf(x)))
DSC_EMULATED_1(unsigned, __float2uint_rn, float, dsc_emulated_clamp<unsigned>(nearbyintf(x)))
DSC_EMULATED_1(unsigned, __float2uint_rz, float, dsc_emulated_clamp<unsigned>(truncf(x)))
DSC_EMULATED_1(unsigned, __float2uint_rd, float, dsc_emulated_clamp<unsigned>(floorf(x)))
DSC_EMULATED_1(unsigned, __float2uint_ru, float, dsc_emulated_clamp<unsigned>(ceilf(x)))
DSC_EMULATED_1(long long, __float2ll_rn, float, dsc_emulated_clamp<long long>(nearbyintf(x)))
DSC_EMULATED_1(long long, __float2ll_rz, float, dsc_emulated_clamp<long long>(truncf(x)))
DSC_EMULATED_1(long long, __double2ll_rn, double, dsc_emulated_clamp<long long>(nearbyint(x)))
DSC_EMULATED_1(long long, __double2ll_rz, double, dsc_emulated_clamp<long long>(trunc(x)))
DSC_EMULATED_1(int, __double2int_rn, double, dsc_emulated_clamp<int>(nearbyint(x)))
DSC_EMULATED_1(int, __double2int_rz, double, dsc_emulated_clamp<int>(trunc(x)))
DSC_EMULATED_1(float, __double2float_rn, double, (float)x)
DSC_EMULATED_1(float, __int2float_rn, int, (float)x)
DSC_EMULATED_1(float, __uint2float_rn, unsigned, (float)x)
DSC_EMULATED_1(float, __ll2float_rn, long long, (float)x)
DSC_EMULATED_1(double, __int2double_rn, int, x)
DSC_EMULATED_1(double, __uint2double_rn, unsigned, x)
DSC_EMULATED_1(double, __ll2double_rn, long long, (double)x)

template <class To, class From> To dsc_emulated_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "bits are kept");
    To out;
    memcpy(&out, &x, sizeof out);
    return out;
}

DSC_EMULATED_1(int, __float_as_int, float, dsc_emulated_bits<int>(x))
DSC_EMULATED_1(unsigned, __float_as_uint, float, dsc_emulated_bits<unsigned>(x))
DSC_EMULATED_1(float, __int_as_float, int, dsc_emulated_bits<float>(x))
DSC_EMULATED_1(float, __uint_as_float, unsigned, dsc_emulated_bits<float>(x))
DSC_EMULATED_1(long long, __double_as_longlong, double, dsc_emulated_bits<long long>(x))
DSC_EMULATED_1(double, __longlong_as_double, long long, dsc_emulated_bits<double>(x))
DSC_EMULATED_1(int, __popc, unsigned, __builtin_popcount(x))
DSC_EMULATED_1(int, __popcll, unsigned long long, __builtin_popcountll(x))
DSC_EMULATED_1(int, __clz, int, x ? __builtin_clz((unsigned)x) : 32)
DSC_EMULATED_1(int, __clzll, long long, x ? __builtin_clzll((unsigned long long)x) : 64)
DSC_EMULATED_1(int, __ffs, int, __builtin_ffs(x))
DSC_EMULATED_1(int, __ffsll, long long, __builtin_ffsll(x))
DSC_EMULATED_2(int, __mulhi, int, (int)((long long)x *y >> 32))
DSC_EMULATED_2(unsigned, __umulhi, unsigned, (unsigned)((unsigned long long)x *y >> 32))
__extension__ DSC_EMULATED_2(unsigned long long, __umul64hi, unsigned long long,
                             (unsigned long long)((unsigned __int128)x *y >> 64))
#undef DSC_EMULATED_1
#undef DSC_EMULATED_2

    static inline unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++)
        out |= (x >> i & 1u) << (31 - i);
    return out;
}

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i), byte = (unsigned)(both >> (8 * (pick & 7u))) & 0xFFu;
        out |= (pick & 8u ? (byte & 0x80u ? 0xFFu : 0u) : byte) << (8 * i);
    }
    return out;
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31u) >> 32);
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}

#endif
