/* Communicators made of functions: what is refused, how failures of the functions are reported, and when
 * contexts are freed. Two ranks are played by one process: what the other one sends is what this one sends. */
#include "comm/parallel.h"

#include "comm/table.h"

static struct {
    dsc_status status; /* that the next call returns, */
    int silent;        /* without a message */
    const char *fails; /* the function that fails */
    int opened, closed, ranks_of_child, waits;
} play;

static dsc_status answer(const char *function) {
    if (!play.fails || strcmp(play.fails, function) != 0)
        return DSC_OK;
    return play.silent ? play.status : dsc_error_set(play.status, "the wire of `%s` is cut", function);
}

static dsc_status start(void *context, const dsc_comm_message *m, void **handle) {
    size_t bytes = (size_t)m->count * dsc_dtype_size(m->dtype);
    (void)context;
    *handle = NULL;
    if (m->op == DSC_COMM_ALLGATHER) {
        unsigned char copy[64];
        memcpy(copy, m->send, bytes);
        for (int r = 0; r < 2; r++)
            memcpy((char *)m->recv + (size_t)r * bytes, copy, bytes);
    }
    return answer("start");
}

static dsc_status test(void *context, void *handle, int *done) {
    (void)context, (void)handle;
    *done = play.waits-- <= 0;
    return answer("test");
}

static dsc_status wait_for(void *context, void *handle) {
    (void)context, (void)handle;
    return answer("wait");
}

static dsc_status split(void *context, int colour, int key, dsc_comm_functions *child) {
    (void)context, (void)key;
    dsc_status status = answer("split");
    if (status != DSC_OK || colour < 0)
        return status;
    EXPECT(child->size == sizeof *child && child->start == start && strcmp(child->name, "played") == 0);
    child->context = &play;
    child->ranks = play.ranks_of_child;
    child->rank = child->local_rank = 0;
    child->local_ranks = 1;
    play.opened++;
    return DSC_OK;
}

static void close_context(void *context) {
    EXPECT(context == &play);
    play.closed++;
}

static dsc_comm_functions two_ranks(void) {
    dsc_comm_functions f;
    dsc_comm_functions_init(&f);
    f.name = "played";
    f.context = &play;
    f.ranks = f.local_ranks = 2;
    f.start = start;
    f.test = test;
    f.wait = wait_for;
    f.split = split;
    f.close = close_context;
    memset(&play, 0, sizeof play);
    play.ranks_of_child = 2;
    play.opened = 1;
    return f;
}

static dsc_comm *open_two(void) {
    dsc_comm *comm = NULL;
    dsc_comm_functions f = two_ranks();
    assert_ok(dsc_comm_create_from_functions(&f, NULL, &comm));
    return comm;
}

static void test_refused(void **state) {
    (void)state;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    dsc_comm_functions f = two_ranks(), bad = f;
    assert_fails(DSC_E_INVALID, "dsc_comm_functions_init", dsc_comm_create_from_functions(NULL, NULL, &comm));
    bad.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_comm_functions_init", dsc_comm_create_from_functions(&bad, NULL, &comm));
    bad = f;
    bad.start = NULL;
    assert_fails(DSC_E_INVALID, "`start` is missing", dsc_comm_create_from_functions(&bad, NULL, &comm));
    bad = f;
    bad.test = NULL;
    assert_fails(DSC_E_INVALID, "`test` is missing", dsc_comm_create_from_functions(&bad, NULL, &comm));
    bad = f;
    bad.wait = NULL;
    assert_fails(DSC_E_INVALID, "`wait` is missing", dsc_comm_create_from_functions(&bad, NULL, &comm));
    bad = f;
    bad.rank = 2;
    assert_fails(DSC_E_INVALID, "'played': rank 2 of 2", dsc_comm_create_from_functions(&bad, NULL, &comm));
    bad = f;
    bad.local_ranks = 3;
    assert_fails(DSC_E_INVALID, "rank 0 of 3 on its node", dsc_comm_create_from_functions(&bad, NULL, &comm));
    dsc_comm_options_init(&options);
    options.survive = 1;
    assert_fails(DSC_E_UNSUPPORTED, "survive", dsc_comm_create_from_functions(&f, &options, &comm));
    options.survive = 0;
    options.message_limit = -3;
    assert_fails(DSC_E_INVALID, "message_limit -3", dsc_comm_create_from_functions(&f, &options, &comm));
    play.fails = "start"; /* of the collective operation that belongs to the creation */
    play.status = DSC_E_IO;
    assert_fails(DSC_E_IO, "the wire of `start`", dsc_comm_create_from_functions(&f, NULL, &comm));
    assert_null(comm);
    assert_int_equal(play.closed, 0); /* the context is still the caller's */
}

