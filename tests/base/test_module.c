/* The loader of modules: where it looks, and what it says about each thing that can be wrong. The modules are
 * made by tests.cmake; FAKE_MODULES is their folder. */
#include "test.h"

#include "base/config.h"
#include "base/module.h"
#include "descent/version.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static dsc_status load(const char *name, const void **table) {
    *table = NULL;
    return dsc_module_load(name, "dsc_fake_module", table);
}

static void search_in(const char *folders) {
    assert_int_equal(setenv("DESCENT_MODULES", folders, 1), 0);
}

static void test_good(void **state) {
    (void)state;
    const void *table, *again;
    search_in("/nowhere::" FAKE_MODULES);
    assert_false(dsc_module_is_loaded("good"));
    assert_ok(load("good", &table));
    assert_int_equal(*(const int *)table, 42);
    assert_true(dsc_module_is_loaded("good"));
    search_in("/nowhere"); /* it stays */
    assert_ok(load("good", &again));
    assert_ptr_equal(table, again);
}

/* The message names the module and every file that was searched for: first those of DESCENT_MODULES, then the
 * one beside the library, which is this program here. */
static void test_missing(void **state) {
    (void)state;
    const void *table;
    search_in("/nowhere:/none");
    assert_fails(DSC_E_UNSUPPORTED, "the module 'absent' is not installed", load("absent", &table));
    const char *first = strstr(dsc_error_message(), "/nowhere/libdescent-absent.so");
    const char *second = strstr(dsc_error_message(), ", /none/libdescent-absent.so");
    const char *own = strstr(dsc_error_message(), "/" DSC_MODULE_FOLDER "/libdescent-absent.so");
    assert_true(first && second && own && first < second && second < own);
    assert_non_null(strstr(dsc_error_message(), "set DESCENT_MODULES"));
    assert_int_equal(unsetenv("DESCENT_MODULES"), 0);
    assert_fails(DSC_E_UNSUPPORTED, DSC_MODULE_FOLDER "/libdescent-absent.so", load("absent", &table));
    search_in("");
    assert_fails(DSC_E_UNSUPPORTED, DSC_MODULE_FOLDER "/libdescent-absent.so", load("absent", &table));
    assert_false(dsc_module_is_loaded("absent"));
}

/* A list that is too long for the message, and a path that is too long for a file. */
static void test_long(void **state) {
    (void)state;
    static char list[20000], folder[9000];
    const void *table;
    for (int i = 0; i < 100; i++)
        sprintf(list + strlen(list), "/a/folder/that/is/not/there/%d:", i);
    memset(folder, 'x', sizeof folder - 1);
    folder[0] = '/';
    strcat(list, folder);
    search_in(list);
    assert_fails(DSC_E_UNSUPPORTED, ", ...; install it there", load("absent", &table));
    assert_non_null(strstr(dsc_error_message(), "set DESCENT_MODULES"));
}

static void test_wrong(void **state) {
    (void)state;
    const void *table;
    search_in(FAKE_MODULES);
    assert_fails(DSC_E_FORMAT,
                 FAKE_MODULES "/libdescent-old.so is a module of descent 0.0.9, but this library is",
                 load("old", &table));
    assert_non_null(strstr(dsc_error_message(), DSC_VERSION_STRING));
    assert_fails(DSC_E_FORMAT, "is the module 'good' under another name", load("renamed", &table));
    assert_fails(DSC_E_FORMAT, "it has no function dsc_fake_module", load("strange", &table));
    assert_false(dsc_module_is_loaded("old") || dsc_module_is_loaded("renamed") ||
                 dsc_module_is_loaded("strange"));
}

/* The loader's own reason is passed on, with the file. */
static void test_needs(void **state) {
    (void)state;
    const void *table;
    char folder[] = "/tmp/descent-module-XXXXXX", path[100];
    search_in(FAKE_MODULES);
    assert_fails(DSC_E_UNSUPPORTED, "libdescent_fake_missing.so: cannot open shared object file",
                 load("needy", &table));
    assert_non_null(strstr(dsc_error_message(), FAKE_MODULES "/libdescent-needy.so"));
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/libdescent-text.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("This is no module.\n", file);
    fclose(file);
    search_in(folder);
    dsc_status status = load("text", &table);
    unlink(path);
    rmdir(folder);
    assert_fails(DSC_E_UNSUPPORTED, "the module 'text' cannot be loaded", status);
    assert_non_null(strstr(dsc_error_message(), path));
}

static void *load_in_thread(void *argument) {
    const void *table;
    *(dsc_status *)argument = load("shared", &table);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    dsc_status statuses[THREADS];
    search_in(FAKE_MODULES);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_in_thread, &statuses[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ok(statuses[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),  cmocka_unit_test(test_missing), cmocka_unit_test(test_long),
        cmocka_unit_test(test_wrong), cmocka_unit_test(test_needs),   cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
