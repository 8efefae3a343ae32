/* K-FAC in a hand-written training loop: the network is plain C code with arrays and loops; descent only provides
 * communication and the preconditioner.
 *
 *   kfac_by_hand [SGD_RATE [KFAC_RATE]]       or, on two ranks, mpirun -n 2 kfac_by_hand
 *
 * Trains the same network twice from the same weights, with plain SGD and with SGD on gradients that K-FAC has
 * preconditioned, and prints both losses. Every batch is divided among the ranks, so up to rounding the numbers are
 * the same on any number of ranks. */
#include <descent/kfac.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, FEATURES = 16, HIDDEN = 32, CLASSES = 4 };
enum {
    SECOND = (FEATURES + 1) * HIDDEN,
    LAST = SECOND + (HIDDEN + 1) * HIDDEN,
    PARAMS = LAST + (HIDDEN + 1) * CLASSES
};
enum { SAMPLES = 1024, BATCH = 512 /* of all ranks */, STEPS = 150, EVERY = 15 };

static const int width[LAYERS + 1] = {FEATURES, HIDDEN, HIDDEN, CLASSES};
static const int first[LAYERS] = {0, SECOND, LAST}; /* where weights[out][in], biases[out] of a layer begin */
static float params[PARAMS], grads[PARAMS];
static float inputs[LAYERS + 1][SAMPLES * HIDDEN]; /* [rows][in] of each layer; last, the outputs */
static float deltas[LAYERS][SAMPLES * HIDDEN];     /* [rows][out] gradients at the outputs of each layer */
static float features[SAMPLES * FEATURES];
static int labels[SAMPLES];

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;

/* If a call has failed, prints why and ends the whole job, so that no other rank waits for this one. */
static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "kfac_by_hand: %s\n", dsc_error_message());
    dsc_comm_abort(comm, 1);
}

/* ---- the network ---- */

static float uniform(void) { /* in [-1, 1), the same sequence on every rank */
    static uint32_t x = 1;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return (float)(x >> 8) / (1 << 23) - 1;
}

/* Neighbouring features are strongly correlated, like pixels, which makes plain SGD slow. The class is given by two
 * bits, which depend on the independent parts of some features. */
static void make_samples(void) {
    for (int s = 0; s < SAMPLES; s++) {
        float fresh[FEATURES], *x = &features[s * FEATURES];
        for (int i = 0; i < FEATURES; i++) {
            fresh[i] = uniform();
            x[i] = fresh[i] + (i > 0 ? 0.9f * x[i - 1] : 0);
        }
        labels[s] = 2 * (fresh[3] * fresh[6] > 0) + (fresh[9] * fresh[12] > 0);
    }
}

static void make_params(float *out) {
    memset(out, 0, sizeof params); /* biases stay 0 */
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < width[l] * width[l + 1]; i++)
            out[first[l] + i] = sqrtf(6.0f / (float)width[l]) * uniform();
    }
}

/* Computes layer l: y = x W' + b, followed by a ReLU except in the last layer. */
static void forward(int l, int rows) {
    const float *w = &params[first[l]], *b = w + width[l] * width[l + 1];
    for (int r = 0; r < rows; r++) {
        const float *x = &inputs[l][r * width[l]];
        float *y = &inputs[l + 1][r * width[l + 1]];
        for (int o = 0; o < width[l + 1]; o++) {
            y[o] = b[o];
            for (int i = 0; i < width[l]; i++)
                y[o] += w[o * width[l] + i] * x[i];
            if (l < LAYERS - 1 && y[o] < 0)
                y[o] = 0;
        }
    }
}

/* Returns the sum of the softmax cross-entropy over samples [from, from + rows), and computes the gradient of their
 * mean at the network's outputs. */
static double loss(int from, int rows) {
    double sum = 0;
    memcpy(inputs[0], &features[from * FEATURES], (size_t)(rows * FEATURES) * sizeof(float));
    for (int l = 0; l < LAYERS; l++)
        forward(l, rows);
    for (int r = 0; r < rows; r++) {
        const float *y = &inputs[LAYERS][r * CLASSES];
        float *d = &deltas[LAYERS - 1][r * CLASSES], largest = y[0];
        double total = 0;
        for (int c = 1; c < CLASSES; c++)
            largest = fmaxf(largest, y[c]);
        for (int c = 0; c < CLASSES; c++)
            total += exp(y[c] - largest);
        for (int c = 0; c < CLASSES; c++)
            d[c] = (float)(exp(y[c] - largest) / total - (c == labels[from + r])) / (float)rows;
        sum += log(total) - (y[labels[from + r]] - largest);
    }
    return sum;
}

/* Adds up layer l's gradients, dW = d' x and db = sum of d, and computes d W, the gradient at the output of the layer
 * below. */
static void backward(int l, int rows) {
    const float *w = &params[first[l]];
    float *dw = &grads[first[l]], *db = dw + width[l] * width[l + 1];
    for (int r = 0; r < rows; r++) {
        const float *x = &inputs[l][r * width[l]], *d = &deltas[l][r * width[l + 1]];
        for (int o = 0; o < width[l + 1]; o++) {
            db[o] += d[o];
            for (int i = 0; i < width[l]; i++)
                dw[o * width[l] + i] += d[o] * x[i];
        }
        if (l == 0)
            continue;
        for (int i = 0; i < width[l]; i++) {
            float sum = 0;
            for (int o = 0; o < width[l + 1]; o++)
                sum += d[o] * w[o * width[l] + i];
            deltas[l - 1][r * width[l] + i] = x[i] > 0 ? sum : 0; /* x is the ReLU's output */
        }
    }
}

