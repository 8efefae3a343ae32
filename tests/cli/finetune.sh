#!/usr/bin/env bash
# Fine-tuning: weights to start from, frozen parameters, the head's own rate; on one rank and on two.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

cat >differing.py <<'END'
"""differing.py FILE OTHER: the names of the tensors whose bits differ, and of those that only one has."""
import json, struct, sys

def tensors(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    begin = 8 + length
    return {name: data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]]
            for name, t in header.items() if name != "__metadata__"}

one, other = map(tensors, sys.argv[1:])
print(*sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))
END

# differ FILE OTHER NAMES: exactly these tensors differ.
differ() {
    local names
    names=$(python3 differing.py "$1" "$2")
    [ "$names" = "$3" ] || complain "$1 and $2 differ in '$names' instead of '$3'"
}

common=(--threads 1 --batch-size 16 --eval-every 0 --lr-scaling none)
lenet=(train --model lenet --data synthetic:64 "${common[@]}")
old=a/checkpoint-4.safetensors
expect 0 "" "${lenet[@]}" --epochs 1 --out a

# All weights: a run with a rate of 0 ends with what it started from.
expect 0 "started from 'a/checkpoint-4.safetensors': 10 of 10 tensors loaded" "${lenet[@]}" --steps 1 --seed 7 --lr 0 \
    --init a --out b
differ "$old" b/checkpoint-1.safetensors ""
has b/config "init = a"
has b/metrics.jsonl '"init":"a"'

# Frozen layers keep their bits, others do not; K-FAC leaves them out, and every optimiser does.
for how in "" "--kfac-update-freq 2" "--optimizer lamb" "--optimizer adamw --clip-norm 1 --decay-on weights" \
    "--momentum 0 --head-lr 10"; do
    # shellcheck disable=SC2086 # several words
    expect 0 "frozen: 4 of 10 tensors of parameters" "${lenet[@]}" --steps 4 --seed 7 --init "$old" --freeze '^conv' $how \
        --overwrite --out b
    differ "$old" b/checkpoint-4.safetensors "fc1.bias fc1.weight fc2.bias fc2.weight fc3.bias fc3.weight"
done
expect 0 "" "${lenet[@]}" --steps 4 --freeze '^conv|fc1.bias' --kfac-update-freq 2 --overwrite --out b
layers=$(python3 -c '
import json
for line in open("b/metrics.jsonl"):
    line = json.loads(line)
    if line["kind"] == "kfac":
        print(*[layer["name"] for layer in line["layers"]])
        break')
[ "$layers" = "fc2 fc3" ] || complain "K-FAC works on '$layers' instead of 'fc2 fc3'"

# The head's rate: with a factor the head moves that many times as far in the first step of plain SGD; the rest is
# unchanged.
first=(--steps 1 --momentum 0 --weight-decay 0 --lr 0.01 --init "$old")
expect 0 "" "${lenet[@]}" "${first[@]}" --out one
expect 0 "" "${lenet[@]}" "${first[@]}" --head-lr 3 --out three
differ one/checkpoint-1.safetensors three/checkpoint-1.safetensors "fc3.bias fc3.weight"
python3 - "$old" one/checkpoint-1.safetensors three/checkpoint-1.safetensors <<'END' || complain "--head-lr 3 is not three times the rate"
import array, json, struct, sys
def read(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])["fc3.weight"]["data_offsets"]
    return array.array("f", data[8 + length + begin:8 + length + end])
old, one, three = map(read, sys.argv[1:])
worst = max(abs(3 * (b - a) - (c - a)) for a, b, c in zip(old, one, three))
size = max(abs(b - a) for a, b in zip(old, one))
sys.exit(not (size > 1e-5 and worst < 1e-6))
END

