/* safetensors: round trip, malformed files with their messages, failures while writing, fuzz. */
#include "test.h"

#include "base/rng.h"
#include "train/safetensors.h"
#include "train/scratch.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[SCRATCH_SIZE];

static const int64_t two_three[] = {2, 3}, five[] = {5}, none[] = {0, 4};
static const float floats[] = {1, -2, 3.5f, 0, 1e-30f, 7};
static const unsigned char bytes[] = {1, 2, 3, 4, 255};
static const int64_t number = -9000000000;
static const double reals[] = {0.1, 0.2, 0.3, 0.4, 0.5};

/* Narrow before wide, so that the writer has something to put in order. */
static void declare_all(dsc_st_writer *w) {
    assert_ok(dsc_st_writer_metadata(w, "model", "tiny"));
    assert_ok(dsc_st_writer_metadata(w, "text", "quotes \" and \xc3\xa9"));
    assert_ok(dsc_st_writer_declare(w, "bytes", DSC_U8, 1, five));
    assert_ok(dsc_st_writer_declare(w, "a.weight", DSC_F32, 2, two_three));
    assert_ok(dsc_st_writer_declare(w, "number", DSC_I64, 0, NULL));
    assert_ok(dsc_st_writer_declare(w, "empty", DSC_F16, 2, none));
    assert_ok(dsc_st_writer_declare(w, "reals", DSC_F64, 1, five));
}

static void write_all(const char *path) {
    dsc_st_writer *w = NULL;
    assert_ok(dsc_st_writer_create(path, &w));
    declare_all(w);
    assert_ok(dsc_st_writer_begin(w));
    assert_ok(dsc_st_writer_write(w, 4, reals, sizeof reals));
    assert_ok(dsc_st_writer_write(w, 0, bytes, sizeof bytes));
    assert_ok(dsc_st_writer_write(w, 1, floats, sizeof floats));
    assert_ok(dsc_st_writer_write(w, 2, &number, sizeof number));
    assert_ok(dsc_st_writer_write(w, 3, NULL, 0));
    assert_ok(dsc_st_writer_sync(w));
    assert_ok(dsc_st_writer_commit(w));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, dsc_st_writer_bytes(w));
    dsc_st_writer_destroy(&w);
    assert_null(w);
}

static void check_tensor(const dsc_st_reader *r, const char *name, dsc_dtype dtype, int ndim,
                         const void *expected, size_t size) {
    char data[64];
    const dsc_st_tensor *t = dsc_st_find(r, name);
    assert_non_null(t);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->ndim, ndim);
    assert_int_equal(t->bytes, size);
    assert_int_equal(t->offset % dsc_dtype_size(dtype), 0);
    assert_ok(dsc_st_read(r, t, data, size));
    if (size > 0)
        assert_memory_equal(data, expected, size);
    assert_fails(DSC_E_INVALID, name, dsc_st_read(r, t, data, size + 1));
}

static void test_round_trip(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "a.safetensors");
    dsc_st_reader *r = NULL;
    write_all(path);
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    assert_ok(dsc_st_open(path, &r));
    assert_string_equal(dsc_st_path(r), path);
    assert_int_equal(dsc_st_count(r), 5);
    check_tensor(r, "bytes", DSC_U8, 1, bytes, sizeof bytes);
    check_tensor(r, "a.weight", DSC_F32, 2, floats, sizeof floats);
    check_tensor(r, "number", DSC_I64, 0, &number, sizeof number);
    check_tensor(r, "empty", DSC_F16, 2, NULL, 0);
    check_tensor(r, "reals", DSC_F64, 1, reals, sizeof reals);
    assert_int_equal(dsc_st_find(r, "a.weight")->dim[1], 3);
    assert_null(dsc_st_find(r, "b"));
    assert_string_equal(dsc_st_metadata(r, "model"), "tiny");
    assert_string_equal(dsc_st_metadata(r, "text"), "quotes \" and \xc3\xa9");
    assert_null(dsc_st_metadata(r, "absent"));
    assert_string_equal(dsc_st_tensors(r)[0].name, "a.weight");
    dsc_st_close(&r);
    assert_null(r);
    dsc_st_close(&r);
    size_t size;
    char *whole = scratch_read(path, &size);
    assert_int_equal((unsigned char)whole[0] % 8, 0); /* the data starts aligned */
    free(whole);
}

