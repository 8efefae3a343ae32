descent_test(cli_option SOURCES cli/test_option.c ROOMS base)

# A test of parts of the program lists the source files it needs, because the program's main() must not be linked.
set(cli ${PROJECT_SOURCE_DIR}/src/cli)
descent_test(cli_report SOURCES cli/test_report.c ${cli}/runlog.c ${cli}/report_columns.c ${cli}/report_table.c
             ${cli}/report_plot.c ${cli}/report_html.c ${cli}/plot.c ${cli}/terminal.c ${cli}/support.c ${cli}/json_out.c ${cli}/text.c ROOMS train)
target_link_options(test_cli_report PRIVATE LINKER:--wrap=calloc) # makes it fail
target_link_libraries(test_cli_report PRIVATE descent_json)
target_sources(test_cli_report PRIVATE $<TARGET_OBJECTS:descent_page>)
descent_test(cli_progress SOURCES cli/test_progress.c ${cli}/progress_bar.c ${cli}/terminal.c ${cli}/support.c ${cli}/text.c
             ROOMS base)

descent_test(cli_train_options SOURCES cli/test_train_options.c ${cli}/train_options.c ${cli}/train_out.c
             ${cli}/train_restore.c ${cli}/support.c ROOMS train)

descent_test(cli_range_test SOURCES cli/test_range_test.c ${cli}/range_test.c ${cli}/support.c ROOMS base)
descent_test(cli_sweep SOURCES cli/test_sweep.c ${cli}/sweep_plan.c ${cli}/sweep_places.c ${cli}/sweep_rule.c
             ${cli}/runlog.c ${cli}/support.c ${cli}/text.c ROOMS train)
target_link_libraries(test_cli_sweep PRIVATE descent_json)

descent_script_test(cli-usage cli/usage.sh)
descent_script_test(cli-info cli/info.sh)
descent_script_test(cli-man cli/man.sh)
descent_script_test(cli-waiting cli/waiting.sh)
descent_script_test(cli-train cli/train.sh)
descent_script_test(cli-config cli/config.sh)
descent_script_test(cli-terminal cli/terminal.sh)
descent_script_test(cli-tmux cli/tmux.sh)
descent_script_test(cli-warnings cli/warnings.sh)
descent_script_test(cli-killed cli/killed.sh)
descent_script_test(cli-completion cli/completion.sh)
descent_script_test(cli-out cli/out.sh)
descent_script_test(cli-ema cli/ema.sh)
descent_script_test(cli-augment cli/augment.sh)
descent_script_test(cli-early cli/early.sh)
descent_script_test(cli-report cli/report.sh)
descent_script_test(cli-checkpoints cli/checkpoints.sh)
descent_script_test(cli-tensorboard cli/tensorboard.sh)
descent_script_test(cli-report-page cli/report_page.py)
descent_script_test(cli-trace cli/trace.sh)
descent_script_test(cli-repeat cli/repeat.sh)
descent_script_test(cli-dry-run cli/dry-run.sh)
descent_script_test(cli-every-option cli/every_option.py)
descent_script_test(cli-paper cli/paper.sh)
descent_script_test(cli-fail cli/fail.sh)
descent_script_test(cli-bad cli/bad.sh)
descent_script_test(cli-data cli/data.sh)
descent_script_test(cli-signal-n1 cli/signal.sh 1)
descent_script_test(cli-signal-n2 cli/signal.sh 2)
descent_script_test(cli-average cli/average.sh)
descent_script_test(cli-find-lr cli/find-lr.sh)
descent_script_test(cli-sweep cli/sweep.sh)
descent_script_test(cli-sweep-stop cli/sweep-stop.sh)
descent_script_test(cli-tokenize cli/tokenize.sh)
descent_script_test(cli-sequences cli/sequences.sh)
descent_script_test(cli-masks cli/masks.sh)
descent_script_test(cli-eval cli/eval.sh)
descent_script_test(cli-finetune cli/finetune.sh)
descent_script_test(cli-predict cli/predict.sh)
descent_script_test(cli-transfer cli/transfer.sh)
descent_script_test(cli-gossip cli/gossip.sh)
foreach(mode IN ITEMS allreduce sgp adpsgd average)
  descent_script_test(cli-silent-${mode} cli/silent.sh ${mode})
  set_tests_properties(cli-silent-${mode} PROPERTIES PROCESSORS 1 COST 50) # they wait
endforeach()
set_tests_properties(cli-average cli-fail PROPERTIES PROCESSORS 1 COST 50) # they wait for jobs to begin and end
set_tests_properties(cli-gossip cli-info PROPERTIES COST 60) # the longest
set(modes first osgp dpsgd adpsgd kfac late stop odd)
if(NOT DESCENT_SANITIZE) # first, kfac and late are sgp, too
  list(APPEND modes sgp)
endif()
foreach(mode IN LISTS modes)
  descent_script_test(cli-survive-${mode} cli/survive.sh ${mode})
  set_tests_properties(cli-survive-${mode} PROPERTIES PROCESSORS 1 COST 50) # they wait for ranks that do not answer
endforeach()
