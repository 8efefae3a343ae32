#!/usr/bin/env bash
# Help, version, and wrong command lines: status 2, and a message that names the value and the remedy.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

commands="train eval info list bench report average tokenize"

expect 0 "Usage: descent COMMAND" --help
for command in $commands; do
    has stdout "  $command "
done
expect 0 "Usage: descent COMMAND" -h
expect 0 "with" --version
expect 2 "Usage: descent COMMAND"
for command in $commands; do
    expect 0 "Usage: descent $command [OPTION]..." "$command" --help
    has stdout "--config FILE"
    has stdout "Examples:"
    [ ! -s stderr ] || complain "help of $command writes to stderr"
    widest=$(wc -L <stdout)
    [ "$widest" -le 110 ] || complain "help of $command has a line of $widest characters"
done

# The flags of the contract, with the defaults it fixes.
expect 0 "" train --help
for flag in model data epochs steps patience stop-at ema mixup cutmix randaugment randaugment-ops random-erasing class-weights batch-size val-batch-size seed out resume device threads precision optimizer lr \
    warmup-epochs lr-decay lr-decay-rate lr-schedule lr-rise lr-power lr-period lr-period-factor momentum nesterov weight-decay decay-on label-smoothing clip-norm \
    batches-per-allreduce allreduce-dtype lr-scaling warmup-start bucket-mb checkpoint-every keep consensus \
    kfac-update-freq image-size data-threads eval-every log-every check-every no-augment beta1 beta2 eps trust \
    overwrite plot config kfac-cov-update-freq kfac-method kfac-damping kfac-stat-decay kfac-kl-clip kfac-damping-alpha \
    kfac-damping-decay kfac-update-freq-alpha kfac-update-freq-decay kfac-strategy kfac-grad-worker-fraction \
    kfac-placement kfac-colocate-factors kfac-symmetric kfac-diag-blocks kfac-skip-layers kfac-scaling kfac-fisher \
    kfac-damping-split kfac-warmup-factors kfac-ekfac kfac-norm kfac-embeddings kfac-tied-head kfac-kl-clip-scaling \
    kfac-factor-samples kfac-damping-adapt kfac-damping-min kfac-damping-max kfac-clip kfac-refresh kfac-rank kfac-async \
    kfac-diag-warmup kfac-outer-product kfac-factor-dtype kfac-inverse-dtype kfac-scope graph peers-per-step \
    peers-schedule synch-freq gossip-group average-every slow-momentum slow-rate peer-timeout on-peer-loss bn-average \
    eval-ranks distance-every; do
    grep -qE -e "^  (-., )?--$flag( |\$)" stdout || complain "train --help lacks --$flag"
done
tr '\n' ' ' <stdout | tr -s ' ' >flat
for text in "(default resnet20)" "images per rank and step (default 128)" "training set (default 100)" \
    "(default sgd)" "rate of one rank (default 0.1, with adam and adamw 0.001, lars 1, lamb 0.005)" "sgd, lars: momentum (default 0.9)" "(default 0.0005)" \
    "step by step (default 5)" "rate at these epochs (default 0.1)" "(default 42)" "(default 4)" \
    "turns K-FAC off (default 0)" "updates of the factors; 0: never (default 1)" "(default 0.003)" "(default 0.95)" \
    "(default 0.001)" "(default eigen)" "(default comm-opt)" "(default compute)" "(default paper)" \
    "(default empirical)" "its decay epochs (default 0.5)" "their decay epochs (default 10)" "(default global)" \
    "(default allreduce)" "allreduce|sgp|osgp|dpsgd|adpsgd" "to in a step (default 1)" "waits for them (default 0)" \
    "the ranks of a node (default 1)" "(default stop)" "(default exponential; dpsgd, adpsgd: bipartite-exponential, dpsgd on an odd number of ranks: base-2)"; do
    has flat "$text"
done

expect 0 "" average --help
tr '\n' ' ' <stdout | tr -s ' ' >flat
has flat "(default exponential; push-pull: bipartite-exponential, on an odd number of ranks base-2)"

