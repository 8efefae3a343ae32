/* Runs a launch: blocks one after the other, the threads of a block as fibres, each with a stack of its own.
 * A thread runs until it waits for others; then another one does, from the same warp as long as there is one.
 * The last to arrive goes on at once.
 *
 * DESCENT_EMULATOR_ORDER=backward lets the last block, warp and lane go first: a kernel that lacks a barrier
 * gives a wrong result in one of the two orders more often than not. */
#define _GNU_SOURCE

#include "emulator/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__) && !defined(DSC_EMULATOR_UCONTEXT)
#define OWN_SWITCH 1
#else
#define OWN_SWITCH 0
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 512 << 10, LEFT_BYTES = 8 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
#endif

enum { MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP, PAGE = 4096, MAX_TOLD = 8 };

/* Where a fibre that does not run goes on. */
typedef struct place {
#if OWN_SWITCH
    void *sp;
#else
    ucontext_t context;
#endif
#ifdef WITH_ASAN
    void *fake_stack;
#endif
} place;

typedef struct stack {
    place at;
    char *low; /* STACK_BYTES of it, above a page that may not be touched */
} stack;

typedef struct thread {
    uint3 index;
    stack *on;                     /* NULL before it starts */
    const dsc_emulated_wish *wish; /* what it waits for in its warp */
    unsigned met;                  /* who took part in that */
} thread;

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned char *dsc_emulated_shared;

static struct {
    dsc_emulated_launch launch;
    int backward;
    int count, living, current;
    int at_barrier, votes;
    dsc_emulated_votes result; /* of the last barrier */
    unsigned ready[MAX_WARPS], alive[MAX_WARPS], waiting[MAX_WARPS];
    thread threads[MAX_THREADS];
    stack stacks[MAX_THREADS];
    int stack_count, idle_count;
    stack *idle[MAX_THREADS];
    place home; /* the caller of the launch */
    const void *home_low;
    size_t home_bytes;
} e;

/* ---- fibres ---- */

static void fibre_main(void);

#if OWN_SWITCH
void dsc_emulated_switch(void **from, void *to);
/* Saves what the callee must keep, changes stacks, restores. */
__asm__(".text\n"
        ".globl dsc_emulated_switch\n"
        ".hidden dsc_emulated_switch\n"
        ".type dsc_emulated_switch, @function\n"
        "dsc_emulated_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size dsc_emulated_switch, . - dsc_emulated_switch\n");
#endif

/* Sets the stack up so that the first switch to it enters fibre_main. */
static void prepare(stack *s) {
#ifdef WITH_ASAN
    s->at.fake_stack = NULL;
    /* what the last fibre here did not return from */
    __asan_unpoison_memory_region(s->low + STACK_BYTES - LEFT_BYTES, LEFT_BYTES);
#endif
#if OWN_SWITCH
    /* Stacks that started at like addresses would compete for the same lines of the cache. */
    size_t colour = (size_t)(s - e.stacks) % 16 * 192;
    void **sp = (void **)(void *)(s->low + STACK_BYTES - 64 - colour);
    *--sp = NULL; /* no caller; the stack is now as after a call */
    *--sp = (void *)(uintptr_t)fibre_main;
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    s->at.sp = sp;
#else
    if (getcontext(&s->at.context)) {
        perror("emulator: getcontext");
        abort();
    }
    s->at.context.uc_stack.ss_sp = s->low;
    s->at.context.uc_stack.ss_size = STACK_BYTES;
    s->at.context.uc_link = NULL;
    makecontext(&s->at.context, fibre_main, 0);
#endif
}

/* Leaves `from`, for ever when `last`, and goes on at `to`, whose stack is given. */
static void go(place *from, place *to, const void *low, size_t bytes, int last) {
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake_stack, low, bytes);
#else
    (void)low;
    (void)bytes;
    (void)last;
#endif
#if OWN_SWITCH
    dsc_emulated_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

