#!/usr/bin/env bash
# Failures in a job of two ranks: a common one is printed once; a rank that fails alone prints its own message and
# ends the job.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

if ! have_mpi; then
    echo "skipped: this build has no MPI"
    exit 77
fi
status=0
job 2 "$descent" train --data cifar10:no/such/directory --out none >stdout 2>stderr || status=$?
[ "$status" = 2 ] || complain "a missing data set: exit status $status instead of 2"
[ "$(grep -c '^descent: rank 0: .*no/such/directory' stderr)" = 1 ] || complain "rank 0 does not tell of the missing data set"
[ "$(grep -c '^descent: ' stderr)" = 1 ] || complain "a missing data set is reported $(grep -c '^descent: ' stderr) times"

mkdir out
touch out/metrics.jsonl
status=0
job 2 "$descent" train --out out >stdout 2>stderr || status=$?
[ "$status" = 2 ] || complain "a run in the way: exit status $status instead of 2"
[ "$(grep -c '^descent: .*--overwrite' stderr)" = 1 ] || complain "a run in the directory is reported $(grep -c '^descent: ' stderr) times"

# other TEXT OPTIONS : OPTIONS: both ranks refuse what rank 1 was asked for, and say TEXT.
other() {
    local text=$1 first=() status=0
    shift
    while [ "$1" != : ]; do
        first+=("$1")
        shift
    done
    shift
    # shellcheck disable=SC2086 # the flags are several words
    timeout 300 "$DESCENT_MPIEXEC" ${DESCENT_MPIEXEC_FLAGS:-} -n 1 "${small[@]}" "${first[@]}" : -n 1 "${small[@]}" "$@" \
        >stdout 2>stderr || status=$?
    [ "$status" = 2 ] || complain "ranks with ${first[*]} and $*: exit status $status instead of 2"
    has stderr "$text"
}
small=("$descent" train --model mlp --data synthetic:512 --threads 1 --out none --eval-every 0 --epochs 1)
other "rank 1: started with other options than rank 0: steps 5 instead of 10" --steps 10 : --steps 5
other "consensus allreduce instead of sgp" --steps 10 --consensus sgp : --steps 10
other "batch-size 32 instead of 64" --batch-size 64 : --batch-size 32

# Rank 1 asks for more memory than there is, rank 0 waits for its gradients.
if [ "$(cat /proc/sys/vm/overcommit_memory 2>/dev/null || echo 0)" != 1 ]; then
    status=0
    # shellcheck disable=SC2086 # the flags are several words
    timeout 120 "$DESCENT_MPIEXEC" ${DESCENT_MPIEXEC_FLAGS:-} -n 1 "$descent" bench --model mlp --batch-size 4 --threads 1 : \
        -n 1 "$descent" bench --model mlp --batch-size 900000000 --threads 1 >stdout 2>stderr || status=$?
    case $status in
    0 | 124) complain "a rank that fails alone: exit status $status" ;;
    esac
    [ "$(grep -c '^descent: rank 1: ' stderr)" = 1 ] || complain "rank 1 does not tell why it failed"
fi
[ "$failures" = 0 ] || cat stdout stderr
finish
