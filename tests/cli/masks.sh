#!/usr/bin/env bash
# Segmentation: training U-Nets on images with masks, evaluation, resuming, K-FAC, and writing masks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

images() {
    python3 "$DESCENT_SOURCE_DIR/tests/cli/masks.py" "$@"
}
# Two by two tiles of 32 pixels cover an image, and overlap. The last four images are for validation.
images draw set 20 48 40
last=(set/image/16.png set/image/17.png set/image/18.png set/image/19.png)
model="unet-bn:width=4"
unet=(--model "$model" --image-size 32 --batch-size 4 --warmup-epochs 0 --threads 1 --device cpu)
small=("${unet[@]}" --data masks:set)

# learns RUN ARGS...: a run that ends with few wrong pixels.
learns() {
    local run=$1
    shift
    expect 0 "masks:set, 16 images of 32x32x1, 2 classes" train "${small[@]}" "$@" --epochs 16 --out "$run"
    expect 0 "" eval --checkpoint "$run" --threads 1 --json
    cp stdout "$run.json"
    images learnt "$run.json" $((4 * 48 * 40)) || complain "$run has not learnt"
}
learns adam --optimizer adam --lr 0.01
expect 0 "" train "${small[@]}" --epochs 1 --out errors
grep -q "val .*, pixel error" stdout || complain "no pixel error: $(cat stdout)"
! grep -q "top-[15]" stdout || complain "a segmentation with top-1 or top-5: $(cat stdout)"
learns kfac --optimizer sgd --lr 0.2 --kfac-update-freq 8
expect 0 "class                       pixels   accuracy  precision  most often taken for" eval --checkpoint adam --threads 1 --per-class
expect 0 "  pixel error  " report adam
! grep -q "top-1" stdout || complain "a report of masks with top-1: $(cat stdout)"
expect 0 "masks:set, 4 pictures in 16 tiles: loss" eval --checkpoint adam --threads 1
has stdout "pixel error"
has stdout "mean Dice"
has stdout "mean IoU"
has stdout "V_rand 0."
expect 0 "val: 4 images in 2 classes, 0 of them broken" check-data masks:set

# Losses of one output, whose masks are those of two classes. K-FAC takes its factors from true or drawn labels.
learns bce --optimizer adam --lr 0.01 --loss bce
learns dice --optimizer adam --lr 0.01 --loss dice --kfac-update-freq 8 --kfac-kl-clip 0 --kfac-fisher sampled
learns sum --optimizer adam --lr 0.01 --loss bce-dice
for loss in bce dice sum; do
    expect 0 "" predict --checkpoint $loss --threads 1 --masks "$loss-masks" --json "${last[@]}"
    cp stdout "$loss.jsonl"
    images agree $loss.json $loss.jsonl set/label || complain "predict and eval disagree after $loss"
    images segments $loss.json $loss.jsonl set/label || complain "V_rand is wrong after $loss"
done
expect 0 "" train "${small[@]}" --optimizer adam --lr 0.01 --epochs 3 --loss bce-dice --kfac-update-freq 4 --steps 8 --out sum-whole
expect 0 "" train "${small[@]}" --optimizer adam --lr 0.01 --epochs 3 --loss bce-dice --kfac-update-freq 4 --steps 5 --out sum-parts
expect 0 "" train --resume sum-parts --steps 8
cmp sum-whole/checkpoint-8.safetensors sum-parts/checkpoint-8.safetensors || complain "a resumed run with bce-dice differs"
expect 0 "input         32 x 32 x 1, parts of images" info --checkpoint bce
has stdout "loss          bce"
has stdout "classes       2: 0, 255"
expect 0 '"resize": null' info --checkpoint bce --json
expect 2 "loss bce is for masks with two values (masks:DIR), but synthetic:64 has 10 classes" train --model lenet --data synthetic:64 \
    --loss bce --batch-size 8 --steps 1 --out none
expect 2 "--label-smoothing" train "${small[@]}" --loss dice --label-smoothing 0.1 --steps 1 --out none
expect 2 "--loss mse: must be one of cross-entropy, bce, dice, bce-dice" train "${small[@]}" --loss mse --steps 1 --out none

