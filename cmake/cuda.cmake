# CUDA and NCCL. nvcc is called directly, not as a language of CMake's: so C stays the language that everything links by,
# here and in programs that use the installed static library, and the toolkit may lie anywhere.
# Read as CMake reads them: CMAKE_CUDA_COMPILER, CMAKE_CUDA_HOST_COMPILER, CMAKE_CUDA_ARCHITECTURES, CMAKE_CUDA_FLAGS.
set(DESCENT_CUDA AUTO CACHE STRING "Use CUDA: AUTO (where nvcc, cuBLAS, cuDNN and cuSOLVER are found), ON or OFF")
set_property(CACHE DESCENT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DESCENT_CUDA_ARCHITECTURES "80-real;90" CACHE STRING
    "GPUs that the kernels are compiled for, as in CMAKE_CUDA_ARCHITECTURES, which overrides it")
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${DESCENT_CUDA_ARCHITECTURES})
endif()

add_library(descent_cuda INTERFACE)
add_library(descent_nccl INTERFACE)
set(DSC_HAVE_CUDA OFF)
set(DSC_HAVE_NCCL OFF)
set(DESCENT_CUDA_LIBRARIES)
set(DESCENT_NCCL_LIBRARIES)

# descent_find_cuda(MISSING): sets DESCENT_NVCC, CUDA_INCLUDE_DIRS, CUDA_HINTS and the libraries; MISSING: what is not there.
macro(descent_find_cuda missing)
  set(${missing})
  find_program(DESCENT_NVCC NAMES ${CMAKE_CUDA_COMPILER} nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
  if(DESCENT_NVCC)
    # The one on the path may be a script that calls the toolkit's: nvcc itself tells where it lies.
    execute_process(COMMAND ${DESCENT_NVCC} --dryrun -c none.cu OUTPUT_VARIABLE cuda_text ERROR_VARIABLE cuda_text)
    get_filename_component(cuda_root ${DESCENT_NVCC}/../.. ABSOLUTE)
    set(CUDA_HINTS ${cuda_root})
    if(cuda_text MATCHES "TOP=([^\r\n]+)")
      get_filename_component(cuda_root "${CMAKE_MATCH_1}" ABSOLUTE)
      list(APPEND CUDA_HINTS ${cuda_root})
    endif()
    foreach(hint IN LISTS CUDA_HINTS)
      list(APPEND CUDA_HINTS ${hint}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
    endforeach()
  else()
    list(APPEND ${missing} nvcc)
  endif()
  set(CUDA_INCLUDE_DIRS)
  foreach(header IN ITEMS cuda_runtime_api.h cublas_v2.h cusolverDn.h cudnn.h)
    string(MAKE_C_IDENTIFIER CUDA_DIR_${header} variable)
    find_path(${variable} ${header} HINTS ${CUDA_HINTS} PATH_SUFFIXES include)
    mark_as_advanced(${variable})
    if(${variable})
      list(APPEND CUDA_INCLUDE_DIRS ${${variable}})
    else()
      list(APPEND ${missing} ${header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES CUDA_INCLUDE_DIRS)
  foreach(library IN ITEMS cusolver cudnn cublas cublasLt cudart)
    find_library(CUDA_LIBRARY_${library} ${library} HINTS ${CUDA_HINTS} PATH_SUFFIXES lib64 lib)
    mark_as_advanced(CUDA_LIBRARY_${library})
    if(CUDA_LIBRARY_${library})
      list(APPEND DESCENT_CUDA_LIBRARIES ${CUDA_LIBRARY_${library}})
    else()
      list(APPEND ${missing} lib${library})
    endif()
  endforeach()
endmacro()

# The flags that choose the GPUs.
function(descent_nvcc_targets out)
  set(flags)
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(architecture MATCHES "^([0-9]+[a-z]?)-real$")
      list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1})
    elseif(architecture MATCHES "^([0-9]+[a-z]?)-virtual$")
      list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
    elseif(architecture MATCHES "^([0-9]+[a-z]?)$")
      list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=[compute_${CMAKE_MATCH_1},sm_${CMAKE_MATCH_1}])
    elseif(architecture MATCHES "^(native|all|all-major)$")
      list(APPEND flags -arch=${architecture})
    else()
      message(FATAL_ERROR "CUDA architecture '${architecture}': write 80, 80-real, 80-virtual, native, all or all-major")
    endif()
  endforeach()
  set(${out} ${flags} PARENT_SCOPE)
endfunction()

# The other flags of every call of nvcc. Kernels launched for the first time by two threads need libstdc++'s locks.
function(descent_nvcc_flags out)
  set(flags -std=c++17)
  if(CMAKE_CUDA_HOST_COMPILER)
    list(APPEND flags -ccbin ${CMAKE_CUDA_HOST_COMPILER})
  endif()
  foreach(dir IN LISTS CUDA_INCLUDE_DIRS)
    if(NOT dir STREQUAL "/usr/include") # there g++ looks by itself, in the right order
      list(APPEND flags -isystem ${dir})
    endif()
  endforeach()
  separate_arguments(more UNIX_COMMAND "${CMAKE_CUDA_FLAGS}")
  set(${out} ${flags} ${more} PARENT_SCOPE)
