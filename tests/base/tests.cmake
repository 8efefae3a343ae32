descent_test(base SOURCES base/test_base.c ROOMS base)
