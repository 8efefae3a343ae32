set(kfac_twin kfac/twin.c kfac/naive.c kfac/net.c)
descent_test(kfac-kronecker SOURCES kfac/test_kronecker.c ${kfac_twin} ROOMS kfac)
descent_test(kfac-step SOURCES kfac/test_step.c ${kfac_twin} ROOMS kfac)
descent_test(kfac-plan SOURCES kfac/test_plan.c ROOMS kfac)
descent_test(kfac-options SOURCES kfac/test_options.c ROOMS kfac)
descent_test(kfac-guards SOURCES kfac/test_guards.c ${kfac_twin} ROOMS kfac)
descent_test(kfac-together SOURCES kfac/test_together.c kfac/naive.c kfac/net.c ROOMS kfac RANKS 1 2 3 4
             SANITIZED 1 2 3)
descent_test(kfac-strategies SOURCES kfac/test_strategies.c kfac/naive.c kfac/net.c ROOMS kfac RANKS 1 2 3 4 6
             SANITIZED 1 2 3 4)
descent_test(kfac-state SOURCES kfac/test_state.c kfac/naive.c kfac/net.c ROOMS kfac RANKS 1 2 3 4
             SANITIZED 1 2 3)
descent_test(kfac-solve SOURCES kfac/test_solve.c ${kfac_twin} ROOMS kfac)
emulated_program(kfac-kronecker SOURCES kfac/test_kronecker.c ${kfac_twin} ROOMS kfac TESTS test_rounded*)
emulated_program(kfac-step SOURCES kfac/test_step.c ${kfac_twin} ROOMS kfac)
emulated_program(kfac-guards SOURCES kfac/test_guards.c ${kfac_twin} ROOMS kfac)
emulated_program(kfac-state SOURCES kfac/test_state.c kfac/naive.c kfac/net.c ROOMS kfac)
emulated_program(kfac-together SOURCES kfac/test_together.c kfac/naive.c kfac/net.c ROOMS kfac)