/* A failure has the name of the function, and its own message or the statement that it gave none: never an
 * older message. */
static void test_failures(void **state) {
    static const char *const functions[] = {"start", "test", "wait", "split"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        const char *function = functions[i / 2];
        char quoted[32], cut[64];
        dsc_comm *comm = open_two(), *child = NULL;
        snprintf(quoted, sizeof quoted, "`%s`", function);
        snprintf(cut, sizeof cut, "the wire of `%s` is cut", function);
        (void)dsc_error_set(DSC_E_IO, "an older message");
        play.fails = function;
        play.silent = i % 2;
        play.status = DSC_E_NUMERIC;
        if (strcmp(function, "test") == 0)
            assert_ok(dsc_comm_set_timeout(comm, 10)); /* limited waits test */
        dsc_status status =
            strcmp(function, "split") == 0 ? dsc_comm_split(comm, 0, 0, &child) : dsc_comm_barrier(comm);
        assert_int_equal(status, DSC_E_NUMERIC);
        assert_non_null(strstr(dsc_error_message(), quoted));
        assert_non_null(strstr(dsc_error_message(), "'played'"));
        assert_null(strstr(dsc_error_message(), "older"));
        assert_int_equal(strstr(dsc_error_message(), cut) != NULL, !play.silent);
        assert_int_equal(strstr(dsc_error_message(), dsc_status_text(DSC_E_NUMERIC)) != NULL, play.silent);
        play.fails = NULL;
        dsc_comm_destroy(&comm);
        assert_int_equal(play.closed, play.opened);
    }
}

static void test_split(void **state) {
    (void)state;
    dsc_comm *comm = open_two(), *child = NULL;
    assert_string_equal(dsc_comm_name(comm), "functions");
    assert_non_null(strstr(dsc_comm_description(comm), "played"));
    assert_ok(dsc_comm_split(comm, -1, 0, &child));
    assert_null(child);
    assert_ok(dsc_comm_split(comm, 3, 0, &child));
    assert_int_equal(dsc_comm_size(child), 2);
    assert_ok(dsc_comm_barrier(child));
    dsc_comm_destroy(&child);
    assert_int_equal(play.closed, 1);
    play.ranks_of_child = 0; /* a part that makes no sense is closed at once */
    assert_fails(DSC_E_INVALID, "rank 0 of 0", dsc_comm_split(comm, 3, 0, &child));
    assert_int_equal(play.closed, 2);
    dsc_comm_destroy(&comm);
    assert_int_equal(play.closed, 3);
    dsc_comm_functions f = two_ranks();
    f.split = NULL;
    f.close = NULL;
    assert_ok(dsc_comm_create_from_functions(&f, NULL, &comm));
    assert_fails(DSC_E_UNSUPPORTED, "without a function `split`", dsc_comm_split(comm, 0, 0, &child));
    dsc_comm_destroy(&comm);
}

/* Waits with a limit use `test`, and give up; destroying then waits for nothing. */
static void test_limit(void **state) {
    (void)state;
    dsc_comm *comm = open_two();
    play.waits = 3;
    play.fails = "wait"; /* never called */
    assert_ok(dsc_comm_set_timeout(comm, 10));
    assert_ok(dsc_comm_barrier(comm));
    assert_ok(dsc_comm_set_timeout(comm, 0.01));
    play.waits = 1 << 30;
    assert_fails(DSC_E_COMM, "barrier over 2 ranks: not complete after 0.01 s", dsc_comm_barrier(comm));
    dsc_comm_destroy(&comm);
    assert_null(comm);
    assert_int_equal(play.closed, 1);
    comm = open_two();
    play.waits = 1 << 30;
    play.fails = "wait";
    dsc_comm_abandon(&comm);
    assert_null(comm);
    assert_int_equal(play.closed, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_limit),
    };
    start_watchdog(60);
    return cmocka_run_group_tests_name("functions", tests, NULL, NULL);
}
