descent_test(optim SOURCES optim/test_optim.c ROOMS optim)
descent_test(schedule SOURCES optim/test_schedule.c ROOMS optim)
