#!/usr/bin/env bash
# descent info: sizes of the zoo, as text and as JSON.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

expect 0 "descent " info
has stdout "device   ref: "
has stdout "device   cpu: "
expect 0 '"version": "' info --json
has stdout '"name": "cpu"'

# model parameters K-FAC-layers: the published counts.
while read -r model parameters layers; do
    expect 0 "\"parameters\": $parameters," info --model "$model" --json --batch-size 1
    has stdout "\"layers\": $layers,"
    has stdout "\"factors\": $((2 * layers)),"
done <<'TABLE'
resnet20 269722 20
resnet32 464154 32
resnet44 658586 44
resnet56 853018 56
resnet110 1727962 110
resnet18 11689512 21
resnet50 25557032 54
resnet152 60192808 156
TABLE

# ResNet-50: 108 factors, 615 MB whole, 308 MB packed, and how many of each size.
expect 0 "factors       108: 615 MB in float32, 308 MB packed" info --model resnet50 --ranks 4
has stdout "parameters    25,557,032 in 161 tensors, 102.2 MB in float32"
has stdout "traffic       4 ranks: 153.3 MB of gradients sent by each rank in a step"
sizes=$(sed -n '/^ *size/,$p' stdout | awk 'NR > 1 {printf "%dx%d ", $2, $1}')
wanted="3x4608 6x2304 1x2049 6x2048 4x1152 14x1024 1x1000 3x576 19x512 26x256 1x147 12x128 12x64 "
[ "$sizes" = "$wanted" ] || complain "sizes of resnet50: $sizes"
grep -qE '^conv1 +conv2d +147 +64 +1$' stdout || complain "conv1 of resnet50"
grep -qE '^fc +linear +2049 +1000 +1$' stdout || complain "fc of resnet50"

for model in mlp lenet; do
    expect 0 "model         $model" info --model "$model"
    expect 0 '"train_bytes": ' info --model "$model" --json
done
finish
