#!/usr/bin/env bash
# Images that cannot be read: skipped and named once, counted, the same on every number of ranks; too many end the run with a
# checkpoint, from which it continues.
# shellcheck source=tests/cli/lib.sh
source "$DESCENT_SOURCE_DIR/tests/cli/lib.sh"
"$DESCENT_SOURCE_DIR/tests/cli/draw-images" set --splits train=16,val=8
truncate -s 100 set/train/class1/003.png
echo junk >set/train/class2/005.png
: >set/val/class0/002.png
train=(train --data imagefolder:set --model mlp --image-size 16 --lr 0.01 --lr-scaling none --threads 1 --epochs 2)

# named LOG: the files that the log names, sorted.
named() { sed -n "s/.*warning: skipped an image that cannot be read: .*'\(set[^']*\)'.*/\1/p" "$1" | sort; }
# same_values A B: equal losses up to rounding, and equal counts of images, in the epoch and eval lines.
same_values() {
    python3 - "$1" "$2" <<'END'
import json, sys
a, b = ([v for v in map(json.loads, open(f)) if v["kind"] in ("epoch", "eval")] for f in sys.argv[1:])
assert len(a) == len(b) == 4, (a, b)
for x, y in zip(a, b):
    assert abs(x["loss"] - y["loss"]) < 1e-4 * max(x["loss"], 1e-3), (x, y)
    assert x["bad_images"] == y["bad_images"] == {"epoch": 2, "eval": 1}[x["kind"]], (x, y)
    assert x.get("images", 23) == 23
END
}

expect 0 "" "${train[@]}" --batch-size 8 --bad-images skip:2 --out one
named stderr >one.named
printf 'set/train/class1/003.png\nset/train/class2/005.png\nset/val/class0/002.png\n' | cmp - one.named ||
    complain "not every bad image is named once: $(cat stderr)"
if have_mpi; then
    job 2 "$descent" "${train[@]}" --batch-size 4 --data-threads 2 --bad-images skip:2 --out two >stdout 2>stderr ||
        complain "two ranks fail: $(cat stderr)"
    named stderr | cmp - one.named || complain "two ranks name other images: $(cat stderr)"
    ! grep -q 'cannot be read: rank' stderr || complain "the name of a bad image depends on the ranks: $(cat stderr)"
    same_values one/metrics.jsonl two/metrics.jsonl || complain "results depend on the number of ranks"
    # The same where images are mixed with bad ones.
    mix=("${train[@]}" --mixup 0.5 --cutmix 1 --bad-images skip:2)
    expect 0 "" "${mix[@]}" --batch-size 8 --out mix-one
    named stderr | cmp - one.named || complain "with mixup other images are named: $(cat stderr)"
    job 2 "$descent" "${mix[@]}" --batch-size 4 --out mix-two >stdout 2>stderr || complain "two ranks with mixup fail: $(cat stderr)"
    named stderr | cmp - one.named || complain "with mixup two ranks name other images: $(cat stderr)"
    same_values mix-one/metrics.jsonl mix-two/metrics.jsonl || complain "with mixup results depend on the number of ranks"
    for consensus in allreduce sgp; do # all ranks stop, none hangs
        status=0
        timeout 300 "$DESCENT_MPIEXEC" ${DESCENT_MPIEXEC_FLAGS:-} -n 2 "$descent" "${train[@]}" --batch-size 4 --bad-images stop \
            --consensus $consensus --out stop-$consensus >stdout 2>stderr || status=$?
        [ $status = 2 ] || complain "$consensus: exit status $status instead of 2: $(cat stderr)"
        grep -q 'of the 48 training images cannot be read, and bad-images allows 0' stderr || complain "$consensus: $(cat stderr)"
        ls stop-$consensus/checkpoint-*.state.safetensors >/dev/null || complain "$consensus: stopped without a checkpoint"
    done
fi

# The default allows a thousandth, at least one: the second bad image ends the run, which continues when more are
# allowed.
expect 2 "2 of the 48 training images cannot be read, and bad-images allows 1; the first: imagefolder: 'set/train/" \
    "${train[@]}" --batch-size 8 --out more
