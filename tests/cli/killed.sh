#!/usr/bin/env bash
# Processes that are killed without a warning: the run has an `end` line, and no lock is left.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

training=(train --model mlp --data synthetic:512 --batch-size 16 --lr 0.01 --threads 1 --epochs 1000000 --eval-every 0 --checkpoint-every 20)

# await COMMAND...: until it succeeds, for two minutes at most.
await() {
    local i
    for ((i = 0; i < 2400; i++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    return 1
}

# has_died OUT: the metrics of the run are complete.
has_died() {
    tail -n 1 "$1/metrics.jsonl" | grep '^{"kind":"end","status":"died","error":"the process ended without a word.*"steps":[0-9]*[1-9]' &&
        [ ! -e "$1/lock" ]
}

# is_dead OUT WHAT
is_dead() {
    await has_died "$1" || { complain "$2: no end, or a lock is left"; ls "$1"; tail -n 1 "$1/metrics.jsonl"; }
    [ "$(grep -c '"kind":"end"' "$1/metrics.jsonl")" = 1 ] || complain "$2: not one end"
}

"$descent" "${training[@]}" --out one >/dev/null 2>stderr &
pid=$!
await grep '"kind":"checkpoint"' one/metrics.jsonl || complain "no checkpoint"
[ -e one/lock ] || complain "a run has no lock"
kill -KILL $pid
wait $pid 2>/dev/null || true
is_dead one "one process"
expect 0 " died " report one

# It goes on from there, and ends as any other.
expect 0 "resumed from" "${training[@]}" --out one --resume auto --steps 60
[ "$(grep -c '"kind":"end"' one/metrics.jsonl)" = 2 ] || complain "the resumed run: not two ends"
tail -n 1 one/metrics.jsonl | grep -q '"status":"done"' || complain "the resumed run is not done"

# When the watcher was killed, too, half a line and a lock are left, and the resumed run completes the metrics.
grep -v '"kind":"end"' one/metrics.jsonl >copy
printf '{"kind":"step","st' >>copy
mv copy one/metrics.jsonl
touch one/lock
expect 0 "resumed from" "${training[@]}" --out one --resume auto --steps 80
[ "$(grep -c '"status":"died"' one/metrics.jsonl)" = 1 ] || complain "an end that nobody has seen is not completed"
[ "$(grep -c '"kind":"end"' one/metrics.jsonl)" = 2 ] || complain "an end that nobody has seen: not two ends"
[ ! -e one/lock ] || complain "a lock is left"
expect 0 "" "${training[@]}" --out one --resume auto --steps 100
[ "$(grep -c '"status":"died"' one/metrics.jsonl)" = 1 ] || complain "a run with an end gets another"

# A refused command, and one that ends by a signal, leave no process behind.
expect 2 "" "${training[@]}" --out one
if [ -d /proc/self ]; then
    left() {
        local link
        for link in /proc/[0-9]*/cwd; do
            [ "$(readlink "$link" 2>/dev/null)" = "$work" ] && tr '\0' ' ' <"${link%cwd}cmdline" 2>/dev/null | grep -q '^[^ ]*descent train' && return 0
        done
        return 1
    }
    none_left() { ! left; }
    await none_left || complain "a process is left"
fi

# killed RANK: of two ranks, one is killed, and the launcher ends the other.
killed() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    job 2 bash -c 'echo $$ >"pid.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}"; exec "$@"' start "$descent" "${training[@]}" \
        --out "rank$1" >stdout 2>stderr </dev/null &
    local job_pid=$!
    await grep '"kind":"checkpoint"' "rank$1/metrics.jsonl" || complain "two ranks: no checkpoint"
    kill -KILL "$(cat "pid.$1")"
    wait $job_pid 2>/dev/null && complain "a job whose rank was killed ends well"
    is_dead "rank$1" "rank $1 of two"
    rm -f pid.*
}
if have_mpi; then
    killed 0
    killed 1
fi
finish
