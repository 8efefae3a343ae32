#!/usr/bin/env bash
# Jobs that lose ranks (lost.c): lost.sh MODE. Nothing hangs, errors say what they should, and the others go on where
# they are meant to. Skipped where the launcher ends the whole job with its first rank.
set -uo pipefail
mode=$1
job=$DESCENT_BINARY_DIR/tests/comm_lost
read -r -a flags <<<"${DESCENT_MPIEXEC_FLAGS:-}"
limit=150 # seconds; ends in three to ten
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

complain() {
    echo "FAILED: $mode: $1"
    cat "$folder/out" "$folder/err"
    bad=1
}

# launch MODE [FLAG...]: runs the job, sets `status`.
ranks=4
launch() {
    timeout -k 5 "$limit" "$DESCENT_MPIEXEC" "${flags[@]}" "${@:2}" -n $ranks "$job" "$1" >"$folder/out" 2>"$folder/err" </dev/null
    status=$?
    case $status in 124 | 137) complain "still running after $limit s" ;; esac
    ! grep "not so" "$folder/err" || complain "a check failed"
}

# says RANK TEXT: rank RANK has come to its end.
says() {
    grep -q "^rank $1 $2\$" "$folder/out" || complain "rank $1 has not $2"
}

# Others live on under one launcher and flag alone.
recovery=--enable-recovery
case $mode in
losses | losses-tcp | alone | false | late | killed | agreed)
    if ! "$DESCENT_MPIEXEC" --version 2>/dev/null | grep -q "Open MPI\|OpenRTE"; then
        echo "skipped: $DESCENT_MPIEXEC ends the job with its first rank: this needs Open MPI's mpirun $recovery"
        exit 77
    fi
    ;;
esac

late="rank 2: survivors: this rank came too late, and the others go on without it"
unmade="rank [0-3]: a communicator is not made after [0-9.]* s: a rank has ended, hangs or is slow"
stuck="communication failure: rank [013]: recv with tag 7 from rank 2: not complete after 2 s: a rank has ended, hangs or is slow"
case $mode in
losses | losses-tcp)
    transport=()
    if [ "$mode" = losses-tcp ]; then
        transport=(--mca btl "tcp,self")
        ranks=7 # not all of which have talked to each other
    fi
    launch losses $recovery "${transport[@]}"
    says 1 survived
    for ((rank = 3; rank < ranks; rank++)); do says $rank survived; done
    ;;
alone)
    launch alone $recovery
    says 1 survived
    ;;
false)
    launch false $recovery
    for rank in 0 1 2 3; do says $rank survived; done
    ;;
late)
    launch late $recovery
    for rank in 0 1 3; do says $rank survived; done
    grep -q "$late" "$folder/err" || complain "the late rank has not said so"
    ;;
pause)
    launch pause
    [ $status -eq 0 ] || complain "status $status"
    for rank in 0 1 2 3; do says $rank complete; done
    ;;
killed)
    launch killed $recovery # its exit status does not report failures
    [ "$(grep -c "$stuck" "$folder/err")" -eq 3 ] || complain "not all others have ended with the message"
    ;;
hang)
    launch hang
    [ $status -eq 4 ] || complain "status $status instead of 4"
    grep -q "$stuck" "$folder/err" || complain "the message is missing"
    ;;
agreed)
    launch agreed $recovery
    for rank in 0 1; do says $rank left; done
    [ "$(grep -c "$unmade" "$folder/err")" -eq 2 ] || complain "not all others have ended with the message"
    ;;
leave | farewell | parts)
    launch "$mode"
    [ $status -ne 0 ] || complain "status 0"
    grep -q "^rank [013] left" "$folder/out" || complain "nobody has left"
    [ "$mode" != parts ] || grep -q "$unmade" "$folder/err" || complain "the message is missing"
    ;;
esac
exit $bad
