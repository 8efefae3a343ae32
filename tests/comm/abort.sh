#!/usr/bin/env bash
# How a job ends when one rank fails (dsc_comm_abort) or is killed: non-zero, soon, with the message on stderr.
# And how a process notices that it was started by the wrong launcher.
set -uo pipefail
job=$DESCENT_BINARY_DIR/tests/comm_job
read -r -a flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
limit=60 # seconds; ends in one or two
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

complain() {
    echo "FAILED: $1"
    cat "$folder/out" "$folder/err"
    bad=1
}

# launch MODE: runs the job, sets `status`. (137 is also what some launchers return when a rank was killed.)
launch() {
    timeout -k 5 "$limit" "$DESCENT_MPIEXEC" "${flags[@]}" -n $ranks "$job" "$1" >"$folder/out" 2>"$folder/err" </dev/null
    status=$?
}

ranks=3
launch start
[ $status -eq 0 ] || complain "start: status $status"
grep -q "mpi: $ranks ranks" "$folder/out" || complain "start: no description"

# A communicator after the last one, one that is not destroyed, a child process: the job ends well.
for mode in again forget fork; do
    launch $mode
    [ $status -eq 0 ] || complain "$mode: status $status"
done

launch abort
[ $status -eq 3 ] || complain "abort: status $status instead of 3"
grep -q "rank 1: broadcast: rank -5" "$folder/err" || complain "abort: the message is missing"

launch kill
[ $status -ne 0 ] || complain "kill: status 0"
[ $status -ne 124 ] || complain "kill: still running after $limit s"

launch quit
[ $status -ne 0 ] || complain "quit: status 0"
[ $status -ne 124 ] || complain "quit: still running after $limit s"

# Without a launcher MPI is not even started; abort still ends the process with its status.
"$job" start >"$folder/out" 2>"$folder/err" || complain "start without a launcher: status $?"
grep -q "^self:" "$folder/out" || complain "start without a launcher: not self"
"$job" abort >"$folder/out" 2>"$folder/err"
status=$?
[ $status -eq 3 ] || complain "abort without a launcher: status $status instead of 3"

# Variables of a launcher that MPI knows nothing of: four processes would each believe to be alone.
timeout -k 5 "$limit" env MV2_COMM_WORLD_SIZE=4 "$job" start >"$folder/out" 2>"$folder/err"
status=$?
[ $status -eq 2 ] || complain "foreign launcher: status $status instead of 2"
grep -q "a launcher has started 4 processes, but MPI sees only this one" "$folder/err" ||
    complain "foreign launcher: the message is missing"

# A launcher that is not MPI's: each process would be alone, which has to be asked for.
env WORLD_SIZE=4 RANK=2 "$job" start >"$folder/out" 2>"$folder/err"
status=$?
[ $status -eq 2 ] || complain "torchrun: status $status instead of 2"
grep -q "started 4 processes (WORLD_SIZE is 4" "$folder/err" || complain "torchrun: the message is missing"
for variables in "WORLD_SIZE=1 RANK=0" "WORLD_SIZE=4" "RANK=0"; do
    env $variables "$job" start >"$folder/out" 2>"$folder/err" || complain "$variables: status $?"
done
env WORLD_SIZE=4 RANK=2 "$job" self >"$folder/out" 2>"$folder/err" || complain "torchrun, self: status $?"
export WORLD_SIZE=5 RANK=0 # beside the variables of MPI they mean nothing
launch start
[ $status -eq 0 ] || complain "mpirun in the environment of torchrun: status $status"
exit $bad
