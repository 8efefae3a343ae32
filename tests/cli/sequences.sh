#!/usr/bin/env bash
# Language models: training on text, evaluation, resuming, ranks, K-FAC, gossip, and generating text.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

for i in $(seq 150); do printf 'line %d of a text that repeats.\n' $((i % 7)); done >text
model=gpt-mini:layers=1,heads=2,width=16,dropout=0
small=(--model $model --data text:text --context 16 --batch-size 8 --optimizer adamw --lr 0.01 --warmup-epochs 0
    --threads 1 --device cpu)

# ranks ARGS...: runs the program on two ranks, which share the machine.
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

# Classes are tokens.
expect 0 "class                       tokens   accuracy  precision  most often taken for" eval --checkpoint run --per-class --confusion
has stdout "'\\n'     "
has stdout "'t'     "
has stdout "rows: class of the token"
expect 0 "\"class\": \"'t'\"" eval --checkpoint run --json
expect 0 "input         256 tokens, vocabulary 65" info --model gpt-mini
has stdout "others        128,256 parameters in no such layer: transformer.wte.weight, transformer.wpe.weight,"

# The report shows its lowest loss, and tokens per second.
expect 0 "tokens/s" report run
has stdout "best loss"
has stdout "loss on the validation set"
! grep -q "images/s" stdout || complain "a report of text with images per second: $(cat stdout)"
best=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' run/metrics.jsonl | sort -g | head -n 1)
expect 0 "" report run --json
awk -v b="$best" '/"best_loss":/ { gsub(/[^0-9.e-]/, "", $2); found = $2 - b < 1e-9 && b - $2 < 1e-9 } END { exit !found }' stdout ||
    complain "the best loss is $best: $(grep best_loss stdout)"

# Text with as many characters but other numbers for them is refused; the same text in another place is not.
LC_ALL=C tr a-z 'b-z{' <text >shifted
printf 'abc%.0s' {1..200} >abc
expect 2 "and a vocabulary of $(($(fold -w 1 text | sort -u | wc -l) + 1)), text:abc has sequences of 16 tokens and a vocabulary of 3: use data with" eval --checkpoint run \
    --data text:abc
expect 2 "the tokens of text:shifted stand for other text" eval --checkpoint run --data text:shifted
cp text same
expect 0 "bits per byte" eval --checkpoint run --data text:same
expect 0 "warning: the run starts with a table of other tokens: the tokens of text:shifted stand for other text" train "${small[@]}" \
    --data text:shifted --steps 1 --eval-every 0 --init run --out none
expect 0 "" train "${small[@]}" --data text:same --steps 1 --eval-every 0 --init run --out none
! grep -q "stand for" stderr || complain "a warning of the same tokens: $(cat stderr)"
mv shifted same
expect 0 "" train "${small[@]}" --data text:same --epochs 1 --steps 3 --out replaced
cp text same
expect 2 "the tokens of text:same stand for other text" train --resume replaced --steps 6

# Stopped and resumed, it has the bits of the run that never stopped.
expect 0 "" train "${small[@]}" --epochs 2 --steps 30 --out whole --kfac-update-freq 5
expect 0 "" train "${small[@]}" --epochs 2 --steps 13 --out parts --kfac-update-freq 5
expect 0 "" train --resume parts --steps 30
cmp whole/checkpoint-30.safetensors parts/checkpoint-30.safetensors || complain "a resumed run differs"

