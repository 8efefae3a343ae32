descent_script_test(example-train examples/train.sh)
