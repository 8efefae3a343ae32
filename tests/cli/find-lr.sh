#!/usr/bin/env bash
# descent find-lr: a rate range test, in one process and on two ranks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(--model mlp --data synthetic:512 --batch-size 16 --threads 1 --steps 40)
# The first rates do nothing, the last ones make the loss explode before the end.
expect 0 "suggested: --lr" find-lr "${small[@]}" --min 1e-5 --max 1e4
has stdout "then the loss exploded"
has stdout "The loss falls fastest at"
has stdout "The loss rises again from"
awk '{ if (length($0) > 240) exit 1 }' stdout || complain "a line is too long"
[ "$(find . -type f ! -name stdout ! -name stderr)" = "" ] || complain "files are left: $(find . -type f)"

# The same as JSON, and the file of --out.
expect 0 '"exploded": true' find-lr "${small[@]}" --min 1e-5 --max 1e4 --json --out result/here
cmp -s stdout <(cat result/here/find-lr.json; echo) || complain "find-lr.json differs from --json"
[ "$(find result -type f)" = result/here/find-lr.json ] || complain "more files than find-lr.json"
python3 - <<'EOF' || complain "the JSON is not as documented"
import json, math
r = json.load(open("stdout"))
steps = r["steps"]
assert 10 < len(steps) < 40 and steps[0]["lr"] == 1e-5 and r["ranks"] == 1
ratios = [b["lr"] / a["lr"] for a, b in zip(steps, steps[1:])]
assert max(ratios) / min(ratios) < 1 + 1e-6
assert abs(ratios[0] - 1e9 ** (1 / 39)) < 1e-6
assert r["steepest"] <= r["lowest"] <= r["rises"] and r["suggestion"] <= r["rises"] / 4
assert abs(r["suggestion"] - min(math.sqrt(r["steepest"] * r["rises"]), r["rises"] / 4)) < 1e-6 * r["suggestion"]
EOF

# Each step uses its own rate: at tiny rates the losses of the first epoch's batches are those of the initial model.
expect 0 '"suggestion": null' find-lr "${small[@]}" --min 1e-12 --max 1e-11 --json
expect 0 "there is no suggestion" find-lr "${small[@]}" --min 1e-12 --max 1e-11
# K-FAC, and a configuration as a run writes it.
expect 0 "" train --model lenet --data synthetic:64 --batch-size 16 --threads 1 --epochs 1 --kfac-update-freq 4 --out run
expect 0 "20 of 20 steps" find-lr --config run/config --steps 20 --max 1e-3 --out none
expect 0 "20 of 20 steps" find-lr --config run/config --resume run --steps 20 --max 1e-3 --out none

# --resume restores the options of the run, but neither its directory nor its length, since the run is finished. The
# range test starts from the run's parameters: its first loss is below that of a new model.
expect 0 "" train --model mlp --data synthetic:64 --batch-size 16 --threads 1 --epochs 20 --lr 0.01 --steps 80 \
    --stop-at top1=100 --patience 50 --out trained
before=$(find trained -type f | sort | xargs cksum)
expect 0 '"model": "mlp"' find-lr --resume trained --steps 20 --max 1e-3 --json
mv stdout resumed.json
expect 0 "100 of 100 steps" find-lr --resume trained --min 1e-9 --max 1e-8
[ "$(find trained -type f | sort | xargs cksum)" = "$before" ] || complain "find-lr --resume changes files of the run"
expect 0 '"model": "mlp"' find-lr --config trained/config --steps 20 --max 1e-3 --json --out none
python3 - <<'EOF' || complain "find-lr --resume does not start from the checkpoint with the options of its run"
import json
resumed, new = json.load(open("resumed.json")), json.load(open("stdout"))
assert resumed["data"] == "synthetic:64"
assert resumed["steps"][0]["loss"] < 0.8 * new["steps"][0]["loss"]
EOF
expect 0 "" find-lr --resume trained/checkpoint-80.safetensors --steps 20 --max 1e-3 --out elsewhere
[ -f elsewhere/find-lr.json ] || complain "find-lr --resume FILE --out DIR writes no file"
expect 2 "cannot change model" find-lr --resume trained --model lenet --steps 20

expect 2 "--min 1 --max 0.5: the first rate must be below the last" find-lr --min 1 --max 0.5
expect 2 "--steps 5: a range test takes 10" find-lr --steps 5
expect 2 "--min 0: must be above 0" find-lr --min 0
expect 2 "unknown option --mim (did you mean --min?)" find-lr --mim 1
expect 2 "model 'nothing' is unknown" find-lr --model nothing
expect 1 "cannot make the directory 'stdout/x'" find-lr "${small[@]}" --max 1e-3 --out stdout/x

# A signal ends it with status 3.
"$descent" find-lr --model mlp --data synthetic:512 --threads 1 --steps 1000000 >stdout 2>stderr &
pid=$!
for ((i = 0; i < 600; i++)); do # until the main thread leaves SIGTERM to another one
    blocked=$(sed -n 's/^SigBlk:[[:space:]]*//p' /proc/$pid/status 2>/dev/null || true)
    (((16#${blocked:-0} & 16#4000) != 0)) && break
    sleep 0.1
done
kill -TERM $pid
status=0
wait $pid || status=$?
[ "$status" = 3 ] || complain "stopped: exit status $status instead of 3"
has stderr "as asked; nothing was written"

if have_mpi; then
    two=(--model mlp --data synthetic:512 --batch-size 8 --threads 1 --steps 30)
    job 2 "$descent" find-lr "${two[@]}" --max 1e4 --json >stdout 2>stderr || complain "two ranks: status $?"
    has stdout '"exploded": true'
    has stdout '"ranks": 2'
    # With gossip the loss is the mean of the ranks'.
    job 2 "$descent" find-lr "${two[@]}" --max 0.01 --json --consensus sgp >stdout 2>stderr ||
        complain "two ranks that gossip: status $?"
    has stdout '"ranks": 2'
fi
finish
