/* Small networks and helpers shared by the tests of models and executors. Each network covers some kinds of layers
 * or a pattern that the executor treats differently. */
#ifndef DSC_TESTS_MODEL_NETS_H
#define DSC_TESTS_MODEL_NETS_H

#include "descent/model.h"

typedef dsc_status (*net_builder)(dsc_model *m, dsc_value *logits);

typedef struct net {
    const char *name;
    net_builder build;
    int64_t h, w, c; /* input */
    int fused;       /* operations that others are fused into */
    int random;      /* 1: has dropouts, whose masks depend on their number in the net */
} net;

/* All networks; terminated by a NULL name. They have 5 classes. */
extern const net nets[];
enum { NET_CLASSES = 5 };

const net *find_net(const char *name);

/* 1: dropouts of rate 0, which change nothing, follow every batch norm and addition, so that nothing
 * can be fused. For builders that use net_norm and net_add. */
extern int net_no_fusion;

/* 1: models are made with dsc_model_options.recompute. */
extern int net_recompute;

/* A convolution with a square kernel, no padding and stride 1. */
dsc_conv2d_shape square_conv(int64_t channels, int64_t kernel);
dsc_device *open_device(const char *name);
dsc_queue *open_queue(dsc_device *device);
/* The model of a network, with parameters moved away from their initial 0 and 1. */
dsc_model *make_model(dsc_device *device, const net *what, dsc_dtype dtype, double label_smoothing);
/* n normal numbers from a seed. */
void random_doubles(uint32_t seed, int64_t n, double *out);
/* A tensor of the device with random contents of the type; free with dsc_tensor_free. */
dsc_tensor random_tensor(dsc_queue *q, uint32_t seed, dsc_dtype dtype, int ndim, const int64_t *dim);
/* Labels 0 .. classes-1 from a seed. */
dsc_tensor random_labels(dsc_queue *q, uint32_t seed, int64_t n, int64_t classes);
/* Contents of a tensor of F32 or F64 as doubles; free with free(). */
double *read_doubles(dsc_queue *q, const dsc_tensor *t);
void write_doubles(dsc_queue *q, const double *host, dsc_tensor *t);
/* The largest |a[i] - b[i]|, infinite if one is not a number; and the largest |a[i]|. */
double largest_difference(int64_t n, const double *a, const double *b);
double largest(int64_t n, const double *a);

#endif
