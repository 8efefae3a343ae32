#!/usr/bin/env bash
# descent train by gossip, from end to end on small nets: every algorithm, its options in the metrics, resuming, refusing.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# When a job has failed, Open MPI gives the other ranks a second to end. Here they have nothing left to do.
export OMPI_MCA_odls_base_sigkill_timeout=0

small=(train --model mlp --data synthetic:256 --batch-size 16 --threads 1 --epochs 2 --log-every 1)

# One process: every algorithm is plain training.
for kind in sgp osgp dpsgd; do
    expect 0 "done: 2 epochs, 32 steps" "${small[@]}" --consensus $kind --out "one-$kind" --eval-every 0
done
expect 0 "" "${small[@]}" --out one-allreduce --eval-every 0
for kind in sgp osgp dpsgd; do
    cmp -s one-allreduce/checkpoint-32.safetensors one-$kind/checkpoint-32.safetensors ||
        complain "$kind in one process is not plain training"
done

have_mpi || finish
have_mpi || exit 0

# gossip RANKS ARGS...: a training; complains unless it ends with status 0.
gossip() {
    local ranks=$1 got=0
    shift
    job "$ranks" "$descent" "${small[@]}" "$@" >stdout 2>stderr || got=$?
    [ "$got" = 0 ] || { complain "$* on $ranks ranks: status $got"; tail -n 5 stdout stderr; }
    [ "$(grep -c '^done: ' stdout)" = 1 ] || complain "$*: the end is printed $(grep -c '^done: ' stdout) times"
}

# refused RANKS TEXT ARGS...: status 2 and TEXT, printed once.
refused() {
    local ranks=$1 text=$2 got=0
    shift 2
    job "$ranks" "$descent" "${small[@]}" --out none "$@" >stdout 2>stderr || got=$?
    [ "$got" = 2 ] || { complain "$* on $ranks ranks: status $got instead of 2"; cat stderr; }
    grep -qF -e "$text" stderr || { complain "$* on $ranks ranks: does not say '$text'"; cat stderr; }
    [ "$(grep -c '^descent: ' stderr)" = 1 ] || complain "$*: printed $(grep -c '^descent: ' stderr) times"
}

for kind in sgp osgp dpsgd adpsgd; do
    gossip 4 --consensus $kind --out $kind --eval-ranks --bn-average --distance-every 4 --peer-timeout 60
    has $kind/metrics.jsonl "\"consensus\":\"$kind\""
    has $kind/metrics.jsonl '"kind":"consensus"'
done

# Stopping and going on gives the bits of the run that never stopped.
gossip 2 --consensus osgp --out whole --eval-every 0
gossip 2 --consensus osgp --out part --eval-every 0 --steps 11
gossip 2 --consensus osgp --out part --eval-every 0 --resume
cmp -s whole/checkpoint-16.safetensors part/checkpoint-16.safetensors || complain "resumed to other bits"

# Every other option once.
gossip 4 --consensus sgp --out more --graph exponential-pm --peers-per-step 2 --peers-schedule '0:1 1:2' --average-every 4 \
    --slow-momentum 0.5 --slow-rate 0.9 --allreduce-dtype bf16 --bucket-mb 0.1 --on-peer-loss stop
gossip 4 --consensus osgp --out more --overwrite --synch-freq 3 --gossip-group 2
gossip 3 --consensus dpsgd --out more --overwrite
gossip 2 --consensus sgp --out more --overwrite --gossip-group 0
gossip 2 --consensus adpsgd --out more --overwrite --allreduce-dtype fp16
for scope in global gossip local; do
    gossip 2 --model lenet --consensus sgp --out more --overwrite --kfac-update-freq 4 --kfac-scope $scope --steps 9
    has more/metrics.jsonl '"kind":"kfac"'
    has more/metrics.jsonl "\"scope\":\"$scope\""
done

# Options that cannot work.
refused 3 "hypercube" --consensus sgp --graph hypercube
refused 3 "bipartite-exponential" --consensus dpsgd --graph bipartite-exponential
refused 3 "matching" --consensus dpsgd --graph exponential --peers-per-step 1
refused 2 "no/such.graph" --consensus sgp --graph no/such.graph
refused 2 "2 peers" --consensus sgp --peers-per-step 2
refused 3 "2" --consensus sgp --gossip-group 2
refused 3 "adpsgd with 3 ranks" --consensus adpsgd
refused 2 "comm-opt" --consensus sgp --kfac-update-freq 2 --kfac-scope global --kfac-strategy mem-opt
finish
