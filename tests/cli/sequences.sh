#!/usr/bin/env bash
# Language models: training on text, evaluation, resuming, ranks, K-FAC, gossip, and generating text.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

for i in $(seq 150); do printf 'line %d of a text that repeats.\n' $((i % 7)); done >text
model=gpt-mini:layers=1,heads=2,width=16,dropout=0
small=(--model $model --data text:text --context 16 --batch-size 8 --optimizer adamw --lr 0.01 --warmup-epochs 0
    --threads 1 --device cpu)

# ranks ARGS...: two of them, which share the machine.
ranks() {
    job 2 "$descent" "$@" >stdout 2>stderr </dev/null || {
        complain "two ranks of descent $*: exit status $?"
        tail -n 5 stdout stderr
    }
}

# A run: what it is, tokens per second, perplexity; the loss falls far below that of single letters.
expect 0 "sequences of 16 tokens, vocabulary" train "${small[@]}" --epochs 6 --out run
has stdout "tokens/s"
has stdout "perplexity"
loss=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' run/metrics.jsonl | tail -n 1)
awk -v l="$loss" 'BEGIN { exit !(l > 0 && l < 1.5) }' || complain "the loss is $loss"
grep -q '"bits_per_byte":' run/metrics.jsonl || complain "no bits per byte in the metrics"

# Evaluation gives the loss of the run, and bits per byte: characters are bytes here.
expect 0 "bits per byte" eval --checkpoint run
expect 0 "" eval --checkpoint run --json
bits=$(sed -n 's/.*"bits_per_byte": \([0-9.]*\).*/\1/p' stdout)
awk -v l="$loss" -v b="$bits" 'BEGIN { d = b - l / log(2); exit !(d < 1e-4 && d > -1e-4) }' || complain "$bits bits for a loss of $loss"

# Stopped and resumed, it has the bits of the run that never stopped.
expect 0 "" train "${small[@]}" --epochs 2 --steps 30 --out whole --kfac-update-freq 5
expect 0 "" train "${small[@]}" --epochs 2 --steps 13 --out parts --kfac-update-freq 5
expect 0 "" train --resume parts --steps 30
cmp whole/checkpoint-30.safetensors parts/checkpoint-30.safetensors || complain "a resumed run differs"

# The strategies of K-FAC agree on two ranks, in the expanding and the reducing setting, and gossip trains.
strategies() {
    local sharing strategy
    for sharing in expand reduce; do
        for strategy in comm-opt mem-opt; do
            ranks train "${small[@]}" --batch-size 4 --steps 12 --out "$strategy-$sharing" --kfac-update-freq 4 \
                --kfac-strategy $strategy --kfac-sharing $sharing
            sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' "$strategy-$sharing/metrics.jsonl" | tail -n 1
        done | awk 'NR == 1 { a = $1 } END { d = a - $1; exit !(NR == 2 && d < 1e-3 && d > -1e-3) }' ||
            complain "strategies differ with $sharing"
    done
    ranks train "${small[@]}" --batch-size 4 --steps 10 --out gossip --consensus sgp --kfac-update-freq 4 --kfac-scope local
}
if have_mpi; then
    strategies
fi

# Text: the same for a seed, another for another; the most probable token by either way to ask for it; longer than the
# context.
expect 0 "line" generate --checkpoint run --prompt "line 1" --tokens 60 --seed 3
cp stdout first
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --seed 3
cmp stdout first || complain "the same seed gives another text"
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --seed 4
cmp -s stdout first && complain "another seed gives the same text"
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --temperature 0
cp stdout first
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --top-k 1
cmp stdout first || complain "top-k 1 is not the most probable token"
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --top-p 0.000001
cmp stdout first || complain "a small top-p is not the most probable token"
[ "$(wc -c <first)" = 67 ] || complain "6 characters, 60 more and a line feed are not $(wc -c <first)"
expect 0 "" generate --checkpoint run --tokens 5

# A benchmark, on random tokens: 4 sequences of 16 tokens a step, with and without K-FAC.
expect 0 "tokens   16 in a sequence, vocabulary 65" bench --model $model --context 16 --batch-size 4 --steps 2 --threads 1 --device cpu \
    --optimizer adamw --clip-norm 1 --kfac --kfac-with "refresh=warm rank=1/4"
has stdout " tokens/s"
has stdout "of an AdamW step"
expect 0 '"tokens_per_s": ' bench --model $model --context 16 --batch-size 4 --steps 2 --threads 1 --device cpu --json
awk -F '[:,]' '/median_s/ { s = $2 } /tokens_per_s/ { r = $2 } END { d = r * s / 64; exit !(d > 0.999 && d < 1.001) }' stdout ||
    complain "the rate of tokens is not 64 by the time of a step"
awk -F '[:,]' '{ v[$1] = $2 } END { f = v["  \"flops_per_s\""]; m = v["  \"mfu\""] * v["  \"peak_flops_per_s\""] / f
    s = 3 * v["  \"flops_per_sample\""] * 4 / v["  \"median_s\""] / f; exit !(m > 0.99 && m < 1.01 && s > 0.999 && s < 1.001) }' stdout ||
    complain "flops_per_s, mfu and peak_flops_per_s do not fit"

# What cannot be.
expect 2 "context 8: model mlp is one of images" bench --model mlp --context 8 --steps 1
expect 2 "optimizer 'newton' is unknown" bench --model $model --optimizer newton
expect 2 "the prompt: the byte 0x7e at position 0 is not among" generate --checkpoint run --prompt "~"
expect 2 "generate needs --checkpoint" generate --prompt x
# The checkpoint holds its tokenizer: text is generated without the data. Older ones need these.
mv text elsewhere
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 60 --temperature 0
cmp first stdout || complain "without the data the text is another"
expect 0 "tokenizer     chars, 2" info --checkpoint run
expect 0 '"tokenizer": "chars"' info --checkpoint run --json
edit=$DESCENT_SOURCE_DIR/tests/cli/edit-metadata newest=$(find run -name 'checkpoint-*[0-9].safetensors' | sort -V | tail -n 1)
"$edit" "$newest" old.safetensors tokenizer=
expect 2 "'text'" generate --checkpoint old.safetensors
expect 0 "" generate --checkpoint old.safetensors --data text:elsewhere --prompt "line 1" --tokens 60 --temperature 0
cmp first stdout || complain "with the data of an older checkpoint the text is another"
"$edit" "$newest" bad.safetensors 'tokenizer={"kind":"words"}'
expect 2 "the tokenizer in 'bad.safetensors': its kind is 'words'" generate --checkpoint bad.safetensors
printf 'abc%.0s' $(seq 200) >other
expect 2 "has a vocabulary of" generate --checkpoint run --data text:other
expect 2 "context 8: model lenet is one of images" train --model lenet --context 8 --out none
expect 2 "there is no key 'depth'" train "${small[@]}" --model gpt-mini:depth=3 --out none
expect 0 "" train --model lenet --data synthetic:256 --steps 2 --batch-size 8 --out images
expect 2 "model lenet is one of images" generate --checkpoint images --data text:other
finish
