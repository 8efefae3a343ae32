descent_test(topology SOURCES consensus/test_topology.c consensus/graphs.c ROOMS consensus)
descent_test(topology-file SOURCES consensus/test_topology_file.c consensus/graphs.c ROOMS consensus)
descent_test(consensus SOURCES consensus/test_consensus.c ROOMS consensus RANKS 1 2 3 4 PROCESSORS 2)
emulated_program(consensus SOURCES consensus/test_consensus.c ROOMS consensus)
descent_test(adpsgd SOURCES consensus/test_adpsgd.c ROOMS consensus RANKS 1 2 3 4 6 8 SANITIZED 1 2 3 4 PROCESSORS 2)
descent_test(adpsgd-threads SOURCES consensus/test_adpsgd.c ROOMS consensus)
emulated_program(adpsgd SOURCES consensus/test_adpsgd.c ROOMS consensus)
descent_test(average SOURCES consensus/test_average.c ROOMS consensus RANKS 1 2 3 4 5 8 SANITIZED 1 2 3 4 PROCESSORS 2)
emulated_program(average SOURCES consensus/test_average.c ROOMS consensus)
descent_test(average-faults SOURCES consensus/test_average_faults.c ROOMS consensus RANKS 1 2 3 4 8 SANITIZED 1 2 3
             PROCESSORS 1) # it waits, most of the time
emulated_program(average-faults SOURCES consensus/test_average_faults.c ROOMS consensus)
descent_test(gossip SOURCES consensus/test_gossip.c ROOMS consensus RANKS 1 2 3 4 6 8 SANITIZED 1 2 3 4 PROCESSORS 2)
descent_test(consensus-foreign SOURCES consensus/test_foreign.c ROOMS consensus RANKS 1 2 3 4 PROCESSORS 2)
emulated_program(consensus-foreign SOURCES consensus/test_foreign.c ROOMS consensus)
emulated_program(gossip SOURCES consensus/test_gossip.c ROOMS consensus)
descent_test(gossip-state SOURCES consensus/test_gossip_state.c ROOMS consensus RANKS 1 2 3 4 6 SANITIZED 1 2 3 4 PROCESSORS 2)
emulated_program(gossip-state SOURCES consensus/test_gossip_state.c ROOMS consensus)
# Memory that the host cannot read, between ranks.
foreach(test average average-faults consensus-foreign gossip gossip-state)
  if(TARGET test_emulated_${test} AND DSC_HAVE_MPI)
    add_test(NAME emulated-${test}-n2 COMMAND ${MPIEXEC_EXECUTABLE} ${DESCENT_MPIEXEC_FLAGS} -n 2
             $<TARGET_FILE:test_emulated_${test}>)
    set_tests_properties(emulated-${test}-n2 PROPERTIES ENVIRONMENT "${descent_mpi_environment};DESCENT_TEST_DEVICE=cuda"
                         TIMEOUT ${DESCENT_TEST_TIMEOUT} LABELS emulated PROCESSORS 2 SKIP_RETURN_CODE 77)
  endif()
endforeach()
