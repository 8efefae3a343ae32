#!/usr/bin/env bash
# The two command lines of the SC'20 program's readme, word for word after the program's name and --data, on black
# images; the options added at the end only shorten the runs.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
have_mpi || exit 77

# CIFAR-10: 10,000 records of a label (0) and 3,072 pixels (0) a file. An image folder: two classes of one white pixel.
mkdir -p cifar/cifar-10-batches-bin
for file in data_batch_{1..5} test_batch; do
    truncate -s 30730000 "cifar/cifar-10-batches-bin/$file.bin"
done
printf '%s\n' airplane automobile bird cat deer dog frog horse ship truck >cifar/cifar-10-batches-bin/batches.meta.txt
for folder in images/{train,val}/{cat,dog}; do
    mkdir -p "$folder"
    for i in 1 2 3 4 5 6 7 8; do
        base64 -d >"$folder/$i.png" <<<iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg==
    done
done
short=(--steps 2 --batch-size 2 --threads 1 --eval-every 0)

run() { # NAME DATA OPTIONS...: four ranks
    local name=$1 data=$2
    shift 2
    job 4 "$descent" train --data "$data" "$@" "${short[@]}" --out "$name" >stdout 2>stderr || {
        complain "$name: exit status $?"
        tail -n 5 stdout stderr
        return
    }
    has "$name/metrics.jsonl" '"kind":"kfac"'
    has "$name/metrics.jsonl" '"update_freq":10'
}
run cifar10 "cifar10:$work/cifar" --lr 0.1 --epochs 100 --kfac-update-freq 10 --model resnet32 --lr-decay 35 75 90
has cifar10/metrics.jsonl '"lr_decay":[35.0,75.0,90.0]'
run imagenet "imagefolder:$work/images" --lr 0.0125 --epochs 55 --kfac-update-freq 10 --model resnet32 --lr-decay 25 35 40 45 50
has imagenet/metrics.jsonl '"lr_decay":[25.0,35.0,40.0,45.0,50.0]'
has imagenet/metrics.jsonl '"image_size":32'
finish
