#!/usr/bin/env bash
# Small trainings from end to end: files, resuming, refusing, evaluating, reporting.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model mlp --data synthetic:512 --batch-size 64 --threads 1)

expect 0 "done: 1 epoch, 8 steps" "${small[@]}" --epochs 1 --out a
for file in metrics.jsonl latest config checkpoint-8.safetensors checkpoint-8.state.safetensors; do
    [ -f "a/$file" ] || complain "a run leaves no $file"
done
[ ! -s stderr ] || complain "a run that is no terminal's writes to stderr"
grep -q '^epoch  1/1: loss .*, val .*, top-1 .* %, .* images/s' stdout || complain "no line for the epoch"
for label in model data ranks device length optimizer rate consensus K-FAC output; do
    grep -qE "^$label +[^ ]" stdout || complain "the start does not tell the run's $label"
done
grep -q '^result: training loss .*, top-1 .* % (best .* %), top-5 .* %$' stdout || complain "no line for the result"
[ "$(grep -v '^device' stdout | wc -L)" -le 80 ] || complain "a line has more than 80 columns"
has a/metrics.jsonl '"kind":"run"'
has a/metrics.jsonl '"lr":0.1,' # numbers in their shortest form
python3 - <<'PYTHON' || complain "numbers of the metrics"
import json, re
for line in open("a/metrics.jsonl"):
    for text in re.findall(r'[:\[,](-?[0-9]+\.[0-9]+(?:e-?[0-9]+)?)', re.sub(r'"[^"]*"(?!:)', '""', line)):
        assert float(text) == float(repr(float(text))) and len(text) <= len(repr(float(text))), text
    json.loads(line)
PYTHON
has a/metrics.jsonl '"kind":"end"'

# An output directory that has a run is refused, and no file of that run is lost.
cp -r a before
expect 2 "--resume auto" "${small[@]}" --epochs 2 --out a
has stderr "--overwrite"
has stderr "--out a: there is a run in it already"
diff -r a before >/dev/null || complain "a refused run has changed the directory"

expect 0 "done: 2 epochs, 16 steps" "${small[@]}" --epochs 2 --out a --resume --plot
has stdout "top-1 accuracy on the validation set"
expect 0 "done: 1 epoch, 8 steps" "${small[@]}" --epochs 1 --out a --overwrite
[ ! -e a/checkpoint-16.safetensors ] || complain "--overwrite leaves a checkpoint of the old run"

# A run that ended before its first checkpoint: the files it has written stay.
mkdir early
echo '{"kind":"run"}' >early/metrics.jsonl
expect 0 "no checkpoint in 'early': starts anew" "${small[@]}" --steps 1 --eval-every 0 --out early --resume auto
[ "$(grep -c '"kind":"run"' early/metrics.jsonl)" = 2 ] || complain "--resume auto loses the lines of a run without a checkpoint"

# Nothing is written with --out none; the default directory is named after the run.
mkdir empty
(cd empty && "$descent" "${small[@]}" --steps 1 --out none >/dev/null)
[ -z "$(ls empty)" ] || complain "--out none writes $(ls empty)"
expect 0 "written: runs/mlp-synthetic-batch-size64-seed7-1" "${small[@]}" --steps 1 --seed 7
[ -f runs/mlp-synthetic-batch-size64-seed7-1/metrics.jsonl ] || complain "no file in the default directory"

# Configuration files, and flags that win over them; every form of a list.
printf 'seed = 5\nlr-decay = 35, 75 90\nlr = 0.5\nnesterov\nno-augment\nkfac-update-freq = 0\n' >some.conf
expect 0 "" "${small[@]}" --steps 1 --out b --lr 0.25 --config some.conf --eval-every 0
for text in '"seed":5' '"lr":0.25' '"lr_decay":[35.0,75.0,90.0]' '"nesterov":true' '"augment":false'; do
    has b/metrics.jsonl "$text"
done
for list in "--lr-decay 35 75 90" "--lr-decay=35,75,90" "--lr-decay 35,75 90"; do
    # shellcheck disable=SC2086 # the list is several words
    expect 0 "" "${small[@]}" --steps 1 --eval-every 0 --overwrite --out b $list
    has b/metrics.jsonl '"lr_decay":[35.0,75.0,90.0]'
