#!/usr/bin/env bash
# From end to end: a ResNet-18 that was trained on some classes is fine-tuned for others, evaluated and used.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

draw=$DESCENT_SOURCE_DIR/tests/cli/draw-images
"$draw" old --splits train=8,val=2 --classes 5 --side 32
"$draw" new --splits train=12,val=4 --classes 3 --side 32
common=(--model resnet18 --image-size 32 --batch-size 12 --threads 1)
expect 0 "" train "${common[@]}" --data imagefolder:old --steps 4 --eval-every 0 --out before
expect 0 "120 of 122 tensors loaded" train "${common[@]}" --data imagefolder:new --epochs 8 --init before --lr 0.005 --head-lr 10 \
    --freeze '^(conv1|bn1|layer1)' --out after
has stdout "made anew: fc.bias (3, in the file 5), fc.weight (3x512, in the file 5x512)"
has stdout "frozen: 15 of 62 tensors of parameters"
expect 0 '"class": "class2"' eval --checkpoint after:best --threads 1 --json
top1=$(sed -n 's/^  "top1": \([0-9.]*\).*/\1/p' stdout)
awk -v a="$top1" 'BEGIN {exit !(a > 0.6)}' || complain "top-1 is $top1 after fine-tuning"
expect 0 "" predict --checkpoint after:best --threads 1 --top 1 --csv new/val
right=$(awk -F, '$1 ~ "/" $4 "/"' stdout | wc -l)
awk -v a="$top1" -v b="$right" 'BEGIN {exit !(a * 12 > b - 0.5 && a * 12 < b + 0.5)}' ||
    complain "predict has $right of 12 right, eval $top1"
finish
