#!/usr/bin/env bash
# --ema: the average of the weights is evaluated, saved in a file of its own that eval takes, and removed with its checkpoint;
# the training itself has the bits of a run without it, on every consensus.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
small=(train --model lenet --data synthetic:128 --batch-size 16 --threads 1 --device cpu --epochs 4 --lr 0.02)

value() {
    sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$2"
}
evaluation() {
    grep '"kind":"eval"' "$1/metrics.jsonl" | tail -n 1
}
# near A B: the numbers differ by a thousandth at most.
near() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(d < 1e-3 && d > -1e-3) }'
}

expect 0 "average of the weights: validation loss" "${small[@]}" --ema 0.9 --keep 0 --out with
expect 0 "" "${small[@]}" --out without
cmp with/checkpoint-32.safetensors without/checkpoint-32.safetensors || complain "--ema changes the training"
expect 0 "" eval --checkpoint with/checkpoint-32.ema.safetensors --threads 1
top1=$(awk -v x="$(value ema_top1 "$(evaluation with)")" 'BEGIN { printf "%.2f", 100 * x }')
has stdout "top-1 $top1 %"
expect 0 "with (EMA)" report with without # a second curve beside that of the weights
has stdout "EMA top-1"
! grep -q "without (EMA)" stdout || complain "a run without an average has a curve of one"
expect 0 "" report without
! grep -q "EMA" stdout || complain "a column of averages that are not there"
for model in with/checkpoint-*.safetensors; do # files of checkpoints that were removed went with them
    step=${model#with/checkpoint-}
    [ -e "with/checkpoint-${step%%.*}.safetensors" ] || complain "$model is left over"
done
expect 2 "--ema 1: must be at least 0 and below 1" "${small[@]}" --ema 1
expect 2 "training cannot continue" "${small[@]}" --ema 0.9 --resume with/checkpoint-32.ema.safetensors --out other

have_mpi || finish
# Two ranks of half the batch give what one rank gives. With gossip at rate 0 every rank keeps its weights, and so
# does the average; the weight of the average is that of all steps, so no step is lost.
two() {
    local out=$1
    shift
    job 2 "$descent" "${small[@]}" --batch-size 8 "$@" --out "$out" >stdout 2>&1 || { complain "two ranks: $*"; tail -n 5 stdout; }
}
two pair --lr-scaling none --ema 0.9
near "$(value ema_loss "$(evaluation pair)")" "$(value ema_loss "$(evaluation with)")" ||
    complain "two ranks average to another loss: $(evaluation pair), $(evaluation with)"
for consensus in sgp dpsgd; do
    two "$consensus" --epochs 2 --consensus $consensus --ema 0.9
    two "$consensus-plain" --epochs 2 --consensus $consensus
    cmp "$consensus/checkpoint-16.safetensors" "$consensus-plain/checkpoint-16.safetensors" ||
        complain "--ema changes the training with $consensus"
    two "$consensus-still" --epochs 1 --consensus $consensus --ema 0.9 --lr 0
    near "$(value ema_loss "$(evaluation "$consensus-still")")" "$(value loss "$(evaluation "$consensus-still")")" ||
        complain "the average of weights that stay is another: $(evaluation "$consensus-still")"
    two "$consensus-parts" --epochs 1 --consensus $consensus --ema 0.9
    two "$consensus-parts" --epochs 2 --consensus $consensus --ema 0.9 --resume
    cmp "$consensus/checkpoint-16.ema.safetensors" "$consensus-parts/checkpoint-16.ema.safetensors" ||
        complain "a run with $consensus that is resumed has another average"
done
two adpsgd --epochs 2 --consensus adpsgd --ema 0.9
has adpsgd/metrics.jsonl '"ema_top1"'
finish