# A head of another size is initialised from the seed, and everything is reported.
cat >drop.py <<'END'
import json, struct, sys
source, target, change = sys.argv[1:]
data = open(source, "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), data[8 + length:]
header.pop("__metadata__")
out, at, parts = {}, 0, []
for name, t in header.items():
    part = body[t["data_offsets"][0]:t["data_offsets"][1]]
    if change == "head" and name.startswith("fc3."):
        t["shape"][0] = 7
        part = part[:len(part) // 10 * 7]
    if change == "lack" and name == "fc1.weight":
        name = "fc1.extra"
    out[name] = dict(t, data_offsets=[at, at + len(part)])
    at += len(part)
    parts.append(part)
text = json.dumps(out).encode()
open(target, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
END
python3 drop.py "$old" torch.safetensors head
expect 0 "started from 'torch.safetensors': 8 of 10 tensors loaded" "${lenet[@]}" --steps 1 --lr 0 --init torch.safetensors \
    --overwrite --out b
has stdout "made anew: fc3.bias (10, in the file 7), fc3.weight (10x84, in the file 7x84)"
expect 0 "" "${lenet[@]}" --steps 1 --lr 0 --out fresh
differ b/checkpoint-1.safetensors "$old" "fc3.bias fc3.weight"
differ b/checkpoint-1.safetensors fresh/checkpoint-1.safetensors \
    "conv1.bias conv1.weight conv2.bias conv2.weight fc1.bias fc1.weight fc2.bias fc2.weight"
python3 drop.py "$old" torch.safetensors lack
expect 0 "not in the file and made anew: fc1.weight" "${lenet[@]}" --steps 1 --init torch.safetensors --out none
has stdout "passed over, because the model has no such tensor: fc1.extra"

# Stopping and resuming has the bits of a run that did not stop, and does not read the weights again.
tune=("${lenet[@]}" --epochs 3 --init start.safetensors --freeze conv1 --head-lr 2 --kfac-update-freq 2)
cp "$old" start.safetensors
expect 0 "" "${tune[@]}" --out whole
expect 0 "" "${tune[@]}" --epochs 3 --steps 5 --out part
rm start.safetensors
expect 0 "resumed from" "${tune[@]}" --out part --resume
differ whole/checkpoint-12.safetensors part/checkpoint-12.safetensors ""
differ whole/checkpoint-12.state.safetensors part/checkpoint-12.state.safetensors "train.seconds"

# Two ranks, of which only the first needs the file; gossip.
if have_mpi; then
    run2=(job 2 timeout 300 "$descent" train --model resnet20 --data synthetic:64 "${common[@]}" --batch-size 8 --steps 1)
    "${run2[@]}" --out r >stdout 2>stderr || complain "a run on two ranks: status $?"
    for how in "" "--consensus sgp"; do
        # shellcheck disable=SC2086 # several words
        "${run2[@]}" --init r --freeze '^(conv1|layer)' --seed 7 $how --overwrite --out r2 >stdout 2>stderr ||
            complain "fine-tuning on two ranks: status $?"
        has stdout "started from 'r/checkpoint-1.safetensors'"
        python3 differing.py r/checkpoint-1.safetensors r2/checkpoint-1.safetensors | tr ' ' '\n' |
            grep -v 'running_\|num_batches' | tr '\n' ' ' >names
        has names "bn1.bias bn1.weight linear.bias linear.weight"
        ! grep -q layer names || complain "frozen parameters change on two ranks: $(cat names)"
    done
    got=0
    "${run2[@]}" --init gone.safetensors --out bad >stdout 2>stderr || got=$?
    [ "$got" = 2 ] || complain "a missing file on two ranks: status $got instead of 2"
    has stderr "cannot start from 'gone.safetensors'"
fi

# Wrong options are refused, and no file is left behind.
expect 2 "cannot start from 'gone.safetensors'" "${lenet[@]}" --init gone.safetensors --out bad
head -c 3000 "$old" >torn.safetensors
expect 2 "torn.safetensors" "${lenet[@]}" --init torn.safetensors --out bad
expect 2 "holds no tensor that has the name of one of the model's" "${lenet[@]}" --init a/checkpoint-4.state.safetensors --out bad
mkdir -p nothing
expect 2 "directory 'nothing' holds no checkpoint" "${lenet[@]}" --init nothing --out bad
expect 2 "is found in no parameter's name: they go from 'conv1.weight' to 'fc3.bias'" "${lenet[@]}" --freeze layer9 --out bad
expect 2 "nothing is left to train" "${lenet[@]}" --freeze . --out bad
expect 2 "--freeze '(' is not a POSIX extended regular expression" "${lenet[@]}" --freeze '(' --out bad
expect 2 "--head-lr 0" "${lenet[@]}" --head-lr 0 --out bad
expect 2 "--head-lr 2 does not go with --kfac-damping-adapt 3" "${lenet[@]}" --head-lr 2 --kfac-update-freq 2 \
    --kfac-damping-adapt 3 --out bad
printf 'abcd%.0s' {1..200} >text

# Another context: the first positions are loaded, and those that the file does not have are initialised.
gpt=(train --model gpt-mini:layers=1,heads=1,width=8,dropout=0 --data text:text --batch-size 4 --steps 1 --lr 0 --threads 1
    --eval-every 0)
expect 0 "" "${gpt[@]}" --context 12 --out twelve
expect 0 "10 of 10 tensors loaded" "${gpt[@]}" --context 8 --init twelve --seed 7 --out eight
has stdout "positions: the first 8 of 12 rows of transformer.wpe.weight"
differ twelve/checkpoint-1.safetensors eight/checkpoint-1.safetensors transformer.wpe.weight
expect 0 "10 of 10 tensors loaded" "${gpt[@]}" --context 20 --init twelve --seed 7 --out twenty
has stdout "positions: all 12 rows of transformer.wpe.weight, and 8 made anew"

expect 2 "name and shape of one of the model's: 'twelve/checkpoint-1.safetensors': 'transformer.wte.weight' is fp32 [4, 8], in the model" \
    "${gpt[@]}" --model gpt-mini:layers=1,heads=1,width=4,dropout=0 --context 12 --init twelve --out bad

for tied in gpt-mini bert-base; do # with and without a bias, which is the head's own
    mask=$([ $tied = gpt-mini ] || echo "--mask 0.2")
    # shellcheck disable=SC2086 # none or two words
    expect 2 "head-lr 2: the model's last layer shares its weight with an embedding" train --model $tied:layers=1,heads=1,width=8 \
        --data text:text --context 8 --batch-size 4 --steps 1 --threads 1 --head-lr 2 $mask --out bad
done
[ ! -e bad ] || complain "a refused run leaves $(ls -a bad)"
finish
