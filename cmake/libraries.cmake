# libdescent, shared and static, the modules of the shared one, and how others find it: headers, pkg-config file, CMake package.
set(rooms base device comm model data optim consensus kfac train)
set(objects)
set(own_objects) # of the shared library, which loads the backends that need libraries of others
foreach(room IN LISTS rooms)
  list(APPEND objects $<TARGET_OBJECTS:room_${room}>)
  list(APPEND own_objects
       "$<FILTER:$<TARGET_OBJECTS:room_${room}>,EXCLUDE,/src/(comm/mpi|comm/nccl|device/cuda)/|/backends\\.c\\.o$>")
endforeach()
get_property(kernels GLOBAL PROPERTY descent_kernels)
get_property(kernel_targets GLOBAL PROPERTY descent_kernel_targets)
list(APPEND objects ${kernels})

# The two files that decide between linked and loaded backends.
add_library(descent_loading OBJECT src/device/backends.c src/comm/backends.c)
target_compile_definitions(descent_loading PRIVATE DSC_LOAD_MODULES)
target_link_libraries(descent_loading PRIVATE descent_flags)

# The first version whose programs run with this library (tests/abi); raised only when the interface is broken.
set(soversion 0.2)
add_library(descent_shared SHARED "${own_objects}" $<TARGET_OBJECTS:descent_loading>)
target_link_options(descent_shared PRIVATE LINKER:-Bsymbolic-functions) # calls within the library need no table
set_target_properties(descent_shared PROPERTIES OUTPUT_NAME descent VERSION ${PROJECT_VERSION} SOVERSION ${soversion}
                                                EXPORT_NAME descent INSTALL_RPATH_USE_LINK_PATH ON)
add_library(descent_static STATIC ${objects})
set_target_properties(descent_static PROPERTIES OUTPUT_NAME descent)
foreach(lib IN ITEMS descent_shared descent_static)
  target_include_directories(${lib} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  foreach(dependency IN ITEMS descent_flags descent_blas descent_openmp descent_onednn descent_images descent_json
          descent_protobuf ZLIB::ZLIB)
    target_link_libraries(${lib} PRIVATE $<BUILD_INTERFACE:${dependency}>)
  endforeach()
endforeach()
if(kernel_targets)
  add_dependencies(descent_static ${kernel_targets})
endif()
foreach(dependency IN ITEMS descent_cuda descent_mpi descent_nccl)
  target_link_libraries(descent_static PRIVATE $<BUILD_INTERFACE:${dependency}>)
endforeach()

include(cmake/modules.cmake)

# What a program that links the static library must link, too.
set(DESCENT_STATIC_LIBRARIES ${LAPACKE_LIBRARY} ${OPENBLAS_LINK_LIBRARIES} ${JANSSON_LINK_LIBRARIES} ${ZLIB_LIBRARIES})
if(DSC_HAVE_ONEDNN)
  list(APPEND DESCENT_STATIC_LIBRARIES ${ONEDNN_LIBRARY})
endif()
if(DSC_HAVE_MPI)
  list(APPEND DESCENT_STATIC_LIBRARIES ${MPI_C_LIBRARIES})
endif()
list(APPEND DESCENT_STATIC_LIBRARIES ${DESCENT_NCCL_LIBRARIES} ${DESCENT_CUDA_LIBRARIES})
if(JPEG_FOUND)
  list(APPEND DESCENT_STATIC_LIBRARIES ${JPEG_LIBRARIES})
endif()
if(PNG_FOUND)
  list(APPEND DESCENT_STATIC_LIBRARIES ${PNG_LIBRARIES})
endif()
if(DSC_HAVE_WEBP)
  list(APPEND DESCENT_STATIC_LIBRARIES ${WEBP_LINK_LIBRARIES})
endif()
if(DSC_HAVE_PROTOBUF)
  list(APPEND DESCENT_STATIC_LIBRARIES ${PROTOBUF_C_LINK_LIBRARIES})
endif()
list(APPEND DESCENT_STATIC_LIBRARIES ${OpenMP_C_LIBRARIES} -lm)
list(REMOVE_DUPLICATES DESCENT_STATIC_LIBRARIES)
list(JOIN DESCENT_STATIC_LIBRARIES " " DESCENT_STATIC_LINE)
if(DSC_HAVE_CUDA) # mostly not where the loader looks
  get_filename_component(cuda_libraries ${CUDA_LIBRARY_cudart} DIRECTORY)
  string(APPEND DESCENT_STATIC_LINE " -Wl,-rpath,${cuda_libraries}")
endif()

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/descent)
configure_package_config_file(cmake/descentConfig.cmake.in ${PROJECT_BINARY_DIR}/descentConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/descentConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# The prefix as seen from the installed file, so that the tree may be moved (and --prefix given at install time).
string(REGEX REPLACE "[^/]+" ".." DESCENT_PC_UP ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(DESCENT_PC_PREFIX "\${pcfiledir}/${DESCENT_PC_UP}")
configure_file(cmake/descent.pc.in ${PROJECT_BINARY_DIR}/descent.pc @ONLY)

# Component runtime: what runs without a compiler (the Python package carries it).
install(TARGETS descent_shared EXPORT descentTargets LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS descent_static EXPORT descentTargets)
install(EXPORT descentTargets NAMESPACE descent:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/descentConfig.cmake ${PROJECT_BINARY_DIR}/descentConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/descent.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY include/descent ${PROJECT_BINARY_DIR}/include/descent DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
