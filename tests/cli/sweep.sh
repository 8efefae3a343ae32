#!/usr/bin/env bash
# descent sweep: grids and samples, two runs at a time, failures, files that are wrong, ranks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

fixed='model = mlp
data = synthetic:128
batch-size = 32
epochs = 2
device = cpu
'

# ---- the sweep file ----
printf '%slr = grid 0.01 0.02\nweight-decay = log 1e-6 1e-2\nsamples = 2\n' "$fixed" >draw.sweep
expect 0 "4 runs" sweep draw.sweep --dry-run
head -n 4 stdout >few
sed -i 's/samples = 2/samples = 3/' draw.sweep
expect 0 "6 runs" sweep draw.sweep --dry-run
cmp -s few <(head -n 4 stdout) || complain "more samples change the first ones"
grep -q '^lr=0.01,weight-decay=' stdout || complain "a run is not named after what sets it apart"

# The file in the tutorial.
sed -n "/^cat > rates.sweep/,/^END/p" "$DESCENT_SOURCE_DIR/docs/tutorial.md" | sed '1d;$d' >rates.sweep
expect 0 "8 runs" sweep rates.sweep --dry-run

# bad TEXT LINE...: this file is refused with TEXT.
bad() {
    local text=$1
    shift
    printf '%s\n' "$@" >bad.sweep
    expect 2 "$text" sweep bad.sweep --out bad
}
bad "bad.sweep:2: unknown key lrr (did you mean lr?)" "model = mlp" "lrr = grid 1 2"
bad "bad.sweep:3: lr x: is not a number" "model = mlp" "" "lr = grid 0.1 x"
bad "bad.sweep:1: epochs -1: must be at least" "epochs = grid 5 -1"
bad "run lr=0.1: --kfac-damping needs --kfac-update-freq" "lr = grid 0.1 0.2" "kfac-damping = 0.1"
bad "model 'nothing' is unknown" "model = grid mlp nothing"
bad "bad.sweep:1: out: not in a sweep file" "out = there"
bad "bad.sweep:1: lr is drawn at random: say how often" "lr = log 0.1 1"
bad "bad.sweep: says nothing" "# nothing"
expect 2 "cannot read a sweep file 'missing.sweep'" sweep missing.sweep
expect 2 "cannot read a sweep file '.'" sweep .
expect 2 "sweep needs one file" sweep
expect 2 "sweep needs one file" sweep draw.sweep bad.sweep
expect 2 "--jobs 300: must be" sweep draw.sweep --jobs 300
head -c 2000000 /dev/zero | tr '\0' 'a' >long.sweep
expect 2 "'long.sweep' is longer than 1048576 bytes" sweep long.sweep
# Truncated and damaged files end with a message or a list, never otherwise.
for ((cut = 0; cut < $(stat -c %s draw.sweep); cut += 9)); do
    head -c "$cut" draw.sweep >cut.sweep
    status=0
    "$descent" sweep cut.sweep --dry-run >stdout 2>stderr || status=$?
    [ "$status" = 0 ] || [ "$status" = 2 ] || complain "cut at $cut: exit status $status"
done
[ "$(find . -mindepth 1 -type d)" = "" ] || complain "a refused sweep leaves a directory"

# Models with keys, whose commas divide nothing: in the file, and for the run that gets them.
printf 'abc def ghi %.0s' {1..40} >text
printf '%s\n' 'model = grid gpt-mini:layers=1,heads=1,width=8 gpt-mini:layers=1,heads=1,width=4' 'data = text:text' 'context = 8' \
    'batch-size = 4' 'steps = 1' 'device = cpu' >keys.sweep
expect 0 "2 done" sweep keys.sweep --out keys
grep -qx 'model = gpt-mini:layers=1,heads=1,width=4' keys/*/config || complain "a run has another model than the sweep file names"

# ---- two at a time, one of them fails ----
printf '%slr = grid 0.01 0.02\nseed = grid 1 2\n' "$fixed" >pair.sweep
expect 0 "4 done, 0 stopped early, 0 failed, 0 not done; written: runs/sweep-pair" sweep pair.sweep --jobs 2
has stdout "sweep: 4 runs in runs/sweep-pair, 2 at a time"
[ "$(grep -n 'done: ' stdout | head -n 1 | cut -d: -f1)" -ge 4 ] || complain "the first two do not run at the same time"
has stdout "best: lr="
has stdout "status"
for run in lr=0.01,seed=1 lr=0.01,seed=2 lr=0.02,seed=1 lr=0.02,seed=2; do
    [ -f "runs/sweep-pair/$run/latest" ] || complain "$run has no checkpoint"
    has "runs/sweep-pair/$run.log" "done: 2 epochs"
done
# The same command again only reads the finished runs.
find runs -name metrics.jsonl -exec cksum {} + >before
expect 0 "4 done" sweep pair.sweep --jobs 2
! grep -q started stdout || complain "runs that are done start again"
find runs -name metrics.jsonl -exec cksum {} + | cmp -s - before || complain "runs that are done are changed"
# More values: the others start. Other fixed options: refused.
sed -i 's/seed = grid 1 2/seed = grid 1 2 3/' pair.sweep
expect 0 "6 done" sweep pair.sweep --jobs 2
[ "$(grep -c started stdout)" = 2 ] || complain "$(grep -c started stdout) runs start instead of 2"
sed -i 's/epochs = 2/epochs = 3/' pair.sweep
expect 2 "was started with other options ('epochs = 2', and now 'epochs = 3')" sweep pair.sweep
[ -s runs/sweep-pair/report.html ] || complain "no page of the sweep"

# A failure is reported, and the others are trained.
printf '%smomentum = grid 0 0.9\n' "${fixed/synthetic:128/grid imagefolder:$work/none synthetic:128}" >fail.sweep
expect 1 "2 of 4 runs failed" sweep fail.sweep --out some --jobs 2
[ "$(grep -c "failed: data=imagefolder.*$work/none" stdout)" = 2 ] || complain "the message of a failure is not shown"
has stdout "2 done, 0 stopped early, 2 failed"
expect 1 "2 of 4 runs failed" sweep fail.sweep --out some
[ "$(grep -c started stdout)" = 2 ] || complain "failed runs are not tried again"
printf '%s' "$fixed" >one.sweep
expect 1 "failed: run: cannot start 'no-such-launcher'" sweep one.sweep --launcher no-such-launcher
expect 2 "Not a directory" sweep one.sweep --out one.sweep/x

# ---- ranks ----
if have_mpi; then
    expect 0 "1 done" sweep one.sweep --out ranks --launcher "$DESCENT_MPIEXEC ${DESCENT_MPIEXEC_FLAGS:-} -n 2"
    has ranks/run/metrics.jsonl '"ranks":2'
    status=0
    job 2 "$descent" sweep one.sweep --out twice >stdout 2>stderr || status=$?
    [ "$status" != 0 ] && [ ! -e twice ] || complain "a sweep on two ranks is not refused"
    has stderr "sweep starts the trainings itself"
fi
finish
