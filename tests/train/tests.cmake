descent_test(safetensors SOURCES train/test_safetensors.c train/scratch.c ROOMS train)
descent_test(checkpoint SOURCES train/test_checkpoint.c train/runs.c train/scratch.c ROOMS train)
descent_test(train SOURCES train/test_train.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-ranks SOURCES train/test_ranks.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4)
descent_test(train-kfac SOURCES train/test_kfac.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-kfac-ranks SOURCES train/test_kfac_ranks.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4)

# Checkpoints as PyTorch loads them.
add_executable(train_export train/export.c)
descent_link_rooms(train_export train)
descent_script_test(train-torch train/torch-load)
