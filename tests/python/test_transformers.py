#!/usr/bin/env python3
"""GPT-2, BERT and byte-pair encoding against Hugging Face's own programs, in float32:

- files that transformers saves load strictly here and give the same logits, also those of models
  without a head, with heads for other tasks, and with the names of old files;
- the model file of a run loads strictly into transformers and gives the same logits;
- `descent tokenize` gives the tokens of `tokenizers` for a vocabulary that these train.

Needs torch, transformers, safetensors and tokenizers, and is skipped, with status 77, where one is
missing. DESCENT_BINARY_DIR names the build (by default build/release, build/gpu or build/test)."""

from __future__ import annotations

import ctypes
import glob
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int64, c_size_t, c_void_p

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
try:
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    if __name__ == "__main__":
        print(f"skipped: {missing}")
        sys.exit(77)
    import pytest

    pytest.skip(f"{missing}", allow_module_level=True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("DESCENT_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))


def find_build():
    """The build's folder, whose library is then the one that the package loads."""
    chosen = os.environ.get("DESCENT_BINARY_DIR")
    for folder in [chosen] if chosen else [ROOT / "build" / name for name in ("release", "gpu", "test")]:
        libraries = sorted(glob.glob(os.path.join(folder, "libdescent.so.*.*")), key=len)
        if libraries:
            os.environ.setdefault("DESCENT_LIBRARY", libraries[0])
            return pathlib.Path(folder)
    sys.exit("test_transformers.py: no build found; DESCENT_BINARY_DIR names its folder")


PROGRAM = find_build() / "descent"

from descent._library import F32, MAX_DIMS, DeviceOptions, Tensor  # noqa: E402

RELATIVE = 1e-4
EVAL = 1  # DSC_EXEC_EVAL
BATCH, POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH = 3, 17, 61, 3, 2, 32
KEYS = f"layers={LAYERS},heads={HEADS},width={WIDTH},dropout=0"
TEXT = """The quick brown fox doesn't jump over the lazy dog; it's 12,345 times that they've said: "we'll see!"
Привет, мир! Как дела? 你好,世界。今天天气很好。 こんにちは世界 안녕하세요 세계 שלום עולם مرحبا بالعالم १२३ ٣٤٥ ½ Ⅻ
😀 😃👍🏽 👩‍👩‍👧 🇩🇪 naïve café e\u0301 ﬁ İstanbul ẞ\u00a0\u3000 \t tabs\tand\r\nline ends   \n\n\n  x
"""


# ---- both sides ----


class Net:
    """A model of the zoo with the numbers of a file."""

    def __init__(self, spec, path, positions=POSITIONS, vocabulary=VOCABULARY):
        self.lib = ctypes.CDLL(os.environ["DESCENT_LIBRARY"])
        self.lib.dsc_error_message.restype = c_char_p
        self.lib.dsc_exec_logits.restype = POINTER(Tensor)
        self.device, self.queue, self.model, self.exec = (c_void_p() for _ in range(4))
        options = DeviceOptions()
        self.lib.dsc_device_options_init_sized(byref(options), c_size_t(ctypes.sizeof(options)))
        options.name = b"cpu"
        self.call("dsc_device_create", byref(options), byref(self.device))
        self.call("dsc_queue_create", self.device, byref(self.queue))
        sizes = map(c_int64, (positions, 1, 1, vocabulary))
        self.call("dsc_zoo_create", self.device, spec.encode(), *sizes, None, byref(self.model))
        self.call("dsc_model_load", self.model, str(path).encode(), None, None)
        self.call("dsc_exec_create", self.model, EVAL, c_int64(BATCH), byref(self.exec))

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        assert status == 0, self.lib.dsc_error_message().decode()

    def logits(self, tokens):
        x = tokens.float().reshape(*tokens.shape, 1, 1).contiguous()
        given = Tensor(x.data_ptr(), self.device, F32, x.dim(), (c_int64 * MAX_DIMS)(*x.shape))
        self.call("dsc_exec_forward", self.exec, self.queue, byref(given))
        self.call("dsc_queue_sync", self.queue)
        found = self.lib.dsc_exec_logits(self.exec).contents
        count = 1
        for i in range(found.ndim):
            count *= found.dim[i]
        numbers = (ctypes.c_float * count).from_address(found.data)
        return torch.tensor(list(numbers)).reshape(*tokens.shape, -1)

    def close(self):
        for name, handle in (("exec", self.exec), ("model", self.model), ("queue", self.queue)):
            getattr(self.lib, f"dsc_{name}_destroy")(byref(handle))
        self.lib.dsc_device_destroy(byref(self.device))


def gpt2_config(positions=POSITIONS, vocabulary=VOCABULARY):
    return transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=positions, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def bert_config(positions=POSITIONS, vocabulary=VOCABULARY):
    return transformers.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=positions, hidden_size=WIDTH,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
    )  # fmt: skip


KINDS = {
    "gpt2": ("gpt2", gpt2_config, transformers.GPT2LMHeadModel),
    "bert": ("bert-base", bert_config, transformers.BertForMaskedLM),
}


def make(kind, config):
    """A model whose numbers are all away from 0 and 1, which would hide mistakes."""
    torch.manual_seed(1)
    module = kind(config).float().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


def random_tokens(vocabulary=VOCABULARY, positions=POSITIONS):
    torch.manual_seed(2)
    return torch.randint(vocabulary, (BATCH, positions))


def their_logits(module, tokens):
    with torch.no_grad():
        found = module(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    return found.prediction_logits if hasattr(found, "prediction_logits") else found.logits


def compare(spec, path, module, tokens):
    positions, vocabulary = tokens.shape[1], module.config.vocab_size
    net = Net(spec, path, positions, vocabulary)
    got, expected = net.logits(tokens), their_logits(module, tokens).float()
    net.close()
    assert got.shape == expected.shape, (got.shape, expected.shape)
    difference, largest = float((got - expected).abs().max()), float(expected.abs().max())
    assert largest > 0.1, f"logits of at most {largest} say little"
    assert difference <= RELATIVE * largest, f"logits differ by {difference:.3g} of {largest:.3g}"


def saved(module, folder):
    module.save_pretrained(folder, safe_serialization=True)
    return folder / "model.safetensors"


# ---- their files, read here ----


def check_their_file(name, folder):
    zoo, config, kind = KINDS[name]
    module = make(kind, config())
    compare(f"{zoo}:{KEYS}", saved(module, folder), module, random_tokens())


def test_gpt2_file(tmp_path):
    check_their_file("gpt2", tmp_path)


def test_bert_file(tmp_path):
    check_their_file("bert", tmp_path)


def test_gpt2_without_head(tmp_path):
    """GPT2Model's file, as the hub has it, with the masks of old versions."""
    module = make(transformers.GPT2LMHeadModel, gpt2_config())
    tensors = load_file(saved(module.transformer, tmp_path))
    assert not any(name.startswith("transformer.") or name == "lm_head.weight" for name in tensors)
    mask = torch.ones(POSITIONS, POSITIONS).tril().reshape(1, 1, POSITIONS, POSITIONS)
    for i in range(LAYERS):
        tensors[f"h.{i}.attn.bias"] = mask.clone() if i else mask.bool()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "hub.safetensors", {"format": "pt"})
    compare(f"gpt2:{KEYS}", tmp_path / "hub.safetensors", module, random_tokens())


def test_bert_for_pre_training(tmp_path):
    """With the pooler, the head for the next sentence, and TensorFlow's names in layer norms."""
    module = make(transformers.BertForPreTraining, bert_config())
    tensors = load_file(saved(module, tmp_path))
    assert "bert.pooler.dense.weight" in tensors and "cls.seq_relationship.bias" in tensors
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert old.keys() != tensors.keys()
    old["bert.embeddings.position_ids"] = torch.arange(POSITIONS).reshape(1, -1)
    save_file(old, tmp_path / "old.safetensors", {"format": "pt"})
    for path in (tmp_path / "model.safetensors", tmp_path / "old.safetensors"):
        compare(f"bert-base:{KEYS}", path, module, random_tokens())


# ---- our files, read there ----


def run(*arguments):
    done = subprocess.run([str(PROGRAM), *map(str, arguments)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def check_our_file(name, folder):
    """Some steps of training move every number that is trained."""
    zoo, config, kind = KINDS[name]
    text = folder / "text"
    text.write_bytes(TEXT.encode() * 40)
    masked = ["--mask", 0.15] if name == "bert" else []
    vocabulary = len(set(TEXT.encode())) + (1 if masked else 0)  # the mask is a token of its own
    run(
        "train", "--model", f"{zoo}:{KEYS}", "--data", f"text:{text}", "--context", POSITIONS, "--steps", 30,
        "--batch-size", 8, "--optimizer", "adamw", "--lr", 0.01, "--out", folder / "run", "--device", "cpu", *masked,
    )  # fmt: skip
    path = folder / "run" / "checkpoint-30.safetensors"
    module = kind(config(POSITIONS, vocabulary)).float().eval()
    module.load_state_dict(load_file(path), strict=True)
    compare(f"{zoo}:{KEYS}", path, module, random_tokens(vocabulary))


def test_gpt2_run(tmp_path):
    check_our_file("gpt2", tmp_path)


def test_bert_run(tmp_path):
    check_our_file("bert", tmp_path)


# ---- tokens ----


def test_tokens(tmp_path):
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [TEXT] * 3, vocab_size=600, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"]
    )
    bpe.save_model(str(tmp_path))
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    text = TEXT + "".join(reversed(TEXT)) + TEXT.swapcase().replace(" ", "  ")
    (tmp_path / "text").write_bytes(text.encode())
    run("tokenize", "--vocab", vocab, "--merges", merges, "--val-split", 0, "--out", tmp_path / "out", tmp_path / "text")
    data = (tmp_path / "out" / "train.bin").read_bytes()
    got = list(struct.unpack(f"<{len(data) // 2}H", data))
    expected = tokenizers.ByteLevelBPETokenizer(str(vocab), str(merges)).encode(text).ids
    assert got == expected, f"{len(got)} tokens, theirs are {len(expected)}"
    assert any(len(token) > 1 for token in bpe.get_vocab()) and len(got) < len(text.encode())
    assert run("tokenize", "--decode", tmp_path / "out" / "train.bin") == text.encode()


def main():
    print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, torch {torch.__version__}")
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(pathlib.Path(folder))
                print(f"{name}: passed")
            except Exception as error:  # the other tests are of interest, too
                failed += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
