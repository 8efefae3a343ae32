#!/usr/bin/env bash
# Early stopping: --patience and --stop-at end a run at the right evaluation, on any number of ranks, and a run that has
# ended so stays ended when it is resumed.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
small=(train --model lenet --data synthetic:128 --batch-size 16 --threads 1 --device cpu --epochs 12)

# value KEY LINE: the number or word of a key in a line of JSON.
value() {
    sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$2"
}
# line KIND DIR: the last line of this kind.
line() {
    grep "\"kind\":\"$1\"" "$2/metrics.jsonl" | tail -n 1
}
evaluations() {
    grep -c '"kind":"eval"' "$1/metrics.jsonl"
}

# With rate 0 nothing improves: the first evaluation is the best, and the run ends 3 evaluations after it.
expect 0 "stopped: no better top-1 in 3 evaluations" "${small[@]}" --lr 0 --patience 3 --out patient
[ "$(evaluations patient)" = 4 ] || complain "patience 3 gave $(evaluations patient) evaluations instead of 4"
[ "$(value stopped "$(line end patient)")" = patience ] || complain "the end line does not say patience: $(line end patient)"
[ "$(value target_s "$(line end patient)")" = null ] || complain "a time to a target that there was not"
expect 0 "done: 4 epochs" "${small[@]}" --lr 0 --patience 3 --out patient --resume
[ "$(evaluations patient)" = 4 ] || complain "a run that has ended goes on when it is resumed"

expect 2 "patience 3 with --eval-every 0: there are no evaluations" "${small[@]}" --patience 3 --eval-every 0 --out none

# The count survives a stop: two evaluations, then the other two; with more patience the run continues.
expect 0 "done: 2 epochs" "${small[@]}" --lr 0 --patience 3 --epochs 2 --out parts
expect 0 "done: 4 epochs" "${small[@]}" --lr 0 --patience 3 --out parts --resume
expect 0 "done: 6 epochs" "${small[@]}" --lr 0 --patience 5 --out parts --resume

# The target is reached at the first evaluation with this loss, and its time is that of the evaluation.
expect 0 "done: 4 epochs" "${small[@]}" --lr 0.02 --epochs 4 --out free
goal=$(value loss "$(grep '"kind":"eval"' free/metrics.jsonl | sed -n 3p)")
first=$(grep '"kind":"eval"' free/metrics.jsonl | while read -r text; do value loss "$text"; done |
    awk -v goal="$goal" '$1 <= goal && !found { found = NR } END { print found }')
expect 0 "reached: loss=$goal after" "${small[@]}" --lr 0.02 --stop-at "loss=$goal" --out goal
[ "$(evaluations goal)" = "$first" ] || complain "loss $goal was reached at evaluation $(evaluations goal) instead of $first"
[ "$(value stopped "$(line end goal)")" = target ] || complain "the end line does not say target: $(line end goal)"
[ "$(value target_s "$(line end goal)")" = "$(value time_s "$(line eval goal)")" ] ||
    complain "target_s is not the time of the evaluation: $(line end goal)"
expect 0 "to target" report goal free --no-plot
expect 0 "" report goal free --csv
awk -F, -v want="$(value target_s "$(line end goal)")" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "target_s") c = i }
    NR == 2 && ($c - want > 1e-6 || want - $c > 1e-6 || $c == "") { exit 1 } NR == 3 && $c != "" { exit 1 }' stdout ||
    complain "the report has another time to the target: $(cat stdout)"
ls goal/checkpoint-$((8 * first)).safetensors >/dev/null || complain "no checkpoint where the target was reached"
expect 0 "reached: loss=$goal after" "${small[@]}" --lr 0.02 --stop-at "loss=$goal" --out goal --resume
[ "$(evaluations goal)" = "$first" ] || complain "a run at its target goes on when it is resumed"
expect 0 "done: 12 epochs" "${small[@]}" --lr 0.02 --stop-at top1=100 --out goal --resume
[ "$(value target_s "$(line end goal)")" = null ] || complain "a target that was not reached has a time"
expect 0 "done: 1 epoch" "${small[@]}" --lr 0.02 --stop-at top5=0 --out five

# All ranks end together, with all-reduce and with gossip.
if have_mpi; then
    for consensus in allreduce sgp; do
        job 2 "$descent" "${small[@]}" --batch-size 8 --lr 0 --patience 2 --consensus $consensus --out "two-$consensus" >stdout 2>&1 ||
            { complain "two ranks with $consensus"; tail -n 5 stdout; }
        [ "$(evaluations "two-$consensus")" = 3 ] || complain "two ranks with $consensus end elsewhere than one"
    done
fi
finish
