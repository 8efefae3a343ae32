# The Python package, driven by pytest: in one process, and on ranks of mpirun and of torchrun.
descent_script_test(python-one python/run one)
set_tests_properties(python-one PROPERTIES PROCESSORS 3 COST 90)
foreach(ranks IN ITEMS 2 3)
  if(DSC_HAVE_MPI)
    descent_script_test(python-mpi-n${ranks} python/run mpi ${ranks})
    set_tests_properties(python-mpi-n${ranks} PROPERTIES PROCESSORS 3 COST 90)
  endif()
  descent_script_test(python-torchrun-n${ranks} python/run torchrun ${ranks})
  set_tests_properties(python-torchrun-n${ranks} PROPERTIES PROCESSORS 3 COST 90)
endforeach()
descent_script_test(python-transformers python/run transformers)

# The wheel. Not with sanitizers, whose libraries must be loaded first.
if(NOT DESCENT_SANITIZE AND NOT DESCENT_COVERAGE)
  descent_script_test(python-wheel python/wheel)
endif()
