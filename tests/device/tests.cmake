# Conformance of every device against ref, by theme; then what stands alone.
set(device_rig device/rig.c device/trial.c)
descent_test(device_half SOURCES device/test_half.c ROOMS device)
descent_test(device_elementwise SOURCES device/test_elementwise.c ${device_rig} ROOMS device)
descent_test(device_linalg SOURCES device/test_linalg.c ${device_rig} ROOMS device)
descent_test(device_eigen SOURCES device/test_eigen.c ${device_rig} ROOMS device)
descent_test(device_conv SOURCES device/test_conv.c ${device_rig} ROOMS device)
