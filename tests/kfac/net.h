/* Layers with made-up data for the tests of K-FAC: inputs, output gradients and weight gradients drawn from
 * counters, so that every rank knows the whole batch and takes its share of it.
 *
 * Values have few bits and are scaled by powers of two: they are exact in float32, whatever the number of
 * ranks. The sizes are such that A and G come out near 1 under the scaling the net is made for. */
#ifndef DSC_TESTS_KFAC_NET_H
#define DSC_TESTS_KFAC_NET_H

#include "test.h"

#include "descent/kfac.h"

enum { NET_LAYERS = 8 };

/* A layer; strides, dilations, kernel and groups of 0 mean 1. */
typedef struct net_shape {
    const char *name;
    dsc_kfac_kind kind;
    int64_t in_c, out_c;
    int bias;         /* of D; a transposed convolution has none */
    int64_t sequence; /* linear: a[n, sequence, in_c]; 0: plain rows */
    int64_t blocks;   /* linear: parts of its outputs with a G each; 0: one */
    int64_t reads;    /* linear: 1 + the index of the layer whose inputs it reads; 0: it has its own inputs */
    int64_t in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
} net_shape;

/* One layer, with this rank's share of the data in device memory and the whole of it in double. */
typedef struct net_layer {
    net_shape shape;        /* with zeros replaced by 1 */
    int64_t out_h, out_w;   /* 1, 1 of a linear layer */
    int64_t positions;      /* S: out_h out_w; in_h in_w of a transposed convolution, 1 of a linear layer */
    int64_t a_size, g_size; /* elements of one sample */
    /* The size of D[rows, columns]: a row has the weights of one output, then the bias. Outputs of a transposed
     * convolution are [kernel_h, kernel_w, out_c]. */
    int64_t rows, columns;
    dsc_conv2d_shape conv; /* convolutions: the geometry */
    dsc_tensor a, g, weight_grad, bias_grad;
    double *whole_a, *whole_g; /* [samples, a_size], [samples, g_size]; g of a loss averaged over the whole */
    double *d;                 /* [rows, columns], as drawn */
} net_layer;

typedef struct net {
    dsc_queue *queue;
    dsc_dtype dtype;
    dsc_kfac_scaling scaling; /* the scaling under which A and G come out near 1 */
    int rank, ranks;
    int64_t samples; /* of the whole batch, a multiple of ranks */
    int count;
    net_layer layers[NET_LAYERS];
    double *scratch[2]; /* as large as the largest tensor, for transfers to the device and back */
    float *narrow;
} net;

/* Allocates memory for `count` layers on one rank, which has all samples. */
void net_open(net *n, dsc_queue *queue, dsc_dtype dtype, const net_shape *shapes, int count, int64_t samples);
/* The same for one of several ranks: rank of ranks takes samples [rank, rank + 1) * samples / ranks. */
void net_open_share(net *n, dsc_queue *queue, dsc_dtype dtype, const net_shape *shapes, int count,
                    int64_t samples, const dsc_comm *comm);
void net_close(net *n);
/* Layers as dsc_kfac_create wants them; they point into the net. */
void net_describe(const net *n, dsc_kfac_layer *layers);

/* Draw the inputs and output gradients of one pass, and the weight gradients, into host and device memory. The device's
 * copy of g is multiplied by loss_scale. */
void net_draw(net *n, int64_t step, int64_t pass, double loss_scale);
void net_draw_gradients(net *n, int64_t step);
/* Reads the device's gradients of layer l, in the layout of D. */
void net_read(const net *n, int l, double *d);
/* gradient_is: 1 when the device's gradients of layer l are exactly d. gradients_finite: 1 when all are finite. */
int net_gradient_is(const net *n, int l, const double *d);
int net_gradients_finite(const net *n);
/* The number of elements of D of layer l. */
int64_t net_gradient_count(const net *n, int l);

/* Element i of a device tensor, F32 or F64, through the host. */
double net_get(const net *n, const dsc_tensor *t, int64_t i);
void net_set(const net *n, dsc_tensor *t, int64_t i, double value);

/* The parameters of one step. */
typedef struct net_step {
    int64_t number;    /* determines the data */
    int64_t passes;    /* 0: 1 */
    double loss_scale; /* 0: 1 */
    double lr;
    unsigned absent; /* bit l: layer l does not run */
} net_step;

/* Draws the data and runs the step: begin, captures in falling order, step. */
dsc_status net_run(net *n, dsc_kfac *kfac, const net_step *step) DSC_MUST_CHECK;

/* calloc that fails the test. */
void *net_array(int64_t count, size_t size);

#endif