# U-Net without padding: 204 pixels of the input make 20 of the output, and the images are mirrored beyond their borders.
plain=(--model unet:width=4,dropout=0 --data masks:set --image-size 204 --batch-size 4 --optimizer adam --lr 0.003 --warmup-epochs 0
    --threads 1 --device cpu)
expect 0 "4 more in 24 tiles for validation" train "${plain[@]}" --epochs 30 --eval-every 10 --out plain
expect 0 "masks:set, 4 pictures in 24 tiles: loss" eval --checkpoint plain --threads 1
expect 0 "" eval --checkpoint plain --threads 1 --json
cp stdout plain.json
images learnt plain.json $((4 * 48 * 40)) || complain "the U-Net without padding has not learnt"
expect 0 "" predict --checkpoint plain --threads 1 --masks plain-masks --json "${last[@]}"
cp stdout plain.jsonl
images agree plain.json plain.jsonl set/label || complain "predict and eval disagree without padding"
expect 2 "crops of 52 x 52 (an image size of 236 less a margin of 92 pixels on each side): choose an image size of at most 224" train "${plain[@]}" --image-size 236 --steps 1 --out none
expect 2 "the nearest are 188 and 204" train "${plain[@]}" --image-size 190 --steps 1 --out none

# U-Nets of another depth: the sides that they accept, their margin, and checkpoints that evaluation and prediction
# read back.
expect 0 "masks:set, 16 images of 28x28x1, 2 classes" train "${small[@]}" --model unet-bn:width=4,depth=2 --image-size 28 --optimizer adam \
    --lr 0.01 --epochs 16 --out shallow
expect 0 "" eval --checkpoint shallow --threads 1 --json
cp stdout shallow.json
images learnt shallow.json $((4 * 48 * 40)) || complain "the U-Net of depth 2 has not learnt"
expect 0 "masks:set, 16 images of 60x60x1, 2 classes" train "${plain[@]}" --model unet:width=4,depth=2,dropout=0 \
    --image-size 60 --epochs 16 --lr 0.01 --eval-every 8 --out shallow-plain
expect 0 "" eval --checkpoint shallow-plain --threads 1 --json
cp stdout shallow-plain.json
images learnt shallow-plain.json $((4 * 48 * 40)) || complain "the U-Net of depth 2 without padding has not learnt"
for run in shallow shallow-plain; do
    expect 0 "" predict --checkpoint $run --threads 1 --masks $run-masks --json "${last[@]}"
    cp stdout $run.jsonl
    images agree $run.json $run.jsonl set/label || complain "predict and eval disagree at depth 2 ($run)"
done
expect 2 "it must be 44 or a multiple of 4 more; the nearest are 60 and 64" train "${plain[@]}" --model unet:width=4,depth=2 --image-size 62 \
    --steps 1 --out none

# Evaluation on three ranks, which share the tiles of pictures.
evaluate_ranks() {
    local run
    for run in dice plain; do
        job 3 timeout 300 "$descent" eval --checkpoint $run --threads 1 --batch-size 5 --json >"$run-ranks.json" 2>stderr ||
            complain "three ranks do not evaluate $run"
        images same $run.json $run-ranks.json || complain "three ranks evaluate $run otherwise"
    done
}
if have_mpi; then
    evaluate_ranks
fi

# Stopped and resumed, it has the bits of the run that never stopped.
same=("${small[@]}" --optimizer adam --lr 0.01 --epochs 3 --elastic 2 --kfac-update-freq 4)
expect 0 "" train "${same[@]}" --steps 8 --out whole
expect 0 "" train "${same[@]}" --steps 5 --out parts
expect 0 "" train --resume parts --steps 8
cmp whole/checkpoint-8.safetensors parts/checkpoint-8.safetensors || complain "a resumed run differs"

