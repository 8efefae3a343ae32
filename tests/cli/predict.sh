#!/usr/bin/env bash
# descent predict: agrees with eval on the same images, in every format and on any number of ranks; bad images.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

"$DESCENT_SOURCE_DIR/tests/cli/draw-images" images --splits train=16,val=5 --classes 4 --side 20
expect 0 "" train --model mlp --data imagefolder:images --image-size 16 --epochs 2 --batch-size 16 --threads 1 --lr 0.01 --out a
use=(predict --checkpoint a --threads 1)

# The same images in the same form as in an evaluation: the same right ones, and the same probabilities.
expect 0 "" eval --checkpoint a --threads 1 --json
cp stdout eval.json
expect 0 "" "${use[@]}" --json images/val
cp stdout one.jsonl
cat >check.py <<'END'
import json, math
lines = [json.loads(line) for line in open("one.jsonl")]
evaluated = json.load(open("eval.json"))
assert [line["file"] for line in lines] == [f"images/val/class{c}/{i:03}.png" for c in range(4) for i in range(5)]
right = 0
loss = 0
matrix = [[0] * 4 for _ in range(4)]
for line in lines:
    label = line["file"].split("/")[2]
    classes = line["classes"]
    assert sorted(c["index"] for c in classes) == [0, 1, 2, 3] and all(c["class"] == f"class{c['index']}" for c in classes)
    p = [c["probability"] for c in classes]
    assert p == sorted(p, reverse=True) and abs(sum(p) - 1) < 1e-6, p
    matrix[int(label[-1])][classes[0]["index"]] += 1
    loss -= math.log(max(next(c["probability"] for c in classes if c["class"] == label), 1e-30))
assert matrix == evaluated["confusion_matrix"], matrix
assert abs(loss / 20 - evaluated["loss"]) < 1e-4 * (1 + evaluated["loss"]), (loss / 20, evaluated["loss"])
END
python3 check.py || complain "predict and eval disagree"

# Other formats, files one by one, fewer classes.
expect 0 "" "${use[@]}" --top 1 --csv images/val/class1/003.png images/val/class0
[ "$(head -n 1 stdout)" = "file,place,index,class,probability" ] || complain "the CSV has no header"
[ "$(wc -l <stdout)" = 7 ] || complain "$(wc -l <stdout) lines of CSV for 6 images"
grep -qE '^images/val/class1/003.png,1,[0-3],class[0-3],[0-9.e-]+$' stdout || complain "the CSV lacks a line: $(cat stdout)"
expect 0 "images/val/class1/003.png" "${use[@]}" --top 2 images/val/class1/003.png
grep -qE '^ +[0-9]+\.[0-9]{2} %  class[0-3]$' stdout || complain "no probability in the table: $(cat stdout)"
[ "$(wc -l <stdout)" = 3 ] || complain "--top 2 prints $(wc -l <stdout) lines"
mkdir 'odd, name'
cp images/val/class0/000.png 'odd, name/a"b.PNG'
expect 0 '"odd, name/a""b.PNG",1,' "${use[@]}" --csv --top 1 'odd, name'
expect 0 "images/s" "${use[@]}" --verbose --top 1 images/val/class0/000.png

# Broken images are named and passed over.
mkdir bad
cp images/val/class2/00?.png bad
head -c 60 images/val/class2/000.png >bad/001.png
echo nothing >bad/003.png
expect 1 "2 of 5 images cannot be read" "${use[@]}" --top 1 --json bad
cp stdout bad.jsonl
has stderr "passed over: "
has stderr "bad/003.png"
[ "$(grep -c '"error":' bad.jsonl)" = 2 ] || complain "bad images in JSON: $(cat bad.jsonl)"
grep -q '"file":"bad/003.png","classes":\[\],"error":.*bad/003.png' bad.jsonl || complain "the wrong file is named: $(cat bad.jsonl)"
expect 1 "cannot be read" "${use[@]}" --csv bad
! grep -q 'bad/003' stdout || complain "the CSV has a line for a broken image"

# TIFF files are for masks.
printf 'II*\0and so on' >a.tif
expect 1 "1 of 1 image cannot be read" "${use[@]}" a.tif
has stderr "'a.tif' is a TIFF, which only masks:DIR and predict --masks take (as .tif or .tiff): save it as PNG"

# Every number of ranks and every batch size gives the same lines.
expect 0 "" "${use[@]}" --json --batch-size 3 --data-threads 2 images/val
python3 - one.jsonl stdout <<'END' || complain "the predictions depend on the batch size"
import json, sys
one, other = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert [[c["index"] for c in line["classes"]] + [line["file"]] for line in one] == \
    [[c["index"] for c in line["classes"]] + [line["file"]] for line in other]
