#!/usr/bin/env bash
# A rank that is stopped: silent.sh MODE. With --peer-timeout the others do not wait for ever, report it, and end the
# job.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

if ! have_mpi; then
    echo "skipped: this build has no MPI"
    exit 77
fi

# silent NAME COMMAND...: of two ranks the last is stopped once both are at work.
silent() {
    local name=$1 status=0 i
    shift
    mkdir "$name"
    cd "$name"
    # The shell leaves its process number and becomes the program.
    # shellcheck disable=SC2016 # expanded by the inner shell
    job 2 bash -c 'echo >"pid.$$"; exec "$@"' start "$descent" "$@" --threads 1 --peer-timeout 3 >stdout 2>stderr &
    local job_pid=$!
    for ((i = 0; i < 600; i++)); do
        grep -qE '^(epoch| +1  )' stdout && break
        sleep 0.1
    done
    sleep 0.5
    local pids=(pid.*)
    kill -STOP "${pids[-1]#pid.}" 2>/dev/null || true # it may be over, on a machine that is busy
    for ((i = 0; i < 600; i++)); do
        kill -0 $job_pid 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 $job_pid 2>/dev/null; then
        complain "$name: still waiting after a minute"
        kill -KILL "${pids[@]#pid.}" 2>/dev/null || true # the ranks; the launcher then ends
    fi
    wait $job_pid || status=$?
    [ "$status" = 1 ] || complain "$name: exit status $status instead of 1"
    grep -q '^descent: rank [01]: .*peer-timeout' stderr || { complain "$name: does not say what it waited for"; cat stderr; }
    cd ..
}

training=(train --model mlp --data synthetic:512 --batch-size 16 --epochs 1000000 --eval-every 0 --out none)
case $1 in
allreduce) silent allreduce "${training[@]}" ;;
average) silent average average --steps 1000000 --size 100 ;;
*) silent "$1" "${training[@]}" --consensus "$1" ;;
esac
finish