# Masks of the validation images: they have the images' size, the values of the labels, and the accuracy that eval
# reports.
use=(predict --checkpoint adam --threads 1)
expect 0 "" "${use[@]}" --masks masks --json "${last[@]}"
cp stdout one.jsonl
images agree adam.json one.jsonl set/label || complain "predict and eval disagree"
images segments adam.json one.jsonl set/label || complain "V_rand is wrong"
expect 0 "set/image/17.png: masks/17.png" "${use[@]}" --masks masks --overwrite --batch-size 3 set/image/17.png
grep -qE '^ +[0-9]+\.[0-9]{2} %  255$' stdout || complain "no share in the table: $(cat stdout)"
images agree adam.json one.jsonl set/label || complain "masks depend on the batch size"
expect 0 "set/image/17.png,new/made/17.png,1,255,0." "${use[@]}" --masks new/made --csv set/image/17.png
[ "$(head -n 1 stdout)" = "file,mask,index,class,share" ] || complain "the CSV has no header"

# Darker images are normalised as those of the training were, in eval as in predict.
images changed set dark 0.6 255
expect 0 "" eval --checkpoint adam --threads 1 --data masks:dark --json
cp stdout dark.json
grep -q "expect a lower accuracy" stderr && complain "dark images are normalised by their own mean: $(cat stderr)"
grep -q "in training" stderr && complain "eval warns of masks with the same values: $(cat stderr)"
expect 0 "" "${use[@]}" --masks dark-masks --json "${last[@]/#set/dark}"
cp stdout dark.jsonl
images agree dark.json dark.jsonl dark/label || complain "predict and eval disagree on darker images"

images changed set valued 1 200
expect 0 "class 1 is the value 200 in the masks of masks:valued, and was 255 in training" eval --checkpoint adam --threads 1 \
    --data masks:valued

# Tiles of another size, and tiles that are no squares: each by itself has the same mask.
edit=$DESCENT_SOURCE_DIR/tests/cli/edit-metadata
"$edit" adam/checkpoint-64.safetensors small.safetensors height=16 width=16 resize=16
expect 0 "" eval --checkpoint small.safetensors --threads 1 --json
cp stdout small.json
expect 0 "" eval --checkpoint adam --image-size 16 --threads 1 --json
[ "$(grep '"loss"' stdout)" = "$(grep '"loss"' small.json)" ] || complain "--image-size 16 of eval has another loss"
expect 2 "must be 16 or a multiple of 16 more" eval --checkpoint adam --image-size 40 --threads 1
expect 0 "" "${use[@]}" --masks small --image-size 16 --json "${last[@]}"
cp stdout small.jsonl
images agree small.json small.jsonl set/label || complain "predict and eval disagree on tiles of 16 pixels"
"$edit" adam/checkpoint-64.safetensors wide.safetensors height=16 width=48 resize=48
images cut set/image/16.png 16 pieces
expect 0 "" predict --checkpoint wide.safetensors --threads 1 --masks wide set/image/16.png
expect 0 "" predict --checkpoint wide.safetensors --threads 1 --masks wide/pieces pieces
images joined wide/16.png 16 wide/pieces || complain "the mask is not that of its tiles"

# Unless the names are values, masks contain the class indices. A grey model converts colours to grey.
"$edit" adam/checkpoint-64.safetensors nameless.safetensors class_names=
expect 0 "class 1" predict --checkpoint nameless.safetensors --threads 1 --masks nameless set/image/16.png
"$edit" adam/checkpoint-64.safetensors named.safetensors 'class_names=["0","disc"]'
expect 0 "disc" predict --checkpoint named.safetensors --threads 1 --masks named set/image/16.png
for folder in nameless named; do
    [ "$(images values $folder/16.png)" = "0 1" ] || complain "$folder has the values $(images values $folder/16.png)"
done
[ "$(images values masks/16.png)" = "0 255" ] || complain "a mask has the values $(images values masks/16.png)"
images draw colours 8 32 32 colours
expect 0 "" "${use[@]}" --masks grey colours/image
expect 0 "images of 32x32x3" train "${unet[@]}" --data masks:colours --steps 1 --batch-size 4 --out colours/run
expect 0 "" eval --checkpoint colours/run --threads 1 --json
cp stdout colours.json
expect 0 "" predict --checkpoint colours/run --threads 1 --masks colours/masks --json colours/image/6.png colours/image/7.png
cp stdout colours.jsonl
images agree colours.json colours.jsonl colours/label || complain "predict and eval disagree on colours"

