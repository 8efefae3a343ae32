#!/usr/bin/env bash
# Repeating a run: its options restored, its directory found again.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model mlp --data synthetic:128 --batch-size 32 --threads 1 --device cpu --eval-every 0)

# losses DIR: steps and losses of its metrics.
losses() {
    sed -n 's/.*"kind":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"
}

# --resume DIR alone restores every option: the bits of a run that never stopped.
options=(--lr 0.03 --momentum 0.8 --optimizer sgd --nesterov --lr-decay 1 2 --seed 9 --label-smoothing 0.1 --no-augment)
expect 0 "done: " "${small[@]}" "${options[@]}" --epochs 3 --out whole
expect 0 "done: " "${small[@]}" "${options[@]}" --epochs 3 --steps 6 --out half
expect 0 "options: those of half/config, but steps 0 instead of 6" train --resume half --steps 0
[ "$(head -n 1 stdout)" = "output: half" ] || complain "the directory is not named first: $(head -n 1 stdout)"
cmp -s <(losses whole) <(losses half) || complain "--resume DIR continues with other options: $(diff <(losses whole) <(losses half))"
diff <(grep -vE '^(out|steps) = ' whole/config) <(grep -vE '^(out|steps) = ' half/config) || complain "--resume DIR stores other options"
has half/config "out = half"
has half/config "nesterov = on"

# A run whose directory was moved continues in its new place, also from a named checkpoint; from a file a new run
# begins.
mv half moved
expect 0 "step 12" train --resume moved --epochs 4
has moved/config "out = moved"
[ ! -e half ] || complain "the directory has its old name again"
expect 0 "step 8" train --resume moved:8 --epochs 4 --out branch
expect 0 "output: runs/mlp-synthetic-no-augment-batch-size32-seed9-momentum0.8-nesterov-lr0.03-and-2-more-1" \
    train --resume moved/checkpoint-16.safetensors --epochs 5
expect 2 "has no checkpoint of step 7: there are" train --resume moved:7

expect 0 "options: those of moved/config" train --resume moved/ --epochs 5
[ "$(head -n 1 stdout)" = "output: moved" ] || complain "a slash at the end: $(head -n 1 stdout)"

# State beside the weights that a continuation needs: the average of weights, mixed images, the split, the count for
# --patience.
more=(--val-split 0.2 --ema 0.9 --mixup 0.4 --random-erasing 0.3 --patience 9 --class-weights balanced --lr-schedule one-cycle --kfac-update-freq 3
    --kfac-skip-layers fc1)
expect 0 "done: " "${small[@]}" "${more[@]}" --eval-every 1 --epochs 3 --out mixed
"$descent" "${small[@]}" "${more[@]}" --eval-every 1 --epochs 3 --steps 4 --out parts >stdout 2>&1 || complain "a part: $(tail -n 2 stdout)"
expect 0 "done: " train --resume parts --steps 0
for file in mixed/checkpoint-9.safetensors mixed/checkpoint-9.ema.safetensors; do
    cmp -s "$file" "parts/${file#*/}" || complain "$file is another after a resume"
done

# The value none removes an option that the run had.
expect 0 "done: " "${small[@]}" --epochs 1 --eval-every 1 --freeze fc1 --stop-at top1=99 --tensorboard --out had
expect 0 "epochs 2 instead of 1, stop-at none instead of top1=99, tensorboard none instead of auto" \
    train --resume had --epochs 2 --freeze none --stop-at none --tensorboard none
has stdout "freeze none instead of fc1"
has had/config "# freeze: none"

