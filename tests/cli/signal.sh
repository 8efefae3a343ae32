#!/usr/bin/env bash
# A signal ends a run with status 3 and a checkpoint, and --resume auto goes on from there.
# Argument: the number of ranks. One gets SIGTERM twice, as from timeout(1), which signals its child and its group;
# with more under the launcher, one rank alone gets SIGUSR1.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
ranks=$1

if [ "$ranks" -gt 1 ] && ! have_mpi; then
    echo "skipped: this build has no MPI"
    exit 77
fi
run=("$descent" train --model mlp --data synthetic:512 --batch-size 64 --threads 1 --out out --epochs 1000000)
last_step() {
    sed -n 's/.*"kind":"step","step":\([0-9]*\).*/\1/p' out/metrics.jsonl 2>/dev/null | tail -n 1
}

# The shell leaves its process number and becomes the program.
# shellcheck disable=SC2016 # expanded by the inner shell
start=(bash -c 'echo >"pid.$$"; exec "$@"' start "${run[@]}")
if [ "$ranks" -gt 1 ]; then
    job "$ranks" "${start[@]}" >stdout 2>stderr &
else
    "${start[@]}" >stdout 2>stderr &
fi
job_pid=$!
trap 'kill $job_pid 2>/dev/null || true; remove_work' EXIT
mkfifo empty
exec 9<>empty
for ((i = 0; i < 600; i++)); do
    [ "$(last_step)" ] && [ "$(last_step)" -ge 3 ] && break
    kill -0 $job_pid 2>/dev/null || break
    sleep 0.1
done
pids=(pid.*)
# Threads that compute must not be interrupted (src/cli/signals.c): one alone takes signals, and not the first.
open=0
for task in /proc/"${pids[-1]#pid.}"/task/*; do
    blocked=$(sed -n 's/^SigBlk:[[:space:]]*//p' "$task/status" 2>/dev/null)
    if [ -z "$blocked" ] || (((16#$blocked & 16#4000) != 0)); then
        continue
    fi
    open=$((open + 1))
    [ "${task##*/}" != "${pids[-1]#pid.}" ] || complain "the main thread takes signals"
done
[ "$open" -le 1 ] || complain "$open threads take signals instead of one"
if [ "$ranks" -gt 1 ]; then
    kill -USR1 "${pids[-1]#pid.}"
else
    kill -TERM "${pids[-1]#pid.}"
    read -rt 0.002 <&9 || true # without a process, which could take long to start
    kill -TERM "${pids[-1]#pid.}" 2>/dev/null || true
fi
status=0
wait $job_pid || status=$?
[ "$status" = 3 ] || complain "exit status $status instead of 3"
[ -f out/latest ] || complain "no checkpoint was written"
stopped=$(last_step)
[ -f "out/checkpoint-$stopped.safetensors" ] || complain "no checkpoint of step $stopped, the last"
[ "$(grep -cE '^descent: (rank 0: )?stopped' stderr)" = 1 ] || complain "the interruption is not printed once: $(cat stderr)"

status=0
more=("${run[@]}" --resume auto --steps $((stopped + 5)))
if [ "$ranks" -gt 1 ]; then
    job "$ranks" "${more[@]}" >stdout 2>stderr || status=$?
else
    "${more[@]}" >stdout 2>stderr || status=$?
fi
[ "$status" = 0 ] || complain "resumed: exit status $status instead of 0"
[ "$(last_step)" = $((stopped + 5)) ] || complain "resumed at $stopped, ended at $(last_step)"
[ "$(grep -c '^done: ' stdout)" = 1 ] || complain "the end is printed $(grep -c '^done: ' stdout) times"
[ "$failures" = 0 ] || cat stdout stderr

# A second SIGTERM, more than a second later, ends the program within a step, which is long here.
if [ "$ranks" = 1 ]; then
    "$descent" train --model resnet20 --data synthetic:16384 --batch-size 32 --batches-per-allreduce 256 --threads 1 \
        --out long --eval-every 0 >stdout 2>stderr &
    job_pid=$!
    for ((i = 0; i < 600; i++)); do
        [ -s stdout ] && break
        sleep 0.1
    done
    kill -TERM $job_pid
    for ((i = 0; i < 20; i++)); do # on a busy machine two may count as one
        sleep 1.3
        kill -TERM $job_pid 2>/dev/null || break
    done
    status=0
    wait $job_pid || status=$?
    [ "$status" = 143 ] || complain "asked twice: exit status $status instead of 143"
fi
finish
