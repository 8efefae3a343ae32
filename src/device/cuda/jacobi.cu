/* Small eigenvalue problems by Jacobi's method, one block per problem, in shared memory.
 *
 * A sweep zeroes every off-diagonal element once, by rotations of two columns and of the same two rows. In each of its
 * m - 1 steps (m is n, or n + 1 if n is odd) every column is in one pair, as in a round-robin tournament: column m - 1
 * stays, the others move on by one place. The rotations of a step do not touch each other's columns, so all are done at
 * the same time. The off-diagonal elements shrink with every sweep, quadratically in the end. */
#include "device/cuda/jacobi_kernels.h"

namespace {

enum { THREADS = 512, WARPS = THREADS / 32, MOST_SWEEPS = 30, MOST_PAIRS = DSC_JACOBI_ROWS / 2 };

struct problems {
    dsc_jacobi item[DSC_JACOBI_ITEMS];
};
static_assert(sizeof(problems) <= 4000, "a launch takes at most 4000 bytes");

/* Returns the floats from one row to the next: an odd number, so that neither rows nor columns have bank conflicts. */
__host__ __device__ __forceinline__ int pitch_of(int n) {
    return n | 1;
}

/* The state of a block: the matrix and its basis, and, in `rotations`, the cosine, sine and tangent of each pair in the
 * current step. A pair with a column that does not exist is not rotated. */
struct state {
    float *s, *basis;
    int n, pitch, pairs;
};

struct rotations {
    float cosine[MOST_PAIRS], sine[MOST_PAIRS], tangent[MOST_PAIRS];
};

/* Finds the two columns p and r of a pair in a step. */
__device__ __forceinline__ void find_pair(const state &b, int step, int pair, int &p, int &r) {
    int others = 2 * b.pairs - 1;
    p = step + pair;
    r = step - pair;
    p = p >= others ? p - others : p;
    r = r < 0 ? r + others : r;
    r = pair == 0 ? others : r;
}

/* Returns the largest number of the block to all its threads. */
__device__ __forceinline__ float largest_of_block(float mine) {
    __shared__ float most[WARPS];
    for (int apart = 16; apart > 0; apart /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, apart));
    if (threadIdx.x % 32 == 0)
        most[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = most[0];
    for (int w = 1; w < WARPS; w++)
        all = fmaxf(all, most[w]);
    return all;
}

/* Returns the sum over the block to all its threads, always added in the same order. */
__device__ __forceinline__ float sum_of_block(float mine) {
    __shared__ float sums[WARPS];
    for (int apart = 16; apart > 0; apart /= 2)
        mine += __shfl_xor_sync(0xFFFFFFFFu, mine, apart);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = 0;
    for (int w = 0; w < WARPS; w++)
        all += sums[w];
    return all;
}

/* Loads the lower triangle, divided by the power of two above its largest element, and sets the basis to the identity.
 * Returns the exponent of that power. `norm` becomes the norm of the scaled matrix, NaN if an element is not finite. */
__device__ __forceinline__ int load(const state &b, const float *a, float &norm) {
    int n = b.n, lane = threadIdx.x % 32, exponent = 0;
    float most = 0, squares = 0, bad = 0;
    for (int i = threadIdx.x / 32; i < n; i += WARPS)
        for (int j = lane; j <= i; j += 32) {
            float value = a[(int64_t)i * n + j];
            bad += value - value; /* NaN if the value is not finite, else 0 */
            most = fmaxf(most, fabsf(value));
        }
    most = largest_of_block(most);
    if (most > 0 && most - most == 0)
        frexpf(most, &exponent);
    for (int i = threadIdx.x / 32; i < n; i += WARPS)
        for (int j = lane; j <= i; j += 32) {
            float value = ldexpf(a[(int64_t)i * n + j], -exponent);
            b.s[i * b.pitch + j] = b.s[j * b.pitch + i] = value;
            b.basis[i * b.pitch + j] = b.basis[j * b.pitch + i] = i == j ? 1 : 0;
            squares += (i == j ? 1 : 2) * value * value;
        }
    norm = sqrtf(sum_of_block(squares + bad));
    return exponent;
}

/* Finds the rotations of a step: for each pair the smaller of the two angles that zero its element. Returns 1 if this
 * thread found an element that is not negligible. */
__device__ __forceinline__ int find_rotations(const state &b, int step, float negligible, rotations *turn) {
    int turns = 0;
    for (int pair = threadIdx.x; pair < b.pairs; pair += THREADS) {
        int p, r;
        float cosine = 1, sine = 0, tangent = 0;
        find_pair(b, step, pair, p, r);
        float off = p < b.n && r < b.n ? b.s[p * b.pitch + r] : 0;
        if (fabsf(off) > negligible) {
            float theta = (b.s[r * (b.pitch + 1)] - b.s[p * (b.pitch + 1)]) / (2 * off);
            tangent = copysignf(1, theta) / (fabsf(theta) + sqrtf(theta * theta + 1));
            cosine = 1 / sqrtf(tangent * tangent + 1);
            sine = tangent * cosine;
            turns = 1;
        }
        turn->cosine[pair] = cosine;
        turn->sine[pair] = sine;
        turn->tangent[pair] = tangent;
    }
    return turns;
}

/* Replaces two numbers x, y in the columns of a pair by c x - s y, s x + c y. */
__device__ __forceinline__ void rotate(float c, float s, float &x, float &y) {
    float before = x;
    x = c * before - s * y;
    y = s * before + c * y;
}

/* Rotates the four elements where two pairs meet, and their mirror images. */
__device__ __forceinline__ void turn_block(const state &b, const rotations &turn, int step, int i, int j) {
    int p, r, u, v, pitch = b.pitch;
    find_pair(b, step, i, p, r);
    find_pair(b, step, j, u, v);
    float *s = b.s;
    if (i == j) { /* a pair with itself */
        if (turn.tangent[i] != 0) {
            float change = turn.tangent[i] * s[p * pitch + r];
            s[p * (pitch + 1)] -= change;
            s[r * (pitch + 1)] += change;
            s[p * pitch + r] = s[r * pitch + p] = 0;
        }
        return;
    }
    int has_r = r < b.n, has_v = v < b.n; /* p and u always exist */
    float pu = s[p * pitch + u], pv = has_v ? s[p * pitch + v] : 0;
    float ru = has_r ? s[r * pitch + u] : 0, rv = has_r && has_v ? s[r * pitch + v] : 0;
    rotate(turn.cosine[j], turn.sine[j], pu, pv);
    rotate(turn.cosine[j], turn.sine[j], ru, rv);
    rotate(turn.cosine[i], turn.sine[i], pu, ru);
    rotate(turn.cosine[i], turn.sine[i], pv, rv);
    s[p * pitch + u] = s[u * pitch + p] = pu;
    if (has_v)
        s[p * pitch + v] = s[v * pitch + p] = pv;
    if (has_r)
        s[r * pitch + u] = s[u * pitch + r] = ru;
    if (has_r && has_v)
        s[r * pitch + v] = s[v * pitch + r] = rv;
}

__device__ __forceinline__ void turn_all(const state &b, const rotations &turn, int step) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < b.pairs; i += WARPS)
        for (int j = lane; j < b.pairs; j += 32)
            if (j >= i)
                turn_block(b, turn, step, i, j);
    for (int j = lane; j < b.pairs; j += 32) {
        int p, r;
        find_pair(b, step, j, p, r);
        if (r < b.n && turn.tangent[j] != 0)
            for (int i = warp; i < b.n; i += WARPS)
                rotate(turn.cosine[j], turn.sine[j], b.basis[i * b.pitch + p], b.basis[i * b.pitch + r]);
    }
}

