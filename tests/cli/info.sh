#!/usr/bin/env bash
# descent info: sizes of the zoo and plans for K-FAC, as text and as JSON.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

expect 0 "descent " info
has stdout "device   ref: "
has stdout "device   cpu: "
expect 0 '"version": "' info --json
has stdout '"name": "cpu"'

# model parameters K-FAC-layers: the published counts.
while read -r model parameters layers; do
    [ "${DESCENT_TEST_QUICK:-}$model" != 1resnet152 ] || continue # slow with sanitizers
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

# Queries, keys and values have one A, in one layer (GPT-2) or in three (BERT, which has another layer in its head).
while read -r model text wanted; do
    expect 0 "factors       ${text//_/ } in float32" info --model "$model" --batch-size 1
    sizes=$(sed -n '/^ *size/,$p' stdout | awk 'NR > 1 {printf "%dx%d,", $2, $1}')
    [ "$sizes" = "$wanted" ] || complain "sizes of $model: $sizes"
done <<'TABLE'
gpt2 120:_1133_MB 12x3073,12x3072,36x769,60x768,
bert-base 122:_1138_MB 12x3073,12x3072,37x769,61x768,
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

# A plan: grid, assignment, loads, totals. ResNet-50 on KAISA's grid of 8 ranks with 2 gradient workers.
plan() {
    expect 0 "K-FAC plan    " info --batch-size 1 --model "$@"
}
plan resnet50 --ranks 8 --kfac-strategy hybrid-opt --kfac-grad-worker-fraction 1/4
has stdout "K-FAC plan    8 ranks, hybrid-opt, method eigen"
has stdout "grid          2 x 4 (rows x columns): each layer belongs to one column; rank r is in row r / 4, column r % 4"
has stdout "placement     compute, factors of a layer on one rank"
has stdout "covers        54 of 54 layers, 108 matrices to decompose"
grep -qE '^layer4.0.conv2 +conv2d +4608 +512 +0 +0 +0$' stdout || complain "owner of the largest layer of resnet50"
[ "$(grep -cE '^(conv1|fc|layer[1-4]\..*) +(conv2d|linear) ' stdout)" = 54 ] || complain "54 layers of resnet50 in the plan"
[ "$(grep -cE '^ +[0-7] +[01] +[0-3] +[0-9.]+ ' stdout)" = 8 ] || complain "8 ranks in the plan"
awk '/^ +[0-7] +[01] +[0-3] / {sum += $4; if ($3 != $1 % 4 || $2 != int($1 / 4)) bad = 1}
     END {exit bad || sum < 99.99 || sum > 100.01}' stdout || complain "places and shares of the ranks"
# With comm-opt every rank keeps everything: 308 MB of factors, 616 MB of eigenvectors and -values; plain steps send
# nothing.
plan resnet50 --ranks 2 --kfac-strategy comm-opt
grep -qE '^   1 +1 +0 +[0-9.]+ +307\.8[0-9] +615\.[0-9]+ +307\.8[0-9] +307\.8[0-9] +[0-9.]+ +0\.00$' stdout ||
    complain "load of a rank of two with comm-opt"
plan resnet110 --ranks 64 --kfac-placement round-robin
has stdout "covers        110 of 110 layers, 220 matrices to decompose"
plan resnet20 --ranks 3 --kfac-diag-blocks 4 --kfac-skip-layers '^linear$ layer1'
has stdout "covers        13 of 20 layers, 104 matrices to decompose"
grep -qE '^layer3.2.conv2 +conv2d +576 +64 +0 +([0-2],){3}[0-2] +([0-2],){3}[0-2]$' stdout || complain "owners of blocks"
plan mlp --kfac-method inverse
has stdout "K-FAC plan    1 rank, comm-opt, method inverse"

expect 0 '"slowest_over_mean": ' info --model resnet20 --ranks 8 --batch-size 1 --json --kfac-strategy mem-opt
for text in '"rows": 1,' '"columns": 8,' '"strategy": "mem-opt",' '"matrices": 40,' '"colocate_factors": true,'; do
    has stdout "$text"
done
if command -v python3 >/dev/null; then
    python3 - <<'CHECK' || complain "the JSON of a plan"
import json
plan = json.load(open("stdout"))["model"]["kfac"]["plan"]
units, loads, totals = plan["units"], plan["loads"], plan["totals"]
assert [u["name"] for u in units][::19] == ["conv1", "linear"] and len(units) == 20 and len(loads) == 8
assert all(u["a_owners"] == u["g_owners"] == [u["column"]] for u in units)
cube = lambda us: sum(u["a"] ** 3 + u["g"] ** 3 for u in us)
for r, load in enumerate(loads):
    own = [u for u in units if u["column"] == r]
    assert load["rank"] == r and load["work"] == cube(own) and abs(load["share"] - cube(own) / cube(units)) < 1e-12
    assert load["factor_bytes"] == sum(2 * n * (n + 1) for u in own for n in (u["a"], u["g"]))
    assert load["preconditioned_sent"] == sum(7 * 4 * u["a"] * u["g"] for u in own)
    assert load["decompositions_sent"] == 0
assert totals["sum"]["work"] == cube(units) and totals["most"]["work"] == max(x["work"] for x in loads)
CHECK
fi

# Refused, with the reason and what is valid: ARGUMENTS | message.
while IFS='|' read -r arguments text; do
    # shellcheck disable=SC2086 # the arguments are several words
    expect 2 "$(sed 's/^ *//; s/ *$//' <<<"$text")" info $arguments
done <<'TABLE'
--kfac-strategy mem-opt | --kfac-strategy is about the plan for a model's layers: name the model with --model
--model mlp --ranks 3 --kfac-strategy hybrid-opt | valid are 1/3 (1 worker), 1 (3 workers)
--model mlp --ranks 6 --kfac-strategy hybrid-opt --kfac-grad-worker-fraction 2/3 | is 4 workers a layer, which does not divide 6
--model mlp --kfac-grad-worker-fraction 3/2 | --kfac-grad-worker-fraction 3/2: must be a number from 0 to 1, as 0.25 or 1/4
--model mlp --kfac-grad-worker-fraction 1/0 | must be a number from 0 to 1
--model mlp --kfac-grad-worker-fraction half | must be a number from 0 to 1
--model mlp --kfac-grad-worker-fraction 0.5x | must be a number from 0 to 1
--model mlp --ranks 2 --kfac-strategy mem-opt --kfac-colocate-factors off | turn co-location on
--model mlp --kfac-method inverse --kfac-outer-product on | choose method eigen
--model mlp --kfac-strategy mem-opt --kfac-diag-blocks 2 | choose comm-opt, or 1 block
--model mlp --kfac-skip-layers [ | '[' is not a POSIX extended regular expression
--model mlp --kfac-strategy fastest | must be one of comm-opt, mem-opt, hybrid-opt, layer-wise
--model mlp --kfac-diag-blocks 0 | --kfac-diag-blocks 0: must be at least 1
TABLE
finish
