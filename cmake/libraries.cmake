# libdescent, shared and static, and how others find it.
set(all_rooms base device comm model data optim consensus train)
set(objects)
set(needs)
foreach(room IN LISTS all_rooms)
  list(APPEND objects $<TARGET_OBJECTS:room_${room}>)
endforeach()
set(private_libraries descent_blas descent_openmp descent_onednn descent_mpi descent_images descent_json ZLIB::ZLIB
                      Threads::Threads m)

add_library(descent_shared SHARED ${objects})
set_target_properties(descent_shared PROPERTIES OUTPUT_NAME descent VERSION ${PROJECT_VERSION} SOVERSION 0)
add_library(descent_static STATIC ${objects})
set_target_properties(descent_static PROPERTIES OUTPUT_NAME descent)
foreach(lib IN ITEMS descent_shared descent_static)
  target_include_directories(${lib} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${lib} PRIVATE $<BUILD_INTERFACE:descent_flags>)
  foreach(dependency IN LISTS private_libraries)
    target_link_libraries(${lib} PRIVATE $<BUILD_INTERFACE:${dependency}>)
  endforeach()
endforeach()