# Wrong uses: ARGUMENTS | text that the message must contain.
while IFS='|' read -r arguments text; do
    [ -n "$arguments" ] || continue
    # shellcheck disable=SC2086 # the arguments are several words
    expect 2 "$(sed 's/^ *//; s/ *$//' <<<"$text")" $arguments
    [ ! -s stdout ] || complain "descent $arguments writes to stdout"
    grep -q '^descent: ' stderr || complain "descent $arguments: the message does not start with 'descent: '"
done <<'TABLE'
trian | unknown command 'trian': known are train, eval, predict, info, list, bench, report, average, check-data, find-lr, sweep, tokenize, generate, completion (did you mean train?)
plan | unknown command 'plan': known are train, eval, predict, info, list, bench, report, average, check-data, find-lr, sweep, tokenize, generate, completion
help trian | unknown command 'trian'
list grahps | list 'grahps': known are models, data, optimizers, schedules, consensus, graphs, devices (did you mean graphs?)
list models data | unexpected argument 'data'
--frobnicate | unknown command '--frobnicate'
train --epoch 3 | unknown option --epoch (did you mean --epochs?)
train --epoch 3 | Try 'descent train --help'.
train --learning-rate 3 | unknown option --learning-rate
train --batch-size 0 | --batch-size 0: must be at least 1
train --batch-size=-4 | --batch-size -4: must be at least 1
train --batch-size 12.5 | --batch-size 12.5: is not a whole number
train --epochs | --epochs needs a value: --epochs N
train --lr much | --lr much: is not a number
train --momentum 1 | --momentum 1: must be at least 0 and below 1
train --label-smoothing 1.5 | --label-smoothing 1.5: must be at least 0 and below 1
train --optimizer sdg | --optimizer sdg: must be one of sgd, adam, adamw, lars, lamb (did you mean sgd?)
train --lr-schedule lineal | must be one of step, cosine, one-cycle, linear, polynomial, restarts (did you mean linear?)
train --lr-schedule one-cycle --warmup-epochs 3 | --warmup-epochs does not go with --lr-schedule one-cycle: one cycle starts with a rise of its own (--lr-rise)
train --lr-schedule one-cycle --lr-rise 1.5 | must be a number from 0 to 1
train --lr-power 3 | --lr-power does not go with --lr-schedule step
train --lr-schedule polynomial --lr-power 0 | --lr-power 0: must be above 0
train --lr-schedule restarts --lr-period 0 | --lr-period 0: must be above 0
train --lr-schedule restarts --lr-period-factor 0.5 | --lr-period-factor 0.5: must be at least 1
train --lr-schedule cosine --lr-period 5 | --lr-period does not go with --lr-schedule cosine
train --stop-at 92 | --stop-at 92: must be top1=X or top5=X, with X in percent, or loss=X
train --stop-at top1=high | --stop-at top1=high: 'high' is not a number
train --stop-at top1=-1 | '-1' is not a number
train --stop-at loss= | '' is not a number
train --stop-at top5=101 | an accuracy is 100 percent at most
train --stop-at top1=90 --eval-every 0 | --stop-at with --eval-every 0: there are no evaluations
train --patience 3 --eval-every 0 | --patience 3 with --eval-every 0: there are no evaluations
train --patience -1 | --patience -1: must be at least 0
train --decay-on biases | must be one of all, weights
train --device npu | --device npu: must be one of auto, ref, cpu, cuda, gpu (did you mean cpu?)
train --consensus spg | --consensus spg: must be one of allreduce, sgp, osgp, dpsgd, adpsgd (did you mean sgp?)
train --device cpu --precision bf16 | --precision bf16: device cpu computes in fp32 only
train --device cpu --precision fp16 | leave the option out
train --device cpu --tune | device cpu has nothing to tune
train --precision fp8 | must be one of fp32, bf16, fp16
train --kfac-update-freq=-1 | --kfac-update-freq -1: must be at least 0
train --kfac-damping 0 | --kfac-damping 0: must be above 0
train --kfac-stat-decay 1.5 | --kfac-stat-decay 1.5: must be at least 0 and at most 1
train --kfac-method cholesky | --kfac-method cholesky: must be one of eigen, inverse
train --kfac-strategy mem | must be one of comm-opt, mem-opt, hybrid-opt, layer-wise
train --kfac-scaling none | must be one of paper, kfac-pytorch
train --kfac-fisher true | must be one of empirical, sampled
train --kfac-update-freq 2 --kfac-scope gossip | --kfac-scope gossip does not go with --consensus allreduce
train --kfac-update-freq 2 --kfac-scope local | choose one of sgp, osgp, dpsgd, adpsgd
train --kfac-grad-worker-fraction x --out none | --kfac-grad-worker-fraction x: must be a number
train --model lenet --out none --kfac-update-freq 1 --kfac-strategy hybrid-opt --kfac-grad-worker-fraction 0.4 | 0.4
train --model lenet --out none --kfac-update-freq 1 --kfac-skip-layers ( | (
train --model lenet --out none --kfac-update-freq 1 --kfac-strategy mem-opt --kfac-colocate-factors off | mem-opt
train --kfac-strategy mem-opt | --kfac-strategy needs --kfac-update-freq: K-FAC is off; give --kfac-update-freq N, too, or leave --kfac-strategy out
train --kfac-damping 0.1 --out none | --kfac-damping needs --kfac-update-freq: K-FAC is off
train --consensus sgp --kfac-scope local | --kfac-scope needs --kfac-update-freq: K-FAC is off
train --optimizer adam --nesterov | --nesterov does not go with --optimizer adam: this optimiser has no Nesterov momentum; choose sgd or leave it out
train --optimizer lamb --momentum 0.5 | --momentum does not go with --optimizer lamb: this optimiser has no momentum; choose one of sgd, lars or leave it out
train --beta1 0.5 | --beta1 does not go with --optimizer sgd: this optimiser keeps no running means; choose one of adam, adamw, lamb or leave it out
train --trust 0.5 | --trust does not go with --optimizer sgd: only lars scales steps by the size of the weights; choose lars or leave it out
train --lr-schedule cosine --lr-decay 30 60 | --lr-decay does not go with --lr-schedule cosine: the other schedules decay by themselves; choose step or leave it out
train --lr-schedule cosine --lr-decay-rate 0.5 | --lr-decay-rate does not go with --lr-schedule cosine
train --graph ring | --graph does not go with --consensus allreduce: only gossip runs on a graph
train --graph ring | choose one of sgp, osgp, dpsgd, adpsgd or leave it out
train --peers-per-step 2 | --peers-per-step does not go with --consensus allreduce
train --consensus sgp --peers-per-step 0 | --peers-per-step 0: must be at least 1
train --consensus adpsgd --peers-per-step 2 | choose one of sgp, osgp, dpsgd or leave it out
train --peers-schedule 0:1 | --peers-schedule does not go with --consensus allreduce
train --consensus sgp --peers-schedule 0:x | --peers-schedule 0:x: must be pairs EPOCH:NUMBER
train --consensus sgp --peers-schedule 0 | must be pairs EPOCH:NUMBER
train --consensus sgp --peers-schedule 0:0 | with numbers of 1 or more
train --consensus sgp --peers-schedule 5:1,5:2 | epoch 5 does not come after epoch 5
train --consensus sgp --peers-schedule 0:1 5:2 | unexpected argument '5:2'
train --consensus sgp --synch-freq 2 | --synch-freq does not go with --consensus sgp: only osgp
train --consensus osgp --synch-freq=-1 | --synch-freq -1: must be at least 0
train --gossip-group 2 | --gossip-group does not go with --consensus allreduce
train --average-every 4 | --average-every does not go with --consensus allreduce: all-reduce keeps the ranks equal
train --consensus sgp --slow-momentum 0.5 | --slow-momentum with --average-every 0: it acts at exact averages, and there are none; give --average-every N
train --consensus sgp --slow-rate 0.5 | --slow-rate with --average-every 0: it acts at exact averages, and there are none; give --average-every N
train --consensus sgp --slow-momentum 1 | --slow-momentum 1: must be at least 0 and below 1
train --consensus sgp --peer-timeout=-5 | --peer-timeout -5: must be at least 0
train --eval-ranks | --eval-ranks does not go with --consensus allreduce
train --distance-every 5 | --distance-every does not go with --consensus allreduce
train --consensus sgp --check-every 5 | --check-every does not go with --consensus sgp: ranks that gossip differ from each other; choose allreduce
train --consensus sgp --eval-ranks --eval-every 0 | --eval-ranks with --eval-every 0
train --consensus sgp --kfac-update-freq 2 --kfac-scope local --kfac-strategy mem-opt | --kfac-strategy does not go with --kfac-scope local
train --consensus sgp --kfac-update-freq 2 --kfac-scope gossip --kfac-placement memory | --kfac-placement does not go with --kfac-scope gossip
train --on-peer-loss continue | --on-peer-loss continue does not go with --consensus allreduce
train --consensus sgp --on-peer-loss continue --peer-timeout 0 | --on-peer-loss continue with --peer-timeout 0: a rank counts as lost when it was silent for that many seconds, so nobody ever would
train --consensus sgp --on-peer-loss continue --gossip-group 2 | --on-peer-loss continue does not go with --gossip-group 2
train --consensus sgp --on-peer-loss continue --kfac-update-freq 5 | --on-peer-loss continue does not go with --kfac-scope global
train --consensus sgp --on-peer-loss continue --comm nccl | --on-peer-loss continue does not go with --comm nccl
train --on-peer-loss wait | must be one of stop, continue
train --model resnet33 | resnet33
train --model resnet33 | resnet20
train --resume --overwrite | --overwrite and --resume auto exclude each other
train --out none --resume | --resume auto looks into the output directory, and there is none: name the directory (--out)
train --lr-decay 35 x | unexpected argument 'x'
train extra | unexpected argument 'extra'
train --config missing.conf | --config missing.conf: No such file
train --data nothing:here --out none | nothing
train --data cifar10:no/such/directory --out none | no/such/directory
eval | eval needs --checkpoint FILE
eval --checkpoint no/such/file.safetensors | no/such/file.safetensors
train --image-size 4097 | --image-size 4097: must be at least 0 and at most 4096
eval --checkpoint x --image-size 4097 | --image-size 4097: must be at least 0 and at most 4096
eval --checkpoint x --top5 | unknown option --top5
info --model resnet33 | resnet33
info --ranks 0 | --ranks 0: must be at least 1
bench --steps 0 | --steps 0: must be at least 1
bench --model resnet33 | resnet33
average --steps 0 | --steps 0: must be at least 1
average --size 0 | --size 0: must be at least 1
average --peers 0 | --peers 0: must be at least 1
average --algorithm push | --algorithm push: must be one of push-sum, push-pull
average --wire fp8 | --wire fp8: must be one of fp32, bf16, fp16
average --tolerance=-1 | --tolerance -1: must be at least 0
average --graph rign | rign
average --graph no/such.graph | no/such.graph
average ring | unexpected argument 'ring'
report | report needs at least one run
report no/such/run | no/such/run
TABLE

# Configuration files are named with their line.
printf 'epochs = 3\nbatch-sise = 4\n' >wrong.conf
expect 2 "wrong.conf:2: unknown key batch-sise (did you mean batch-size?)" train --config wrong.conf
printf '# nothing\n\nlr = -1\n' >wrong.conf
expect 2 "wrong.conf:3: lr -1: must be at least 0" train --config wrong.conf
printf 'consensus = sgp\nsynch-freq = 3\n' >wrong.conf
expect 2 "--synch-freq does not go with --consensus sgp" train --config wrong.conf

if ! "$descent" --version | grep -q "with NCCL"; then
    expect 2 "--comm nccl: this build has no NCCL" train --model mlp --data synthetic:64 --batch-size 8 --steps 1 --out none --comm nccl
    has stderr "give --comm mpi"
fi

# Processes of a launcher that is not MPI's would each train alone: that has to be asked for.
export WORLD_SIZE=2 RANK=0
expect 1 "WORLD_SIZE is 2" train --model mlp --data synthetic:64 --batch-size 8 --steps 1 --out none
expect 0 "" train --model mlp --data synthetic:64 --batch-size 8 --steps 1 --out none --comm self
unset WORLD_SIZE RANK

# Help by name, and the names that options take.
expect 0 "Usage: descent train [OPTION]..." help train
tr -s ' \n' ' ' <stdout | grep -q "NAME:key=value,... changes a model's size, as in gpt-mini:layers=4,width=128" ||
    complain "help train does not say how a model's size is changed"
expect 0 "  imagefolder   imagefolder:DIR" list
has stdout "graphs (train --graph)"
expect 0 "hypercube" list graphs
[ "$(wc -w <stdout)" -ge 10 ] || complain "list graphs: $(cat stdout)"
expect 0 '"optimizers": [' list --json
python3 -c 'import json; v = json.load(open("stdout")); assert "lamb" in v["optimizers"] and "resnet50" in [m["name"] for m in v["models"]]' ||
    complain "list --json: $(head -n 5 stdout)"
expect 0 "unet-bn       made for 256x256x3, 1 class; keys width=32, depth=4, dropout=0" list models
has stdout "gpt-mini      made for 256 tokens, vocabulary 65; keys layers=6, heads=6, width=384, dropout=0.2, bias=0"
grep -qx "resnet20      made for 32x32x3, 10 classes" stdout || complain "list models: $(cat stdout)"
while read -r name text; do # and so says docs/models.md
    [[ $text == *"; keys "* ]] || text+="; keys "
    row="| \`$name\` | $(sed 's/^made for //; s/; keys / | /; s/ $//' <<<"$text") |"
    grep -qF "$row" "$DESCENT_SOURCE_DIR/docs/models.md" || complain "docs/models.md lacks '$row'"
done <stdout
expect 0 "" list models --json
python3 - <<'END' || complain "list models --json: $(cat stdout)"
import json
keys = {m["name"]: m["keys"] for m in json.load(open("stdout"))["models"]}
assert keys["resnet50"] == []
assert [(k["name"], k["default"]) for k in keys["unet"]] == [("width", 64), ("depth", 4), ("dropout", 0.5)]
assert keys["unet"][1]["values"] == "at least 1 and at most 6" and "halved" in keys["unet"][1]["description"]
END

# A GPU by its other name.
if ! "$descent" --version | grep -q "with CUDA"; then
    expect 2 "device 'cuda': this build has no CUDA" info --device gpu
fi

# Off on the command line is off, whatever a file says of the rest.
printf 'kfac-damping = 0.1\nkfac-update-freq = 10\n' >kfac.conf
expect 0 "done" train --config kfac.conf --kfac-update-freq 0 --model mlp --data synthetic:64 --batch-size 8 --steps 1 --out none

# Layers to skip that do not exist.
one=(train --model mlp --data synthetic:64 --batch-size 8 --steps 1 --eval-every 0 --out none --kfac-update-freq 1)
expect 0 "warning: K-FAC layers to skip: 'nolayer' is found in no layer's name or kind" "${one[@]}" --kfac-skip-layers "fc1 nolayer"
expect 0 "warning: K-FAC layers to skip: all layers are skipped" "${one[@]}" --kfac-skip-layers linear
expect 0 "" "${one[@]}" --kfac-skip-layers fc1
[ ! -s stderr ] || complain "layers to skip that are there: $(cat stderr)"

# The place in the source where an error arose is printed only with --verbose.
expect 2 "" train --model resnet33
! grep -q 'src/.*:[0-9]' stderr || complain "a trace is printed without --verbose"
expect 2 "src/" train --model resnet33 --verbose

# Output that cannot be written is an error; a reader that has gone is none.
if [ -e /dev/full ]; then
    got=0
    "$descent" info >/dev/full 2>stderr || got=$?
    [ "$got" = 1 ] || complain "info to a full disk: exit status $got instead of 1"
    has stderr "cannot write to the standard output: No space left on device"
fi
("$descent" info --model resnet56 || echo $? >pipe-status) 2>stderr | head -n 1 >/dev/null
[ ! -e pipe-status ] || complain "a reader that leaves ends info with status $(cat pipe-status)"

# One message for a whole job.
if have_mpi; then
    got=0
    job 2 "$descent" train --epochs 0 >stdout 2>stderr || got=$?
    [ "$got" = 2 ] || complain "a wrong option under mpiexec: exit status $got instead of 2"
    [ "$(grep -c '^descent: --epochs 0' stderr)" = 1 ] || complain "two ranks print one error $(grep -c '^descent: ' stderr) times"
fi
finish
