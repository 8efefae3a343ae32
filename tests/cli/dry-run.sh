#!/usr/bin/env bash
# Commands that are refused leave nothing on the disk; --print-config and --dry-run write nothing.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small=(train --model mlp --data synthetic:128 --batch-size 32 --threads 1 --device cpu --eval-every 0)
many=
have_mpi && many=yes

# refused TEXT ARGS...: status 2 and TEXT, in an empty directory that stays empty.
refused() {
    local text=$1 got=0
    shift
    (cd "$work/empty" && "$descent" "$@") >stdout 2>stderr </dev/null || got=$?
    [ "$got" = 2 ] || complain "descent $*: exit status $got instead of 2"
    has stderr "$text"
    [ -z "$(ls -A "$work/empty")" ] || complain "descent $* leaves $(ls -A "$work/empty")"
}

# both TEXT ARGS...: the same on two ranks, too, which print the message once.
both() {
    local text=$1 got=0
    refused "$@"
    [ -n "$many" ] || return 0
    shift
    (cd "$work/empty" && job 2 "$descent" "$@") >stdout 2>stderr </dev/null || got=$?
    [ "$got" = 2 ] || complain "two ranks: descent $*: exit status $got instead of 2"
    [ "$(grep "^descent: " stderr | grep -cF "$text")" = 1 ] || complain "two ranks: descent $*: $(cat stderr)"
    [ -z "$(ls -A "$work/empty")" ] || complain "two ranks: descent $* leaves $(ls -A "$work/empty")"
}

expect 0 "done: " "${small[@]}" --epochs 3 --out whole
expect 0 "done: " "${small[@]}" --epochs 1 --model lenet --out other
mkdir empty
printf 'junk' >junk.safetensors
echo "0 1 x" >graph
echo "1 2" >weights

# Commands that are refused early, late, or at the very end because files cannot be written.
both "none/data_batch_1.bin" "${small[@]}" --data cifar10:none
both "too short for a safetensors file" "${small[@]}" --init "$work/junk.safetensors" --out a/b/c
both "tensorboard /proc/none/x: cannot make directory" "${small[@]}" --tensorboard /proc/none/x --trace b/trace.json
both "trace /proc/none/x: cannot make directory" "${small[@]}" --trace /proc/none/x --tensorboard c/events --out a/b
refused "no trace: name another file" "${small[@]}" --trace "$work/junk.safetensors"
refused "is unknown" "${small[@]}" --model resnet2000
refused "a graph file starts so" "${small[@]}" --consensus sgp --graph "$work/graph"
refused "holds 2 numbers, the data has 10 classes" "${small[@]}" --class-weights "$work/weights"
refused "nothing is left to train" "${small[@]}" --freeze '.*'
refused "use a smaller batch" "${small[@]}" --batch-size 4096
refused "too short for a safetensors file" "${small[@]}" --resume "$work/junk.safetensors"
refused "holds no checkpoint" "${small[@]}" --resume "$work/empty"
refused "cannot change model: it is mlp now, but was lenet" "${small[@]}" --resume "$work/other/checkpoint-4.safetensors"
refused "name a directory that can be written" "${small[@]}" --out /proc/none/x
refused "trace /proc/none/x: cannot make directory" "${small[@]}" --dry-run --trace /proc/none/x
refused "name a directory that can be written" "${small[@]}" --dry-run --out /proc/none/x
refused "too short for a safetensors file" "${small[@]}" --dry-run --init "$work/junk.safetensors"

# A refused --overwrite removes nothing.
before=$(ls whole)
for late in "--data cifar10:none/here" "--trace /proc/none/x" "--init junk.safetensors"; do
    # shellcheck disable=SC2086 # an option and its value
    expect 2 "" "${small[@]}" $late --out whole --overwrite
    [ "$(ls whole)" = "$before" ] || complain "--overwrite $late, refused, has removed files"
done

# --print-config is what --config reads.
"$descent" "${small[@]}" --epochs 3 --nesterov --print-config >printed
expect 0 "done: " train --config printed --out again
values() { grep '^[a-z]' "$1" | grep -vE '^(out|image-size) = ' | sort; } # a run stores the size that it has found
diff <(values again/config) <(values printed) || complain "--print-config prints other options than a run stores"

# --dry-run trains nothing and writes nothing, also for a run that continues, or has nothing left to do.
expect 0 "ms per step" "${small[@]}" --epochs 3 --kfac-update-freq 10 --kfac-skip-layers fc1 --dry-run
has stdout "steps: 4 per epoch, 12 in all"
has stdout "MB per rank"
has stdout "MB of that for K-FAC"
expect 0 "output: deep/er (nothing is written)" "${small[@]}" --epochs 3 --dry-run --out deep/er --trace deep/er/t.json --tensorboard deep/events
before=$(md5sum whole/*)
expect 0 "ms per step" train --resume whole --epochs 9 --dry-run
expect 0 "steps: none is left" train --resume whole --dry-run
expect 2 "there is a run in it already" "${small[@]}" --dry-run --out whole
cp -r whole torn
printf x >>torn/checkpoint-12.safetensors
expect 0 "goes back to 'torn/checkpoint-8.safetensors'" "${small[@]}" --epochs 9 --out torn --resume auto --dry-run
[ "$(md5sum whole/*)" = "$before" ] || complain "--dry-run has changed a run"
[ ! -e runs ] && [ ! -e deep ] || complain "--dry-run leaves $(ls)"
if [ -n "$many" ]; then # ranks other than 0 do not know the directory
    job 2 "$descent" "${small[@]}" --batch-size 16 --epochs 1 --init whole >stdout 2>stderr || complain "two ranks: $(cat stderr)"
    before=$(md5sum runs/*/*)
    job 2 "$descent" "${small[@]}" --batch-size 16 --epochs 2 --init whole --resume auto --dry-run >stdout 2>stderr ||
        complain "--dry-run --resume auto on two ranks: $(cat stderr)"
    [ "$(grep -c "ms per step" stdout)" = 1 ] || complain "--dry-run on two ranks prints $(cat stdout)"
    has stdout "resumed from 'runs/mlp-synthetic-batch-size16-init-whole-1/checkpoint-4.safetensors'"
    [ "$(md5sum runs/*/*)" = "$before" ] || complain "--dry-run on two ranks has changed a run"
fi

finish