# A tied head by the factor of its input: another loss than with its plain gradient; stopped and resumed, the same bits.
head=("${small[@]}" --epochs 2 --kfac-update-freq 5 --kfac-tied-head input)
loss_of() { sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
expect 0 "tied-head input" train "${head[@]}" --steps 30 --out head
awk -v a="$(loss_of whole)" -v b="$(loss_of head)" 'BEGIN { exit !(b > 0 && b < 3 && (a - b) ^ 2 > 1e-8) }' ||
    complain "the loss is $(loss_of head) with the head's input, $(loss_of whole) without"
expect 0 "" train "${head[@]}" --steps 13 --out head-parts
expect 0 "" train --resume head-parts --steps 30
cmp head/checkpoint-30.safetensors head-parts/checkpoint-30.safetensors || complain "a resumed run with a tied head differs"
expect 0 "" train "${head[@]}" --steps 2 --kfac-skip-layers lm_head --kfac-norm full --kfac-embeddings on --out head-skipped
expect 2 "clip layer with tied head input" train "${head[@]}" --steps 2 --kfac-clip layer --out head-clip

expect 2 "cannot change context: it is 32 now, but was 16 in 'whole'" train "${small[@]}" --epochs 2 --out whole --resume auto --context 32

# Evaluation with a shorter context uses the first positions; a longer context is refused, and so is a context for
# images. Files of other programs only tell the shapes of their tables.
expect 0 ", 464 tokens" eval --checkpoint run --context 8
expect 2 "has 16 positions, fewer than the 32 tokens of a sequence: use context 16 or less" eval --checkpoint run --context 32
expect 2 "image-size 8: model $model is one of sequences: use context" eval --checkpoint run --image-size 8
expect 2 "mask-token 3: no tokens are masked" eval --checkpoint run --mask-token 3
expect 2 "do --mask or the vocabulary differ?" eval --checkpoint run --mask 0.15
expect 2 "or name it: vocabulary" eval --checkpoint run --vocabulary 30
bare() { # bare FROM TO: a file without metadata
    "$DESCENT_SOURCE_DIR/tests/cli/edit-metadata" "$1" "$2" format= descent= model= classes= height= width= channels= step= epoch= data= \
        seed= tokenizer= mask= mask_token= vocabulary=
}
if command -v python3 >/dev/null; then
    bare run/"$(cat run/latest)" bare.safetensors
    expect 0 "" eval --checkpoint bare.safetensors --model $model --data text:text --json
    ! grep -q "image" stderr || complain "a warning about images of a text: $(cat stderr)"
    of_bare=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' stdout | head -n 1)
    awk -v a="$of_bare" -v b="$loss" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-6 && d > -1e-6) }' || complain "a loss of $of_bare without metadata, $loss with"
    expect 0 "line" generate --checkpoint bare.safetensors --model $model --data text:text --prompt line --tokens 5
    # A table may have a few more rows than its data have tokens, for speed. One with many more belongs to another tokenizer.
    expect 0 "" train "${small[@]}" --vocabulary 300 --steps 1 --eval-every 0 --out padded
    bare padded/"$(cat padded/latest)" bare.safetensors
    for command in eval generate; do
        expect 2 "the model's table has 300 tokens, the tokenizer of text:text has $(($(fold -w 1 text | sort -u | wc -l) + 1)): use text" \
            $command --checkpoint bare.safetensors --model $model --data text:text
        expect 0 "" $command --checkpoint bare.safetensors --model $model --data text:bytes:text
    done
    expect 0 "" eval --checkpoint bare.safetensors --model $model --data text:text --vocabulary 300
fi

# The same with dropout: two runs have the same bits, and so has one that was stopped.
dropped=("${small[@]}" --model gpt-mini:layers=1,heads=2,width=16,dropout=0.3 --epochs 2)
expect 0 "" train "${dropped[@]}" --steps 20 --out dropped
expect 0 "" train "${dropped[@]}" --steps 20 --out again
cmp dropped/checkpoint-20.safetensors again/checkpoint-20.safetensors || complain "two runs with dropout differ"
expect 0 "" train "${dropped[@]}" --steps 9 --out stopped
expect 0 "" train --resume stopped --steps 20
cmp dropped/checkpoint-20.safetensors stopped/checkpoint-20.safetensors || complain "a resumed run with dropout differs"

# Activations that are computed again give the same bits, also with K-FAC, which captures in a pass of its own.
sampled=(--steps 14 --kfac-update-freq 5 --kfac-fisher sampled)
expect 0 "" train "${dropped[@]}" "${sampled[@]}" --out kept
expect 0 "activations take" train "${dropped[@]}" "${sampled[@]}" --out recomputed --recompute
cmp kept/checkpoint-14.safetensors recomputed/checkpoint-14.safetensors || complain "recompute changes the bits"
expect 0 "activations take" train --resume dropped --steps 24 --recompute
expect 0 "" train --resume again --steps 24
cmp dropped/checkpoint-24.safetensors again/checkpoint-24.safetensors || complain "recompute changes a resumed run"

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

