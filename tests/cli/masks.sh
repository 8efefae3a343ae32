#!/usr/bin/env bash
# Segmentation: training U-Nets on images with masks, evaluation, resuming, K-FAC, and writing masks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

# Two by two tiles of 32 pixels cover an image, and overlap.
draw=$DESCENT_SOURCE_DIR/tests/cli/draw-masks
"$draw" set 20 48 40
model=unet-bn:width=4
unet=(--model $model --image-size 32 --batch-size 4 --warmup-epochs 0 --threads 1 --device cpu)
small=("${unet[@]}" --data masks:set)

# Discs are a fifth of the pixels: the error of the majority class is 0.2.
learns() {
    python3 - "$1" <<'PY' || complain "$1 has not learnt: $(cat "$1/eval.json")"
import json, sys
e = json.load(open(sys.argv[1] + "/eval.json"))
pixels = [c["images"] for c in e["classes"]]
majority = 1 - max(pixels) / sum(pixels)
assert [c["class"] for c in e["classes"]] == ["0", "255"] and sum(pixels) == 4 * 48 * 40, pixels
assert 0.1 < majority < 0.4 and 1 - e["top1"] < majority / 3, (majority, e["top1"])
for c in range(2):
    m = e["confusion_matrix"]
    both, either = m[c][c], sum(m[c]) + m[0][c] + m[1][c]
    assert abs(e["classes"][c]["dice"] - 2 * both / either) < 1e-6 and e["classes"][c]["dice"] > 0.8, e["classes"][c]
    assert abs(e["classes"][c]["iou"] - both / (either - both)) < 1e-6, e["classes"][c]
PY
}
expect 0 "masks:set, 16 images of 32x32x1, 2 classes" train "${small[@]}" --optimizer adam --lr 0.01 --epochs 16 --out adam
expect 0 "pixel error" eval --checkpoint adam --threads 1
has stdout "mean Dice"
has stdout "mean IoU"
expect 0 "" eval --checkpoint adam --threads 1 --json
cp stdout adam/eval.json
learns adam
expect 0 "" train "${small[@]}" --optimizer sgd --lr 0.2 --epochs 16 --kfac-update-freq 8 --out kfac
expect 0 "" eval --checkpoint kfac --threads 1 --json
cp stdout kfac/eval.json
learns kfac

# Stopped and resumed, it has the bits of the run that never stopped.
same=("${small[@]}" --optimizer adam --lr 0.01 --epochs 3 --elastic 2 --kfac-update-freq 4)
expect 0 "" train "${same[@]}" --steps 8 --out whole
expect 0 "" train "${same[@]}" --steps 5 --out parts
expect 0 "" train --resume parts --steps 8
cmp whole/checkpoint-8.safetensors parts/checkpoint-8.safetensors || complain "a resumed run differs"

# What is wrong with the data is told, with the file.
wrong() {
    expect 2 "$1" train "${unet[@]}" --data masks:wrong --steps 1 --out none
    has stderr "$2"
    rm -rf wrong
    cp -r set wrong
}
cp -r set wrong
rm wrong/label/7.png
wrong "has no label" "wrong/image/7.png"
head -c 100 wrong/image/3.png >wrong/image/5.png
wrong "is a broken PNG" "wrong/image/5.png"
echo nothing >wrong/label/11.png
wrong "is no JPEG, PNG or WebP" "wrong/label/11.png"
"$draw" other 1 50 40
cp other/label/0.png wrong/label/12.png
wrong "has 48 x 40 pixels, but its label" "wrong/label/12.png' has 50 x 40"
"$draw" colours 1 48 40 --colours
cp colours/image/0.png wrong/label/13.png
wrong "has a coloured pixel" "wrong/label/13.png"
rm wrong/image/*
wrong "holds no images" "wrong/image"
expect 2 "too few for crops of 64 x 64" train "${small[@]}" --image-size 64 --steps 1 --out none

# Models and data of different kinds.
expect 2 "makes 1 predictions of a sample, but samples of masks have 1024 labels" train "${small[@]}" --model lenet --out none
expect 2 "makes 1024 predictions of a sample, but samples of synthetic have 1 label" train --model $model --data synthetic:64 --batch-size 4 --out none
finish
