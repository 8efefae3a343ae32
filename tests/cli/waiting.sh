#!/usr/bin/env bash
# How OpenMP's threads wait: the program sets it for commands that compute, and leaves what the user has set.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME
bench=(bench --model mlp --batch-size 2 --steps 1 --threads 2)

# starts COUNT SPINS ENVIRONMENT... -- ARGS: GNU's OpenMP is loaded so often, in the end with so many spins.
starts() {
    local count=$1 spins=$2
    shift 2
    env OMP_DISPLAY_ENV=verbose "$@" >stdout 2>stderr </dev/null || complain "$*: ended with status $?"
    grep -q GOMP_SPINCOUNT stderr || {
        echo "not GNU's OpenMP: nothing to see"
        exit 77
    }
    local got
    got=$(grep -c "GOMP_SPINCOUNT = " stderr)
    [ "$got" = "$count" ] || complain "$*: $got starts instead of $count"
    grep "GOMP_SPINCOUNT = " stderr | tail -n 1 | grep -qF "'$spins'" || {
        complain "$*: not $spins spins"
        grep "GOMP_SPINCOUNT = " stderr
    }
}

starts 2 10000 "$descent" "${bench[@]}"
starts 1 0 OMP_WAIT_POLICY=passive "$descent" "${bench[@]}"
starts 1 77 GOMP_SPINCOUNT=77 "$descent" "${bench[@]}"
env OMP_DISPLAY_ENV=verbose "$descent" info >stdout 2>stderr
[ "$(grep -c "GOMP_SPINCOUNT = " stderr)" = 1 ] || complain "info starts itself anew"

# Ranks keep their places in the job.
if have_mpi; then
    job 2 "$descent" "${bench[@]}" --json >stdout 2>stderr || complain "under a launcher: status $?"
    has stdout '"ranks": 2'
fi
finish
