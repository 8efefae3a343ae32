#!/usr/bin/env bash
# descent tokenize: text into files of tokens and back, the same for every number of threads, whole files or none.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
python3 "$DESCENT_SOURCE_DIR/tests/cli/tokenize.py" "$descent" || complain "tokens differ" # leaves vocab.json, merges.txt and text here
bpe=(--vocab vocab.json --merges merges.txt)

# Several files and folders, in their order; hidden files are left out. As bytes and as characters.
mkdir -p books/b books/empty
printf 'banana\n' >books/2.txt
printf 'cab' >books/b/1
printf 'hidden z' >books/.hidden
: >books/b/0
expect 0 "chars/train.bin: 9 tokens of 9 bytes, 1.000 bytes per token" tokenize --kind chars --out chars books
has stdout "chars/val.bin: 1 token of 1 byte, "
has stdout "chars, a vocabulary of 5 tokens, 3 files"
[ "$(od -An -tu2 chars/train.bin | tr -s ' \n' ' ')" = " 2 1 4 1 4 1 0 3 1 " ] || complain "wrong characters"
expect 0 "bytes, a vocabulary of 256 tokens, 2 files" tokenize --val-split 0 --out bytes books/.hidden books/2.txt
expect 0 "hidden zbanana" tokenize --decode bytes/train.bin
"$descent" tokenize --decode bytes/train.bin --kind bytes | cmp - stdout || complain "--kind bytes decodes otherwise"
[ ! -e bytes/val.bin ] || complain "--val-split 0 writes val.bin"
expect 0 "banana" tokenize --decode chars/train.bin

# Chunks of a longer text, on any number of threads, and the three formats.
for _ in $(seq 60); do cat text; done >long
for threads in 1 2 5; do
    expect 0 "bpe, a vocabulary of" tokenize "${bpe[@]}" --out "long$threads" --threads $threads long text
    cmp long1/train.bin "long$threads/train.bin" && cmp long1/val.bin "long$threads/val.bin" || complain "$threads threads differ"
done
for format in uint32 llm.c; do
    expect 0 "" tokenize "${bpe[@]}" --out $format --format $format long text
    "$descent" tokenize --decode $format/train.bin >back
    "$descent" tokenize --decode $format/val.bin >>back
    cat long text | cmp - back || complain "$format: decoding gives another text"
done
[ "$(od -An -tu4 -N8 llm.c/train.bin | tr -s ' ')" = " 20240520 1" ] || complain "llm.c: wrong header"
[ "$(stat -c %s llm.c/train.bin)" = $(($(stat -c %s long1/train.bin) + 1024)) ] || complain "llm.c: wrong size"
expect 0 "" tokenize --decode llm.c/val.bin "${bpe[@]}"

# A reader that closes the pipe early ends the output, which is no failure; a full disk is one.
status=0
"$descent" tokenize --decode long1/train.bin 2>stderr | head -c 5 >/dev/null || status=$?
[ "$status" = 0 ] && [ ! -s stderr ] || complain "a closed pipe: status $status, $(cat stderr)"
status=0
"$descent" tokenize --decode long1/train.bin >/dev/full 2>stderr || status=$?
[ "$status" = 1 ] || complain "a full disk: status $status"
has stderr "cannot write to the standard output: "
grep -q Success stderr && complain "a full disk: $(cat stderr)"

# Bytes that are not text are restored exactly, too.
head -c 300000 "$descent" >binary
expect 0 "" tokenize "${bpe[@]}" --val-split 0 --out binaries binary
"$descent" tokenize --decode binaries/train.bin | cmp - binary || complain "bytes that are not UTF-8 are lost"

# Existing files are kept, unless --overwrite is given; a failure leaves no new file.
cp chars/train.bin kept
expect 2 "'chars' has a train.bin already" tokenize --out chars books
cmp chars/train.bin kept || complain "a refused command changes files"
expect 0 "chars/train.bin: 10 tokens" tokenize --kind bytes --val-split 0 --overwrite --out chars books
[ ! -e chars/val.bin ] || complain "an old val.bin is left"
expect 2 "no token <|endoftext|>" tokenize --end-of-text --out nothing books
expect 2 "--special-tokens: the vocabulary (chars) has no token <|endoftext|>: leave it out" tokenize --special-tokens --kind chars \
    --out nothing books
