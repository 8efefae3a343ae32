descent_test(safetensors SOURCES train/test_safetensors.c train/scratch.c ROOMS train)
descent_test(checkpoint SOURCES train/test_checkpoint.c train/runs.c train/scratch.c ROOMS train)
descent_test(train SOURCES train/test_train.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-ranks SOURCES train/test_ranks.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4)
