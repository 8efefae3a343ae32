#!/usr/bin/env bash
# descent eval: per-class accuracy, confusions and calibration agree with the totals, on any number of ranks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

"$DESCENT_SOURCE_DIR/tests/cli/draw-images" images --splits train=16,val=7 --classes 4 --side 20
expect 0 "" train --model mlp --data imagefolder:images --image-size 16 --epochs 2 --batch-size 16 --threads 1 --eval-every 0 \
    --lr 0.01 --out a
expect 0 "calibration error " eval --checkpoint a --threads 1 --per-class --confusion
has stdout "lowest accuracy:"
has stdout "class                       images   accuracy  precision  most often taken for"
has stdout "class3                           7 "
has stdout "rows: class of the image"
expect 0 "" eval --checkpoint a --threads 1 --json
cp stdout one.json
cat >check.py <<'END'
import json, sys
one, other = (json.load(open(path)) for path in sys.argv[1:])
matrix = one["confusion_matrix"]
assert [sum(row) for row in matrix] == [7] * 4, matrix
assert sum(matrix[i][i] for i in range(4)) == round(one["top1"] * one["images"])
for i, c in enumerate(one["classes"]):
    assert c["class"] == f"class{i}" and c["images"] == 7 and c["right"] == matrix[i][i], c
    assert abs(c["accuracy"] - matrix[i][i] / 7) < 1e-8
    assert c["predicted"] == sum(row[i] for row in matrix)
wrong = sorted((matrix[i][k] for i in range(4) for k in range(4) if i != k and matrix[i][k]), reverse=True)
assert [c["images"] for c in one["confusions"]] == wrong[:10], one["confusions"]
assert wrong, "the model makes no mistake: this test sees nothing"
bins = one["calibration_bins"]
assert len(bins) == 15 and sum(b["images"] for b in bins) == one["images"]
assert abs(sum(b["accuracy"] * b["images"] for b in bins) / one["images"] - one["top1"]) < 1e-8
error = sum(b["images"] * abs(b["accuracy"] - b["confidence"]) for b in bins) / one["images"]
assert abs(error - one["calibration_error"]) < 1e-8, error
for i, b in enumerate(bins):
    assert not b["images"] or i / 15 <= b["confidence"] + 1e-8 and b["confidence"] <= (i + 1) / 15 + 1e-8, b
for key in "classes", "confusions", "confusion_matrix":
    assert one[key] == other[key], key
assert abs(one["calibration_error"] - other["calibration_error"]) < 1e-6
END
python3 check.py one.json one.json || complain "the report contradicts itself"
expect 0 "" eval --checkpoint a --threads 1 --batch-size 5 --json
python3 check.py one.json stdout || complain "the report depends on the batch size"
if have_mpi; then
    job 3 "$descent" eval --checkpoint a --threads 1 --batch-size 4 --json >three.json 2>stderr || complain "eval on three ranks: $?"
    python3 check.py one.json three.json || complain "the report depends on the number of ranks"
fi

# With names that are not UTF-8 the result is still printed.
odd=$(printf '\377')
mv a "$odd"
mv images "images$odd"
expect 0 '"checkpoint": "?/checkpoint-' info --checkpoint "$odd" --json
expect 0 '"data": "imagefolder:images?"' eval --checkpoint "$odd" --threads 1 --data "imagefolder:images$odd" --json
has stdout '"checkpoint": "?"'
python3 check.py one.json stdout || complain "the report depends on the names"
expect 0 '"file":"images?/val/class0/001.png"' predict --checkpoint "$odd" --threads 1 --json "images$odd/val"
mv "$odd" a
mv "images$odd" images

# A broken image is in no sum.
echo broken >images/val/class0/000.png
expect 0 '"images": 6' eval --checkpoint a --threads 1 --bad-images skip:1 --json
finish
