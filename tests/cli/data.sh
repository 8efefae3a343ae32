#!/usr/bin/env bash
# Data sets as users have them: without a validation split, with other names, with links.
# shellcheck source=tests/cli/lib.sh
source "$DESCENT_SOURCE_DIR/tests/cli/lib.sh"
"$DESCENT_SOURCE_DIR/tests/cli/draw-images" set --splits train=16
train=(train --model mlp --image-size 16 --lr 0.01 --lr-scaling none --threads 1 --epochs 1 --batch-size 8)

# A part of the training images, which a checkpoint remembers.
expect 2 "or take them from the training images (val-split 0.1)" "${train[@]}" --data imagefolder:set --out split
[ ! -e split ] || complain "a refused command has left a directory"
expect 0 "" "${train[@]}" --data imagefolder:set --val-split 0.25 --out split
has split/metrics.jsonl '"samples":36'
has split/metrics.jsonl '"images":12'
loss=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.e-]*\),.*/\1/p' split/metrics.jsonl)
expect 0 '"images": 12' eval --checkpoint split --json
python3 -c 'import json, sys; assert abs(json.load(open("stdout"))["loss"] - float(sys.argv[1])) < 1e-6' "$loss" ||
    complain "eval evaluates other images: $(cat stdout), not $loss"
expect 2 "'set/val' is missing" eval --checkpoint split --val-split 0
for x in 1 -0.1 half; do
    expect 2 "--val-split" "${train[@]}" --data imagefolder:set --val-split $x
done
if have_mpi; then # the same part on every rank
    job 2 "$descent" "${train[@]}" --batch-size 4 --data imagefolder:set --val-split 0.25 --out ranks >stdout 2>stderr ||
        complain "two ranks fail: $(cat stderr)"
    has ranks/metrics.jsonl '"images":12'
    other=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.e-]*\),.*/\1/p' ranks/metrics.jsonl)
    python3 -c 'import sys; a, b = map(float, sys.argv[1:]); assert abs(a - b) < 1e-4 * a' "$loss" "$other" ||
        complain "two ranks evaluate other images: $loss and $other"
fi

# Links, and another name of the validation split.
mkdir linked
ln -s ../set/train linked/train
ln -s ../set/train linked/test
expect 0 "val: 48 images in 3 classes, 0 of them broken" check-data imagefolder:linked
finish
