#!/usr/bin/env bash
# descent report: finding runs, their status, columns for options that differ, CSV, JSON, plots.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model lenet --data synthetic:512 --batch-size 64 --threads 1)
expect 0 "" "${small[@]}" --epochs 2 --lr 0.05 --out runs/a
expect 0 "" "${small[@]}" --epochs 2 --lr 0.05 --optimizer adam --kfac-update-freq 2 --kfac-damping 0.02 --kfac-clip layer --log-every 1 --out runs/b
expect 1 "not a number" "${small[@]}" --epochs 2 --lr 1e30 --eval-every 0 --out runs/c

# All runs of a directory, with the columns in which they differ.
expect 0 "best top-1" report runs --no-plot
[ ! -s stderr ] || complain "report: $(cat stderr)"
grep -qE '^runs/a +done +2 +[0-9.]+ %' stdout || complain "no row for run a"
grep -qE '^runs/c +diverged +' stdout || complain "no row for run c"
grep -qE '^run +optimizer +lr +kfac-update-freq +kfac-damping' stdout || complain "no columns for what differs: $(cat stdout)"
! grep -q kfac-refresh stdout || complain "a column for what --kfac-refresh auto chose: $(cat stdout)"
grep -qE '^runs/b +adam +0.05 +2 +0.02' stdout || complain "wrong options of run b"
has stdout "runs/c: diverged: the loss of step"
awk 'length > 80 && !/^runs\/c: /' stdout | grep . && complain "the table is wider than 80 characters"

# Names that are not runs are skipped; a name that does not exist is an error, and so is a list without any run.
mkdir empty
expect 0 "passed over 'empty': it has no metrics.jsonl" report runs/a runs/b/config empty --no-plot
has stderr "passed over 'runs/b/config'"
grep -qE '^runs/a ' stdout || complain "the run beside what is none is not shown"
mkdir -p others/folder/metrics.jsonl others/pipe others/binary others/empty
mkfifo others/pipe/metrics.jsonl
head -c 5000 "$descent" >others/binary/metrics.jsonl
: >others/empty/metrics.jsonl
ln -s nowhere others/dangling
expect 0 "'others/pipe/metrics.jsonl' is not a regular file" report others runs/a --no-plot
has stderr "'others/folder/metrics.jsonl' is not a regular file"
has stderr "passed over 'others/binary': "
has stderr "passed over 'others/empty': "
expect 0 "passed over 'others/dangling': " report others/dangling others/pipe/metrics.jsonl runs/a --no-plot
expect 2 "none of these is a run" report empty runs/b/config
expect 2 "cannot read 'runs/none'" report runs/a runs/none
expect 2 "cannot read '/dev/null/x'" report /dev/null/x
expect 2 "choose one of them" report runs --csv --json

# The time until a run reached an accuracy.
expect 0 "to 100 %" report runs/a --target 100 --no-plot
expect 0 "to 0.1 %" report runs --target 0.1 --no-plot
grep -qE '^runs/a +done .* [0-9.]+s +[0-9.]+s ' stdout || complain "no time to a target: $(cat stdout)"
grep -qE '^runs/c +diverged .* - +[0-9.]+s ' stdout || complain "a run without evaluations has reached a target: $(cat stdout)"
expect 2 "target" report runs --target 101

# Names that a terminal, CSV and JSON must not take literally.
odd=$'odd/\e[31m"a,b\xff'
mkdir odd
cp -r runs/a "$odd"
expect 0 "odd/?[31m" report "$odd" --no-plot
! grep -q $'\e' stdout || complain "a control character of a name reaches the terminal"

# The page is written whole or not at all.
expect 0 "written: page.html" report runs "$odd" --html page.html
has page.html "</html>"
! grep -qE '(src|href)="?http|@import|url\(["'"'"']?http' page.html || complain "the page needs a network"
expect 2 "cannot write 'runs': Is a directory" report runs --html runs
expect 2 "cannot write 'none/page.html'" report runs --html none/page.html
[ ! -w /dev/full ] || expect 1 "cannot write '/dev/full': No space left on device" report runs --html /dev/full
ln -s page.html link.html
expect 0 "written: link.html" report runs/a --html link.html
[ -L link.html ] || complain "a link is replaced"
! grep -q "adam" page.html || complain "the page behind a link is not written"
! compgen -G '*.new' >/dev/null || complain "a temporary file stays"

# Other formats, read back by other programs.
if command -v python3 >/dev/null; then
    "$descent" report runs "$odd" --csv >table.csv || complain "--csv: status $?"
    "$descent" report runs "$odd" --json >table.json || complain "--json: status $?"
    python3 - <<'PYTHON' || complain "CSV or JSON is wrong"
