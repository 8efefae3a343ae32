# The modules of the shared library (src/base/module.h), in a folder beside it. They are made of the objects that the static
# library has, so nothing but further MPI libraries is compiled once more.

# descent_module(NAME OBJECTS objects... LIBRARIES targets...)
function(descent_module name)
  cmake_parse_arguments(MODULE "" "" "OBJECTS;LIBRARIES" ${ARGN})
  set(target module_${name})
  add_library(${target} MODULE ${MODULE_OBJECTS})
  string(REGEX REPLACE "[^/]+" ".." up ${DESCENT_MODULE_FOLDER})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME descent-${name} PREFIX lib LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${DESCENT_MODULE_FOLDER}
    INSTALL_RPATH "$ORIGIN/${up}" INSTALL_RPATH_USE_LINK_PATH ON)
  target_link_libraries(${target} PRIVATE descent_shared descent_flags ${MODULE_LIBRARIES})
  if(NOT DESCENT_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined)
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/${DESCENT_MODULE_FOLDER} COMPONENT runtime)
  set_property(GLOBAL APPEND PROPERTY descent_modules ${target})
endfunction()

if(DSC_HAVE_CUDA)
  descent_module(cuda OBJECTS $<FILTER:$<TARGET_OBJECTS:room_device>,INCLUDE,/src/device/cuda/> ${kernels}
                 LIBRARIES descent_cuda descent_openmp)
  add_dependencies(module_cuda ${kernel_targets})
endif()
if(DSC_HAVE_NCCL)
  descent_module(nccl OBJECTS $<FILTER:$<TARGET_OBJECTS:room_comm>,INCLUDE,/src/comm/nccl/>
                              $<FILTER:$<TARGET_OBJECTS:room_device>,INCLUDE,/src/device/cuda/fail\\.c>
                 LIBRARIES descent_nccl)
endif()
if(DSC_HAVE_MPI)
  descent_module(${DSC_MPI_LIBRARY} OBJECTS $<FILTER:$<TARGET_OBJECTS:room_comm>,INCLUDE,/src/comm/mpi/>
                 LIBRARIES descent_mpi)
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/*.c)
  foreach(name IN LISTS DESCENT_MPI_OTHERS)
    add_library(mpi_objects_${name} OBJECT ${mpi_sources})
    target_link_libraries(mpi_objects_${name} PRIVATE descent_flags descent_mpi_${name})
    descent_module(${name} OBJECTS $<TARGET_OBJECTS:mpi_objects_${name}> LIBRARIES descent_mpi_${name})
  endforeach()
endif()
