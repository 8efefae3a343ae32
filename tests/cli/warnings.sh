#!/usr/bin/env bash
# Runs that look wrong although nothing fails: each warning once, with its remedy, in the log and in the metrics. And command lines
# that are probably mistakes.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

tiny=(train --model lenet --data synthetic:256 --batch-size 32 --threads 1)

# warns TEXT ARGS...: a run that ends well warns once of it, on both ways, and of nothing else.
warns() {
    local text=$1
    shift
    rm -rf out
    expect 0 "warning: " "$@" --out out
    [ "$(grep -cF -e "$text" stderr)" = 1 ] || { complain "descent $*: not one warning '$text'"; cat stderr; }
    [ "$(wc -l <stderr)" = 1 ] || { complain "descent $*: more than that"; cat stderr; }
    [ "$(grep '"kind":"alarm"' out/metrics.jsonl | grep -cF -e "$text")" = 1 ] || complain "descent $*: not one alarm '$text'"
}

warns "kfac-update-freq 2 is below kfac-cov-update-freq 5" "${tiny[@]}" --epochs 1 --kfac-update-freq 2 --kfac-cov-update-freq 5
has stderr "give 5 or more"
warns "lr-decay: epoch 2 is never reached, because the run ends after 2" "${tiny[@]}" --epochs 2 --eval-every 0 --lr-decay 1 2 3
warns "lr-decay: epoch 1 is never reached, because the run ends after 0.5" "${tiny[@]}" --eval-every 0 --steps 4 --lr-decay 1
warns "kfac-damping-decay: epoch 5 is never reached" "${tiny[@]}" --epochs 1 --eval-every 0 --kfac-update-freq 5 --kfac-damping-decay 0 5
warns "kfac-update-freq-decay: epoch 1 is never reached" "${tiny[@]}" --epochs 1 --eval-every 0 --kfac-update-freq 5 --kfac-update-freq-decay 1
warns "kfac-grad-worker-fraction 0.25 has no effect" "${tiny[@]}" --steps 1 --eval-every 0 --kfac-update-freq 5 --kfac-grad-worker-fraction 1/4
warns "kfac-tied-head input has no effect" "${tiny[@]}" --steps 1 --eval-every 0 --kfac-update-freq 5 --kfac-tied-head input
warns "peers-per-step and peers-schedule have no effect: there is one rank" "${tiny[@]}" --steps 1 --eval-every 0 --consensus sgp --peers-per-step 5
warns "the loss has grown to" train --model mlp --data synthetic:1024 --batch-size 8 --threads 1 --epochs 1 --eval-every 0 --optimizer adam --lr 0.5
has stderr "try a lower learning rate"
warns "is still that of guessing (10.00 %)" train --model mlp --data synthetic:512 --batch-size 8 --threads 1 --epochs 4 --lr 0
has stderr "check that the labels belong to the images"

# None of them for a run that is well.
expect 0 "" train --model lenet --data synthetic:2000 --batch-size 50 --threads 1 --epochs 5 --lr 0.01 --lr-decay 3 --kfac-update-freq 10 --out well
[ ! -s stderr ] || complain "a run that is well is warned of: $(cat stderr)"
! grep -q '"kind":"alarm"' well/metrics.jsonl || complain "a run that is well has an alarm"

# Epochs that are done already, on other data.
expect 0 "" "${tiny[@]}" --epochs 1 --eval-every 0 --out over
expect 0 "warning: nothing is left to train on synthetic:512: 'over/checkpoint-8.safetensors' has 1 epochs and 8 steps already" \
    train --model lenet --data synthetic:512 --batch-size 32 --threads 1 --epochs 1 --eval-every 0 --out over --resume auto

# Image folders: a class without validation images, and files that are no images.
python3 - <<'PYTHON'
import os, struct, zlib

def png(path, grey):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([grey]) * 32 for _ in range(32))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

for number, name in enumerate(("ant", "bee", "cat", "dog")):
    for i in range(8):
        png(f"set/train/{name}/{i}.png", 40 * number + i)
    if name in ("ant", "dog"):
        png(f"set/val/{name}/x.PNG", 40 * number)
for name in ("ant/a.gif", "ant/b.GIF", "bee/notes.txt", "bee/README", "list.csv", "cat/.hidden"):
    open("set/train/" + name, "w").close()