/* ---- malformed files ---- */

static void write_file(const char *path, uint64_t length, const char *header, size_t data) {
    char buffer[1024] = {0};
    for (int i = 0; i < 8; i++)
        buffer[i] = (char)(length >> (8 * i));
    memcpy(buffer + 8, header, strlen(header));
    scratch_write(path, buffer, 8 + strlen(header) + data);
}

static const struct {
    const char *header;
    size_t data;
    const char *message;
} malformed[] = {
    {"[1, 2]", 0, "starts with byte 0x5b"},
    {"{\"a\": }", 0, "not valid JSON at byte"},
    {"{\"a\": 1} x", 0, "not valid JSON at byte"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{}}", 4, "duplicate"},
    {"{\"\xff\": 1}", 0, "not valid JSON"},
    {"{\"__metadata__\": 3}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\": {\"k\": 3}}", 0, "metadata 'k' is not a string"},
    {"{\"a\": 5}", 0, "'a' is not an object"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a' has no dtype"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "dtype 'F8_E4M3'"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'a' has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "7 dimensions: 6"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0 is not a number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "dimension 0 is not a number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets are not two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", 4, "not two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "not two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "[-4, 0) of 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "[4, 0) of 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "cut short"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "needs 8 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4, "more than"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
     6, "inside another"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}",
     6, "after a gap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 5, "3 bytes follow the last tensor"},
};

static void test_malformed(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "bad.safetensors");
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        dsc_st_reader *r = NULL;
        write_file(path, strlen(malformed[i].header), malformed[i].header, malformed[i].data);
        assert_fails(DSC_E_FORMAT, malformed[i].message, dsc_st_open(path, &r));
        assert_null(r);
        assert_non_null(strstr(dsc_error_message(), "bad.safetensors"));
    }
}

static void test_bad_files(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "bad.safetensors");
    dsc_st_reader *r = NULL;
    assert_fails(DSC_E_NOT_FOUND, "nowhere", dsc_st_open(scratch_path(directory, "nowhere"), &r));
    assert_fails(DSC_E_FORMAT, "not a regular file", dsc_st_open(directory, &r));
    scratch_write(path, "", 0);
    assert_fails(DSC_E_FORMAT, "has 0 bytes: too short", dsc_st_open(path, &r));
    write_file(path, 1000, "{}", 0);
    assert_fails(DSC_E_FORMAT, "header of 1000 bytes in a file of 10", dsc_st_open(path, &r));
    write_file(path, UINT64_MAX, "{}", 0);
    assert_fails(DSC_E_FORMAT, "header of 18446744073709551615 bytes", dsc_st_open(path, &r));
    write_file(path, 2, "{}", 0);
    assert_ok(dsc_st_open(path, &r));
    assert_int_equal(dsc_st_count(r), 0);
    dsc_st_close(&r);
}

/* A file that shrinks after it was opened is an error of the read. */
static void test_cut_while_open(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "cut.safetensors");
    dsc_st_reader *r = NULL;
    char data[64];
    write_all(path);
    assert_ok(dsc_st_open(path, &r));
    assert_int_equal(truncate(path, 100), 0);
    const dsc_st_tensor *t = dsc_st_find(r, "reals");
    assert_fails(DSC_E_FORMAT, "ends at byte", dsc_st_read(r, t, data, t->bytes));
    dsc_st_close(&r);
}

/* ---- writing ---- */

/* A header too long for any reader: nothing is written. */
static void test_long_header(void **state) {
    (void)state;
    enum { LIMIT = 100 * 1000 * 1000 };
    const char *path = scratch_path(directory, "long.safetensors");
    char *text = malloc(LIMIT + 1);
    dsc_st_writer *w = NULL;
    assert_non_null(text);
    memset(text, 'x', LIMIT);
    text[LIMIT] = '\0';
    assert_ok(dsc_st_writer_create(path, &w));
    assert_ok(dsc_st_writer_metadata(w, "k", text));
    assert_fails(DSC_E_INVALID, "long.safetensors': a header of 1000000", dsc_st_writer_begin(w));
    dsc_st_writer_destroy(&w);
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    assert_false(scratch_exists(directory, "long.safetensors"));
    free(text);
}

