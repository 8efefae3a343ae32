#!/usr/bin/env bash
# A rank is killed in the middle of a training by gossip: survive.sh MODE. With --on-peer-loss continue the others go on to the
# end. Skipped where the launcher ends the whole job with its first rank.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
mode=$1
limit=400 # seconds; it takes twenty, and minutes with sanitizers on a busy machine
model=mlp

if ! have_mpi; then
    echo "skipped: this build has no MPI"
    exit 77
fi
if ! "$DESCENT_MPIEXEC" --version 2>/dev/null | grep -q "Open MPI\|OpenRTE"; then
    echo "skipped: $DESCENT_MPIEXEC ends the job with its first rank: this needs Open MPI's mpirun --enable-recovery"
    exit 77
fi
DESCENT_MPIEXEC_FLAGS="${DESCENT_MPIEXEC_FLAGS:-} --enable-recovery"

# lines KIND: how many there are in the metrics so far.
lines() {
    grep -c "\"kind\":\"$1\"" out/metrics.jsonl 2>/dev/null || true
}

# await KIND COUNT: until the metrics have so many.
await() {
    local i
    for ((i = 0; i < limit * 20; i++)); do
        [ "$(lines "$1")" -ge "$2" ] 2>/dev/null && return
        sleep 0.05
    done
    complain "no $2 lines of kind $1"
}

# start RANKS OPTION...: starts a training; pid.R holds rank R's process number.
start() {
    local ranks=$1
    shift
    # shellcheck disable=SC2016 # expanded by the inner shell
    job "$ranks" timeout -k 5 $limit bash -c 'echo $$ >"pid.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}"; exec "$@"' start \
        "$descent" train --model "$model" --data synthetic:512 --batch-size 16 --lr 0.01 --warmup-epochs 0 --no-augment --eval-every 10 \
        --checkpoint-every=-1 --threads 1 \
        --out out --peer-timeout 6 "$@" >stdout 2>stderr </dev/null &
    job_pid=$!
}

# ends: the launcher has come to its end, in time.
ends() {
    local i
    for ((i = 0; i < limit * 10; i++)); do
        kill -0 $job_pid 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 $job_pid 2>/dev/null; then
        complain "still running after $limit s"
        xargs -n 1 kill -KILL <<<"$(cat pid.*)" 2>/dev/null || true
    fi
    wait $job_pid || true # --enable-recovery: 0, whatever ranks return
}

# went_on RANKS: the metrics report the loss of a rank and a good end.
went_on() {
    [ "$(lines ranks)" -ge 1 ] || complain "no line of the loss"
    grep '"kind":"ranks"' out/metrics.jsonl | tail -n 1 | grep "\"ranks\":$1,.*\"mass\":$1.0" >/dev/null ||
        complain "not $1 ranks with mass $1"
    grep '"kind":"end"' out/metrics.jsonl | grep '"status":"done"' >/dev/null || complain "it has not ended well"
    [ "$(lines end)" = 1 ] || complain "not one end"
    tail -n 1 out/metrics.jsonl | grep -E '"loss":(0\.[0-4]|[0-9.]+e-).*"val_loss":[0-9]\.' >/dev/null || complain "the losses are bad"
    [ "$(find out -name 'checkpoint-*.state.safetensors' | wc -l)" -ge 1 ] || complain "no checkpoint"
    grep "go on" stdout stderr >/dev/null || complain "the loss was not reported"
    grep "^done:" stdout >/dev/null || complain "no summary"
    [ "$failures" = 0 ] || { tail -n 3 out/metrics.jsonl; tail -n 20 stdout stderr; }
}

# loses RANK RANKS_LEFT RANKS OPTION...
loses() {
    local rank=$1 left=$2
    shift 2
    start "$@" --on-peer-loss continue
    await step 30
    kill -KILL "$(cat "pid.$rank")"
    ends
    went_on "$left"
}

case $mode in
sgp) loses 2 3 4 --consensus sgp --epochs 32 ;;
first) loses 0 3 4 --consensus sgp --epochs 32 ;;
kfac)
    model=lenet
    loses 1 3 4 --consensus sgp --epochs 12 --kfac-update-freq 25 --kfac-scope gossip --kfac-damping 0.01
    ;;
osgp) loses 1 3 4 --consensus osgp --synch-freq 2 --epochs 32 ;;
adpsgd) loses 1 1 2 --consensus adpsgd --epochs 32 ;;
dpsgd) loses 3 3 4 --consensus dpsgd --graph hypercube --epochs 32 ;;
late) # it comes back too late, and does not harm what another has taken over
    start 4 --consensus sgp --epochs 32 --on-peer-loss continue
    await step 30
    kill -STOP "$(cat pid.0)"
    await ranks 1
    kill -CONT "$(cat pid.0)"
    ends
    went_on 3
    has stderr "rank 0: survivors: this rank came too late"
    ! grep -v '^{"kind":.*}$' out/metrics.jsonl || complain "metrics.jsonl is damaged"
    ;;
stop)
    start 4 --consensus sgp --epochs 1000000 --eval-every 0
    await step 30
    kill -KILL "$(cat pid.2)"
    ends
    has stderr "peer-timeout"
    ;;
odd)
    start 4 --consensus adpsgd --epochs 1000000 --eval-every 0 --on-peer-loss continue
    await step 30
    kill -KILL "$(cat pid.2)"
    ends
    has stderr "3 of 4 ranks remain, and cannot continue"
    ;;
esac
finish
