#!/usr/bin/env bash
# --trace: spans that nest, phases that add up to those of metrics.jsonl, messages, threads, ranks; files that were left by a
# kill, full disks, and what is refused.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
check() { python3 "$DESCENT_SOURCE_DIR/tests/cli/trace.py" "$@" || complain "trace of $*"; }
small=(train --model mlp --data synthetic:256 --batch-size 64 --threads 1)

# Refused commands leave files as they are.
echo precious >notes.txt
expect 2 "'notes.txt' is there and is no trace" "${small[@]}" --steps 1 --out none --trace notes.txt
[ "$(cat notes.txt)" = precious ] || complain "a file that is no trace was overwritten"
mkdir folder
expect 2 "cannot open 'folder' for a trace" "${small[@]}" --steps 1 --out none --trace folder
expect 2 "is a file, not a directory" "${small[@]}" --steps 1 --out none --trace notes.txt/trace.json

command -v python3 >/dev/null || { finish; echo "skipped: no python3"; exit 77; }

# K-FAC with decompositions beside the steps, two threads for data, evaluation and checkpoints; a trace may replace a trace.
expect 0 "" "${small[@]}" --steps 1 --out none --trace new/folder/t.json
kfac=("${small[@]}" --epochs 2 --kfac-update-freq 3 --kfac-async 1 --data-threads 2 --out kfac --trace new/folder/t.json)
expect 0 "" "${kfac[@]}"
[ ! -s stderr ] || complain "a trace warns: $(cat stderr)"
check new/folder/t.json --metrics kfac/metrics.jsonl --spans step data forward backward factor decompose precondition update evaluate \
    checkpoint prepare --tracks steps "decompositions beside the steps" "data 0" "data 1"
expect 0 "" "${small[@]}" --epochs 1 --kfac-update-freq 2 --kfac-fisher sampled --batches-per-allreduce 2 --out sampled --trace sampled.json
check sampled.json --metrics sampled/metrics.jsonl --spans factor --tracks steps

if have_mpi; then
    job 2 "$descent" "${small[@]}" --epochs 1 --kfac-update-freq 2 --out ranks --trace ranks/t.json >stdout 2>stderr ||
        complain "two ranks: $(tail -n 3 stderr)"
    check ranks/t.json --metrics ranks/metrics.jsonl --messages gradients factors --tracks steps --with ranks/t.rank-1.json
    # Enough steps that both ranks average in the meantime.
    job 2 "$descent" "${small[@]}" --epochs 100 --eval-every 0 --consensus adpsgd --out none --trace a.b/t >stdout 2>stderr ||
        complain "adpsgd: $(tail -n 3 stderr)"
    check a.b/t --messages parameters --tracks steps averaging --with a.b/t.rank-1
    status=0
    job 2 "$descent" "${small[@]}" --steps 1 --out none --trace notes.txt >stdout 2>stderr || status=$?
    [ "$status" = 2 ] || complain "two ranks, a file that is no trace: exit status $status"
    [ ! -e notes.rank-1.txt ] || complain "a start that was refused leaves the trace of another rank"
fi

# After a kill only the end is missing.
"$descent" "${small[@]}" --epochs 1000000 --eval-every 0 --out none --trace killed.json >log 2>&1 &
live=$!
trap 'kill -KILL $live 2>/dev/null || true; remove_work' EXIT
for ((i = 0; i < 600; i++)); do
    [ "$(wc -l 2>/dev/null <killed.json || echo 0)" -gt 200 ] && break
    sleep 0.1
done
kill -KILL $live
wait $live 2>/dev/null || true
check killed.json --killed --tracks steps

# A full disk spoils the trace, not the run.
status=0
(
    trap '' XFSZ
    ulimit -f 8
    exec "$descent" "${small[@]}" --epochs 8 --eval-every 0 --out none --trace full.json
) >stdout 2>stderr || status=$?
[ "$status" = 0 ] || complain "a full disk: exit status $status"
has stderr "the trace 'full.json' is not complete"
finish