expect 2 "cannot read 'nowhere'" tokenize --out nothing books nowhere
[ ! -e nothing ] || complain "a wrong command leaves a directory"
mkdir -p own && cp vocab.json merges.txt own
expect 0 "" tokenize --vocab own/vocab.json --merges own/merges.txt --out own text
echo '{}' >own/vocab.json
expect 2 "holds no object" tokenize --decode own/train.bin
expect 2 "'own' has a train.bin already" tokenize "${bpe[@]}" --out own text
rm own/train.bin own/val.bin own/tokens.json
expect 2 "'own' has a vocab.json already" tokenize "${bpe[@]}" --out own text

# Merges that are cut at the end of a line, and descriptions that this version does not know.
head -n 20 merges.txt >m2.txt
expect 0 "warning: 'm2.txt' makes" tokenize --vocab vocab.json --merges m2.txt --out cut text
has stderr "of 'vocab.json' that consist of two others: is it complete?"
expect 0 "" tokenize "${bpe[@]}" --out complete text
! grep -q warning stderr || complain "complete merges: $(cat stderr)"
sed -i 's/"version": 1/"version": 2/' complete/tokens.json
expect 2 "'complete/tokens.json': its version is 2, but this descent reads version 1" tokenize --decode complete/train.bin
expect 2 "'complete/tokens.json': its version is 2" train --model gpt-mini --data tokens:complete --context 8 --steps 1 --out none

# A signal ends it, without files.
mkfifo pipe
expect 2 "'pipe' is not a regular file" tokenize --out nothing pipe
mapfile -t many < <(yes long | head -n 2000)
"$descent" tokenize "${bpe[@]}" --threads 1 --out stopped "${many[@]}" >stdout 2>stderr &
process=$!
until [ -n "$(ls -A stopped 2>/dev/null)" ]; do sleep 0.01; done
kill -TERM $process
status=0
wait $process || status=$?
if [ $status != 3 ] || [ -n "$(ls -A stopped)" ]; then
    complain "a signal: status $status, files $(ls -A stopped)"
fi
has stderr "stopped; no file was written"

printf a >books/a

# Files that were changed, and other wrong uses.
cp long1/train.bin saved
head -c 1001 saved >long1/train.bin
expect 2 "long1/train.bin' has 1001 bytes, which is no whole number of tokens" tokenize --decode long1/train.bin
head -c 1000 saved >long1/train.bin
expect 2 "holds 500 tokens, but the tokens.json beside it says" tokenize --decode long1/train.bin
rm long1/tokens.json
expect 2 "no tokens.json beside it that says what its tokens mean; give --kind bytes, or --vocab and --merges" tokenize --decode long1/train.bin
expect 2 "but the vocabulary has 256 tokens" tokenize --decode long1/train.bin --kind bytes
expect 2 "cannot read 'chars/nowhere.bin': No such file" tokenize --decode chars/nowhere.bin
expect 2 "'nowhere.bin'" tokenize --decode nowhere.bin --kind bytes
expect 2 "tokenize needs --out DIR" tokenize text
expect 2 "tokenize needs files of text" tokenize --out x
expect 2 "neither files of text nor --out" tokenize --decode saved text
expect 2 "--kind bpe needs --vocab and --merges" tokenize --kind bpe --out x text
expect 2 "--vocab needs --merges: a byte-pair encoding has two files" tokenize --vocab vocab.json --out x text
expect 2 "--merges needs --vocab: a byte-pair encoding has two files" tokenize --merges merges.txt --decode saved
expect 2 "does not go with --kind chars" tokenize "${bpe[@]}" --kind chars --out x text
expect 2 "--val-split 1: must be at least 0 and below 1" tokenize --val-split 1 --out x text
expect 2 "there is no text: 'books/b/0' is empty; name files that hold some" tokenize --out x books/b/0
expect 2 "there is no text: 'books/b/0' and 1 other file are empty" tokenize --kind chars --out x books/b/0 books/b/0
expect 2 "cannot be split into train.bin and val.bin" tokenize --out x books/a
expect 2 "'text' is a file, not a directory" tokenize --out text/x books
[ ! -e x ] || complain "a wrong command leaves a directory"
finish