import csv, json
rows = list(csv.DictReader(open("table.csv", encoding="utf-8", errors="replace")))
text = open("table.json").read()
runs = json.loads(text)["runs"]
numbers = []
json.loads(text, parse_float=numbers.append)
assert numbers and all(len(n) <= len(repr(float(n))) + 1 for n in numbers), "numbers have more digits than they need"
assert len(rows) == len(runs) == 4, (len(rows), len(runs))
for row, run in zip(rows, runs):
    assert row["status"] == run["status"]
    assert row["top1"] == ("" if run["top1"] is None else f"{run['top1']:.10g}"), (row, run)
a, b, c, odd = runs
assert [r["status"] for r in runs] == ["done", "done", "diverged", "done"]
assert odd["run"].startswith("odd/") and odd["run"].endswith('"a,b\ufffd'), odd["run"]
assert len(a["evals"]) == 2 and a["evals"][-1]["top1"] == a["top1"] <= a["best_top1"] == max(e["top1"] for e in a["evals"])
last = [json.loads(line) for line in open("runs/a/metrics.jsonl")][-1]
assert (last["top1"], last["best_top1"], last["steps"]) == (a["top1"], a["best_top1"], a["steps"])
assert b["differs"]["optimizer"] == "adam" == b["config"]["optimizer"]["name"] == rows[1]["optimizer"]
assert rows[0]["kfac-damping"] == "" and rows[1]["kfac-damping"] == "0.02"
lines = [json.loads(line) for line in open("runs/b/metrics.jsonl")]
kfac = [line for line in lines if line["kind"] == "kfac"]
assert kfac and all(len(line["layers"]) == 5 for line in kfac)
for line in kfac:  # nu is the mean of those of the layers
    assert abs(sum(layer["nu"] for layer in line["layers"]) / 5 - line["nu"]) < 1e-9, line
assert c["top1"] is None and "not a number" in c["error"] and a["error"] is None
PYTHON
fi

# The work of each rank is in `load` lines, for whole epochs and for the last steps, and in the page.
if have_mpi && command -v python3 >/dev/null; then
    for consensus in allreduce adpsgd; do
        job 2 "$descent" "${small[@]}" --batch-size 32 --epochs 2 --steps 11 --log-every 1 --consensus $consensus --out load-$consensus \
            >stdout 2>stderr || complain "$consensus on two ranks: status $?"
    done
    python3 - <<'PYTHON' || complain "load lines are wrong"
import json
for name, kind in ("load-allreduce", "gradients"), ("load-adpsgd", "parameters"):
    lines = [json.loads(line) for line in open(name + "/metrics.jsonl")]
    steps = [line for line in lines if line["kind"] == "step"]
    loads = [line for line in lines if line["kind"] == "load"]
    assert [(line["step"], line["epoch"], len(line["ranks"])) for line in loads] == [(8, 0, 2), (11, 1, 2)], loads
    assert all(rank["forward"] > 0 for line in loads for rank in line["ranks"])
    for line, part in (loads[0], steps[:8]), (loads[1], steps[8:]):
        for key in "forward", "backward", kind:
            mean = sum(step[key] for step in part) / len(part)
            bound = 1e-9 * mean if key == kind else 1.01e-4  # both times have four digits after the point
            assert abs(line["ranks"][0].get(key, 0) - mean) <= bound, (key, line, mean)
PYTHON
    expect 0 "written: page.html" report load-allreduce --html page.html
    has page.html '"rank_means":[{"data":'
fi

# Plots of other values.
expect 0 "loss on the validation set" report runs --plot loss --over time
has stdout "seconds"
expect 0 "training loss" report runs/a --plot train-loss --over step
expect 0 "learning rate" report runs/a --plot lr
expect 2 "accuracy" report runs/a --plot accuracy

# A run that is at work, and one that was killed.
"$descent" "${small[@]}" --epochs 1000000 --eval-every 0 --out live >live.log 2>&1 &
live=$!
trap 'kill -KILL $live 2>/dev/null || true; remove_work' EXIT
for ((i = 0; i < 600; i++)); do
    [ -f live/latest ] && break
    sleep 0.1
done
expect 0 "running" report live
kill -KILL $live
wait $live 2>/dev/null || true
for ((i = 0; i < 600; i++)); do # its end is written by another process
    [ -e live/lock ] || break
    sleep 0.1
done
expect 0 "died" report live --no-plot

finish
