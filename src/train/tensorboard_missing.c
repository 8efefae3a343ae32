/* Compiled instead of tensorboard.c when protobuf-c is missing. */
#include "train/tensorboard.h"

#include "base/error.h"

dsc_status dsc_tensorboard_check(const char *prefix) {
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "%stensorboard needs protobuf-c, which this build does not have: install "
                    "libprotobuf-c-dev and protobuf-c-compiler and build again, or leave the option out",
                    prefix);
}

dsc_status dsc_tensorboard_open(const char *directory, dsc_tensorboard **out) {
    (void)directory;
    *out = NULL;
    return dsc_tensorboard_check("");
}

void dsc_tensorboard_close(dsc_tensorboard **tensorboard) {
    (void)tensorboard;
}

int dsc_tensorboard_error(const dsc_tensorboard *tensorboard, const char **path) {
    (void)tensorboard;
    (void)path;
    return 0;
}

void dsc_tensorboard_line(dsc_tensorboard *tensorboard, const struct json_t *line) {
    (void)tensorboard;
    (void)line;
}

void dsc_tensorboard_spectrum(dsc_tensorboard *tensorboard, int64_t step, const dsc_kfac_spectrum *spectrum) {
    (void)tensorboard;
    (void)step;
    (void)spectrum;
}