endfunction()

# Compiles a file that needs what we need, once; `why`: empty, or what is wrong.
function(descent_probe_cuda flags why)
  string(MD5 key "${DESCENT_NVCC} ${flags}")
  if(NOT DESCENT_CUDA_PROBED STREQUAL key)
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/probe_cuda)
    file(WRITE ${probe}.cu "#include <cublas_v2.h>
#include <cudnn.h>
#include <cusolverDn.h>
#include <math.h>
static_assert(CUDNN_MAJOR >= 9, \"cuDNN 9 or newer is needed\");
static __global__ void kernel(float *x) { x[0] = sqrtf(x[0]); }
extern \"C\" cudaError_t probe(float *x, void **f) {
    *f = reinterpret_cast<void *>(&cusolverDnXsyevBatched); /* there since CUDA 12.6 */
    kernel<<<1, 1>>>(x);
    return cudaGetLastError();
}
")
    execute_process(COMMAND ${DESCENT_NVCC} ${flags} -c ${probe}.cu -o ${probe}.o RESULT_VARIABLE code OUTPUT_VARIABLE text
                    ERROR_VARIABLE text)
    if(NOT code EQUAL 0)
      set(${why} "${DESCENT_NVCC} cannot compile what is needed:\n${text}" PARENT_SCOPE)
      return()
    endif()
    set(DESCENT_CUDA_PROBED ${key} CACHE INTERNAL "what nvcc was seen to work with")
  endif()
  set(${why} "" PARENT_SCOPE)
endfunction()

if(DESCENT_CUDA)
  descent_find_cuda(cuda_missing)
  if(cuda_missing)
    list(JOIN cuda_missing ", " cuda_missing)
    set(cuda_why "CUDA: ${cuda_missing} not found; set CMAKE_CUDA_COMPILER or CMAKE_PREFIX_PATH, or DESCENT_CUDA=OFF")
  else()
    descent_nvcc_targets(DESCENT_NVCC_TARGETS)
    descent_nvcc_flags(DESCENT_NVCC_FLAGS)
    descent_probe_cuda("${DESCENT_NVCC_TARGETS};${DESCENT_NVCC_FLAGS}" cuda_why)
  endif()
  if(NOT cuda_why)
    set(DSC_HAVE_CUDA ON)
    list(APPEND DESCENT_CUDA_LIBRARIES -lstdc++)
    target_include_directories(descent_cuda SYSTEM INTERFACE ${CUDA_INCLUDE_DIRS})
    target_link_libraries(descent_cuda INTERFACE ${DESCENT_CUDA_LIBRARIES})
  elseif(DESCENT_CUDA STREQUAL "AUTO")
    message(STATUS "${cuda_why}")
  else()
    message(FATAL_ERROR "${cuda_why}")
  endif()
endif()

if(DSC_HAVE_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDA_HINTS} PATH_SUFFIXES include)
  find_library(NCCL_LIBRARY nccl HINTS ${CUDA_HINTS} PATH_SUFFIXES lib64 lib)
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(DSC_HAVE_NCCL ON)
    set(DESCENT_NCCL_LIBRARIES ${NCCL_LIBRARY})
    target_include_directories(descent_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
    target_link_libraries(descent_nccl INTERFACE ${NCCL_LIBRARY} descent_cuda)
  endif()
endif()

# descent_compile_cuda(OUT FILES...): objects of .cu files. What nvcc hands to the host's compiler compares enums that the
# source does not.
function(descent_compile_cuda out)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  set(flags ${DESCENT_NVCC_FLAGS} -lineinfo -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            -I${PROJECT_BINARY_DIR}/include -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-Wall,-Wno-enum-compare)
  if(type STREQUAL "DEBUG")
    list(APPEND flags -g -O1)
  else()
    list(APPEND flags -O3)
  endif()
  if(DESCENT_WERROR)
    list(APPEND flags -Xcompiler=-Werror)
  endif()
  set(objects)
  foreach(file IN LISTS ARGN)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src ${file})
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    set(own ${DESCENT_NVCC_TARGETS})
    if(name MATCHES "_hopper\\.cu$") # wgmma is in no other target; the file's functions are not called on other GPUs
      set(own -gencode arch=compute_90a,code=sm_90a)
    elseif(name MATCHES "/optim\\.cu$") # the same bits for one element or four at a time
      list(APPEND own -fmad=false)
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${DESCENT_NVCC} ${flags} ${own} -MD -MT ${object} -MF ${object}.d -c ${file} -o ${object}
      DEPENDS ${file} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
