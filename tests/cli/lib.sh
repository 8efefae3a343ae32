# shellcheck shell=bash disable=SC2034 # variables are used by the scripts
# Functions that the scripts in this folder share; to be sourced.
set -euo pipefail
descent=$DESCENT_BINARY_DIR/descent
work=$(mktemp -d)
# A run's watcher (src/cli/watcher.c) may still be writing here. A folder that cannot be removed does not fail the test.
remove_work() { rm -rf "$work" 2>/dev/null || { sleep 1 && rm -rf "$work"; } || true; }
trap remove_work EXIT
cd "$work"
failures=0

complain() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

# expect STATUS TEXT ARGS...: the program ends with STATUS and prints TEXT (fixed; "" for anything) on either stream.
expect() {
    local status=$1 text=$2 got=0
    shift 2
    "$descent" "$@" >stdout 2>stderr </dev/null || got=$?
    if [ "$got" != "$status" ]; then
        complain "descent $*: exit status $got instead of $status"
        tail -n 5 stdout stderr
    fi
    if [ -n "$text" ] && ! grep -qF -e "$text" stdout stderr; then
        complain "descent $*: does not say '$text'"
        tail -n 5 stdout stderr
    fi
}

# has FILE TEXT: the file contains the fixed text.
has() {
    grep -qF -e "$2" "$1" || {
        complain "$1 lacks '$2'"
        tail -n 5 "$1"
    }
}

# job RANKS COMMAND...: runs it under the launcher of the build.
job() {
    local ranks=$1
    shift
    # shellcheck disable=SC2086 # the flags are several words
    "$DESCENT_MPIEXEC" ${DESCENT_MPIEXEC_FLAGS:-} -n "$ranks" "$@"
}

have_mpi() {
    "$descent" info --json | grep '"mpi": true' >/dev/null
}

finish() {
    [ "$failures" = 0 ] || exit 1
}
