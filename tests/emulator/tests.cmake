# The conformance programs of tests/device against the cuda backend's own kernels, run on the CPU (emulator.h). The
# toolkit's headers are enough; what comes from NVIDIA's libraries comes from ref. Only kernels are compiled as C++.
if(NOT DESCENT_EMULATOR)
  return()
endif()
find_path(CUDA_RUNTIME_INCLUDE_DIR cuda_runtime_api.h HINTS ${CUDA_INCLUDE_DIRS} ENV CUDA_HOME ENV CUDA_PATH
          PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(CUDA_RUNTIME_INCLUDE_DIR)
include(CheckLanguage)
check_language(CXX)
if(NOT CUDA_RUNTIME_INCLUDE_DIR OR NOT CMAKE_CXX_COMPILER OR NOT EXISTS ${PROJECT_SOURCE_DIR}/src/device/cuda/cuda.c)
  message(STATUS "descent: no tests of emulated kernels (CUDA's headers and a C++ compiler are needed)")
  return()
endif()
enable_language(CXX)

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/*.cu)
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/*.c)
# These stand on cuBLAS, cuSOLVER and cuDNN; backend.c has their entries.
list(FILTER kernels EXCLUDE REGEX "/cuda/solve")
list(FILTER sources EXCLUDE REGEX "/cuda/(products|solve|conv|dnn)")
# The rest does not know of the emulation: its objects are the room's.
list(FILTER sources INCLUDE REGEX "/(cuda/[^/]*|device/backends)\\.c$")
set(emulated_rest $<FILTER:$<TARGET_OBJECTS:room_device>,EXCLUDE,/device/cuda/|/src/device/backends\\.c\\.o$>)

add_library(emulated_kernels OBJECT ${kernels})
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
# These take very long to compile with -O3.
file(GLOB slow CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/grouped.cu ${PROJECT_SOURCE_DIR}/src/device/cuda/small_conv*.cu)
if(DESCENT_SANITIZE) # checks that are made at every access cost more time to compile than all the others
  set_source_files_properties(${slow} PROPERTIES COMPILE_OPTIONS -fno-sanitize=null,alignment,object-size)
  # Most of the time is spent in these: they are worth more than -O1.
  file(GLOB busy CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/gram*.cu)
  set_source_files_properties(${busy} PROPERTIES COMPILE_OPTIONS -O2)
else()
  set_source_files_properties(${slow} PROPERTIES COMPILE_OPTIONS -O2)
endif()
set_target_properties(emulated_kernels PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
target_compile_definitions(emulated_kernels PRIVATE DSC_EMULATED _POSIX_C_SOURCE=200809L)
# Not descent_flags: some of its warnings are for C only.
target_compile_options(emulated_kernels PRIVATE
  -Wall -Wno-enum-compare -Wno-parentheses -Wno-unknown-pragmas -Wno-unused-function
  -fno-exceptions -fno-math-errno -fno-trapping-math)
target_include_directories(emulated_kernels PRIVATE ${PROJECT_SOURCE_DIR}/tests
                           $<TARGET_PROPERTY:descent_flags,INTERFACE_INCLUDE_DIRECTORIES>)
target_include_directories(emulated_kernels SYSTEM PRIVATE ${CUDA_RUNTIME_INCLUDE_DIR})
if(DESCENT_WERROR)
  target_compile_options(emulated_kernels PRIVATE -Werror)
endif()
if(DESCENT_SANITIZE)
  target_compile_options(emulated_kernels PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
endif()

add_library(emulated_device OBJECT ${sources}
            emulator/engine.c emulator/runtime.c emulator/streams.c emulator/backend.c)
target_compile_definitions(emulated_device PRIVATE DSC_EMULATED)
target_include_directories(emulated_device PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_include_directories(emulated_device SYSTEM PRIVATE ${CUDA_RUNTIME_INCLUDE_DIR})
target_sources(emulated_device INTERFACE ${emulated_rest})
target_link_libraries(emulated_device PUBLIC descent_flags descent_blas descent_openmp descent_onednn)

# emulated_test(NAME SOURCES...): a program of tests/device. With sanitizers a block's first thread goes first (engine.c).
# Without them its last thread does, on the second of two GPUs, which is not the current one (runtime.c). The long
# programs always go forward, and the longest is left out with sanitizers: gram-small has the same kernels as gram.
function(emulated_test name)
  descent_test_objects(objects ${ARGN})
  add_executable(test_emulated_${name} ${objects})
  target_link_libraries(test_emulated_${name} PRIVATE room_base emulated_device emulated_kernels PkgConfig::CMOCKA)
  set(order forward)
  set(gpus)
  set(cost 0)
  set(left_out)
  if(name MATCHES "^(gram|extra)$")
    set(cost 60)
  elseif(NOT DESCENT_SANITIZE)
    set(order backward)
    set(gpus ";DESCENT_EMULATOR_GPUS=2;DESCENT_TEST_GPU=1")
  endif()
  if(DESCENT_SANITIZE AND name STREQUAL "gram")
    return()
  elseif(DESCENT_SANITIZE AND name STREQUAL "extra")
    set(left_out test_slices)
  endif()
  add_test(NAME emulated-${name} COMMAND test_emulated_${name} ${left_out})
  set_tests_properties(emulated-${name} PROPERTIES TIMEOUT ${DESCENT_TEST_TIMEOUT} LABELS emulated PROCESSORS 2 COST ${cost} SKIP_RETURN_CODE 77
    ENVIRONMENT "${descent_test_environment};DESCENT_TEST_DEVICE=cuda;DESCENT_EMULATOR_ORDER=${order}${gpus}")
endfunction()

set(emulated_rig device/rig.c device/trial.c)
foreach(name IN ITEMS elementwise linalg second refresh weigh norm group_norm pool attention attention_step embedding parts loss pixel_loss optim gradients basics conv)
  emulated_test(${name} device/test_${name}.c ${emulated_rig})
endforeach()
emulated_test(batch device/test_batch.c device/eigen.c ${emulated_rig})
emulated_test(gram device/test_gram.c device/rig.c)
add_test(NAME emulated-gram-small COMMAND test_emulated_gram) # as on GPUs whose blocks have 99 KiB of shared memory
set_tests_properties(emulated-gram-small PROPERTIES TIMEOUT ${DESCENT_TEST_TIMEOUT} LABELS emulated PROCESSORS 2 SKIP_RETURN_CODE 77 ENVIRONMENT
  "${descent_test_environment};DESCENT_TEST_DEVICE=cuda;DESCENT_EMULATOR_SHARED=101376")
add_test(NAME emulated-attention-older COMMAND test_emulated_attention) # as on GPUs without wgmma
set_tests_properties(emulated-attention-older PROPERTIES TIMEOUT ${DESCENT_TEST_TIMEOUT} LABELS emulated PROCESSORS 2 SKIP_RETURN_CODE 77 ENVIRONMENT
  "${descent_test_environment};DESCENT_TEST_DEVICE=cuda;DESCENT_EMULATOR_CAPABILITY=80")
