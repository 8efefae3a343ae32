descent_test(consensus SOURCES consensus/test_consensus.c ROOMS consensus RANKS 1 2 3 4)
emulated_program(consensus SOURCES consensus/test_consensus.c ROOMS consensus)
