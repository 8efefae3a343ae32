/* descent average: averages a random vector per rank by gossip and prints, after every step, how far the
 * ranks are from the true mean and how far they should be according to theory. */
#include "cli/cli.h"
#include "cli/plot.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "descent/consensus.h"
#include "descent/random.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct average_values {
    dsc_cli_common common;
    dsc_average_options o;
    const char *device;
    int64_t steps, elements;
    uint64_t seed;
    double tolerance; /* negative: not asked for */
    int threads, json, no_plot;
} average_values;

enum { PURPOSE = 1 }; /* of the random numbers: that of initial values (random.h) */

#define AT(member) offsetof(average_values, member)

static const char *const algorithms[] = {"push-sum", "push-pull", NULL}; /* o.pairwise 0 and 1 */

static const dsc_option options[] = {
    {.name = "graph",
     .kind = DSC_OPTION_STRING,
     .offset = AT(o.graph),
     .placeholder = "NAME|FILE",
     .default_text = "exponential; push-pull: bipartite-exponential, on an odd number of ranks base-2",
     .help = "which rank sends to which: exponential, exponential-pm, linear, ring, static-exponential, "
             "complete, bipartite-exponential, bipartite-linear, hypercube, base-2, or a file (with a / in "
             "its name or ending in .graph)",
     .group = "What to average"},
    {.name = "algorithm",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(o.pairwise),
     .choices = algorithms,
     .help =
         "push-sum: shares are sent with a weight, on any graph; push-pull: pairs exchange, on matchings"},
    {.name = "peers",
     .kind = DSC_OPTION_INT,
     .offset = AT(o.peers),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "peers that a rank sends to in a step"},
    {.name = "steps",
     .kind = DSC_OPTION_INT64,
     .offset = AT(steps),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "rounds of gossip"},
    {.name = "size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(elements),
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "elements of the vector"},
    {.name = "seed",
     .kind = DSC_OPTION_UINT64,
     .offset = AT(seed),
     .placeholder = "N",
     .help = "seed of the random numbers"},
    {.name = "wire",
     DSC_CLI_FLOAT_TYPE(AT(o.wire)),
     .help = "type in which shares are sent; they are added in fp32"},
    {.name = "tolerance",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(tolerance),
     .placeholder = "X",
     .range = "[0, inf)",
     .default_text = "any",
     .help = "end with status 1 when the last distance is above X"},
    {DSC_CLI_DEVICE(AT(device)), .help = "device whose memory holds the vector", .group = "How to run"},
    {DSC_CLI_THREADS(AT(threads))},
    {.name = "peer-timeout",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(o.timeout),
     .placeholder = "S",
     .range = "[0, 1e9]",
     .help = "seconds to wait for another rank before it counts as lost; 0: for ever"},
    {DSC_CLI_JSON(AT(json)), .group = "Output"},
    {.name = "no-plot", .kind = DSC_OPTION_FLAG, .offset = AT(no_plot), .help = "print the table only"},
    DSC_CLI_COMMON_OPTIONS,
};

static void init(void *values) {
    average_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_average_options_init(&v->o);
    v->device = "auto";
    v->steps = 20;
    v->elements = 10000;
    v->seed = 42;
    v->tolerance = -1;
}

/* What is measured after a round, over all ranks. */
typedef struct point {
    double distance;   /* to the mean, relative to that at the start */
    double theory;     /* the same, as theory predicts it; negative: unknown */
    double min_weight; /* of push-sum */
    double max_weight;
} point;

typedef struct trial {
    dsc_comm *comm;
    dsc_device *host; /* memory for the sums in double precision */
    dsc_queue *queue, *host_queue;
    dsc_average *average;
    dsc_tensor x;             /* F32[elements]: what is averaged */
    dsc_tensor mean;          /* F64[elements] on the host: the true one */
    dsc_tensor sum, least;    /* F64[2] on the host: reduced over the ranks */
    float *values;            /* elements: x, or z, on the host */
    point *points;            /* steps + 1; points[0] is the start */
    double start;             /* absolute distance at the start */
    int64_t elements, period; /* of the vector; of the graph */
    int64_t exact;            /* step after which the average is exact, 0: none */
    double rho, bytes;        /* rate of a step; bytes sent by a rank in a step, mean over ranks */
    int knows_rate;
} trial;

static void close_trial(trial *t) {
    dsc_average_destroy(&t->average);
    dsc_tensor_free(&t->x);
    dsc_tensor_free(&t->mean);
    dsc_tensor_free(&t->sum);
    dsc_tensor_free(&t->least);
    dsc_queue_destroy(&t->queue);
    dsc_queue_destroy(&t->host_queue);
    dsc_device_destroy(&t->host);
    dsc_cli_free(&t->values);
    dsc_cli_free(&t->points);
}

