/* Finding and removing the files of a run, and nothing else. (Locks: test_train.c) */
#include "test.h"

#include "descent/train.h"
#include "train/scratch.h"

#include <unistd.h>

static void test_run_files(void **state) {
    (void)state;
    static const char *const run[] = {"metrics.jsonl", "latest", "checkpoint-5.safetensors",
                                      "checkpoint-5.state.safetensors",
                                      "checkpoint-6.safetensors.node1-77.tmp"};
    static const char *const other[] = {"notes.txt", "metrics.jsonl.gz", "checkpoint-5.txt"};
    char out[SCRATCH_SIZE], file[64];
    assert_ok(dsc_train_find_run("no/such/directory", file, sizeof file));
    assert_string_equal(file, "");
    assert_ok(dsc_train_remove_run("no/such/directory"));
    scratch_make(out);
    for (int i = 0; i < 3; i++)
        scratch_write(scratch_path(out, other[i]), "x", 1);
    assert_ok(dsc_train_find_run(out, file, sizeof file));
    assert_string_equal(file, "");
    for (int i = 0; i < 5; i++) {
        scratch_write(scratch_path(out, run[i]), "x", 1);
        scratch_write(scratch_path(out, "config"), "x", 1);
        assert_ok(dsc_train_find_run(out, file, sizeof file));
        assert_string_equal(file, run[i]);
        assert_ok(dsc_train_remove_run(out));
        assert_ok(dsc_train_find_run(out, file, sizeof file));
        assert_string_equal(file, "");
        assert_false(scratch_exists(out, "config"));
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(unlink(scratch_path(out, other[i])), 0); /* still there */
    assert_int_equal(rmdir(out), 0);                              /* and nothing else */
    scratch_write(out, "x", 1);
    assert_fails(DSC_E_INVALID, out, dsc_train_find_run(out, file, sizeof file));
    assert_int_equal(unlink(out), 0);
    assert_fails(DSC_E_INVALID, "NULL", dsc_train_remove_run(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