# Images that cannot be used are named and passed over, on any number of ranks.
images draw tiny 1 48 24
mkdir bad
cp "${last[@]}" bad
cp tiny/image/0.png bad/17.png
echo nothing >bad/18.png
expect 1 "2 of 4 images cannot be read" "${use[@]}" --masks bad-masks --json bad
cp stdout bad.jsonl
has stderr "'bad/17.png' has 48 x 24 pixels, but the model takes 32 x 32"
has stderr "bad/18.png"
[ "$(grep -c '"error":' bad.jsonl)" = 2 ] || complain "bad images in JSON: $(cat bad.jsonl)"
cmp bad-masks/16.png masks/16.png || complain "bad images change a mask"
ls bad-masks >names
[ "$(tr '\n' ' ' <names)" = "16.png 19.png " ] || complain "masks of bad images: $(cat names)"
ranks() {
    local got=0
    job 3 timeout 300 "$descent" "${use[@]}" --masks ranks --json bad >three.jsonl 2>stderr || got=$?
    [ "$got" = 1 ] || complain "three ranks: status $got instead of 1"
    cmp <(sed 's,bad-masks/,ranks/,' bad.jsonl) three.jsonl || complain "three ranks predict otherwise"
    diff -r ranks bad-masks || complain "three ranks write other masks"
}
if have_mpi; then
    ranks
fi

# No mask or image is overwritten, also when two have the same name; a mask is complete or missing.
expect 2 "'masks/16.png' exists already: choose another folder for masks, or allow it with --overwrite" "${use[@]}" --masks masks set/image
[ ! -e masks/0.png ] || complain "masks were written beside one that exists"
expect 2 "the mask of 'bad/16.png' would replace it" "${use[@]}" --masks bad --overwrite bad
mkdir twice
cp bad/16.png twice/16.PNG
expect 2 "a mask of 'bad/16.png' and one of 'twice/16.PNG' would both be 'never/16.png': predict them one by one" "${use[@]}" --masks never bad twice
[ ! -e never ] || complain "a folder was made for masks that are refused"
mkdir -p blocked/16.png
expect 1 "cannot write 'blocked/16.png'" "${use[@]}" --masks blocked --overwrite bad/16.png
[ "$(ls -A blocked)" = 16.png ] || complain "a part of a mask was left: $(ls -A blocked)"
expect 2 "one.jsonl" "${use[@]}" --masks one.jsonl bad/16.png
expect 2 "predicts every pixel: name a folder for masks, into which they are written (--masks DIR)" "${use[@]}" bad/16.png

