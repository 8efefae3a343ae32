/* Plans a batch of eigenvalue problems. The times of the problems on the GPU add up: cuSOLVER keeps the GPU busy even
 * with one problem, so solving several at once gains little. The host solves one problem per thread. The plan moves
 * problems to the host as long as the longer of the two times becomes shorter. */
#include "device/cuda/solve_plan.h"

#include <math.h>
#include <stddef.h>

/* ---- costs: float32 with eigenvectors, in ms, on an H200 and a core of its host ---- */

typedef struct point {
    double n, ms;
} point;

/* One problem of the crew, while the other threads of the crew are busy, too. */
static const point crew_cost[] = {{144, 0.37}, {288, 1.3}, {576, 3.6}, {1024, 7.3},
                                  {2048, 20},  {2304, 25}, {4608, 104}};
/* One problem on one core, while other cores and the crew's threads are busy: 9 problems of 576 rows take 38 ms on 11
 * threads, one alone takes 20.6 ms; all of ResNet-50's from 512 to 1152 rows take 355 ms. */
static const point host_cost[] = {{288, 8}, {576, 38}, {1152, 215}};

/* The time of one call for many problems of n rows: base (n / largest)^power + each (n / largest)^2 per problem. Fitted
 * to 10x288: 18 ms, 9x512: 22, 19x512: 24, 15x1024: 57. Between and beyond these sizes a call is slower than the
 * crew. */
typedef struct range {
    int64_t smallest, largest, fewest;
    double base, power, each;
} range;

static const range ranges[] = {{257, 512, 12, 20, 0.25, 0.2}, {768, 1024, 8, 45, 1, 0.8}};
static const range small = {1, DSC_CUDA_SMALL, 1, 0, 1, 3.0 / 26}; /* 26x256: 3.0 ms */

enum {
    MOST_SMALL = 16384,          /* problems in a call; cuSOLVER refuses 32768 and more */
    MOST_LARGE = 32,             /* problems in a call; 19 were measured */
    HOST_SMALLEST = 257,         /* rows of the smallest problem that the host may take */
    HOST_LARGEST = 1280,         /* of the largest; a core takes too long for a larger one */
    CALLERS = DSC_CUDA_CREW + 1, /* threads that the host's part leaves free */
    FEWEST_ON_HOST = 3,          /* threads */
};

/* Limits on the time that planning takes. */
enum { MOST_SIZES = 32, MOST_STEPS = 16, MOST_ROUNDS = 64 };

/* Interpolates between two points by a power of n; outside the points, extrapolates from the nearest two. */
static double interpolate(const point *points, int count, double n) {
    int i = 0;
    while (i < count - 2 && n > points[i + 1].n)
        i++;
    const point *a = &points[i], *b = &points[i + 1];
    return a->ms * pow(n / a->n, log(b->ms / a->ms) / log(b->n / a->n));
}

static double crew_ms(int64_t n) {
    return interpolate(crew_cost, sizeof crew_cost / sizeof *crew_cost, (double)n);
}

static double host_ms(int64_t n) {
    return interpolate(host_cost, sizeof host_cost / sizeof *host_cost, (double)n);
}

static double range_ms(const range *r, int64_t n, int64_t calls, int64_t count) {
    double part = (double)n / (double)r->largest;
    return (double)calls * r->base * pow(part, r->power) + (double)count * r->each * part * part;
}

int dsc_cuda_plan_threads(int cpu_threads) {
    int left = cpu_threads - CALLERS;
    return left < FEWEST_ON_HOST ? 0 : left > DSC_CUDA_MOST_ON_HOST ? DSC_CUDA_MOST_ON_HOST : left;
}

static int64_t calls_for(int64_t n, int64_t count) {
    int64_t most = n <= DSC_CUDA_SMALL ? MOST_SMALL : MOST_LARGE;
    return (count + most - 1) / most;
}

int64_t dsc_cuda_plan_together(int64_t n, int64_t left) {
    int64_t calls = calls_for(n, left);
    return (left + calls - 1) / calls;
}

/* ---- sizes ---- */

/* Problems of one size that the host may take: turns first to first + count - 1. */
typedef struct size {
    int64_t n, first, count, on_host;
    double crew_ms, host_ms;
    const range *range; /* NULL: they are never solved together */
} size;

typedef struct plan {
    size sizes[MOST_SIZES];
    int count, threads;
    double rest; /* ms on the GPU of the problems that the host cannot take */
} plan;

static const range *range_of(int64_t n) {
    for (int i = 0; i < (int)(sizeof ranges / sizeof *ranges); i++)
        if (n >= ranges[i].smallest && n <= ranges[i].largest)
            return &ranges[i];
    return NULL;
}