done
expect 0 "" "${small[@]}" --steps 1 --eval-every 0 --overwrite --out b --optimizer lamb --lr-schedule cosine --lr-scaling none \
    --allreduce-dtype bf16 --bucket-mb 0.5 --warmup-start 0 --label-smoothing 0.1 --clip-norm 1 --batches-per-allreduce 2 \
    --beta1 0.8 --beta2 0.9 --eps 1e-5 --weight-decay 0.01 --kfac-update-freq 0 --consensus allreduce --precision fp32
for text in '"name":"lamb"' '"lr_schedule":"cosine"' '"lr_scaling":"none"' '"allreduce_dtype":"bf16"' \
    '"bucket_bytes":524288' '"batches_per_allreduce":2' '"beta1":0.8' '"consensus":"allreduce"'; do
    has b/metrics.jsonl "$text"
done

# The options in the metrics are those that were used.
expect 0 "" "${small[@]}" --steps 1 --eval-every 0 --overwrite --out b --optimizer adam --seed 18446744073709551615
for text in '"seed":"18446744073709551615"' '"eps":null' '"image_size":32'; do
    has b/metrics.jsonl "$text"
done

# K-FAC with the options of the paper's command line, and with every other option.
kfac=(train --model lenet --data synthetic:64 --batch-size 16 --threads 1 --epochs 2 --eval-every 0)
expect 0 "done: 2 epochs, 8 steps" "${kfac[@]}" --out k --lr 0.1 --kfac-update-freq 3 --lr-decay 35 75 90
[ "$(grep -c '"kind":"kfac"' k/metrics.jsonl)" = 3 ] || complain "$(grep -c '"kind":"kfac"' k/metrics.jsonl) kfac lines"
[ "$(grep -c '"kind":"step".*"nu":' k/metrics.jsonl)" = 8 ] || complain "step lines lack nu"
expect 0 "done: 2 epochs, 8 steps" "${kfac[@]}" --out k --overwrite --kfac-update-freq 4 --kfac-cov-update-freq 2 \
    --kfac-method inverse --kfac-damping 0.1 --kfac-stat-decay 0.9 --kfac-kl-clip 0 --kfac-damping-alpha 0.25 \
    --kfac-damping-decay 1 --kfac-update-freq-alpha 2 --kfac-update-freq-decay 1,50 --kfac-strategy comm-opt \
    --kfac-grad-worker-fraction 1/2 --kfac-placement round-robin --kfac-colocate-factors off --kfac-symmetric off \
    --kfac-diag-blocks 2 --kfac-diag-warmup 1 --kfac-skip-layers fc3 --kfac-scaling kfac-pytorch --kfac-fisher sampled \
    --kfac-outer-product off --kfac-factor-dtype bf16 --kfac-inverse-dtype fp16 --kfac-scope global
expect 0 "done: 2 epochs, 8 steps" "${kfac[@]}" --out pi --kfac-update-freq 4 --kfac-method inverse --kfac-damping-split pi \
    --kfac-warmup-factors on --kfac-kl-clip-scaling ranks \
    --kfac-factor-samples 5 --kfac-clip layer --kfac-async 1
has pi/metrics.jsonl '"async":1'
has pi/metrics.jsonl '"clip":"layer"'
has pi/metrics.jsonl '"factor_samples":5'
has pi/metrics.jsonl '"kl_clip_scaling":"ranks"'
has pi/metrics.jsonl '"warmup_factors":true'
has pi/metrics.jsonl '"damping_split":"pi"'
grep -q '^kfac-damping-split = pi' pi/config || complain "the config lacks the split"
expect 0 "done: 2 epochs, 8 steps" "${kfac[@]}" --out lm --kfac-update-freq 4 --kfac-damping-adapt 3 --kfac-damping-min 0.001 \
    --kfac-damping-max 0.01
for text in '"damping_adapt":3' '"damping_min":0.001' '"damping_max":0.01'; do
    has lm/metrics.jsonl "$text"