static dsc_status alloc_trial(trial *t, dsc_device *device, int64_t steps) {
    int64_t two = 2;
    dsc_device_options o;
    dsc_device_options_init(&o);
    o.name = "ref";
    DSC_CLI_TRY(dsc_device_create(&o, &t->host));
    DSC_CLI_TRY(dsc_queue_create(t->host, &t->host_queue));
    DSC_CLI_TRY(dsc_queue_create(device, &t->queue));
    DSC_CLI_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &t->elements, &t->x));
    DSC_CLI_TRY(dsc_tensor_alloc(t->host, DSC_F64, 1, &t->elements, &t->mean));
    DSC_CLI_TRY(dsc_tensor_alloc(t->host, DSC_F64, 1, &two, &t->sum));
    DSC_CLI_TRY(dsc_tensor_alloc(t->host, DSC_F64, 1, &two, &t->least));
    DSC_CLI_TRY(dsc_cli_alloc(t->elements, sizeof *t->values, &t->values));
    return dsc_cli_alloc(steps + 1, sizeof *t->points, &t->points);
}

/* Multiples of 2^-11 in [-1, 1): they have so few bits that halving them several times needs no rounding, so
 * a graph that averages exactly reaches a distance of 0. */
static dsc_status draw(trial *t, uint64_t seed) {
    uint32_t *words;
    DSC_CLI_TRY(dsc_cli_alloc(t->elements, sizeof *words, &words));
    dsc_random_words(seed, PURPOSE, (uint32_t)dsc_comm_rank(t->comm), 0, t->elements, words);
    for (int64_t i = 0; i < t->elements; i++)
        t->values[i] = (float)(words[i] >> 20) / 2048 - 1;
    dsc_cli_free(&words);
    DSC_CLI_TRY(dsc_tensor_upload(t->queue, t->values, dsc_tensor_bytes(&t->x), &t->x));
    return dsc_queue_sync(t->queue);
}

/* Computes the true mean of the vectors. Collective. */
static dsc_status find_mean(trial *t) {
    double *mean = t->mean.data;
    for (int64_t i = 0; i < t->elements; i++)
        mean[i] = t->values[i];
    DSC_CLI_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t->mean));
    for (int64_t i = 0; i < t->elements; i++)
        mean[i] /= dsc_comm_size(t->comm);
    return DSC_OK;
}

/* Measures sqrt(mean over ranks |z - mean|^2) and the range of the weights. Collective. */
static dsc_status measure(trial *t, double *distance, point *p) {
    const double *mean = t->mean.data;
    double *sum = t->sum.data, *least = t->least.data;
    double weight = dsc_average_weight(t->average), square = 0;
    DSC_CLI_TRY(dsc_tensor_download(t->queue, &t->x, dsc_tensor_bytes(&t->x), t->values));
    DSC_CLI_TRY(dsc_queue_sync(t->queue));
    for (int64_t i = 0; i < t->elements; i++) {
        double off = t->values[i] / weight - mean[i];
        square += off * off;
    }
    sum[0] = square;
    sum[1] = 0;
    least[0] = weight;
    least[1] = -weight;
    DSC_CLI_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t->sum));
    DSC_CLI_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_MIN, &t->least));
    *distance = sqrt(sum[0] / dsc_comm_size(t->comm));
    p->min_weight = least[0];
    p->max_weight = -least[1];
    return DSC_OK;
}

/* The distance after a step as theory predicts it; negative: unknown. */
static double theory(const trial *t, int64_t step) {
    if (step == 0)
        return 1;
    if (!t->knows_rate)
        return -1;
    if (t->exact > 0)
        return step >= t->exact ? 0 : -1;
    return pow(t->rho, (double)step);
}

/* Computes the theoretical rate, for the rank that prints. It stays unknown for graphs too large to multiply their
 * matrices. */
static dsc_status find_rate(trial *t) {
    const dsc_topology *topology = dsc_average_topology(t->average);
    t->period = dsc_topology_period(topology);
    dsc_status status = dsc_topology_rate(topology, &t->exact, &t->rho);
    t->knows_rate = status == DSC_OK;
    return status == DSC_E_UNSUPPORTED ? DSC_OK : status;
}

/* ---- output ---- */

static const char *plural(int64_t number) {
    return number == 1 ? "" : "s";
}

static int shows_weights(const trial *t) {
    return !dsc_topology_is_regular(dsc_average_topology(t->average));
}

