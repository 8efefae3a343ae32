# A program compiled with the headers of the first version of this soname runs with a library whose structs have grown.
if(NOT DESCENT_SANITIZE AND NOT DESCENT_COVERAGE)
  descent_script_test(abi abi/run)
  set_tests_properties(abi PROPERTIES PROCESSORS 4)
endif()