PYTHON
folder=(train --model lenet --data imagefolder:set --image-size 32 --batch-size 8 --steps 1 --threads 1)
expect 0 "warning: 5 files in 'set/train' were passed over: 1 .csv, 2 .gif, 1 without an ending, 1 .txt; images are .jpg" "${folder[@]}" --out images
has stderr "warning: 2 of 4 classes have no validation images ('bee', 'cat')"
[ "$(wc -l <stderr)" = 2 ] || complain "an image folder: not two warnings: $(cat stderr)"
[ "$(grep -c '"kind":"alarm"' images/metrics.jsonl)" = 2 ] || complain "an image folder: not two alarms"
expect 0 "" "${folder[@]}" --out none --eval-every 0
! grep -q "validation images" stderr || complain "a class without validation images, where nothing is evaluated"

expect 0 "warning: 5 files in 'set/train' were passed over" "${folder[@]}" --out none --val-split 0.25
[ "$(wc -l <stderr)" = 1 ] || complain "a part of an image folder: not one warning: $(cat stderr)"

# Command lines that are probably mistakes. ARGUMENTS | text that the message must contain.
while IFS='|' read -r arguments text; do
    # shellcheck disable=SC2086 # the arguments are several words
    expect 2 "$(sed 's/^ *//; s/ *$//' <<<"$text")" $arguments
done <<'TABLE'
train --data synthetic:64 --batch-size 8 --steps 1 --image-size 64 --out x | image-size 64: the images of synthetic:64 are 32x32 and are not resized; leave the option out
train --model lenet --data synthetic:64 --batch-size 8 --steps 1 --out x --kfac-update-freq 1 --kfac-diag-blocks 1000 | 1000 K-FAC diagonal blocks, but the largest factor of a convolution has 151 rows
info --model lenet --kfac-diag-blocks 1000 | choose fewer (kfac-diag-blocks)
train --nesterov --momentum 0 --out x | --nesterov with --momentum 0: without momentum there is nothing to look ahead with; give --momentum
train --device cpu --comm nccl --steps 1 --out x | --comm nccl
train --resume nowhere | --resume: cannot read 'nowhere': no such file or directory; name the directory of a run
train --model lenet --data synthetic:64 --batch-size 8 --steps 1 --elastic 3 --out x | elastic 3: only images with masks (masks:DIR) are deformed, and synthetic:64 has none
train --model unet-bn --data masks:x --elastic 3 --no-augment --out x | --elastic does not go with --no-augment on: training images then stay as they are
TABLE
[ ! -e x ] || complain "a refused command has made a directory"
expect 0 "warning: kfac-embeddings has no effect: model lenet has no embeddings" train --model lenet --data synthetic:64 --batch-size 8 \
    --steps 1 --threads 1 --kfac-update-freq 1 --kfac-embeddings on --kfac-sharing reduce --out none
has stderr "warning: kfac-sharing reduce has no effect: model lenet has no linear layers on sequences"
expect 0 "warning: --kfac-grad-worker-fraction 0 has no effect" info --model lenet --kfac-grad-worker-fraction 0

# A run that ends with values that are not finite.
expect 0 "result: training loss 2.4" train --model lenet --data synthetic:64 --batch-size 64 --steps 1 --lr 1e30 --threads 1 --out none
has stdout ", validation loss not finite (best none)"
! grep -q "nan" stdout || complain "a loss that is not finite: $(cat stdout)"

# The same on two ranks, which agree about it.
if have_mpi; then
    status=0
    job 2 "$descent" "${tiny[@]}" --steps 1 --image-size 64 --out x >stdout 2>stderr </dev/null || status=$?
    [ "$status" = 2 ] || complain "two ranks: exit status $status instead of 2"
    [ "$(grep -c 'image-size 64' stderr)" = 1 ] || complain "two ranks: not one message"
    job 2 "$descent" "${tiny[@]}" --epochs 1 --eval-every 0 --lr-decay 9 --out two >stdout 2>stderr </dev/null || complain "two ranks fail"
    [ "$(grep -c 'lr-decay: epoch 9 is never reached' stderr)" = 1 ] || complain "two ranks: not one warning"
fi
finish