/* Sweeps until no off-diagonal element is above the rounding errors of the rotations. Returns 0 if MOST_SWEEPS sweeps
 * do not suffice, or the matrix is not finite. */
__device__ __forceinline__ int sweep_all(const state &b, float norm, rotations *turn) {
    float negligible = norm * 0x1p-23f / sqrtf((float)b.n);
    if (!(norm - norm == 0))
        return 0;
    for (int sweep = 0; sweep < MOST_SWEEPS; sweep++) {
        int turns = 0;
        for (int step = 0; step < 2 * b.pairs - 1; step++) {
            turns |= find_rotations(b, step, negligible, turn);
            __syncthreads();
            turn_all(b, *turn, step);
            __syncthreads();
        }
        if (!__syncthreads_or(turns))
            return 1;
    }
    return 0;
}

/* Stores the eigenvalues in ascending order and the columns in the same order; equal eigenvalues keep their order. */
__device__ __forceinline__ void store(const state &b, const dsc_jacobi &item, int exponent, int *places) {
    int n = b.n;
    for (int j = threadIdx.x; j < n; j += THREADS) {
        float own = b.s[j * (b.pitch + 1)];
        int place = 0;
        for (int i = 0; i < n; i++) {
            float other = b.s[i * (b.pitch + 1)];
            place += other < own || (other == own && i < j);
        }
        places[j] = place;
        item.v[place] = ldexpf(own, exponent);
    }
    __syncthreads();
    for (int i = threadIdx.x / 32; i < n; i += WARPS)
        for (int j = threadIdx.x % 32; j < n; j += 32)
            item.a[(int64_t)i * n + places[j]] = b.basis[i * b.pitch + j];
}

__global__ void __launch_bounds__(THREADS) jacobi_kernel(const __grid_constant__ problems all) {
    DSC_SHARED(float, shared);
    __shared__ rotations turn;
    __shared__ int places[DSC_JACOBI_ROWS];
    const dsc_jacobi &item = all.item[blockIdx.x];
    state b;
    float norm;
    b.n = item.n;
    b.pitch = pitch_of(b.n);
    b.pairs = (b.n + 1) / 2;
    b.s = shared;
    b.basis = shared + b.n * b.pitch;
    int exponent = load(b, item.a, norm);
    __syncthreads();
    int solved = sweep_all(b, norm, &turn);
    if (solved)
        store(b, item, exponent, places);
    if (threadIdx.x == 0)
        *item.failed = !solved;
}

} // namespace

extern "C" size_t dsc_cuda_jacobi_shared(int64_t n) {
    return 2 * (size_t)n * (size_t)pitch_of((int)n) * sizeof(float) + sizeof(rotations) +
           DSC_JACOBI_ROWS * sizeof(int) + 2 * WARPS * sizeof(float);
}

extern "C" cudaError_t dsc_cuda_launch_jacobi(const dsc_cuda_launch *at, const dsc_jacobi *items, int count) {
    problems all;
    size_t shared = 0;
    for (int i = 0; i < count; i++) {
        size_t own = 2 * (size_t)items[i].n * (size_t)pitch_of(items[i].n) * sizeof(float);
        all.item[i] = items[i];
        shared = own > shared ? own : shared;
    }
    cudaError_t error =
        cudaFuncSetAttribute(jacobi_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH((jacobi_kernel), (unsigned)count, THREADS, shared, at->stream)(all);
    return cudaGetLastError();
}
