descent_script_test(example-train examples/train.sh)
descent_script_test(example-own examples/own.sh)
descent_script_test(example-kfac examples/kfac.sh)
descent_script_test(example-average examples/average.sh)