END
if have_mpi; then
    got=0
    job 3 timeout 300 "$descent" "${use[@]}" --batch-size 2 --top 1 --json bad >three.jsonl 2>stderr || got=$?
    [ "$got" = 1 ] || complain "broken images on three ranks: status $got instead of 1"
    cmp -s <(sed 's/"probability.*//' bad.jsonl) <(sed 's/"probability.*//' three.jsonl) ||
        complain "three ranks predict otherwise: $(cat three.jsonl)"
    got=0
    job 2 timeout 300 "$descent" "${use[@]}" images/gone >stdout 2>stderr || got=$?
    [ "$got" = 2 ] || complain "a missing file on two ranks: status $got instead of 2"
fi

# The file says how images are formed, whatever the name of the data: predict and eval follow it.
edit=$DESCENT_SOURCE_DIR/tests/cli/edit-metadata
model=a/checkpoint-8.safetensors
expect 0 "whose shorter side is scaled to 18" info --checkpoint a
"$edit" $model renamed.safetensors data=cifar10:there
expect 0 "" predict --checkpoint renamed.safetensors --threads 1 --json images/val
! grep -q 'how images are scaled' stderr || complain "a file that says it is warned of: $(cat stderr)"
cmp stdout one.jsonl || complain "predictions depend on the name of the data"
"$edit" $model older.safetensors resize=
expect 0 "" predict --checkpoint older.safetensors --threads 1 --json images/val
has stderr "does not say how images are scaled: they are as those of image folders"
cmp stdout one.jsonl || complain "a file that does not say how images are formed is used in another way"
"$edit" $model whole.safetensors resize=16 "mean=[0.5,0.5,0.5]" "std=[0.25,0.25,0.25]"
expect 0 "" eval --checkpoint whole.safetensors --threads 1 --json
mv stdout eval.json
expect 0 "" predict --checkpoint whole.safetensors --threads 1 --json images/val
! cmp -s stdout one.jsonl || complain "predict does not read how images are formed"
mv one.jsonl first.jsonl
mv stdout one.jsonl
python3 check.py || complain "predict and eval disagree on images that are formed in another way"
mv first.jsonl one.jsonl
"$edit" $model wrong.safetensors resize=15
expect 2 "'resize' is not a number of pixels, at least the image size" predict --checkpoint wrong.safetensors images/val

# A file of PyTorch's has no metadata; a model of small images takes them uncropped.
expect 0 "" train --model resnet20 --data imagefolder:images --image-size 32 --steps 1 --batch-size 8 --threads 1 --eval-every 0 --out r
python3 - r/checkpoint-1.safetensors plain.safetensors <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
del header["__metadata__"]
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length:])
END
expect 2 "does not say which model it holds" predict --checkpoint plain.safetensors images/val
expect 0 "  class " predict --checkpoint plain.safetensors --model resnet20 --threads 1 --top 4 images/val/class1
expect 0 "" train --model lenet --data synthetic:64 --steps 1 --batch-size 16 --threads 1 --eval-every 0 --out s
expect 0 "images/val/class0/000.png" predict --checkpoint s --threads 1 images/val/class0
! grep -q warning stderr || complain "predict warns of a checkpoint of this version: $(cat stderr)"
expect 0 "" eval --checkpoint s --threads 1
! grep -q warning stderr || complain "eval warns of a checkpoint of this version: $(cat stderr)"
"$edit" s/checkpoint-1.safetensors other.safetensors "mean=[0,0,0]"
expect 0 "" eval --checkpoint other.safetensors --threads 1
has stderr "expect a lower accuracy"

# Folders may be links, but not to one that they lie in.
mkdir links
ln -s ../images/val links/val
expect 0 "links/val/class0/000.png" "${use[@]}" --top 1 links
ln -s ../links links/again
ln -s . links/self
expect 2 "'links/again' leads back to a folder that it lies in: remove the link" "${use[@]}" links

# Wrong options and files are refused.
expect 2 "predict needs --checkpoint" predict images
expect 2 "predict needs images" "${use[@]}"
expect 2 "cannot read 'gone.png'" "${use[@]}" gone.png
mkdir -p empty
expect 2 "'empty' holds no images (.jpg" "${use[@]}" empty
expect 2 "--csv and --json: choose one" "${use[@]}" --csv --json images
expect 2 "--top 0" "${use[@]}" --top 0 images
expect 2 "gone" predict --checkpoint gone images
expect 2 "model mlp has one prediction for a whole image; leave --masks out" "${use[@]}" --masks masks images
[ ! -e masks ] || complain "a folder for masks was made"
for i in $(seq 40); do echo "line $i of a text."; done >text
expect 0 "" train --model gpt-mini:layers=1,heads=1,width=8 --data text:text --context 8 --batch-size 4 --steps 1 --eval-every 0 --out t
expect 2 "is one of text, not of images: use descent generate" predict --checkpoint t --csv images
[ ! -s stdout ] || complain "a header without predictions: $(cat stdout)"
! grep -q warning stderr || complain "a model of text: $(cat stderr)"
finish
