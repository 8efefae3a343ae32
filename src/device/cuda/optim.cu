/* The optimisers' updates: kernels and their launches. Coefficients are read on the device. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/optim_kernels.h"

namespace {

/* ---- formulas by type ---- */

template <typename T> struct step_of { typedef dsc_step type; };

template <> struct step_of<float> { typedef dsc_step_f type; };

template <typename T> using step = typename step_of<T>::type;

__device__ __forceinline__ void load(dsc_step &s, const double *hyper) {
    s = dsc_step_load(hyper);
}

__device__ __forceinline__ void load(dsc_step_f &s, const double *hyper) {
    s = dsc_step_load_f(hyper);
}

__device__ __forceinline__ double sgd_update(const dsc_step &s, int nesterov, double z, double g, double &m,
                                             double x) {
    return dsc_sgd_update(&s, nesterov, z, g, &m, x);
}

__device__ __forceinline__ float sgd_update(const dsc_step_f &s, int nesterov, float z, float g, float &m,
                                            float x) {
    return dsc_sgd_update_f(&s, nesterov, z, g, &m, x);
}

__device__ __forceinline__ double adam_update(const dsc_step &s, int decoupled, double z, double g, double &m,
                                              double &v, double x) {
    return dsc_adam_update(&s, decoupled, z, g, &m, &v, x);
}

__device__ __forceinline__ float adam_update(const dsc_step_f &s, int decoupled, float z, float g, float &m,
                                             float &v, float x) {
    return dsc_adam_update_f(&s, decoupled, z, g, &m, &v, x);
}

__device__ __forceinline__ double lars_update(const dsc_step &s, double rate, double z, double g, double &m,
                                              double x) {
    return dsc_lars_update(&s, rate, z, g, &m, x);
}

__device__ __forceinline__ float lars_update(const dsc_step_f &s, float rate, float z, float g, float &m,
                                             float x) {
    return dsc_lars_update_f(&s, rate, z, g, &m, x);
}

__device__ __forceinline__ double lamb_direction(const dsc_step &s, double z, double g, double &m,
                                                 double &v) {
    return dsc_lamb_direction(&s, z, g, &m, &v);
}

__device__ __forceinline__ float lamb_direction(const dsc_step_f &s, float z, float g, float &m, float &v) {
    return dsc_lamb_direction_f(&s, z, g, &m, &v);
}

/* ---- loops ----
 *
 * z may be x, and g a direction's output: an element is read everywhere before it is written. */

template <typename T> struct update_body {
    const double *hyper, *norms;
    const T *z, *g;
    T *m, *v, *x;
    int flag;

    step<T> s;

    __device__ bool start() {
        if (dsc_step_skips(hyper))
            return false;
        load(s, hyper);
        return true;
    }
};

template <typename T> struct sgd_body : update_body<T> {
    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> z = dsc_load<T, N>(this->z + at), g = dsc_load<T, N>(this->g + at);
        dsc_vector<T, N> m = dsc_load<T, N>(this->m + at), x = dsc_load<T, N>(this->x + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = sgd_update(this->s, this->flag, z.at[i], g.at[i], m.at[i], x.at[i]);
        dsc_store<T, N>(this->m + at, m);
        dsc_store<T, N>(this->x + at, x);
    }
};

template <typename T> struct adam_body : update_body<T> {
    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> z = dsc_load<T, N>(this->z + at), g = dsc_load<T, N>(this->g + at);
        dsc_vector<T, N> m = dsc_load<T, N>(this->m + at), v = dsc_load<T, N>(this->v + at);
        dsc_vector<T, N> x = dsc_load<T, N>(this->x + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = adam_update(this->s, this->flag, z.at[i], g.at[i], m.at[i], v.at[i], x.at[i]);
        dsc_store<T, N>(this->m + at, m);
        dsc_store<T, N>(this->v + at, v);
        dsc_store<T, N>(this->x + at, x);
    }
};

template <typename T> struct lars_body : update_body<T> {
    T rate;

    __device__ bool start() {
        if (!update_body<T>::start())
            return false;
        dsc_step exact = dsc_step_load(this->hyper);
        rate = (T)(exact.lr * dsc_lars_rate(this->norms[0], this->norms[1], exact.trust, exact.decay));
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> z = dsc_load<T, N>(this->z + at), g = dsc_load<T, N>(this->g + at);
        dsc_vector<T, N> m = dsc_load<T, N>(this->m + at), x = dsc_load<T, N>(this->x + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = lars_update(this->s, rate, z.at[i], g.at[i], m.at[i], x.at[i]);
        dsc_store<T, N>(this->m + at, m);
        dsc_store<T, N>(this->x + at, x);
    }
};

template <typename T> struct direction_body : update_body<T> {
    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> z = dsc_load<T, N>(this->z + at), g = dsc_load<T, N>(this->g + at);
        dsc_vector<T, N> m = dsc_load<T, N>(this->m + at), v = dsc_load<T, N>(this->v + at), u;
#pragma unroll
        for (int i = 0; i < N; i++)
            u.at[i] = lamb_direction(this->s, z.at[i], g.at[i], m.at[i], v.at[i]);
        dsc_store<T, N>(this->m + at, m);
        dsc_store<T, N>(this->v + at, v);
        dsc_store<T, N>(this->x + at, u);
    }
};

template <typename T> struct apply_body : update_body<T> {
    T rate;

    __device__ bool start() {
        if (dsc_step_skips(this->hyper))
            return false;
        rate = (T)(this->hyper[DSC_HYPER_LR] * dsc_lamb_rate(this->norms[0], this->norms[1]));
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> u = dsc_load<T, N>(this->g + at), x = dsc_load<T, N>(this->x + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] -= rate * u.at[i];
        dsc_store<T, N>(this->x + at, x);
    }
};

template <typename T, template <typename> class Body>
cudaError_t launch(const dsc_cuda_launch *at, const dsc_cuda_update *u, int flag) {
    Body<T> body = {};
    body.hyper = u->hyper;
    body.norms = u->norms;
    body.z = (const T *)u->z;
    body.g = (const T *)u->g;
    body.m = (T *)u->m;
    body.v = (T *)u->v;
    body.x = (T *)u->x;
    body.flag = flag;
    return dsc_flat_run<dsc_width<T>>(at, body, u->count, dsc_aligned(u->z, u->g, u->m, u->v, u->x));
}

template <template <typename> class Body>
cudaError_t launch_typed(const dsc_cuda_launch *at, const dsc_cuda_update *u, int flag) {
    return u->dtype == DSC_F64 ? launch<double, Body>(at, u, flag) : launch<float, Body>(at, u, flag);
}

} // namespace

extern "C" {

cudaError_t dsc_cuda_launch_sgd(const dsc_cuda_launch *at, const dsc_cuda_update *u, int nesterov) {
    return launch_typed<sgd_body>(at, u, nesterov);
}

cudaError_t dsc_cuda_launch_adam(const dsc_cuda_launch *at, const dsc_cuda_update *u, int decoupled) {
    return launch_typed<adam_body>(at, u, decoupled);
}

cudaError_t dsc_cuda_launch_lars(const dsc_cuda_launch *at, const dsc_cuda_update *u) {
    return launch_typed<lars_body>(at, u, 0);
}

cudaError_t dsc_cuda_launch_lamb_direction(const dsc_cuda_launch *at, const dsc_cuda_update *u) {
    return launch_typed<direction_body>(at, u, 0);
}

cudaError_t dsc_cuda_launch_lamb_apply(const dsc_cuda_launch *at, const dsc_cuda_update *u) {
    return launch_typed<apply_body>(at, u, 0);
}

} // extern "C"
