#!/usr/bin/env bash
# Data sets in forms that users have: without a validation split, with other names, with links.
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

# Links that lead back are refused; they would count images twice, or never end.
for target in . .. ../../train; do
    rm -rf loop && cp -r linked loop && rm loop/train && cp -r set/train loop/train
    ln -s $target loop/train/class1/again
    expect 2 "'loop/train/class1/again' leads back to a folder that it lies in" check-data imagefolder:loop
done
mkdir self
ln -s train self/train
expect 2 "'self/train' is missing" check-data imagefolder:self

# Shards of WebDataset: the same images as in the folder, so the same results, on any number of ranks, with any number of
# threads, and after a stop.
if "$descent" --version | grep -q 'with ARCHIVE'; then
    draw=$DESCENT_SOURCE_DIR/tests/cli/draw-images
    "$draw" shards --splits train=16,val=8 --shards 3
    "$draw" folder --splits train=16,val=8
    losses() { sed -n 's/.*"kind":"\(eval\|epoch\)".*"loss":\([0-9.e-]*\),.*/\2/p' "$1/metrics.jsonl"; }
    expect 0 "val: 24 images in 3 classes, 0 of them broken" check-data webdataset:shards
    expect 0 "train: 48 images" check-data 'webdataset:shards/{train,val}-{0..2}.tar'
    expect 0 "" "${train[@]}" --data webdataset:shards --epochs 2 --shuffle-buffer 16 --out web
    has web/metrics.jsonl '"samples":48'
    expect 0 "" "${train[@]}" --data webdataset:shards --epochs 2 --shuffle-buffer 16 --out web-part --steps 4
    expect 0 "resumed from" "${train[@]}" --data webdataset:shards --epochs 2 --shuffle-buffer 16 --out web-part --resume
    [ "$(losses web)" = "$(losses web-part | tail -n 4)" ] || complain "a resumed run differs: $(losses web) and $(losses web-part)"
    if have_mpi; then
        job 2 "$descent" "${train[@]}" --data webdataset:shards --batch-size 4 --data-threads 2 --epochs 2 --shuffle-buffer 16 \
            --out web-ranks >stdout 2>stderr || complain "two ranks fail: $(cat stderr)"
        paste <(losses web) <(losses web-ranks) | awk '{ d = $1 - $2; if (d * d > 1e-8 * $1 * $1) exit 1 }' ||
            complain "two ranks have other results: $(losses web) and $(losses web-ranks)"
    fi
    expect 0 "" eval --checkpoint web --data imagefolder:folder --json # the same validation images
    python3 -c 'import json, sys; assert abs(json.load(open("stdout"))["loss"] - float(sys.argv[1])) < 1e-6' \
        "$(losses web | tail -n 1)" || complain "folder and shards differ: $(cat stdout)"
    printf 'junk' | dd of=shards/train-1.tar bs=1 seek=560 conv=notrunc status=none # in the first image
    expect 2 "shards/train-1.tar: train/00001' is a broken PNG" check-data webdataset:shards
    truncate -s 5000 shards/train-1.tar
    expect 2 "shards/train-1.tar'" "${train[@]}" --data webdataset:shards --out broken
    [ ! -e broken ] || complain "a refused command has left a directory"
else
    expect 2 "install libarchive-dev and build again" check-data webdataset:set/train.tar
fi
expect 2 "only webdataset has files of many images" "${train[@]}" --data imagefolder:set --val-split 0.25 --shuffle-buffer 16 --out refused
[ ! -e refused ] || complain "a refused command has left a directory"
finish
