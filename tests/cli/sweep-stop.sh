#!/usr/bin/env bash
# descent sweep: signals, a sweep that is killed, and runs that are stopped early; the same command goes on.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

fixed='model = mlp
data = synthetic:256
batch-size = 32
device = cpu
'
trap 'kill $pid 2>/dev/null || true; remove_work' EXIT
pid=

# begin ARGS...: starts a sweep in the background and waits until two of its runs have evaluated twice.
begin() {
    "$descent" sweep "$@" >stdout 2>stderr </dev/null &
    pid=$!
    for ((i = 0; i < 600; i++)); do
        [ "$(grep -l '"kind":"eval","epoch":1' out/*/metrics.jsonl 2>/dev/null | wc -l)" -lt 2 ] || break
        sleep 0.1
    done
}

# ---- a signal, then the end ----
printf '%slr = grid 0.001 0.002 0.003\nepochs = 1000000\n' "$fixed" >long.sweep
begin long.sweep --out out --jobs 2
# A second sweep keeps out.
expect 2 "another sweep runs there" sweep long.sweep --out out
kill -TERM $pid
status=0
wait $pid || status=$?
[ "$status" = 3 ] || complain "stopped: exit status $status instead of 3"
has stderr "stopped, as asked; the same command goes on"
has stdout "0 done, 0 stopped early, 0 failed, 3 not done"
[ "$(grep -c 'interrupted: lr=' stdout)" = 2 ] || complain "not two runs are interrupted"
for run in lr=0.001 lr=0.002; do
    [ -f "out/$run/latest" ] || complain "$run has no checkpoint"
    tail -n 1 "out/$run/metrics.jsonl" | grep -q '"status":"interrupted"' || complain "$run was not stopped by its signal"
done
[ ! -e out/lr=0.003 ] || complain "a run starts after the signal"

# ---- killed: the runs stop with a checkpoint, too, and go on ----
rm -rf out
begin long.sweep --out out --jobs 2
kill -KILL $pid
wait $pid 2>/dev/null || true
interrupted() { cat out/*/metrics.jsonl | grep -c '"status":"interrupted"' || true; }
for ((i = 0; i < 600; i++)); do
    [ "$(interrupted)" -lt 2 ] || break
    sleep 0.1
done
[ "$(interrupted)" = 2 ] || complain "runs go on without their sweep"
for ((i = 0; i < 600; i++)); do # their locks are removed a moment later
    compgen -G 'out/*/lock' >/dev/null || break
    sleep 0.1
done
# To their end, which is now a few epochs away: in the file, and in what the runs were started with.
last=$(sed -n 's/.*"kind":"epoch","epoch":\([0-9]*\).*/\1/p' out/*/metrics.jsonl | sort -n | tail -n 1)
sed -i "s/epochs = 1000000/epochs = $((last + 5))/" long.sweep out/*.conf
expect 0 "3 done" sweep long.sweep --out out --no-early-stop
for run in lr=0.001 lr=0.002; do
    [ "$(grep -c "\"kind\":\"epoch\",\"epoch\":$((last + 4))," "out/$run/metrics.jsonl")" = 1 ] ||
        complain "$run is not trained to its end"
    grep -q '"resumed":"' "out/$run/metrics.jsonl" || complain "$run starts anew instead of going on"
done

# ---- the median rule: three runs that are done were good from the start ----
rm -rf out
printf '%slr = grid 1 2 3 1e-9\nepochs = 100000\n' "$fixed" >early.sweep
for lr in 1 2 3; do
    mkdir -p "out/lr=$lr"
    printf 'batch-size = 32\ndata = synthetic:256\ndevice = cpu\nepochs = 100000\nlr = %s\nmodel = mlp\n' $lr >"out/lr=$lr.conf"
    {
        echo '{"kind":"run","step":0,"ranks":1,"config":{"model":"mlp"}}'
        for epoch in {0..3000}; do
            echo "{\"kind\":\"eval\",\"epoch\":$epoch,\"step\":$((epoch + 1)),\"time_s\":1,\"loss\":0.1,\"top1\":0.99,\"top5\":1.0}"
        done
        echo '{"kind":"end","status":"done","steps":3001}'
    } >"out/lr=$lr/metrics.jsonl"
done
expect 0 "3 done, 1 stopped early, 0 failed, 0 not done" sweep early.sweep --out out
has stdout "stopped early: lr=1e-9: best top-1"
has out/lr=1e-9.stopped "the median of the others has top-1 99.00 %"
[ -f out/lr=1e-9/latest ] || complain "no checkpoint of a run that was stopped early"
expect 0 "1 stopped early" sweep early.sweep --out out
! grep -q started stdout || complain "a run that was stopped early starts again"
# It goes on when asked to.
"$descent" sweep early.sweep --out out --no-early-stop >stdout 2>stderr </dev/null &
pid=$!
for ((i = 0; i < 600; i++)); do
    [ "$(grep -c '"kind":"run"' out/lr=1e-9/metrics.jsonl)" -lt 2 ] || break
    sleep 0.1
done
[ ! -e out/lr=1e-9.stopped ] || complain "a run goes on and still counts as stopped"
kill -INT $pid
status=0
wait $pid || status=$?
[ "$status" = 3 ] || complain "interrupted: exit status $status instead of 3"
finish
