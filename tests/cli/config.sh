#!/usr/bin/env bash
# A run writes its options to OUT/config; --config reads them back to the same run: the same configuration in
# metrics.jsonl, and the same bits.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# config_of DIR: the `config` object of its run line, and the losses of its steps.
config_of() {
    sed -n 's/.*"kind":"run".*"config":\(.*\)/\1/p; s/.*"kind":"step".*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"
}

number=0
again() {
    number=$((number + 1))
    expect 0 "done: " train --model mlp --data synthetic:256 --batch-size 32 --threads 1 --device cpu --steps 3 --out "first$number" "$@"
    expect 0 "done: " train --config "first$number/config" --out "second$number"
    config_of "first$number" >expected
    config_of "second$number" >got
    [ "$(wc -l <expected)" = 4 ] || complain "no configuration and three losses in the metrics of: $*"
    cmp -s expected got || { complain "--config reads back another run: $*"; diff expected got; }
    cmp -s "first$number/checkpoint-3.safetensors" "second$number/checkpoint-3.safetensors" ||
        complain "--config reads back a run with other bits: $*"
    diff <(grep -v '^out = ' "first$number/config") <(grep -v '^out = ' "second$number/config") ||
        complain "the run read back writes another configuration: $*"
}

again --epochs 1
again --optimizer adam --eps 1e-7 --beta1 0.8 --lr 0.0012345678901234567 --lr-schedule cosine
again --optimizer lars --trust 0.002 --clip-norm 1 --lr-scaling none --check-every 3 --keep 1 --checkpoint-every -1
again --lr-decay 1,2.5 --warmup-start 0.01 --warmup-epochs 2 --no-augment --seed 18446744073709551615 --nesterov
again --lr-schedule one-cycle --lr-rise 0.5 --optimizer adamw --decay-on weights
has "first$number/config" "lr = 0.001"
has "first$number/config" "# warmup-epochs = 5"
again --lr-schedule restarts --lr-period 0.125 --lr-period-factor 1.5 --optimizer lamb
has "first$number/config" "lr = 0.005"
again --lr-schedule polynomial --lr-power 3
again --kfac-update-freq 2 --kfac-method inverse --kfac-damping 0.1 --kfac-damping-decay 0.5 2 --kfac-skip-layers "fc1 #x" \
    --bucket-mb 0.5 --kfac-inverse-dtype bf16 --kfac-grad-worker-fraction 1/3
again --consensus osgp --peers-schedule 0:1,3:2 --average-every 2 --slow-momentum 0.5 --distance-every 2 --bn-average --eval-ranks
again --consensus dpsgd --kfac-update-freq 3 --kfac-scope local --kfac-fisher sampled --on-peer-loss continue

# The file belongs to the run: it is written anew when the run continues, and removed with the run.
expect 0 "done: " train --config first1/config --steps 5 --out first1 --resume
has first1/config "steps = 5"
if grep -q "other options" stdout stderr; then complain "more steps count as another option: $(grep "other options" stdout stderr)"; fi

# Options that differ from the saved run are reported in one line, also from another directory, except those that may
# change.
expect 0 "resumed with other options than the saved run: lr 0.05 instead of 0.1, momentum 0.5 instead of 0.9" \
    train --config first1/config --steps 6 --out first1 --resume --lr 0.05 --momentum 0.5 --keep 5 --eval-every 0 --log-every 2
expect 0 "done: " train --config first1/config --steps 7 --out first1 --resume # the file is that of the last run
if grep -q "other options" stdout stderr; then complain "the same options count as others: $(grep "other options" stdout stderr)"; fi
expect 0 "than the saved run: warmup-start 0.01 instead of lr, lr-decay 1 2.5 instead of none, kfac-update-freq 2 instead of" \
    train --config first1/config --steps 8 --out third --resume first1 --lr-decay 1,2.5 --kfac-update-freq 2 --warmup-start 0.01 \
    --bucket-mb 0.5

# A file that is damaged or missing does not prevent a resume.
head -c 300 /dev/urandom >noise
for damage in "lr = fast" "batch-size" "$(tr -d '\0' <noise)"; do
    printf '%s\n' "$damage" >first1/config
    expect 0 "done: " train --model mlp --data synthetic:256 --batch-size 32 --threads 1 --device cpu --steps 8 --out first1 --resume
done
printf 'lr = fast\n' >first1/config
expect 0 "are not compared with those of this one: first1/config:1: lr" \
    train --model mlp --data synthetic:256 --batch-size 32 --threads 1 --device cpu --steps 9 --out first1 --resume
rm first1/config
expect 0 "done: " train --model mlp --data synthetic:256 --batch-size 32 --threads 1 --device cpu --steps 10 --out first1 --resume
if grep -q "options" stdout stderr; then complain "a missing file is reported: $(grep "options" stdout stderr)"; fi
has first1/config "steps = 10"
expect 0 "done: " train --config first1/config --steps 1 --out first1 --overwrite
has first1/config "steps = 1"
finish