# Changes are listed, options that no longer apply are dropped, and options that cannot change are refused by name.
expect 0 "done: " "${small[@]}" --epochs 1 --kfac-update-freq 2 --kfac-damping 0.1 --kfac-skip-layers fc1 --out kfac
expect 0 "resumed with other options than the saved run: momentum 0.5 instead of 0.9" train --resume kfac --epochs 2 --momentum 0.5
has stdout "but epochs 2 instead of 1"
expect 0 "kfac-update-freq 0 instead of 2" train --resume kfac --epochs 3 --kfac-update-freq 0
if grep -q "^kfac-damping" kfac/config; then complain "K-FAC's options stay when it is turned off"; fi
for change in "model lenet" "optimizer adam"; do
    # shellcheck disable=SC2086 # an option and its value
    expect 2 "a run that is resumed cannot change ${change% *}: it is ${change#* } now, but was" train --resume kfac --epochs 9 --$change
done
expect 2 "nowhere" train --resume nowhere
expect 2 "nowhere" train --resume nowhere:best
echo "no-such-key = 3" >>kfac/config
expect 2 "kfac/config" train --resume kfac --epochs 9
rm -r runs

# Default output directories do not collide: they are numbered, and the one with these options is found again.
expect 0 "output: runs/mlp-synthetic-batch-size32-1" "${small[@]}" --epochs 1
expect 0 "output: runs/mlp-synthetic-batch-size32-2" "${small[@]}" --epochs 1
expect 0 "output: runs/mlp-synthetic-batch-size32-lr0.05-1" "${small[@]}" --epochs 1 --lr 0.05 --resume auto
expect 0 "output: runs/mlp-synthetic-batch-size32-2" "${small[@]}" --epochs 2 --resume auto
has stdout "resumed from 'runs/mlp-synthetic-batch-size32-2/checkpoint-4.safetensors'"
sed -i 's/^lr = .*/lr = 0.2/' runs/mlp-synthetic-batch-size32-2/config # no longer the run of this command line
expect 0 "resumed from 'runs/mlp-synthetic-batch-size32-1/" "${small[@]}" --epochs 3 --resume auto
expect 0 "suggested" find-lr "${small[@]:1}" --steps 20 --resume auto
# A run stores what --kfac-refresh auto stands for on its device, and is found by the command line that said auto.
expect 0 "refresh exact" "${small[@]}" --device cpu --epochs 1 --kfac-update-freq 4
has runs/mlp-synthetic-batch-size32-kfac-update-freq4-1/config "kfac-refresh = exact"
expect 0 "resumed from 'runs/mlp-synthetic-batch-size32-kfac-update-freq4-1/" "${small[@]}" --device cpu --epochs 2 \
    --kfac-update-freq 4 --resume auto
mkdir runs/mlp-synthetic-batch-size32-7 runs/mlp-synthetic-batch-size32-x # holds no run
expect 0 "output: runs/mlp-synthetic-batch-size32-1" "${small[@]}" --epochs 4 --resume auto
expect 0 "output: runs/mlp-synthetic-batch-size32-8" "${small[@]}" --epochs 1
expect 0 "output: runs/mlp-synthetic-batch-size32-init-whole-1" "${small[@]}" --epochs 1 --init ./whole --resume auto --progress-every 3
for i in 1 2 3; do "$descent" "${small[@]}" --epochs 1 --seed 3 >"log$i" 2>&1 & done
wait
[ "$(cat log1 log2 log3 | grep -c "^written: runs/mlp-synthetic-batch-size32-seed3-[123]$")" = 3 ] || complain "three at once: $(cat log1 log2 log3)"
if have_mpi; then
    for number in 1 1; do
        job 2 "$descent" "${small[@]}" --batch-size 16 --epochs "$number" --resume auto >stdout 2>stderr || complain "two ranks: $(cat stderr)"
        [ "$(grep -c "^output: runs/mlp-synthetic-batch-size16-1$" stdout)" = 1 ] || complain "two ranks write into $(grep output stdout)"
    done
    job 2 "$descent" train --resume runs/mlp-synthetic-batch-size16-1 --epochs 2 >stdout 2>stderr || complain "two ranks, --resume DIR: $(cat stderr)"
    has stdout "but epochs 2 instead of 1"
fi
rm -r runs

finish
