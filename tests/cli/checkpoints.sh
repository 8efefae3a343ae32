#!/usr/bin/env bash
# Checkpoints from a user's view: check sums, their description, the best one by name, and going back to an intact one.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model mlp --data synthetic:256 --batch-size 32 --threads 1 --device cpu --lr 0.02)

# flip FILE: one bit of the last number.
flip() {
    python3 - "$1" <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-3] ^= 1
open(sys.argv[1], "wb").write(data)
PYTHON
}

# The best checkpoint has a name, which --keep leaves.
expect 0 "done: " "${small[@]}" --epochs 6 --keep 0 --out run
best=$(sed -n 's/.*"kind":"checkpoint".*"best_step":\([0-9]*\).*/\1/p' run/metrics.jsonl | tail -n 1)
has run/best "checkpoint-$best.safetensors"
[ -f "run/checkpoint-$best.safetensors" ] || complain "the best checkpoint is not kept"
top1=$(sed -n 's/.*"kind":"eval".*"step":'"$best"',.*"top1":\([0-9.]*\).*/\1/p' run/metrics.jsonl)
expect 0 '"top1": '"${top1:0:5}" eval --checkpoint run:best --json
expect 0 "synthetic:256" eval --checkpoint run:latest
expect 0 "synthetic:256" eval --checkpoint run:48
[ ! -s stderr ] || complain "eval of a run's own checkpoint: $(cat stderr)"
expect 2 "'run' has no checkpoint of step 7: there" eval --checkpoint run:7
expect 2 "'nowhere' is not the directory of a run" eval --checkpoint nowhere:best
expect 0 "done: " "${small[@]}" --epochs 1 --eval-every 0 --out blind
expect 2 "names no best checkpoint" eval --checkpoint blind:best

# The description of a checkpoint.
expect 0 "classes       10: disc, square, diamond" info --checkpoint run
has stdout "mean          0.5 0.5 0.5"
has stdout "check sums    of all tensors, and they match"
has stdout "training      can continue: sgd, allreduce, 1 rank"
expect 0 '"class_names": [' info --checkpoint run:best --json
python3 - <<'PYTHON' || complain "info --json: $(cat stdout)"
import json
c = json.load(open("stdout"))
assert c["class_names"][9] == "triangle" and c["std"] == [0.25] * 3 and c["height"] == 32 and c["check_sums"] is True
PYTHON
expect 2 "exclude each other" info --checkpoint run --model mlp
if have_mpi; then
    job 2 "$descent" info --checkpoint run >stdout 2>stderr || complain "info --checkpoint on two ranks"
    [ "$(grep -c "check sums" stdout)" = 1 ] || complain "info --checkpoint on two ranks prints $(cat stdout)"
fi

# Damage in the data is noticed; an unattended restart goes back to an intact checkpoint, on any number of ranks.
expect 0 "done: " "${small[@]}" --epochs 4 --keep 3 --out broken
cp -r broken torn
flip broken/checkpoint-32.safetensors
expect 2 "does not match its check sum" eval --checkpoint broken
expect 2 "does not match its check sum" info --checkpoint broken:32
expect 2 "name it: 'broken/checkpoint-24.safetensors'" "${small[@]}" --epochs 5 --out broken --resume broken
flip broken/checkpoint-24.state.safetensors
expect 0 "warning: the run goes back to 'broken/checkpoint-16.safetensors'" "${small[@]}" --epochs 5 --out broken --resume auto
expect 0 "check sums    of all tensors, and they match" info --checkpoint broken:32
head -c 3000 torn/checkpoint-32.state.safetensors >cut
mv cut torn/checkpoint-32.state.safetensors
echo nonsense >torn/latest
if have_mpi; then
    job 2 "$descent" "${small[@]}" --epochs 5 --out torn --resume auto >stdout 2>stderr || complain "resume of a torn run on two ranks: $?"
    [ "$(grep -c "goes back to 'torn/checkpoint-24.safetensors'" stderr)" = 1 ] || complain "two ranks: $(cat stderr)"
fi
for file in run/checkpoint-*.safetensors; do flip "$file"; done
expect 2 "no checkpoint in 'run' is intact" "${small[@]}" --epochs 7 --out run --resume auto

# A file without metadata, as PyTorch writes them, is evaluated at the size that the model is made for, with a note.
python3 - <<'PYTHON'
import json, os, struct, zlib

def png(path, shade):
    rows = b"".join(b"\0" + bytes([shade, (7 * y) % 256, 128] * 40) for y in range(40))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 40, 8, 2, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

for split in "train", "val":
    for shade, name in enumerate(["dark", "light"]):
        os.makedirs(f"folder/{split}/{name}")
        for i in range(8):
            png(f"folder/{split}/{name}/{i}.png", 200 * shade + i)
PYTHON
expect 0 "done: " train --model mlp --data imagefolder:folder --batch-size 8 --epochs 1 --threads 1 --device cpu --out drawn
expect 0 "classes       2: dark, light" info --checkpoint drawn
has stdout "mean          0.485 0.456 0.406"
python3 - drawn/checkpoint-2.safetensors plain.safetensors <<'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
del header["__metadata__"]
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length:])
PYTHON
expect 0 "16 images" eval --checkpoint plain.safetensors --model mlp --data imagefolder:folder
has stderr "no check sums and no image size"
expect 0 "check sums    none" info --checkpoint plain.safetensors
has stdout "model         (not stored)"

finish