# Masked tokens: BERT learns them, evaluation masks as the training did, and a resumed run has the same bits. The mask is a
# token of its own.
bert=bert-base:layers=1,heads=2,width=32,dropout=0
masked=(--model $bert --data text:text --mask 0.15 --context 16 --batch-size 8 --optimizer adamw --lr 0.001 --warmup-epochs 0
    --threads 1 --device cpu)
expect 0 "mask 0.15" train "${masked[@]}" --epochs 60 --out bert
has stdout "vocabulary $(($(fold -w 1 text | sort -u | wc -l) + 2))" # the line feed, and the mask
expect 0 "of them to be predicted: loss" eval --checkpoint bert
grep -q "bits per byte" stdout && complain "bits per byte of masked tokens"
expect 0 "" eval --checkpoint bert --json
numbers=$(sed -n 's/.*"\(tokens\|masked_tokens\|loss\|top1\)": \([0-9.]*\).*/\1=\2/p' stdout)
eval "$numbers"
awk -v t="$tokens" -v m="$masked_tokens" 'BEGIN { d = m - 0.15 * t; s = sqrt(0.1275 * t); exit !(d < 6 * s && d > -6 * s) }' ||
    complain "$masked_tokens of $tokens tokens are masked"
awk -v a="$top1" 'BEGIN { exit !(a > 0.6) }' || complain "of the masked tokens only $top1 are right"
last=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' bert/metrics.jsonl | tail -n 1)
awk -v a="$loss" -v b="$last" 'BEGIN { d = a - b; exit !(d < 1e-6 && d > -1e-6) }' || complain "eval has a loss of $loss, the run $last"
expect 0 "" eval --checkpoint bert --mask 0.5 --json
half=$(sed -n 's/.*"masked_tokens": \([0-9]*\).*/\1/p' stdout)
[ "$half" -gt $((2 * masked_tokens)) ] || complain "--mask 0.5 masks $half tokens"
more=(--kfac-update-freq 5 --kfac-fisher sampled)
expect 0 "" train "${masked[@]}" "${more[@]}" --epochs 2 --steps 30 --out masked-whole
expect 0 "" train "${masked[@]}" "${more[@]}" --epochs 2 --steps 13 --out masked-parts
expect 0 "" train --resume masked-parts --steps 30
cmp masked-whole/checkpoint-30.safetensors masked-parts/checkpoint-30.safetensors || complain "a resumed run of masked tokens differs"
expect 2 "layers that may see the next token" train --model $bert --data text:text --context 16 --batch-size 8 --steps 1 --out none
expect 2 "mask 0.15: synthetic:64 has no tokens" train --model lenet --data synthetic:64 --mask 0.15 --batch-size 8 --steps 1 --out none
expect 2 "--mask 2: must be a number from 0 to 1" train "${masked[@]}" --mask 2 --out none

expect 2 "the model of 'bert' was trained to fill in masked tokens, not to predict the next one" generate --checkpoint bert
expect 0 "" train "${small[@]}" --mask 0.15 --steps 1 --out filled
has stderr "warning: mask 0.15: model $model sees only the tokens before one that is to be predicted"
expect 2 "the model of 'filled' was trained to fill in masked tokens" generate --checkpoint filled

printf 'abcd%.0s' $(seq 60) >short
expect 2 "none of the 1 validation samples has a label: use more data, or mask more tokens" train "${masked[@]}" --data text:short \
    --mask 0.000001 --batch-size 4 --steps 1 --out unlabelled

# A context that is too long for the text: one that is as long as the message says works, with a batch of one sequence.
expect 2 "too few for sequences of 200: take a longer text, or a context of at most 23 (a batch of B sequences needs B + 1 times" \
    train "${small[@]}" --data text:short --context 200 --batch-size 8 --steps 1 --out none
expect 2 "has 1 sample, a step takes 8 (1 rank, batch size 8, 1 batch): use a smaller batch or a shorter context" \
    train "${small[@]}" --data text:short --val-split 0.5 --context 59 --batch-size 8 --steps 1 --out none
expect 0 "" train "${small[@]}" --data text:short --context 23 --batch-size 1 --steps 1 --out long
expect 2 "mask token 3 is the character 'd' of the text: leave it out" train "${masked[@]}" --data text:short --mask-token 3 --steps 1 --out none

