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

launch abort
[ $status -eq 3 ] || complain "abort: status $status instead of 3"
grep -q "rank 1: broadcast: rank -5" "$folder/err" || complain "abort: the message is missing"

launch kill
[ $status -ne 0 ] || complain "kill: status 0"
[ $status -ne 124 ] || complain "kill: still running after $limit s"

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
exit $bad