has more/metrics.jsonl '"status":"failed"'
expect 2 "bad-images allows 1" "${train[@]}" --batch-size 8 --out more --resume
expect 0 "resumed from" "${train[@]}" --batch-size 8 --out more --resume --bad-images skip:2
same_values one/metrics.jsonl <(grep -v '"step":[345],' more/metrics.jsonl) || complain "the resumed run differs"

# Validation: left out, counted, and too many end a run after its evaluation.
expect 0 "23 images: loss" eval --checkpoint one --data imagefolder:set
has stdout "; 1 image cannot be read"
expect 2 "1 of the 24 validation images cannot be read" eval --checkpoint one --data imagefolder:set --bad-images stop
cp -r set cured
"$DESCENT_SOURCE_DIR/tests/cli/draw-images" cured --splits train=16
expect 2 "1 of the 24 validation images cannot be read" "${train[@]}" --data imagefolder:cured --batch-size 8 --bad-images stop --out val
has val/latest checkpoint-6

# check-data finds all of them, in the order of the set, with any number of threads.
for threads in 1 3; do
    expect 2 "3 images of imagefolder:set cannot be read" check-data imagefolder:set --threads $threads
    sed "s/^[^']*'\([^']*\)'.*/\1/" stdout >list
    printf '%s\n' set/train/class1/003.png set/train/class2/005.png "train: 48 images in 3 classes, 2 of them broken" \
        set/val/class0/002.png "val: 24 images in 3 classes, 1 of them broken" | cmp - list || complain "check-data: $(cat stdout)"
done
expect 2 '"bad_images": 3' check-data imagefolder:set --json
python3 -c 'import json
v = json.load(open("stdout"))
assert [(s["split"], s["images"], [b["index"] for b in s["bad"]]) for s in v["splits"]] == [("train", 48, [19, 37]), ("val", 24, [2])], v
assert "set/train/class1/003.png" in v["splits"][0]["bad"][0]["message"]' || complain "check-data --json: $(cat stdout)"
# On a terminal a broken file has a line of its own, not the end of the line of progress.
python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' "$descent" check-data imagefolder:set --threads 1 </dev/null >screen
sed 's/\r$//; s/.*\x1b\[K//' screen | grep -q "^imagefolder: 'set/train/class1/003.png' is a broken PNG" ||
    complain "check-data on a terminal: $(cat -v screen)"
grep -q '48 of 48 images read, 2 broken' screen || complain "check-data shows no progress: $(cat -v screen)"
mkdir odd && cp -r set/train odd/train
echo junk >"odd/train/class0/$(printf '\377').png" # not UTF-8
expect 2 '"bad_images": 3' check-data imagefolder:odd --json
has stdout "odd/train/class0/?.png"
expect 2 "val: none (imagefolder: 'odd/val' is missing" check-data imagefolder:odd
expect 0 "val: 2,000 images in 10 classes, 0 of them broken" check-data synthetic
expect 2 "--context: synthetic has no tokens; leave it out" check-data synthetic --context 8
expect 2 "--vocabulary: synthetic has no tokens; leave it out" check-data synthetic --vocabulary 5
expect 2 "check-data needs one data set" check-data
expect 2 "check-data needs one data set" check-data synthetic synthetic
expect 2 "'nowhere/train' is missing" check-data imagefolder:nowhere

for rule in skip: skip:x skip:-1 skip:1.5 none skip:99999999999999999999; do
    expect 2 "--bad-images '$rule': must be stop, skip" "${train[@]}" --bad-images $rule --out refused
done
expect 2 "bad-images 'no': must be" eval --checkpoint one --bad-images no
[ ! -e refused ] || complain "a refused command has left a directory"

# A set that cannot be read at all fails with a message, and does not hang.
mkdir -p none/train/a none/train/b none/val/a
for f in none/train/a/{1,2,3,4}.png none/train/b/{1,2,3,4}.png none/val/a/1.png; do echo junk >$f; done
expect 2 "samples drawn in a row cannot be read" train --data imagefolder:none --model mlp --image-size 16 --batch-size 4 --out dead
finish