static void test_writer_misuse(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "misuse.safetensors");
    dsc_st_writer *w = NULL;
    int64_t negative = -1, huge[] = {INT64_MAX, 8};
    assert_ok(dsc_st_writer_create(path, &w));
    assert_fails(DSC_E_INVALID, "7 dimensions", dsc_st_writer_declare(w, "a", DSC_F32, 7, two_three));
    assert_fails(DSC_E_INVALID, "'a'", dsc_st_writer_declare(w, "a", DSC_F32, 1, &negative));
    assert_fails(DSC_E_INVALID, "'a'", dsc_st_writer_declare(w, "a", DSC_F32, 2, huge));
    assert_fails(DSC_E_INVALID, "UTF-8", dsc_st_writer_metadata(w, "k", "\xff"));
    assert_ok(dsc_st_writer_declare(w, "a", DSC_U8, 1, five));
    assert_ok(dsc_st_writer_declare(w, "b", DSC_U8, 1, five));
    assert_ok(dsc_st_writer_begin(w));
    assert_fails(DSC_E_INVALID, "declared with 5 bytes, not 4", dsc_st_writer_write(w, 0, bytes, 4));
    assert_fails(DSC_E_INVALID, "tensor 2", dsc_st_writer_write(w, 2, bytes, 5));
    assert_ok(dsc_st_writer_write(w, 0, bytes, 5));
    assert_fails(DSC_E_INVALID, "there already", dsc_st_writer_write(w, 0, bytes, 5));
    assert_fails(DSC_E_INTERNAL, "'b' was never written", dsc_st_writer_sync(w));
    dsc_st_writer_destroy(&w);
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    assert_false(scratch_exists(directory, "misuse.safetensors"));

    assert_ok(dsc_st_writer_create(path, &w));
    assert_ok(dsc_st_writer_declare(w, "a", DSC_U8, 1, five));
    assert_ok(dsc_st_writer_declare(w, "a", DSC_U8, 1, five));
    assert_fails(DSC_E_INVALID, "two tensors are called 'a'", dsc_st_writer_begin(w));
    dsc_st_writer_destroy(&w);
    assert_fails(DSC_E_IO, "cannot write",
                 dsc_st_writer_create(scratch_path(directory, "no/such/file.safetensors"), &w));
}

/* The limit on a file's size stands for a full disk: the old file stays, the new one leaves nothing. */
static void test_disk_full(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "full.safetensors");
    struct rlimit old, small;
    dsc_st_writer *w = NULL;
    size_t before, after;
    static char zeros[8192];
    int64_t large = sizeof zeros;
    write_all(path);
    char *first = scratch_read(path, &before);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    assert_ok(dsc_st_writer_create(path, &w));
    assert_ok(dsc_st_writer_declare(w, "a", DSC_U8, 1, &large));
    assert_ok(dsc_st_writer_begin(w));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    dsc_status status = dsc_st_writer_write(w, 0, zeros, sizeof zeros);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DSC_E_IO);
    assert_non_null(strstr(dsc_error_message(), "free some space"));
    dsc_st_writer_destroy(&w);
    char *second = scratch_read(path, &after);
    assert_int_equal(before, after);
    assert_memory_equal(first, second, before);
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    free(first);
    free(second);
}

/* ---- check sums ---- */

/* Opens a file and reads all of it: DSC_OK, or the first error. */
static dsc_status verify_file(const char *path) {
    dsc_st_reader *r = NULL;
    dsc_status status = dsc_st_open(path, &r);
    if (status == DSC_OK)
        status = dsc_st_verify(r, 0);
    dsc_st_close(&r);
    return status;
}

static size_t data_start(const char *file) {
    uint64_t header;
    memcpy(&header, file, sizeof header);
    return 8 + (size_t)header;
}

