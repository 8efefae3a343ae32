#!/usr/bin/env bash
# The output directory: one run at a time, unusable names, refused starts.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model mlp --data synthetic:512 --batch-size 64 --threads 1)

# A running run keeps all others out of its directory until it ends, even by SIGKILL.
"$descent" "${small[@]}" --epochs 1000000 --eval-every 0 --keep 1 --out live >live.log 2>&1 &
live=$!
trap 'kill -KILL $live 2>/dev/null || true; remove_work' EXIT
for ((i = 0; i < 600; i++)); do
    [ -f live/latest ] && break
    sleep 0.1
done
for how in "" --resume --overwrite; do
    # shellcheck disable=SC2086 # may be no word at all
    expect 2 "another run is writing into 'live'" "${small[@]}" --steps 1 --out live $how
    has stderr "choose another output directory"
    [ -f live/latest ] || complain "a run that was refused with '$how' has removed files"
done
expect 0 "best top-1" report --no-plot live
kill -0 $live || complain "the first run has ended"
kill -KILL $live
wait $live 2>/dev/null || true
for ((i = 0; i < 600; i++)); do
    [ -e live/lock ] || break
    sleep 0.1
done
[ ! -e live/lock ] || complain "the lock of a killed run is left"
touch live/lock # as after the end of a machine
expect 2 "there is a run in it already" "${small[@]}" --steps 1 --out live
expect 0 "done" "${small[@]}" --epochs 1000000 --steps 1 --out live --resume
expect 0 "done" "${small[@]}" --steps 1 --eval-every 0 --out live --overwrite
[ ! -e live/lock ] || complain "a run that has ended leaves its lock"
[ "$(grep -c '"kind":"run"' live/metrics.jsonl)" = 1 ] || complain "--overwrite leaves lines of the run before"

# With closed streams what is printed must not end up in the run's files.
"$descent" "${small[@]}" --steps 1 --eval-every 0 --out closed >&- 2>&- || complain "closed streams: status $?"
[ "$(grep -vc '^{' closed/metrics.jsonl)" = 0 ] || complain "what is printed is in metrics.jsonl: $(grep -v '^{' closed/metrics.jsonl)"
expect 0 "" report --no-plot closed
[ ! -s stderr ] || complain "report: $(cat stderr)"

# Directories that cannot be written: status 2, and what to do.
touch file
for out in file file/below /proc/none/below; do
    expect 2 "name a directory that can be written" "${small[@]}" --steps 1 --out "$out"
    has stderr "${out%/below}"
done
if [ "$(id -u)" != 0 ]; then
    mkdir shut
    chmod 500 shut
    expect 2 "name a directory that can be written" "${small[@]}" --steps 1 --out shut
    expect 2 "name a directory that can be written" "${small[@]}" --steps 1 --out shut/below
    chmod 400 live/metrics.jsonl
    expect 2 "cannot open 'live/metrics.jsonl'" "${small[@]}" --steps 2 --out live --resume
    cp live/checkpoint-1.safetensors secret.safetensors
    chmod 0 secret.safetensors
    expect 2 "Permission denied" eval --checkpoint secret.safetensors --data synthetic:512
fi

# A start that is refused leaves no directory.
expect 2 "none.safetensors" "${small[@]}" --steps 1 --out rest --resume "$work/none.safetensors"
expect 2 "none/here" train --data cifar10:none/here --out rest
if have_mpi; then
    status=0
    job 2 "$descent" "${small[@]}" --steps 1 --out rest --consensus sgp --peers-schedule 0:1,1:9 >stdout 2>stderr || status=$?
    [ "$status" = 2 ] || complain "too many peers: exit status $status instead of 2"
fi
[ ! -e rest ] || complain "a start that was refused leaves its directory"
mkdir there
expect 2 "none.safetensors" "${small[@]}" --steps 1 --out there --resume "$work/none.safetensors"
[ -d there ] || complain "a start that was refused removes a directory that was there before"
[ -z "$(ls -A there)" ] || complain "a start that was refused leaves $(ls -A there)"

finish