done
expect 2 "the damping is not adapted" "${kfac[@]}" --kfac-update-freq 4 --kfac-damping-max 1
expect 2 "use sgd, or kfac-damping-adapt 0" "${kfac[@]}" --kfac-update-freq 4 --kfac-damping-adapt 3 --optimizer adam
expect 2 "eigenvalues are damped as products" "${kfac[@]}" --kfac-update-freq 4 --kfac-damping-split pi
for text in '"update_freq":4' '"factor_freq":2' '"method":"inverse"' '"damping":0.1' '"stat_decay":0.9' '"kl_clip":0.0' \
    '"damping_alpha":0.25' '"damping_decay":[1.0]' '"update_freq_alpha":2.0' '"update_freq_decay":[1.0,50.0]' \
    '"strategy":"comm-opt"' '"grad_worker_fraction":0.5' '"placement":"round-robin"' '"colocate_factors":false' \
    '"symmetric":false' '"diag_blocks":2' '"diag_warmup":1.0' '"skip_layers":"fc3"' '"scaling":"kfac-pytorch"' \
    '"fisher":"sampled"' '"factor_dtype":"bf16"' '"inverse_dtype":"fp16"'; do
    has k/metrics.jsonl "$text"
done
if have_mpi; then
    job 2 "$descent" "${kfac[@]}" --batch-size 8 --out k2 --kfac-update-freq 3 --kfac-strategy mem-opt >stdout 2>stderr ||
        complain "K-FAC on two ranks: status $?"
    grep -q '"kind":"kfac".*"sent":{[^}]*"preconditioned":[1-9]' k2/metrics.jsonl || complain "mem-opt sends no gradients"
fi

# Evaluation of a checkpoint gives the result that the run reported.
expect 0 "images: loss " eval --checkpoint a --data synthetic:512 --threads 1
expect 0 '"top1": ' eval --checkpoint a/checkpoint-8.safetensors --data synthetic:512 --threads 1 --json
said=$(sed -n 's/.*"kind":"eval".*"top1":\([0-9.]*\).*/\1/p' a/metrics.jsonl | tail -n 1)
got=$(sed -n 's/.*"top1": \([0-9.]*\).*/\1/p' stdout)
awk -v a="$said" -v b="$got" 'BEGIN {exit !(a - b < 1e-9 && b - a < 1e-9)}' || complain "eval gives top-1 $got, the run said $said"

# It names its data and seed; a difference from them is reported.
expect 0 "" "${small[@]}" --epochs 1 --seed 9 --data synthetic:640 --out named
said=$(sed -n 's/.*"kind":"eval".*"top1":\([0-9.]*\).*/\1/p' named/metrics.jsonl)
expect 0 '"data": "synthetic:640"' eval --checkpoint named --threads 1 --json
got=$(sed -n 's/.*"top1": \([0-9.]*\).*/\1/p' stdout)
awk -v a="$said" -v b="$got" 'BEGIN {exit !(a - b < 1e-9 && b - a < 1e-9)}' || complain "eval without --data gives $got instead of $said"
expect 0 "synthetic:640, 128 images: loss " eval --checkpoint named --threads 1
[ ! -s stderr ] || complain "eval of the checkpoint's own data warns"
cp -r named moved
expect 0 "data synthetic:640, this run has synthetic:512" "${small[@]}" --epochs 2 --seed 8 --batch-size 32 --out moved --resume
has stderr "was written with seed 9, this run has 8"
has stderr "was written with batch size 64, this run has 32"
expect 0 "" "${small[@]}" --epochs 2 --seed 9 --data synthetic:640 --out named --resume
[ ! -s stderr ] || complain "a run that goes on with its own data warns"
expect 2 "is the state file of a checkpoint: name the model file beside it" eval --checkpoint a/checkpoint-8.state.safetensors --data synthetic:512