/* ---- training ---- */

static dsc_tensor matrix(float *data, int64_t rows, int64_t columns) {
    return dsc_tensor_view(device, data, DSC_F32, 2, (int64_t[]){rows, columns});
}

/* Describes the layers to K-FAC: names, shapes, and the memory of their gradients. */
static dsc_kfac *make_kfac(void) {
    static const char *const names[LAYERS] = {"first", "second", "last"};
    dsc_kfac_layer layers[LAYERS];
    dsc_kfac_options options;
    dsc_kfac *kfac;
    for (int l = 0; l < LAYERS; l++) {
        dsc_kfac_layer_init(&layers[l]);
        layers[l].name = names[l];
        layers[l].kind = DSC_KFAC_LINEAR;
        layers[l].in_c = width[l];
        layers[l].out_c = width[l + 1];
        layers[l].weight_grad = matrix(&grads[first[l]], width[l + 1], width[l]);
        layers[l].bias_grad = matrix(&grads[first[l] + width[l] * width[l + 1]], 1, width[l + 1]);
    }
    dsc_kfac_options_init(&options); /* factors every step, decompositions every tenth */
    check(dsc_kfac_create(comm, queue, layers, LAYERS, &options, &kfac));
    return kfac;
}

/* Replaces a tensor by its mean over the ranks. */
static void average(dsc_tensor t) {
    check(dsc_comm_allreduce(comm, DSC_TRAFFIC_GRADIENTS, DSC_SUM, &t));
    for (int64_t i = 0; i < dsc_tensor_count(&t); i++)
        ((float *)t.data)[i] /= (float)dsc_comm_size(comm);
}

/* Does one step; kfac NULL: plain SGD. */
static void train_step(int step, dsc_kfac *kfac, double rate) {
    int rows = BATCH / dsc_comm_size(comm);
    loss(step * BATCH % SAMPLES + dsc_comm_rank(comm) * rows, rows);
    memset(grads, 0, sizeof grads);
    if (kfac)
        check(dsc_kfac_begin(kfac, 1));
    for (int l = LAYERS - 1; l >= 0; l--) {
        backward(l, rows);
        if (kfac) {
            dsc_tensor a = matrix(inputs[l], rows, width[l]), g = matrix(deltas[l], rows, width[l + 1]);
            check(dsc_kfac_capture(kfac, queue, l, &a, &g));
        }
    }
    average(matrix(grads, 1, PARAMS));
    if (kfac) {
        check(dsc_kfac_step(kfac, queue, rate));
        check(dsc_queue_sync(queue)); /* because the host reads the gradients next */
    }
    for (int i = 0; i < PARAMS; i++)
        params[i] -= (float)rate * grads[i];
}

/* Trains from the parameters `start`. losses[i] becomes the mean over all samples after (i + 1) * EVERY steps. */
static void train(const float *start, dsc_kfac *kfac, double rate, float *losses) {
    int share = SAMPLES / dsc_comm_size(comm);
    memcpy(params, start, sizeof params);
    for (int step = 0; step < STEPS; step++) {
        train_step(step, kfac, rate);
        if ((step + 1) % EVERY == 0)
            losses[step / EVERY] = (float)(loss(dsc_comm_rank(comm) * share, share) / share);
    }
    average(matrix(losses, 1, STEPS / EVERY));
}

/* Reads a finite number above 0; returns 0 for anything else. */
static double read_rate(const char *text) {
    char *end;
    double value = strtod(text, &end);
    return *end == '\0' && value > 0 && isfinite(value) ? value : 0;
}

int main(int argc, char **argv) {
    double sgd_rate = argc > 1 ? read_rate(argv[1]) : 0.5; /* about its best: with more the loss jumps */
    double kfac_rate = argc > 2 ? read_rate(argv[2]) : 0.1;
    if (argc > 3 || sgd_rate == 0 || kfac_rate == 0) {
        fprintf(stderr, "usage: kfac_by_hand [SGD_RATE [KFAC_RATE]], rates above 0\n");
        return 2;
    }
    float start[PARAMS], losses[2][STEPS / EVERY];

    check(dsc_comm_create(NULL, &comm)); /* MPI under a launcher, a single process without one */
    if (BATCH % dsc_comm_size(comm) != 0) {
        fprintf(stderr, "kfac_by_hand: a batch of %d cannot be divided among %d ranks\n", BATCH,
                dsc_comm_size(comm));
        dsc_comm_abort(comm, 1);
    }
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = "cpu"; /* memory that the loops above may touch */
    options.threads = 1;  /* such a small network gains nothing from more */
    check(dsc_device_create(&options, &device));
    check(dsc_queue_create(device, &queue));

    make_samples();
    make_params(start);
    train(start, NULL, sgd_rate, losses[0]);
    dsc_kfac *kfac = make_kfac();
    train(start, kfac, kfac_rate, losses[1]);
    if (dsc_comm_rank(comm) == 0) {
        printf("loss after   SGD      K-FAC\n");
        for (int i = 0; i < STEPS / EVERY; i++)
            printf("%4d steps   %.4f   %.4f\n", (i + 1) * EVERY, losses[0][i], losses[1][i]);
    }

    dsc_kfac_destroy(&kfac);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}