static void print_head(const trial *t, const average_values *v) {
    const dsc_topology *topology = dsc_average_topology(t->average);
    char elements[32];
    int ranks = dsc_comm_size(t->comm);
    printf("%d rank%s, graph %s, period %lld, %s, %s numbers travel as %s\n", ranks, plural(ranks),
           dsc_topology_name(topology), (long long)t->period, algorithms[v->o.pairwise],
           dsc_cli_grouped(t->elements, elements, sizeof elements), dsc_dtype_name(v->o.wire));
    if (!t->knows_rate)
        printf("theory: not computed for so many ranks\n");
    else if (t->exact > 0)
        printf("theory: exact after %lld step%s\n", (long long)t->exact, plural(t->exact));
    else
        printf("theory: the distance falls as rho^step, rho = %.4f\n", t->rho);
    printf("%6s  %10s  %10s%s\n", "step", "distance", "theory", shows_weights(t) ? "  weights" : "");
}

static void print_point(const trial *t, int64_t step) {
    const point *p = &t->points[step];
    char promised[32] = "-";
    if (p->theory >= 0)
        snprintf(promised, sizeof promised, "%.3e", p->theory);
    printf("%6lld  %10.3e  %10s", (long long)step, p->distance, promised);
    if (shows_weights(t))
        printf("  %.4f .. %.4f", p->min_weight, p->max_weight);
    printf("\n");
}

/* The logarithm of a distance in the plot. Distances below 1e-8, the rounding of float32, are drawn at -8, as is 0. */
static double height(double value) {
    return value < 0 ? NAN : log10(value > 1e-8 ? value : 1e-8);
}

static dsc_status plot(const trial *t, const average_values *v) {
    int64_t count = v->steps + 1;
    double *x;
    char label[64];
    dsc_plot_options o = {.title = "log10 of the distance to the mean (0 is drawn at -8)",
                          .x_label = "step",
                          .width = dsc_terminal_width(stdout) < 100 ? dsc_terminal_width(stdout) : 100,
                          .height = 17,
                          .utf8 = dsc_terminal_utf8()};
    DSC_CLI_TRY(dsc_cli_alloc(3 * count, sizeof *x, &x));
    dsc_plot_series series[2] = {{"measured", x, x + count, count}, {label, x, x + 2 * count, count}};
    if (t->exact > 0)
        snprintf(label, sizeof label, "theory: exact after %lld", (long long)t->exact);
    else
        snprintf(label, sizeof label, "theory: %.4f^step", t->rho);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)i;
        x[count + i] = height(t->points[i].distance);
        x[2 * count + i] = t->exact > 0 && i < t->exact ? NAN : height(t->points[i].theory);
    }
    printf("\n");
    dsc_status status = dsc_plot_draw(stdout, series, t->knows_rate ? 2 : 1, &o);
    dsc_cli_free(&x);
    return status;
}

static json_t *points_json(const trial *t, int64_t steps) {
    json_t *list = json_array();
    for (int64_t i = 0; i <= steps; i++) {
        const point *p = &t->points[i];
        json_array_append_new(list, json_pack("{s:I, s:f, s:o, s:f, s:f}", "step", (json_int_t)i, "distance",
                                              p->distance, "theory",
                                              p->theory < 0 ? json_null() : json_real(p->theory),
                                              "min_weight", p->min_weight, "max_weight", p->max_weight));
    }
    return list;
}

static dsc_status print_json(const trial *t, const average_values *v) {
    const dsc_topology *topology = dsc_average_topology(t->average);
    json_t *object =
        json_pack("{s:i, s:s, s:s, s:i, s:I, s:b, s:b, s:I, s:s, s:s, s:I, s:f, s:f, s:o}", "ranks",
                  dsc_comm_size(t->comm), "graph", dsc_topology_name(topology), "algorithm",
                  algorithms[v->o.pairwise], "peers", v->o.peers, "period", (json_int_t)t->period, "regular",
                  dsc_topology_is_regular(topology), "matching", dsc_topology_is_matching(topology), "size",
                  (json_int_t)t->elements, "wire", dsc_dtype_name(v->o.wire), "device",
                  dsc_device_name(dsc_queue_device(t->queue)), "seed", (json_int_t)v->seed, "start", t->start,
                  "bytes_per_step", t->bytes, "steps", points_json(t, v->steps));
    if (!object)
        return DSC_CLI_FAIL(DSC_E_NUMERIC, "the result cannot be written as JSON (start %g)", t->start);
    json_object_set_new(object, "exact",
                        t->knows_rate && t->exact > 0 ? json_integer(t->exact) : json_null());
    json_object_set_new(object, "rho", t->knows_rate ? json_real(t->rho) : json_null());
    json_object_set_new(object, "distance", json_real(t->points[v->steps].distance));
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(object);
    return DSC_OK;
}

/* Prints the lines after the table, or the JSON object. */
static dsc_status print_rest(const trial *t, const average_values *v) {
    if (v->json)
        return print_json(t, v);
    printf("%.0f bytes sent per rank and step\n", t->bytes);
    return v->no_plot ? DSC_OK : plot(t, v);
}

/* ---- the command ---- */