/* Returns the milliseconds that the GPU needs for `left` problems of a size, and sets the faster method. */
static double left_ms(const size *s, int64_t left, dsc_cuda_method *method) {
    double alone = (double)left * s->crew_ms;
    *method = DSC_CUDA_BY_CREW;
    if (!s->range || left < s->range->fewest)
        return alone;
    double together = range_ms(s->range, s->n, calls_for(s->n, left), left);
    if (together >= alone)
        return alone;
    *method = DSC_CUDA_TOGETHER;
    return together;
}

/* Returns when the host is done if problems are assigned longest first, each to the thread that is free first. */
static double makespan(const plan *p) {
    double busy[DSC_CUDA_MOST_ON_HOST] = {0}, last = 0;
    for (int s = 0; s < p->count; s++) {
        for (int64_t i = 0; i < p->sizes[s].on_host; i++) {
            int next = 0;
            for (int t = 1; t < p->threads; t++)
                next = busy[t] < busy[next] ? t : next;
            busy[next] += p->sizes[s].host_ms;
            last = busy[next] > last ? busy[next] : last;
        }
    }
    return last;
}

static dsc_cuda_expected expect(const plan *p) {
    dsc_cuda_expected e = {.gpu = p->rest};
    for (int s = 0; s < p->count; s++) {
        dsc_cuda_method method;
        e.gpu += left_ms(&p->sizes[s], p->sizes[s].count - p->sizes[s].on_host, &method);
    }
    if (p->threads > 0)
        e.host = makespan(p);
    return e;
}

/* Returns whether the longer side of a is shorter than that of b; if they are equal, compares the GPU's times. */
static int better(dsc_cuda_expected a, dsc_cuda_expected b) {
    double longer_a = fmax(a.gpu, a.host), longer_b = fmax(b.gpu, b.host);
    return longer_a < longer_b || (longer_a == longer_b && a.gpu < b.gpu);
}

/* ---- the plan ---- */

/* Finds how many problems of one size it is best to give to the host if the other sizes stay as they are. */
static dsc_cuda_expected improve_size(plan *p, size *s, int64_t *best) {
    int64_t step = s->count > MOST_STEPS ? s->count / MOST_STEPS : 1, kept = s->on_host;
    dsc_cuda_expected least = expect(p);
    *best = kept;
    for (int64_t k = 0;; k = k + step < s->count ? k + step : s->count) {
        s->on_host = k;
        dsc_cuda_expected e = expect(p);
        if (better(e, least)) {
            least = e;
            *best = k;
        }
        if (k == s->count)
            break;
    }
    s->on_host = kept;
    return least;
}

/* Changes the size for which that gains most. Returns 1 if the longer side became shorter. */
static int improve(plan *p) {
    dsc_cuda_expected now = expect(p), least = now;
    int64_t number, best = 0;
    int chosen = -1;
    for (int s = 0; s < p->count; s++) {
        dsc_cuda_expected e = improve_size(p, &p->sizes[s], &number);
        if (better(e, least)) {
            least = e;
            best = number;
            chosen = s;
        }
    }
    if (chosen < 0 || fmax(least.gpu, least.host) >= fmax(now.gpu, now.host))
        return 0;
    p->sizes[chosen].on_host = best;
    return 1;
}

/* Adds the turns of one size, and sets the method that they have unless the host takes them. */
static void add_size(plan *p, dsc_cuda_turn *turns, int64_t first, int64_t count) {
    int64_t n = turns[first].n;
    dsc_cuda_method method = DSC_CUDA_TOGETHER;
    size s = {.n = n, .first = first, .count = count};
    if (n <= DSC_CUDA_SMALL) {
        p->rest += range_ms(&small, n, calls_for(n, count), count);
    } else {
        s.crew_ms = crew_ms(n);
        s.host_ms = host_ms(n);
        s.range = range_of(n);
        double ms = left_ms(&s, count, &method);
        if (n >= HOST_SMALLEST && n <= HOST_LARGEST && p->count < MOST_SIZES)
            p->sizes[p->count++] = s;
        else
            p->rest += ms;
    }
    for (int64_t i = first; i < first + count; i++)
        turns[i].method = method;
}

static void set_ways(const size *s, dsc_cuda_turn *turns) {
    dsc_cuda_method method;
    (void)left_ms(s, s->count - s->on_host, &method);
    for (int64_t i = 0; i < s->count; i++)
        turns[s->first + i].method = i < s->on_host ? DSC_CUDA_BY_HOST : method;
}

dsc_cuda_expected dsc_cuda_plan(dsc_cuda_turn *turns, int64_t count, int host_threads) {
    plan p = {.threads = host_threads};
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && turns[end].n == turns[first].n;)
            end++;
        add_size(&p, turns, first, end - first);
    }
    for (int round = 0; host_threads > 0 && round < MOST_ROUNDS && improve(&p); round++) {
    }
    for (int s = 0; s < p.count; s++)
        set_ways(&p.sizes[s], turns);
    return expect(&p);
}
