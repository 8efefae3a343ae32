/* The updates of the optimisers: for each formula of device/formulas.inc, a loop over the elements. Coefficients are
 * read on the device. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/entries.h"

namespace {

/* ---- formulas by type ---- */

template <typename T> struct coefficients_of { typedef dsc_coefficients type; };

template <> struct coefficients_of<float> { typedef dsc_coefficients_f type; };

template <typename T> using coefficients = typename coefficients_of<T>::type;

__device__ __forceinline__ void load(dsc_coefficients &s, dsc_update_rule rule, const double *hyper,
                                     const double *norms) {
    s = dsc_coefficients_load(rule, hyper, norms);
}

__device__ __forceinline__ void load(dsc_coefficients_f &s, dsc_update_rule rule, const double *hyper,
                                     const double *norms) {
    s = dsc_coefficients_load_f(rule, hyper, norms);
}

/* A type for each rule. */
#define RULE(NAME, name, states_, norms)                                                                     \
    struct name##_rule {                                                                                     \
        static constexpr dsc_update_rule rule = DSC_UPDATE_##NAME;                                           \
        static constexpr int states = states_;                                                               \
        template <typename T>                                                                                \
        static __device__ __forceinline__ T run(const coefficients<T> &s, T z, T g, T &m, T &v, T x) {       \
            return dsc_update_##name(&s, z, g, &m, &v, x);                                                   \
        }                                                                                                    \
    };
DSC_UPDATE_RULES(RULE)
#undef RULE

/* ---- the loop ----
 *
 * z may be x, and the output of a direction may be g: all inputs of an element are read before it is written. A rule
 * without state reads neither z nor m nor v. */

template <typename T, class Rule> struct update_body {
    const double *hyper, *norms;
    const T *z, *g;
    T *m, *v, *x;
    coefficients<T> s;

    __device__ bool start() {
        if (dsc_step_skips(hyper))
            return false;
        load(s, Rule::rule, hyper, norms);
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> g_ = dsc_load<T, N>(g + at), z_ = {}, m_ = {}, v_ = {}, x_ = {};
        if (Rule::rule != DSC_UPDATE_LAMB_DIRECTION)
            x_ = dsc_load<T, N>(x + at);
        if (Rule::states > 0) {
            z_ = dsc_load<T, N>(z + at);
            m_ = dsc_load<T, N>(m + at);
        }
        if (Rule::states > 1)
            v_ = dsc_load<T, N>(v + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            x_.at[i] = Rule::template run<T>(s, z_.at[i], g_.at[i], m_.at[i], v_.at[i], x_.at[i]);
        if (Rule::states > 0)
            dsc_store<T, N>(m + at, m_);
        if (Rule::states > 1)
            dsc_store<T, N>(v + at, v_);
        dsc_store<T, N>(x + at, x_);
    }
};

static void *data_of(const dsc_tensor *t) {
    return t ? t->data : NULL;
}

template <typename T, class Rule> cudaError_t launch(const dsc_cuda_launch *at, const dsc_update *u) {
    update_body<T, Rule> body = {};
    body.hyper = (const double *)u->hyper->data;
    body.norms = (const double *)data_of(u->norms);
    body.z = (const T *)data_of(u->z);
    body.g = (const T *)u->g->data;
    body.m = (T *)data_of(u->m);
    body.v = (T *)data_of(u->v);
    body.x = (T *)u->x->data;
    bool aligned = dsc_aligned(body.z, body.g, body.m, body.v, body.x);
    return dsc_flat_run<dsc_width<T>>(at, body, dsc_tensor_count(u->x), aligned);
}

template <class Rule> cudaError_t launch_typed(const dsc_cuda_launch *at, const dsc_update *u) {
    return u->x->dtype == DSC_F64 ? launch<double, Rule>(at, u) : launch<float, Rule>(at, u);
}

} // namespace

dsc_status dsc_cuda_update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) {
    static cudaError_t (*const launches[])(const dsc_cuda_launch *at, const dsc_update *u) = {
#define RULE(NAME, name, states, norms) launch_typed<name##_rule>,
        DSC_UPDATE_RULES(RULE)
#undef RULE
    };
    DSC_CUDA_TRY(launches[rule](dsc_cuda_at(q), u));
    return DSC_OK;
}