# The pages of a TIFF have the masks of the same images in files, in folders, too, and on any number of ranks. Where a page
# cannot be read the others are.
tiffs() {
    images pages volume.tif "${last[@]}"
    expect 0 "" "${use[@]}" --masks volume --json volume.tif
    [ "$(grep -c '"file":"volume.tif".*"mask":"volume/volume-00' stdout)" = 4 ] || complain "pages in JSON: $(cat stdout)"
    for n in 1 2 3 4; do
        cmp volume/volume-00$n.png masks/$((15 + n)).png || complain "page $n has another mask than its image"
    done
    mkdir -p mixed/inner
    cp volume.tif mixed/inner/V.TIFF
    images pages mixed/single.tif "${last[0]}"
    cp "${last[1]}" mixed
    expect 0 "" "${use[@]}" --masks mixed-masks --verbose mixed
    has stderr "6 images in "
    ls mixed-masks | tr '\n' ' ' >names
    [ "$(cat names)" = "17.png V-001.png V-002.png V-003.png V-004.png single.png " ] || complain "masks of a folder with TIFFs: $(cat names)"
    cmp mixed-masks/single.png masks/16.png || complain "a TIFF of one page has another mask than its image"
    images pages odd.tif "${last[0]}" "float:${last[1]}" tiny/image/0.png "${last[3]}"
    expect 1 "2 of 4 images cannot be read" "${use[@]}" --masks odd odd.tif
    has stderr "'odd.tif' is a broken TIFF, or of a kind that libtiff does not decode (page 2)"
    has stderr "page 3: 'odd.tif' has 48 x 24 pixels, but the model takes 32 x 32"
    [ "$(ls odd | tr '\n' ' ')" = "odd-001.png odd-004.png " ] || complain "masks of a TIFF with odd pages: $(ls odd)"
    head -c 5000 volume.tif >cut.tif
    expect 1 "2 of 4 images cannot be read" "${use[@]}" --masks cut cut.tif
    has stderr "'cut.tif' is a broken TIFF, or of a kind that libtiff does not decode (page 3)"
    has stderr "'cut.tif' is a broken TIFF, or of a kind that libtiff does not decode (page 4)"
    cmp cut/cut-002.png masks/17.png || complain "the second page of a TIFF that is cut has another mask"
    head -c 6 volume.tif >cut.tif
    expect 1 "1 of 1 image cannot be read" "${use[@]}" --masks cut cut.tif
    has stderr "'cut.tif' is a broken TIFF, or of a kind that libtiff does not decode (page 1)"
    mkdir dangling && cp "${last[0]}" dangling/a.png && ln -s nowhere dangling/b.tif
    expect 1 "1 of 2 images cannot be read" "${use[@]}" --masks dangling-masks dangling
    [ "$(ls dangling-masks)" = a.png ] || complain "a TIFF that is missing ends the whole command: $(ls dangling-masks)"
    cp "${last[0]}" volume-002.png
    expect 2 "a mask of 'volume.tif' and one of 'volume-002.png' would both be 'never/volume-002.png'" "${use[@]}" --masks never \
        volume.tif volume-002.png
    [ ! -e never ] || complain "a folder was made for masks that are refused"
    expect 2 "'volume/volume-001.png' exists already" "${use[@]}" --masks volume volume.tif
    images pages long.tif "${last[0]}" $(for _ in $(seq 1000); do echo tiny/image/0.png; done)
    expect 1 "1000 of 1001 images cannot be read" "${use[@]}" --masks long long.tif
    [ "$(ls long)" = long-0001.png ] || complain "masks of 1001 pages: $(ls long)"
    have_mpi || return 0
    job 3 timeout 300 "$descent" "${use[@]}" --masks volume-ranks volume.tif >stdout 2>stderr || complain "three ranks with a TIFF: $(cat stderr)"
    diff -r volume volume-ranks || complain "three ranks write other masks of a TIFF"
}
if "$descent" info | grep "with TIFF" >/dev/null; then
    tiffs
else
    images pages volume.tif "${last[@]}"
    cp "${last[0]}" single.png
    expect 1 "1 of 2 images cannot be read" "${use[@]}" --masks volume volume.tif single.png
    has stderr "'volume.tif' is a TIFF, which this build cannot read: install libtiff-dev"
    [ -s volume/single.png ] || complain "a TIFF that cannot be read ends the whole command"
fi

# Errors in the data are reported with the file.
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
cp tiny/label/0.png wrong/label/12.png
wrong "has 48 x 40 pixels, but its label" "wrong/label/12.png' has 48 x 24"
rm wrong/image/*
wrong "holds no images" "wrong/image"
images draw wrong 14 48 40 colours
cp wrong/image/13.png wrong/label/13.png
wrong "has a coloured pixel" "wrong/label/13.png"
expect 2 "so they belong to no class: leave class weights out" train "${small[@]}" --class-weights balanced --steps 1 --out none
images draw two 2 48 40
expect 0 "val: 1 image in 2 classes, 0 of them broken" check-data masks:two
expect 2 "too few for crops of 64 x 64" train "${small[@]}" --image-size 64 --steps 1 --out none

# Models and data of different kinds.
expect 2 "makes 1 prediction of a sample, but samples of masks have 1024 labels: use a model of pixels, such as unet-bn" train "${small[@]}" --model lenet --out none
expect 2 "makes 1024 predictions of a sample, but samples of synthetic have 1 label: use a model of images" train --model $model --data synthetic:64 --batch-size 4 --out none
finish