static stack *take_stack(void) {
    if (e.idle_count == 0) {
        stack *s = &e.stacks[e.stack_count++];
        char *block = mmap(NULL, PAGE + STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (block == MAP_FAILED || mprotect(block, PAGE, PROT_NONE)) {
            perror("emulator: no memory for the stack of a thread");
            abort();
        }
        s->low = block + PAGE;
        e.idle[e.idle_count++] = s;
    }
    return e.idle[--e.idle_count];
}

/* ---- which thread runs ---- */

static int first_of(unsigned lanes) {
    return e.backward ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
}

/* A thread that can run, from the current one on, its warp first; -1: none. */
static int pick(void) {
    int warps = (e.count + WARP - 1) / WARP, warp = e.current / WARP, lane = e.current % WARP;
    unsigned lanes = e.ready[warp];
    unsigned beyond = e.backward ? lanes & ((1u << lane) - 1) : lanes & ~((2u << lane) - 1);
    if (beyond)
        return warp * WARP + first_of(beyond);
    for (int i = 0; i < warps; i++) {
        if (e.ready[warp])
            return warp * WARP + first_of(e.ready[warp]);
        warp = e.backward ? (warp == 0 ? warps - 1 : warp - 1) : (warp == warps - 1 ? 0 : warp + 1);
    }
    return -1;
}

static void become(int next) {
    e.current = next;
    threadIdx = e.threads[next].index;
}

static _Noreturn void report_standstill(void) {
    fprintf(stderr,
            "emulator: kernel %s, block (%u, %u, %u) of %d threads waits for ever: %d have returned\n",
            e.launch.name, blockIdx.x, blockIdx.y, blockIdx.z, e.count, e.count - e.living);
    if (e.at_barrier)
        fprintf(stderr, "    %d of the other %d are at __syncthreads\n", e.at_barrier, e.living);
    for (int i = 0, told = 0; i < e.count && told < MAX_TOLD; i++) {
        const thread *t = &e.threads[i];
        if (!(e.waiting[i / WARP] >> (i % WARP) & 1))
            continue;
        told++;
        fprintf(stderr,
                "    thread (%u, %u, %u), lane %d of warp %d: %s with mask 0x%08x, lanes 0x%08x lack\n",
                t->index.x, t->index.y, t->index.z, i % WARP, i / WARP, t->wish->name, t->wish->mask,
                t->wish->mask & e.alive[i / WARP] & ~e.waiting[i / WARP]);
    }
    abort();
}

/* The current thread, which is not ready or has returned, lets another one run. */
static void leave(int last) {
    stack *from = e.threads[e.current].on;
    int next = pick();
    if (next < 0)
        report_standstill();
    become(next);
    thread *to = &e.threads[next];
    if (to->on == from)
        return;
    if (!to->on) {
        to->on = take_stack();
        prepare(to->on);
    }
    if (last)
        e.idle[e.idle_count++] = from;
    go(&from->at, &to->on->at, to->on->low, STACK_BYTES, last);
}

/* ---- barriers of the block ---- */

static void release_barrier(void) {
    e.result = (dsc_emulated_votes){e.votes, e.living};
    e.at_barrier = e.votes = 0;
    for (int warp = 0; warp * WARP < e.count; warp++)
        e.ready[warp] = e.alive[warp];
}

dsc_emulated_votes dsc_emulate_barrier(int predicate) {
    e.ready[e.current / WARP] &= ~(1u << e.current % WARP);
    e.votes += predicate != 0;
    if (++e.at_barrier == e.living)
        release_barrier();
    else
        leave(0);
    return e.result;
}

/* ---- functions of the warp ---- */

unsigned dsc_emulated_lane(void) {
    return (unsigned)e.current % WARP;
}

static _Noreturn void report_discord(const thread *t, const char *why) {
    fprintf(stderr, "emulator: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s with mask 0x%08x, %s\n",
            e.launch.name, blockIdx.x, blockIdx.y, blockIdx.z, t->index.x, t->index.y, t->index.z,
            t->wish->name, t->wish->mask, why);
    abort();
}

static void fetch(const thread *lanes, unsigned met, unsigned source, size_t size, void *out) {
    if (source < WARP && met >> source & 1)
        memcpy(out, lanes[source].wish->in, size);
    else
        memset(out, DSC_EMULATED_FILL, size);
}

/* A gathering is the same for all: copied from the lane that has got it, if there is one. */
static void grant(const thread *lanes, unsigned met, const dsc_emulated_wish *wish, const void *gathered) {
    if (wish->kind == DSC_EMULATED_SHUFFLE)
        fetch(lanes, met, wish->source, wish->size, wish->out);
    if (wish->kind != DSC_EMULATED_GATHER)
        return;
    if (gathered)
        memcpy(wish->out, gathered, WARP * wish->size);
    else
        for (unsigned i = 0; i < WARP; i++)
            fetch(lanes, met, i, wish->size, (char *)wish->out + i * wish->size);
}

/* Serves the lanes that wait with this mask, if all of them that live are there. */
static void serve(int warp, unsigned mask) {
    thread *lanes = &e.threads[warp * WARP];
    unsigned met = mask & e.alive[warp];
    if (met & ~e.waiting[warp])
        return;
    const dsc_emulated_wish *model = lanes[__builtin_ctz(met)].wish;
    for (unsigned rest = met; rest; rest &= rest - 1) {
        const thread *t = &lanes[__builtin_ctz(rest)];
        if (t->wish->mask != mask)
            report_discord(t, "while other lanes of the warp gave another mask");
        if (t->wish->name != model->name && strcmp(t->wish->name, model->name) != 0)
            report_discord(t, "while other lanes of the warp called another function");
        if (t->wish->size != model->size)
            report_discord(t, "while other lanes of the warp exchange values of another size");
    }
    const void *gathered = NULL;
    for (unsigned rest = met; rest; rest &= rest - 1) {
        thread *t = &lanes[__builtin_ctz(rest)];
        grant(lanes, met, t->wish, gathered);
        gathered = t->wish->out;
        t->met = met;
    }
    e.waiting[warp] &= ~met;
    e.ready[warp] |= met;
}

unsigned dsc_emulate_warp(const dsc_emulated_wish *wish) {
    int warp = e.current / WARP;
    unsigned me = 1u << e.current % WARP;
    thread *t = &e.threads[e.current];
    t->wish = wish;
    if (!(wish->mask & me))
        report_discord(t, "which does not name the calling lane");
    e.ready[warp] &= ~me;
    e.waiting[warp] |= me;
    serve(warp, wish->mask);
    if (!(e.ready[warp] & me))
        leave(0);
    return t->met;
}

/* ---- a block ---- */

/* Others may have waited for this thread only. */
static void retire(void) {
    int warp = e.current / WARP;
    unsigned me = 1u << e.current % WARP;
    e.ready[warp] &= ~me;
    e.alive[warp] &= ~me;
    e.living--;
    if (e.living > 0 && e.at_barrier == e.living)
        release_barrier();
    for (unsigned rest = e.waiting[warp]; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        if (e.waiting[warp] >> lane & 1)
            serve(warp, e.threads[warp * WARP + (int)lane].wish->mask);
    }
}

/* A fibre: a thread, and after it others that have not started yet, for which no switch is needed. */
static void fibre_main(void) {
#ifdef WITH_ASAN
    if (e.home_low)
        __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
    else /* the first of the launch: left the caller's stack */
        __sanitizer_finish_switch_fiber(NULL, &e.home_low, &e.home_bytes);
#endif
    for (;;) {
        stack *mine = e.threads[e.current].on;
        e.launch.body(e.launch.arguments);
        retire();
        if (e.living == 0) {
            e.idle[e.idle_count++] = mine;
            go(&mine->at, &e.home, e.home_low, e.home_bytes, 1);
        }
        int next = pick();
        if (next >= 0 && !e.threads[next].on)
            e.threads[next].on = mine;
        leave(1);
    }
}

static void start_threads(void) {
    const dim3 *b = &blockDim;
    e.count = (int)(b->x * b->y * b->z);
    e.living = e.count;
    e.at_barrier = e.votes = 0;
    int i = 0;
    for (unsigned z = 0; z < b->z; z++)
        for (unsigned y = 0; y < b->y; y++)
            for (unsigned x = 0; x < b->x; x++)
                e.threads[i++] = (thread){.index = {x, y, z}};
    for (int warp = 0; warp * WARP < e.count; warp++) {
        int lanes = e.count - warp * WARP;
        e.alive[warp] = e.ready[warp] = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        e.waiting[warp] = 0;
    }
}

static void run_block(void) {
    start_threads();
    memset(dsc_emulated_shared, DSC_EMULATED_FILL, e.launch.shared);
    become(e.backward ? e.count - 1 : 0);
    thread *t = &e.threads[e.current];
    t->on = take_stack();
    prepare(t->on);
    go(&e.home, &t->on->at, t->on->low, STACK_BYTES, 0);
}

/* ---- a launch ---- */

static cudaError_t shape_error(const dsc_emulated_launch *launch) {
    const dim3 *g = &launch->grid, *b = &launch->block;
    uint64_t threads = (uint64_t)b->x * b->y * b->z;
    if (g->x == 0 || g->y == 0 || g->z == 0 || g->x > 0x7FFFFFFFu || g->y > 65535 || g->z > 65535)
        return cudaErrorInvalidConfiguration;
    if (threads == 0 || threads > MAX_THREADS || b->x > 1024 || b->y > 1024 || b->z > 64)
        return cudaErrorInvalidConfiguration;
    return launch->shared > dsc_emulated_shared_limit(launch->kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

static void set_up(void) {
    static unsigned char shared[DSC_EMULATED_SHARED + 64] __attribute__((aligned(1024)));
    const char *order = getenv("DESCENT_EMULATOR_ORDER");
    dsc_emulated_shared = shared;
    e.backward = order && strcmp(order, "backward") == 0;
    e.home_low = NULL;
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(shared, sizeof shared);
    __asan_poison_memory_region(shared + e.launch.shared, sizeof shared - e.launch.shared);
#endif
}

static void run_blocks(void) {
    uint64_t count = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t block = e.backward ? count - 1 - i : i;
        blockIdx.x = (unsigned)(block % gridDim.x);
        blockIdx.y = (unsigned)(block / gridDim.x % gridDim.y);
        blockIdx.z = (unsigned)(block / gridDim.x / gridDim.y);
        run_block();
    }
}

cudaError_t dsc_emulated_check(const dsc_emulated_launch *launch) {
    return dsc_emulated_error(shape_error(launch));
}

void dsc_emulate_launch(const dsc_emulated_launch *launch) {
    dsc_emulated_open();
    e.launch = *launch;
    gridDim = launch->grid;
    blockDim = launch->block;
    set_up();
    run_blocks();
    dsc_emulated_close();
}