static dsc_status take_step(trial *t, int64_t step) {
    double distance;
    DSC_CLI_TRY(dsc_average_begin(t->average, t->queue));
    DSC_CLI_TRY(dsc_average_end(t->average, t->queue));
    DSC_CLI_TRY(measure(t, &distance, &t->points[step]));
    t->points[step].distance = t->start > 0 ? distance / t->start : 0;
    t->points[step].theory = theory(t, step);
    return DSC_OK;
}

/* Flushes now and then, so that the lines of a slow job appear while it runs. */
static void show_step(const trial *t, int64_t step, double *flushed) {
    print_point(t, step);
    if (dsc_cli_now() - *flushed > 0.2) {
        fflush(stdout);
        *flushed = dsc_cli_now();
    }
}

static dsc_status run_rounds(trial *t, int64_t steps, int shows) {
    double *sum = t->sum.data, flushed = 0;
    uint64_t before = dsc_comm_bytes(t->comm, DSC_TRAFFIC_PARAMETERS);
    DSC_CLI_TRY(measure(t, &t->start, &t->points[0]));
    t->points[0].distance = t->start > 0;
    t->points[0].theory = 1;
    for (int64_t step = 0; step <= steps; step++) {
        if (step > 0)
            DSC_CLI_TRY(take_step(t, step));
        if (shows)
            show_step(t, step, &flushed);
    }
    sum[0] = (double)(dsc_comm_bytes(t->comm, DSC_TRAFFIC_PARAMETERS) - before);
    DSC_CLI_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t->sum));
    t->bytes = sum[0] / (double)steps / dsc_comm_size(t->comm);
    return DSC_OK;
}

static dsc_status run_trial(dsc_cli_session *session, const average_values *v, trial *t) {
    DSC_CLI_TRY(dsc_cli_agree(session, alloc_trial(t, session->device, v->steps)));
    DSC_CLI_TRY(dsc_comm_use_queue(t->comm, t->queue));
    DSC_CLI_TRY(draw(t, v->seed));
    DSC_CLI_TRY(find_mean(t));
    DSC_CLI_TRY(dsc_average_create(t->comm, t->queue, &t->x, 1, &v->o, &t->average));
    DSC_CLI_TRY(dsc_cli_agree(session, dsc_cli_prints(session) ? find_rate(t) : DSC_OK));
    int prints = dsc_cli_prints(session), shows = prints && !v->json;
    if (shows)
        print_head(t, v);
    DSC_CLI_TRY(run_rounds(t, v->steps, shows));
    if (prints)
        DSC_CLI_TRY(print_rest(t, v));
    double last = t->points[v->steps].distance;
    if (v->tolerance >= 0 && !(last <= v->tolerance)) {
        session->agreed = 1; /* every rank has the same distances */
        return DSC_CLI_FAIL(DSC_E_NUMERIC, "the distance after %lld step%s is %.3g, above --tolerance %g",
                            (long long)v->steps, plural(v->steps), last, v->tolerance);
    }
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    average_values *v = values;
    trial t = {.elements = v->elements};
    (void)set;
    session->timeout = v->o.timeout;
    DSC_CLI_TRY(dsc_cli_open(session, v->device, v->threads, "auto"));
    t.comm = session->comm;
    dsc_status status = run_trial(session, v, &t);
    close_trial(&t);
    return status;
}

const dsc_cli_command dsc_cli_average = {
    .name = "average",
    .summary = "average a random vector by gossip and watch it converge",
    .description =
        "Every rank draws a random vector. In every step it sends shares of its vector to its peers in the "
        "graph and adds the shares that it receives. After each step the distance to the true mean is "
        "printed, sqrt(mean over ranks |z - mean|^2) relative to that at the start, beside what theory "
        "predicts for "
        "the graph: rho^step, or 0 once the graph has averaged exactly.\n\n"
        "The vectors hold numbers of 12 bits, which 2, 4, 8 ... ranks average in fp32 without rounding; "
        "otherwise distances end near 1e-8. No training takes part: use it to get to know graphs, to try a "
        "graph file, and to check that the ranks of a job reach each other.\n\n"
        "With --json the result is one object with the keys ranks, graph, algorithm, peers, period, regular, "
        "matching, size, wire, device, seed, start (the distance before the first step), bytes_per_step "
        "(sent by a rank), steps (a list of step, distance, theory, min_weight, max_weight), exact, rho and "
        "distance (the last).",
    .examples =
        "mpirun -n 4 descent average --graph exponential --steps 4\n"
        "mpirun -n 5 descent average --graph ring --steps 40\n"
        "mpirun -n 6 descent average --algorithm push-pull --graph base-2 --steps 8 --tolerance 1e-6\n"
        "mpirun -n 4 descent average --graph my.graph --wire bf16 --json\n",
    .options = options,
    .values_size = sizeof(average_values),
    .init = init,
    .run = run,
};