# Reports; damaged files are named with their line.
expect 0 "best top-1" report a b
grep -qE '^a +done +1 +[0-9.]+ %' stdout || complain "no row for run a"
has stdout "epoch"
expect 0 " mfu" report --no-plot a/metrics.jsonl
expect 0 "" report --no-plot a
[ "$(wc -l <stdout)" = 2 ] || complain "--no-plot prints more than a table"
{ head -n 2 a/metrics.jsonl; echo nonsense; tail -n 2 a/metrics.jsonl; } >damaged.jsonl
expect 2 "damaged.jsonl:3: " report damaged.jsonl
has stdout "damaged.jsonl"
LC_ALL=C "$descent" report a >plain
! grep -qP '[^\x00-\x7f]' plain || complain "the ASCII plot is not ASCII"

# On a terminal: a bar that is drawn over and taken away (in epochs that are longer than the time between two drawings);
# --plot shows the curve at the end.
if command -v script >/dev/null; then
    TERM=xterm script -qec "'$descent' ${small[*]} --data synthetic:16384 --epochs 3 --out t --plot" typescript >/dev/null || complain "a run on a terminal: status $?"
    grep -q $'\r''epoch [0-9]*/3 .* [0-9]*%  loss .* images/s  .* left' typescript || complain "no bar on a terminal"
    has typescript "top-1 accuracy on the validation set"
fi

# Batches that are larger than the set: refused before they take memory, or cut to its size.
expect 2 "use a smaller batch" train --model mlp --data synthetic:200 --batch-size 1000000000 --threads 1 --out large
expect 0 "top-1" train --model mlp --data synthetic:200 --batch-size 50 --val-batch-size 1000000000 --steps 1 --threads 1 --out large
expect 0 "top-1" eval --checkpoint large --data synthetic:200 --batch-size 1000000000 --threads 1

# A model that overflows has nothing right, and is not the best one.
expect 1 "the validation loss of step 1 is not finite" train --model mlp --data synthetic:200 --batch-size 200 --epochs 2 --lr 1e30 \
    --threads 1 --out overflow
has stdout "top-1 0.00 %"
has overflow/metrics.jsonl '"best_top1":null'
expect 0 '"loss": null' eval --checkpoint overflow --data synthetic:200 --threads 1 --json
has stdout '"top1": 0.0'

# A benchmark.
expect 0 "images/s" bench --model mlp --batch-size 8 --steps 3 --threads 1
has stdout "phases   forward "
expect 1 "batches of 1000000000 need too much memory, use smaller ones" bench --model mlp --batch-size 1000000000 --steps 1 --threads 1
expect 0 '"median_s": ' bench --model mlp --batch-size 8 --steps 3 --threads 1 --json
for key in model batch_size threads ranks steps median_s min_s images_per_s peak_rss_mb; do
    has stdout "\"$key\": "
done
expect 0 "of an SGD step" bench --model lenet --batch-size 8 --steps 2 --threads 1 --kfac
for text in "kfac     SGD " "K-FAC, no update " "+ factors " "+ factors and decomposition "; do
    has stdout "$text"
done
expect 0 "of an SGD step" bench --model lenet --batch-size 8 --steps 2 --threads 1 --kfac --kfac-with "method=inverse damping-split=pi"
! grep -q "factors rotated" stdout || complain "refreshes are counted where nothing is refreshed"
expect 0 "solved exactly after a refusal" bench --model lenet --batch-size 8 --steps 2 --threads 1 --kfac --kfac-with "refresh=warm"
[ "$(sed -n 's/^refresh  \([0-9]*\) factors rotated, .* iterations, \([0-9]*\) solved.*/\1 \2/p' stdout | awk '{print $1 + $2}')" = 4 ] ||
    complain "two timed decompositions do not refresh two factors of LeNet each"
expect 0 '"refreshed_factors": ' bench --model lenet --batch-size 8 --steps 2 --threads 1 --kfac --kfac-with "refresh=warm" --json
has stdout '"exact_fallbacks": '
expect 2 "kfac-frequency" bench --model lenet --kfac --kfac-with "frequency=2"
expect 2 "'refresh' is not NAME=VALUE" bench --model lenet --kfac --kfac-with "refresh"
expect 0 '"decompose_s": ' bench --model lenet --batch-size 8 --steps 2 --threads 1 --kfac --json
finish
