/* A library that a module of test_module.c needs, and that the loader does not find. */
extern __attribute__((visibility("default"))) int dsc_fake_missing(void);

int dsc_fake_missing(void) {
    return 0;
}
