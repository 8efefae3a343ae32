descent_test(safetensors SOURCES train/test_safetensors.c train/scratch.c ROOMS train)