# A vocabulary that is larger than that of the text, and a mask that is one of it: 23 + 7 tokens, of which 25 is the mask.
# Evaluation and a resumed run go by the checkpoint.
larger=("${masked[@]}" --vocabulary 30 --mask-token 25)
expect 0 "vocabulary 30" train "${larger[@]}" --epochs 2 --steps 12 --out larger
last=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' larger/metrics.jsonl | tail -n 1)
expect 0 "" eval --checkpoint larger --json
loss=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' stdout | head -n 1)
awk -v a="$loss" -v b="$last" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-6 && d > -1e-6) }' || complain "eval has a loss of $loss, the run $last"
if command -v python3 >/dev/null; then
    bare larger/"$(cat larger/latest)" bare.safetensors
    expect 2 "name the token that masks others (mask-token" eval --checkpoint bare.safetensors --model $bert --data text:text --mask 0.15
    expect 0 "" eval --checkpoint bare.safetensors --model $bert --data text:text --mask 0.15 --mask-token 25 --json
    of_bare=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' stdout | head -n 1)
    [ "$of_bare" = "$loss" ] || complain "a loss of $of_bare without metadata, $loss with"
fi
expect 0 "" train "${larger[@]}" --epochs 2 --steps 5 --out larger-parts
expect 0 "" train --resume larger-parts --steps 12
cmp larger/checkpoint-12.safetensors larger-parts/checkpoint-12.safetensors || complain "a resumed run with a vocabulary of 30 differs"
expect 0 "vocabulary 30" train "${small[@]}" --vocabulary 30 --epochs 2 --steps 12 --out roomy
expect 0 "line" generate --checkpoint roomy --prompt line --tokens 20
expect 2 "more than the vocabulary of 9 tokens" train "${small[@]}" --vocabulary 9 --steps 1 --out none
expect 2 "vocabulary 30: synthetic:64 has no tokens" train --model lenet --data synthetic:64 --vocabulary 30 --batch-size 8 --steps 1 --out none
expect 2 "mask token 30: with a vocabulary of 30 it must be 0 to 29" train "${larger[@]}" --mask-token 30 --steps 1 --out none
expect 2 "--mask-token" train "${small[@]}" --mask-token 3 --steps 1 --out none

# Real text: the loss falls below that of guessing any of some 90 characters, 4.5.
expect 0 "" train --model $bert --data "text:$DESCENT_SOURCE_DIR/docs/data.md" --mask 0.15 --context 32 --batch-size 16 --optimizer adamw \
    --lr 0.003 --warmup-epochs 0 --threads 1 --device cpu --epochs 6 --out real
loss=$(sed -n 's/.*"kind":"eval".*"loss":\([0-9.]*\).*/\1/p' real/metrics.jsonl | tail -n 1)
awk -v l="$loss" 'BEGIN { exit !(l > 0 && l < 3.5) }' || complain "the loss of masked characters is $loss"

# The best checkpoint is the one of the lowest loss: letters without order are learnt by heart, which makes it rise.
awk 'BEGIN { srand(3); for (i = 0; i < 1500; i++) printf "%c", 97 + int(8 * rand()) }' >noise
expect 0 "(best" train --model $model --data text:noise --context 16 --batch-size 8 --optimizer adamw --lr 0.02 --warmup-epochs 0 \
    --threads 1 --device cpu --epochs 15 --out noise-run
lowest=$(sed -n 's/.*"kind":"eval".*"step":\([0-9]*\).*"loss":\([0-9.]*\).*/\2 \1/p' noise-run/metrics.jsonl | sort -g | head -n 1)
[ "$(cat noise-run/best)" = "checkpoint-${lowest#* }.safetensors" ] ||
    complain "the best checkpoint is $(cat noise-run/best), the lowest loss is that of step ${lowest#* }"
grep -q "\"best_loss\":${lowest% *}" noise-run/metrics.jsonl || complain "the last line does not say the lowest loss, ${lowest% *}"
expect 0 "no lower validation loss in 3 evaluations" train --model $model --data text:noise --context 16 --batch-size 8 --optimizer adamw \
    --lr 0.02 --warmup-epochs 0 --threads 1 --device cpu --epochs 15 --patience 3 --out patient

