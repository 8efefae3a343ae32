descent_test(safetensors SOURCES train/test_safetensors.c train/scratch.c ROOMS train)
descent_test(checkpoint SOURCES train/test_checkpoint.c train/runs.c train/scratch.c ROOMS train)
descent_test(run-files SOURCES train/test_run_files.c train/scratch.c ROOMS train)
descent_test(segments SOURCES train/test_segments.c ROOMS train)
descent_test(phases SOURCES train/test_phases.c ROOMS train)
descent_test(model-file SOURCES train/test_model_file.c train/runs.c train/scratch.c ROOMS train)
descent_test(hub-files SOURCES train/test_hub_files.c train/runs.c train/scratch.c ROOMS train)
descent_test(stored-tokenizer SOURCES train/test_stored_tokenizer.c train/runs.c train/scratch.c data/vocabulary.c
             data/fixture.c ROOMS train)
descent_test(train SOURCES train/test_train.c train/runs.c train/scratch.c ROOMS train)
descent_test(trainer SOURCES train/test_trainer.c train/scratch.c ROOMS train)
descent_test(train-ema SOURCES train/test_ema.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-ranks SOURCES train/test_ranks.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4
             SANITIZED 1 2 3)
descent_test(train-own SOURCES train/test_own.c train/runs.c train/scratch.c model/nets.c model/own_layers.c ROOMS train)
descent_test(train-kfac SOURCES train/test_kfac.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-warn SOURCES train/test_warn.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-padding SOURCES train/test_padding.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-damping SOURCES train/test_damping.c train/runs.c train/scratch.c ROOMS train)
descent_test(train-kfac-ranks SOURCES train/test_kfac_ranks.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4
             SANITIZED 1 2 3)
descent_test(train-gossip SOURCES train/test_gossip.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4
             SANITIZED 1 2 3)
descent_test(train-gossip-many SOURCES train/test_gossip.c train/runs.c train/scratch.c ROOMS train RANKS 8
             SANITIZED 4 ARGS test_learns)
descent_test(train-gossip-kfac SOURCES train/test_gossip_kfac.c train/runs.c train/scratch.c ROOMS train RANKS 1 2 3 4
             SANITIZED 1 2 3)

# Where ranks go on after a loss.
if(DSC_HAVE_MPI)
  add_executable(train_survive train/survive.c)
  descent_link_rooms(train_survive train)
  descent_script_test(train-survive train/survive.sh)
endif()

# Checkpoints as PyTorch loads them.
add_executable(train_export train/export.c)
descent_link_rooms(train_export train)
descent_script_test(train-torch train/torch-load)
emulated_program(checkpoint SOURCES train/test_checkpoint.c train/runs.c train/scratch.c ROOMS train)
emulated_program(model-file SOURCES train/test_model_file.c train/runs.c train/scratch.c ROOMS train)
emulated_program(train-padding SOURCES train/test_padding.c train/runs.c train/scratch.c ROOMS train)
emulated_program(train SOURCES train/test_train.c train/runs.c train/scratch.c ROOMS train
                 TESTS test_metrics test_stop_before test_rates test_not_finite test_small_resume test_scale)
if(NOT DESCENT_SANITIZE) # too slow with sanitizers
  emulated_program(train-kfac SOURCES train/test_kfac.c train/runs.c train/scratch.c ROOMS train
                   TESTS test_recorded test_refresh)
  emulated_program(train-damping SOURCES train/test_damping.c train/runs.c train/scratch.c ROOMS train
                   TESTS test_recorded)
  if(TARGET test_emulated_train-kfac)
    set_tests_properties(emulated-train-kfac-recorded PROPERTIES COST 60)
  endif()
endif()
emulated_program(train-ranks SOURCES train/test_ranks.c train/runs.c train/scratch.c ROOMS train
                 TESTS test_report test_drift test_agreed test_engines)
if(TARGET test_emulated_train-ranks AND DSC_HAVE_MPI)
  foreach(test IN ITEMS carrier engines)
    add_test(NAME emulated-train-ranks-${test}-n2 COMMAND ${MPIEXEC_EXECUTABLE} ${DESCENT_MPIEXEC_FLAGS} -n 2
             $<TARGET_FILE:test_emulated_train-ranks> test_${test})
    set_tests_properties(emulated-train-ranks-${test}-n2 PROPERTIES PROCESSORS 2 LABELS emulated SKIP_RETURN_CODE 77
                         TIMEOUT ${DESCENT_TEST_TIMEOUT}
                         ENVIRONMENT "${descent_mpi_environment};DESCENT_TEST_DEVICE=cuda")
  endforeach()
endif()
emulated_program(train-kfac-ranks SOURCES train/test_kfac_ranks.c train/runs.c train/scratch.c ROOMS train
                 TESTS test_refused)
emulated_program(train-gossip SOURCES train/test_gossip.c train/runs.c train/scratch.c ROOMS train
                 TESTS test_alone test_resume)
emulated_program(train-gossip-kfac SOURCES train/test_gossip_kfac.c train/runs.c train/scratch.c ROOMS train
                 TESTS test_refused)
