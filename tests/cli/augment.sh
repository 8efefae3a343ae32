#!/usr/bin/env bash
# Mixup, CutMix, RandAugment, erasing and class weights in whole runs: the same bits with any number of threads and after a
# resume, the same run on one and on two ranks, with K-FAC, and a training that learns.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
small=(train --model lenet --data synthetic:96 --batch-size 16 --threads 1 --device cpu --epochs 2 --lr 0.02 --label-smoothing 0.1
    --mixup 0.4 --cutmix 1 --randaugment 9 --random-erasing 0.25 --class-weights balanced)

# number KEY LINE: the number of a key in a line of JSON.
number() {
    sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$2"
}
# line KIND DIR: the last line of this kind.
line() {
    grep "\"kind\":\"$1\"" "$2/metrics.jsonl" | tail -n 1
}
# near A B: the numbers differ by a ten thousandth at most.
near() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(d < 1e-4 && d > -1e-4) }'
}

expect 0 "done: " "${small[@]}" --out whole
expect 0 "done: " "${small[@]}" --data-threads 3 --out threads
expect 0 "done: " "${small[@]}" --steps 5 --out parts
expect 0 "done: " "${small[@]}" --out parts --resume
for run in threads parts; do
    cmp whole/checkpoint-12.safetensors $run/checkpoint-12.safetensors || complain "$run: other bits than the whole run"
done
for option in --mixup --cutmix --random-erasing --randaugment; do
    expect 0 "done: " "${small[@]}" $option 0 --out "without$option"
    if cmp -s whole/checkpoint-12.safetensors "without$option/checkpoint-12.safetensors"; then complain "$option changes nothing"; fi
done
expect 0 "done: " "${small[@]}" --kfac-update-freq 3 --kfac-fisher sampled --kfac-damping-adapt 4 --ema 0.9 --out kfac
if have_mpi; then
    job 2 "$descent" "${small[@]}" --batch-size 8 --lr-scaling none --out two >stdout 2>&1 || { complain "two ranks"; tail -n 5 stdout; }
    for kind in epoch eval; do
        near "$(number loss "$(line $kind two)")" "$(number loss "$(line $kind whole)")" ||
            complain "two ranks: $(line $kind two), one: $(line $kind whole)"
    done
fi

# Class weights: with n_c samples of class c and the mean loss L_c of class c alone, balanced weights give the mean of the L_c.
one=(train --model mlp --data synthetic:64 --batch-size 64 --threads 1 --device cpu --steps 1 --eval-every 0 --no-augment)
sum=0
for class in 0 1 2 3 4 5 6 7 8 9; do
    for other in 0 1 2 3 4 5 6 7 8 9; do echo $((class == other)); done >only
    expect 0 "done: " "${one[@]}" --class-weights only --out "class$class"
    sum="$sum $(number loss "$(line step "class$class")")"
done
expect 0 "done: " "${one[@]}" --class-weights balanced --out balanced
mean=$(awk '{ for (i = 1; i <= NF; i++) s += $i; print s / 10 }' <<<"$sum")
near "$mean" "$(number loss "$(line step balanced)")" || complain "balanced: $(line step balanced), but the mean of the classes is $mean"
# Weights that are all alike change nothing, whatever their size.
printf '# ten times the same\n7 7 7 7 7\n\n7 7 7 7 7 # end' >same
expect 0 "done: " "${one[@]}" --class-weights same --out same-run
expect 0 "done: " "${one[@]}" --out none-run
near "$(number loss "$(line step same-run)")" "$(number loss "$(line step none-run)")" || complain "equal weights change the loss"

# Files that are no weights, and options that make no sense.
for text in "1 2 3" "1 2 3 4 5 6 7 8 9 10 11" "0 0 0 0 0 0 0 0 0 0" "1 2 3 4 5 x 7 8 9 10" "1 2 3 4 5 -6 7 8 9 10" \
    "1 1 1 1 1 1 1 1 1 nan" "1 1 1 1 1 1 1 1 1 1e999" ""; do
    printf '%s' "$text" >bad
    expect 2 "class-weights 'bad'" "${one[@]}" --class-weights bad --out bad-run
    [ ! -e bad-run/metrics.jsonl ] || complain "a refused run has written metrics"
done
for i in 1 2 3 4 5 6; do # noise
    head -c $((i * 37)) /dev/urandom >bad
    expect 2 "class-weights 'bad'" "${one[@]}" --class-weights bad --out bad-run
done
expect 2 "class-weights 'missing': No such file" "${one[@]}" --class-weights missing --out bad-run
expect 2 "class-weights '.'" "${one[@]}" --class-weights . --out bad-run
expect 2 "--mixup -1: must be at least 0 and at most 100" "${one[@]}" --mixup -1
expect 2 "--randaugment 31: must be at least 0 and at most 30" "${one[@]}" --randaugment 31
expect 2 "--randaugment-ops needs --randaugment" "${one[@]}" --randaugment-ops 3
expect 2 "must be a number from 0 to 1" "${one[@]}" --random-erasing 2
finish