# Evaluation takes batches whose logits fit into memory: 83 times 64 positions of 50,257 tokens are 2^28.
head -c 3000 text >gpt2.bin # numbers below 50,257, two bytes each
expect 0 "vocabulary 50257" train --model gpt-mini:layers=1,heads=1,width=4,dropout=0 --data tokens:gpt2.bin --context 64 --batch-size 1 \
    --optimizer adamw --steps 1 --eval-every 0 --threads 1 --device cpu --out wide
expect 0 "batches of 83 samples instead of 128, to save memory" eval --checkpoint wide --threads 1 --verbose
expect 0 "perplexity" eval --checkpoint wide --threads 1 --verbose --batch-size 83
grep -q "to save memory" stderr && complain "83 samples are too many: $(cat stderr)"

# Checking the data counts tokens, and says where a file is of another vocabulary; nothing describes this one.
expect 0 "tokens in" check-data text:text
{ head -c 2000 text && printf '\377\377' && cat text text; } >damaged
expect 2 "1 sequence of tokens:damaged cannot be read" check-data tokens:damaged
has stdout "vocabulary 50257, 1 of them broken"
[ "$(grep -c "'damaged': no tokens.json describes it, so its tokens are taken for GPT-2's" stderr)" = 1 ] || complain "$(cat stderr)"

# Text: the same for the same seed, different for another; the most probable token by both options that ask for it;
# text longer than the context.
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
expect 0 "" generate --checkpoint run --prompt "line 1" --tokens 0
[ "$(cat stdout)" = "line 1" ] || complain "without tokens the prompt is '$(cat stdout)'"

expect 2 "stop-at-end: the vocabulary of 'run' has no token that ends a text" generate --checkpoint run --stop-at-end
expect 0 "" train "${small[@]}" --data text:abc --steps 1 --eval-every 0 --out abc-run
expect 0 "" generate --checkpoint abc-run --tokens 5 # there is no line feed to begin with
[ "$(wc -c <stdout)" = 6 ] || complain "5 characters and a line feed are not $(wc -c <stdout)"

# Sequences have a context, no image size; a run goes on with what it has saved.
expect 2 "text:abc has sequences of 16 tokens and a vocabulary of 3: use data with the same vocabulary" eval --checkpoint run --data text:abc
expect 2 "a vocabulary of 23, synthetic:64 has 32x32x3 images and 10 classes: use data like" eval --checkpoint run --data synthetic:64
expect 2 "this run has sequences of 16 tokens and a vocabulary of 3: resume it with data like" train --resume run --data text:abc --epochs 9
expect 2 "cannot change vocabulary: it is 30 now, but was that of the data in 'run'" train --resume run --vocabulary 30
expect 2 "cannot change context: it is 64 now, but was 16 in 'run'" train --resume run --context 64
if ! grep -qa __asan_init "$descent"; then # whose malloc ends the process
    expect 1 "the run needs more memory than there is (a smaller model or batch-size, or recompute, needs less): cannot allocate" train \
        "${small[@]}" --model gpt-mini:layers=1000,heads=1,width=65536 --steps 1 --out none # 200 TB
fi
expect 0 "input         16 tokens" info --checkpoint larger
has stdout "vocabulary    30, as the run asked for"
has stdout "mask          0.15 of the tokens, by token 25"
expect 0 '"mask_token": 25,' info --checkpoint larger --json
has stdout '"mask": 0.15,'
has stdout '"vocabulary": 30,'
has stdout '"loss": "cross-entropy"'
expect 2 "image-size 16: model $model is one of sequences: use context" train --model $model --data text:text --image-size 16 --out none
expect 0 "sequences of 16 tokens" train --config run/config --epochs 1 --steps 1 --out none --threads 1

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

# A dry run prints tokens per second, too.
expect 0 " tokens/s, " train "${small[@]}" --dry-run

# Combinations that cannot work.
for images in lenet resnet20 unet-bn; do
    expect 2 "model $images takes images, but text:text has sequences of tokens: use a model of sequences, such as gpt-mini" \
        train --model $images --data text:text --batch-size 4 --steps 1 --out none
done
expect 2 "model 'gpt9' is unknown" train --model gpt9 --data text:text --steps 1 --out none
expect 2 "context 8: model mlp is one of images" bench --model mlp --context 8 --steps 1
expect 2 "optimizer 'newton' is unknown" bench --model $model --optimizer newton
expect 2 "the prompt (give one of characters that the model was trained on): the byte 0x7e" generate --checkpoint run --prompt "~"
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