/* Every single bit that flips in the data, or in a value of the metadata, is noticed. */
static void test_sums(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "sums.safetensors");
    dsc_st_reader *r = NULL;
    char buffer[64];
    size_t size;
    write_all(path);
    assert_ok(dsc_st_open(path, &r));
    assert_true(dsc_st_has_sums(r));
    assert_int_equal(dsc_st_find(r, "bytes")->sum, 0x1a6382f6);
    assert_int_equal(dsc_st_find(r, "empty")->sum, 0);
    assert_non_null(strstr(dsc_st_metadata(r, "crc32"), "\"a.weight\":\""));
    dsc_st_close(&r);
    assert_ok(verify_file(path));
    char *file = scratch_read(path, &size);
    for (size_t i = data_start(file); i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            file[i] ^= (char)(1 << bit);
            scratch_write(path, file, size);
            assert_fails(DSC_E_FORMAT, "does not match its check sum", verify_file(path));
            file[i] ^= (char)(1 << bit);
        }
    char *value = strstr(file + 8, "tiny");
    value[1] ^= 1;
    scratch_write(path, file, size);
    assert_fails(DSC_E_FORMAT, "its metadata does not match", verify_file(path));
    value[1] ^= 1;
    scratch_write(path, file, size);
    scratch_forget_sums(path);
    assert_ok(dsc_st_open(path, &r));
    assert_false(dsc_st_has_sums(r));
    assert_ok(dsc_st_read(r, dsc_st_find(r, "bytes"), buffer, 5));
    assert_ok(dsc_st_verify(r, 1));
    dsc_st_close(&r);
    free(file);
}

static const struct {
    const char *metadata, *message;
} bad_sums[] = {
    {"\"crc32\":\"3\"", "is not a JSON object"},
    {"\"crc32\":\"[1]\"", "is not a JSON object"},
    {"\"crc32\":\"{\"", "is not a JSON object"},
    {"\"crc32\":\"{\\\"a\\\":1}\"", "'a' is not 8 hexadecimal digits"},
    {"\"crc32\":\"{\\\"a\\\":\\\"0123456\\\"}\"", "'a' is not 8 hexadecimal digits"},
    {"\"crc32\":\"{\\\"a\\\":\\\"012345678\\\"}\"", "'a' is not 8 hexadecimal digits"},
    {"\"crc32\":\"{\\\"a\\\":\\\"0x234567\\\"}\"", "'a' is not 8 hexadecimal digits"},
    {"\"crc32\":\"{\\\"b\\\":\\\"01234567\\\"}\"", "check sum of 'b', but no such tensor"},
    {"\"crc32\":\"{\\\"a\\\":\\\"01234567\\\"}\"", "'a' does not match its check sum"},
    {"\"metadata_crc32\":\"\"", "its metadata does not match"},
    {"\"metadata_crc32\":\"0000000\"", "its metadata does not match"},
    {"\"metadata_crc32\":\"00000001\"", "its metadata does not match"},
    {"\"metadata_crc32\":\"00000000 absent\"", "its metadata does not match"},
};

static void test_bad_sums(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "bad.safetensors");
    char header[512];
    for (size_t i = 0; i < sizeof bad_sums / sizeof bad_sums[0]; i++) {
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{%s},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                 bad_sums[i].metadata);
        write_file(path, strlen(header), header, 4);
        assert_fails(DSC_E_FORMAT, bad_sums[i].message, verify_file(path));
    }
}

/* ---- fuzz ---- */

static void read_everything(const char *path) {
    dsc_st_reader *r = NULL;
    dsc_status status = dsc_st_open(path, &r);
    if (status != DSC_OK) {
        assert_int_equal(status, DSC_E_FORMAT);
        return;
    }
    for (int64_t i = 0; i < dsc_st_count(r); i++) {
        const dsc_st_tensor *t = &dsc_st_tensors(r)[i];
        char *data = malloc(t->bytes + 1);
        assert_non_null(data);
        dsc_status read = dsc_st_read(r, t, data, t->bytes);
        assert_true(read == DSC_OK || read == DSC_E_FORMAT);
        free(data);
    }
    status = dsc_st_verify(r, 1);
    assert_true(status == DSC_OK || status == DSC_E_FORMAT);
    dsc_st_metadata(r, "model");
    dsc_st_close(&r);
}

static void test_fuzz(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "fuzz.safetensors");
    size_t size;
    write_all(path);
    char *good = scratch_read(path, &size);
    char *bad = malloc(size);
    assert_non_null(bad);
    for (uint64_t i = 0; i < 10000; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        memcpy(bad, good, size);
        for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 4); flips > 0; flips--)
            bad[dsc_rng_below(&rng, (uint32_t)size)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        scratch_write(path, bad, length);
        read_everything(path);
    }
    free(good);
    free(bad);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_bad_files),     cmocka_unit_test(test_cut_while_open),
        cmocka_unit_test(test_writer_misuse), cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_disk_full),     cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_sums),          cmocka_unit_test(test_bad_sums),
    };
    scratch_make(directory);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(directory);
    return failed;
}
