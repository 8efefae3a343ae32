#!/usr/bin/env python3
"""tokenize.py DESCENT: `descent tokenize` against a plain implementation of GPT-2's byte-pair encoding in Python.

Trains a small vocabulary on text with emoji and letters of several scripts, encodes other text with the program and compares
every token; and with Hugging Face's tokenizers, where they are installed. Runs in the current directory."""
import collections
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import unicodedata

SAMPLE = """The quick brown fox doesn't jump over the lazy dog; it's 12,345 times that they've said: "we'll see!"
Привет, мир! Как дела? 你好,世界。今天天气很好。 こんにちは世界 안녕하세요 세계 שלום עולם مرحبا بالعالم १२३ ٣٤٥ ½ Ⅻ
😀 😃👍🏽 👩‍👩‍👧 🇩🇪 naïve café e\u0301 ﬁ ſ İstanbul ẞ\u00a0\u3000 \t tabs\tand\r\nline ends   \n\n\n  x  \x1c \x85 zero\u200bwidth
"""


def alphabet():
    """byte -> character, as in the two files."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in seen]
    return {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


ALPHABET = alphabet()


def kind(character):
    category = unicodedata.category(character)[0]
    if category in "LN":
        return category
    return "S" if category == "Z" or character in "\t\n\v\f\r\x85" else "O"


def words(text):
    """GPT-2's pattern: the class of each character stands for it, so that Python's own `re` is enough."""
    classes = "".join(c if c == " " else kind(c) for c in text)
    pattern = re.compile(r" ?L+| ?N+| ?O+|[ S]+(?![^ S])|[ S]+")
    at = 0
    while at < len(text):
        match = re.compile("'(?:s|t|re|ve|m|ll|d)").match(text, at)
        end = match.end() if match else pattern.match(classes, at).end()
        yield text[at:end]
        at = end


def train(text, count):
    """The most frequent pairs of neighbours, one after the other."""
    pieces = collections.Counter(tuple(ALPHABET[b] for b in word.encode()) for word in words(text))
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for piece, times in pieces.items():
            for pair in zip(piece, piece[1:]):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        pieces = collections.Counter({tuple(merge(list(piece), best)): times for piece, times in pieces.items()})
    return merges


def merge(piece, pair):
    out = []
    while piece:
        taken = 2 if tuple(piece[:2]) == pair else 1
        out.append("".join(piece[:taken]))
        del piece[:taken]
    return out


def encode(text, vocab, ranks):
    tokens = []
    for word in words(text):
        piece = [ALPHABET[b] for b in word.encode()]
        while len(piece) > 1:
            pair = min(zip(piece, piece[1:]), key=lambda pair: ranks.get(pair, len(ranks)))
            if pair not in ranks:
                break
            piece = merge(piece, pair)
        tokens += [vocab[token] for token in piece]
    return tokens


def random_text(rng):
    """Pieces of the sample, characters of all kinds, and white space between them."""
    parts = []
    for _ in range(3000):
        start = rng.randrange(len(SAMPLE))
        parts.append(rng.choice([
            SAMPLE[start:start + rng.randrange(12)], rng.choice(" \n\t") * rng.randrange(3), "'" + rng.choice("stmdrlvRS"),
            chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x250, 0xD800), rng.randrange(0xE000, 0x20000)])),
            "ab" * rng.randrange(40), str(rng.randrange(10 ** rng.randrange(1, 9)))]))  # fmt: skip
    return "".join(parts)


def run(*arguments):
    done = subprocess.run([sys.argv[1], "tokenize", *arguments], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def read(path):
    data = pathlib.Path(path).read_bytes()
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def write_vocabulary():
    merges = train(SAMPLE * 3, 300)
    tokens = sorted(ALPHABET.values()) + ["".join(pair) for pair in merges]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    vocab["<|endoftext|>"] = len(vocab)
    pathlib.Path("vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    pathlib.Path("merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return vocab, {pair: i for i, pair in enumerate(merges)}


def main():
    vocab, ranks = write_vocabulary()
    assert not any(kind(chr(c)) == "S" for c in range(0x1C, 0x20))
    text = SAMPLE + random_text(random.Random(1))
    files = ("--vocab", "vocab.json", "--merges", "merges.txt")
    pathlib.Path("text").write_bytes(text.encode())
    run(*files, "--val-split", "0", "--out", "whole", "text")
    expected = encode(text, vocab, ranks)
    got = read("whole/train.bin")
    different = [i for i, (a, b) in enumerate(zip(expected, got)) if a != b]
    assert got == expected, f"{len(got)} tokens instead of {len(expected)}, different from {different[:1]} on"
    assert run("--decode", "whole/train.bin") == text.encode()
    # The parts are those of the text, divided at white space near nine tenths.
    run(*files, "--out", "parts", "text")
    train_bytes = run("--decode", "parts/train.bin")
    val_bytes = run("--decode", "parts/val.bin")
    assert train_bytes + val_bytes == text.encode() and val_bytes[:1].isspace() and not train_bytes[-1:].isspace()
    assert 0 <= len(train_bytes) - int(0.9 * len(text.encode())) < 200
    assert read("parts/train.bin") + read("parts/val.bin") == expected
    # Special tokens, in the text and after files.
    pathlib.Path("special").write_text("one <|endoftext|>two")
    run(*files, "--special-tokens", "--end-of-text", "--val-split", "0", "--out", "ends", "special", "special")
    end = vocab["<|endoftext|>"]
    one = [*encode("one ", vocab, ranks), end, *encode("two", vocab, ranks), end]
    assert read("ends/train.bin") == one + one
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError:
        print("no tokenizers: only compared with the plain implementation")
        return
    # Their Unicode may be newer: characters that this Python does not know are left out.
    known = "".join(c for c in text if unicodedata.category(c) != "Cn")
    theirs = ByteLevelBPETokenizer("vocab.json", "merges.txt").encode(known).ids
    pathlib.Path("known").write_bytes(known.encode())
    run(*files, "--val-split", "0", "--out", "theirs", "known")
    assert read("theirs/train.bin") == theirs
    print("the same tokens as Hugging Face's tokenizers")


main()
