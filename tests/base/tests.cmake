descent_test(base SOURCES base/test_base.c ROOMS base)
descent_test(trace SOURCES base/test_trace.c ROOMS base)
target_link_libraries(test_trace PRIVATE descent_json)

# The loader of modules, with modules made for it.
set(fake_modules ${CMAKE_CURRENT_BINARY_DIR}/modules)
descent_test(module SOURCES base/test_module.c ROOMS base)
target_compile_definitions(tests_base_test_module_c PRIVATE FAKE_MODULES="${fake_modules}")

# fake_module(NAME DEFINITIONS...): libdescent-NAME.so.
function(fake_module name)
  add_library(fake_module_${name} MODULE base/fake_module.c)
  set_target_properties(fake_module_${name} PROPERTIES OUTPUT_NAME descent-${name} PREFIX lib
                        LIBRARY_OUTPUT_DIRECTORY ${fake_modules} SKIP_BUILD_RPATH ON)
  target_compile_definitions(fake_module_${name} PRIVATE ${ARGN})
  target_link_libraries(fake_module_${name} PRIVATE descent_flags)
  add_dependencies(test_module fake_module_${name})
endfunction()

fake_module(good FAKE_NAME="good" FAKE_FUNCTION=dsc_fake_module)
fake_module(shared FAKE_NAME="shared" FAKE_FUNCTION=dsc_fake_module)
fake_module(old FAKE_NAME="old" FAKE_FUNCTION=dsc_fake_module FAKE_VERSION="0.0.9")
fake_module(renamed FAKE_NAME="good" FAKE_FUNCTION=dsc_fake_module)
fake_module(strange FAKE_NAME="strange" FAKE_FUNCTION=dsc_another_function)
fake_module(needy FAKE_NAME="needy" FAKE_FUNCTION=dsc_fake_module FAKE_NEEDS)
add_library(descent_fake_missing SHARED base/fake_missing.c)
target_link_libraries(fake_module_needy PRIVATE descent_fake_missing)
