"""U-Nets, GPTs and BERT of the zoo against the same models in PyTorch, in float64 on the reference device:
logits, loss, running statistics and the gradients of all parameters. The models in PyTorch get their weights
as a state dict, by the names that the zoo gives them: those of mateuszbuda/brain-segmentation-pytorch, of Hugging Face's GPT2LMHeadModel and
BertForMaskedLM, and of nanoGPT."""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from ctypes import POINTER, byref, c_double, c_int64, c_size_t, c_void_p

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from descent._library import MAX_DIMS, DeviceOptions, Param, Tensor
from test_unet_layers import F64, I32, ModelOptions, as_pytorch, library, view  # noqa: F401

RELATIVE = 1e-10
STAT_LOSS, STAT_ROWS = 0, 3


class Net:
    """A model of the zoo for training on `batch` samples."""

    def __init__(self, lib, spec, shape, classes, batch):
        self.lib, self.shape, self.batch = lib, shape, batch
        lib.dsc_exec_stats.restype = POINTER(Tensor)
        lib.dsc_model_buffers.restype = POINTER(Param)
        for name in ("state_count", "buffer_count", "positions"):
            getattr(lib, f"dsc_model_{name}").restype = c_int64
        self.device, self.queue, self.model, self.exec = (c_void_p() for _ in range(4))
        device, options = DeviceOptions(), ModelOptions()
        lib.dsc_device_options_init_sized(byref(device), c_size_t(ctypes.sizeof(device)))
        device.name = b"ref"
        lib.dsc_model_options_init_sized(byref(options), c_size_t(ctypes.sizeof(options)))
        options.dtype = F64
        self.call("dsc_device_create", byref(device), byref(self.device))
        self.call("dsc_queue_create", self.device, byref(self.queue))
        sizes = map(c_int64, (*shape, classes))
        self.call("dsc_zoo_create", self.device, spec.encode(), *sizes, byref(options), byref(self.model))
        self.call("dsc_exec_create", self.model, 0, c_int64(batch), byref(self.exec))

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        assert status == 0, self.lib.dsc_error_message()

    def tensor(self, array, dtype):
        dim = (c_int64 * MAX_DIMS)(*array.shape)
        return Tensor(array.data_ptr(), self.device, dtype, array.dim(), dim)

    def spread(self):
        """Moves every parameter away from its initial value: 0 and 1 would hide mistakes."""
        params = self.lib.dsc_model_params(self.model)
        for i in range(self.lib.dsc_model_param_count(self.model)):
            values = view(params[i].value)
            values += 0.1 * torch.randn_like(values)

    def run(self, x, labels):
        """Logits [rows, classes] and mean loss; the gradients of that loss are then in parameters()."""
        self.call("dsc_exec_clear_stats", self.exec, self.queue)
        self.call("dsc_exec_forward", self.exec, self.queue, byref(self.tensor(x, F64)))
        scale = c_double(1 / int((labels >= 0).sum()))
        self.call("dsc_exec_loss", self.exec, self.queue, byref(self.tensor(labels, I32)), scale)
        self.call("dsc_exec_backward", self.exec, self.queue, None)
        stats = view(self.lib.dsc_exec_stats(self.exec).contents)
        rows = self.batch * self.lib.dsc_model_positions(self.model)
        logits = view(self.lib.dsc_exec_logits(self.exec).contents).reshape(rows, -1)
        return logits.clone(), stats[STAT_LOSS] / stats[STAT_ROWS]

    def state(self):
        """Name, entry and tensors of every parameter and floating-point buffer; the gradient of a buffer is None."""
        entries = self.lib.dsc_model_state(self.model)
        listed = {}
        for kind in ("param", "buffer"):
            items = getattr(self.lib, f"dsc_model_{kind}s")(self.model)
            for i in range(getattr(self.lib, f"dsc_model_{kind}_count")(self.model)):
                listed[ctypes.addressof(items[i].value)] = items[i].value, items[i].grad
        for i in range(self.lib.dsc_model_state_count(self.model)):
            value, grad = listed[ctypes.addressof(entries[i].tensor.contents)]
            if value.dtype == F64:
                given = as_pytorch(entries[i], view(grad)) if grad.data else None
                yield entries[i].name.decode(), as_pytorch(entries[i], view(value)), given

    def close(self):
        for name, handle in (("exec", self.exec), ("model", self.model), ("queue", self.queue)):
            getattr(self.lib, f"dsc_{name}_destroy")(byref(handle))
        self.lib.dsc_device_destroy(byref(self.device))


def assert_same(name, got, expected):
    """Equal but for roundings of the largest number, or, where all are 0 in exact arithmetic as the gradients of
    keys' biases are, of numbers of about 1."""
    assert got.shape == expected.shape, name
    difference, largest = float((got - expected).abs().max()), float(expected.abs().max())
    assert difference <= RELATIVE * largest + 1e-15, f"{name} differs by {difference:.3g} of {largest:.3g}"


def compare(lib, spec, module, x, inputs, classes):
    """`x` is the library's input, `inputs` PyTorch's; `module` gives logits [rows, classes]."""
    net = Net(lib, spec, x.shape[1:], classes, x.shape[0])
    net.spread()
    state = {name: value.clone() for name, value, _ in net.state()}
    module.double().load_state_dict(state)  # strict: all names and shapes fit; counters of batches start at 0
    expected = module(inputs)
    labels = torch.randint(classes, expected.shape[:1])
    labels[::7] = -1  # rows that do not count
    if not inputs.is_floating_point():
        labels[inputs.flatten() < 0] = -1  # padding
    logits, loss = net.run(x, labels.int())
    wanted = F.cross_entropy(expected, labels, ignore_index=-1)
    wanted.backward()
    assert_same("logits", logits, expected.detach())
    assert_same("loss", loss, wanted.detach())
    after = module.state_dict(keep_vars=True)
    for name, value, gradient in net.state():
        assert_same(name, value, after[name].detach())  # running statistics, too
        if gradient is not None:
            assert_same(f"gradient of {name}", gradient, after[name].grad)
    net.close()


# ---- U-Nets ----


class UNet(nn.Module):
    def __init__(self, channels, width, depth, classes, batch_norm):
        super().__init__()
        self.batch_norm, self.depth = batch_norm, depth
        before = channels
        for level in range(1, depth + 1):
            after = width << (level - 1)
            setattr(self, f"encoder{level}", self.block(f"enc{level}", before, after))
            before = after
        self.bottleneck = self.block("bottleneck", before, 2 * before)
        for level in range(depth, 0, -1):
            after = width << (level - 1)
            setattr(self, f"upconv{level}", nn.ConvTranspose2d(2 * after, after, 2, 2))
            setattr(self, f"decoder{level}", self.block(f"dec{level}", 2 * after, after))
        self.conv = nn.Conv2d(width, classes, 1)

    def block(self, name, before, after):
        layers = OrderedDict()
        for i in (1, 2):
            padding, bias = int(self.batch_norm), not self.batch_norm
            layers[f"{name}conv{i}"] = nn.Conv2d(before, after, 3, padding=padding, bias=bias)
            if self.batch_norm:
                layers[f"{name}norm{i}"] = nn.BatchNorm2d(after)
            layers[f"{name}relu{i}"] = nn.ReLU()
            before = after
        return nn.Sequential(layers)

    def forward(self, x):
        skips = []
        for level in range(1, self.depth + 1):
            x = getattr(self, f"encoder{level}")(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for level in range(self.depth, 0, -1):
            x = getattr(self, f"upconv{level}")(x)
            skip = skips[level - 1]
            top, left = (skip.shape[2] - x.shape[2]) // 2, (skip.shape[3] - x.shape[3]) // 2
            skip = skip[:, :, top : top + x.shape[2], left : left + x.shape[3]]
            x = getattr(self, f"decoder{level}")(torch.cat([x, skip], 1))
        return self.conv(x).permute(0, 2, 3, 1).flatten(0, 2)


@pytest.mark.parametrize(
    "name, width, depth, h, w",
    [("unet", 2, None, 188, 204), ("unet-bn", 3, None, 32, 48), ("unet", 3, 1, 18, 24), ("unet", 2, 2, 52, 44),
     ("unet-bn", 2, 3, 16, 24), ("unet-bn", 2, 5, 64, 32)],
)
def test_unet(library, name, width, depth, h, w):  # noqa: F811
    channels, classes = 2, 3
    spec = f"{name}:width={width},dropout=0" + (f",depth={depth}" if depth else "")
    images = torch.randn(2, channels, h, w, dtype=torch.float64)
    x = images.permute(0, 2, 3, 1).contiguous()
    compare(library, spec, UNet(channels, width, depth or 4, classes, name == "unet-bn"), x, images, classes)


# ---- GPTs ----


class Conv1D(nn.Module):
    """Hugging Face's linear layer: the weight is [in, out]."""

    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(before, after))
        self.bias = nn.Parameter(torch.empty(after))

    def forward(self, x):
        return x @ self.weight + self.bias


class LayerNorm(nn.Module):
    """With or without a bias."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Block(nn.Module):
    def __init__(self, heads, width, linear, bias, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.ln_1, self.ln_2 = LayerNorm(width, bias), LayerNorm(width, bias)
        self.attn = nn.ModuleDict({"c_attn": linear(width, 3 * width), "c_proj": linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": linear(width, 4 * width), "c_proj": linear(4 * width, width)})

    def attend(self, x):
        n, t, width = x.shape
        q, k, v = (
            part.reshape(n, t, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attn["c_attn"](x).split(width, 2)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        y = scores.masked_fill(~seen, -math.inf).softmax(3) @ v
        return self.attn["c_proj"](y.transpose(1, 2).reshape(n, t, width))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp["c_proj"](self.gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, positions, vocabulary, layers, heads, width, linear, bias, gelu):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(positions, width),
                "h": nn.ModuleList(Block(heads, width, linear, bias, gelu) for _ in range(layers)),
                "ln_f": LayerNorm(width, bias),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1]))
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x)).flatten(0, 1)


@pytest.mark.parametrize("name", ["gpt2", "gpt-mini", "gpt-mini,bias=1"])
def test_gpt(library, name):  # noqa: F811
    name, _, key = name.partition(",")
    bias = name == "gpt2" or bool(key)
    linear = Conv1D if name == "gpt2" else lambda before, after: nn.Linear(before, after, bias)
    batch, positions, vocabulary, layers, heads, width = 2, 9, 13, 3, 2, 8
    spec = f"{name}:layers={layers},heads={heads},width={width},dropout=0" + (f",{key}" if key else "")
    gelu = gelu_tanh if name == "gpt2" else F.gelu
    module = GPT(positions, vocabulary, layers, heads, width, linear, bias, gelu)
    tokens = torch.randint(vocabulary, (batch, positions))
    x = tokens.double().reshape(batch, positions, 1, 1)
    compare(library, spec, module, x, tokens, vocabulary)


# ---- BERT ----


class BertLayer(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        norm = lambda: nn.LayerNorm(width, eps=1e-12)  # noqa: E731
        self.attention = nn.Module()
        self.attention.self = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.attention.output = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": norm()})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * width, width), "LayerNorm": norm()})

    def forward(self, x, real):
        n, t, width = x.shape
        q, k, v = (
            self.attention.self[name](x).reshape(n, t, self.heads, width // self.heads).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        y = scores.masked_fill(~real[:, None, None, :], -math.inf).softmax(3) @ v
        output = self.attention.output
        x = output["LayerNorm"](x + output["dense"](y.transpose(1, 2).reshape(n, t, width)))
        return self.output["LayerNorm"](x + self.output["dense"](F.gelu(self.intermediate["dense"](x))))


class Bert(nn.Module):
    def __init__(self, positions, vocabulary, layers, heads, width):
        super().__init__()
        norm = lambda: nn.LayerNorm(width, eps=1e-12)  # noqa: E731
        self.bert = nn.Module()
        self.bert.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocabulary, width),
                "position_embeddings": nn.Embedding(positions, width),
                "token_type_embeddings": nn.Embedding(2, width),
                "LayerNorm": norm(),
            }
        )
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(BertLayer(heads, width) for _ in range(layers))
        self.cls = nn.Module()
        head = self.cls.predictions = nn.Module()
        head.transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": norm()})
        head.decoder = nn.Linear(width, vocabulary)
        head.decoder.weight = self.bert.embeddings["word_embeddings"].weight
        head.bias = head.decoder.bias

    def forward(self, tokens):
        e, head, real = self.bert.embeddings, self.cls.predictions, tokens >= 0
        words = e["word_embeddings"](tokens.clamp(min=0)) * real[:, :, None]
        x = words + e["position_embeddings"](torch.arange(tokens.shape[1]))
        x = e["LayerNorm"](x + e["token_type_embeddings"](torch.zeros_like(tokens)))
        for layer in self.bert.encoder.layer:
            x = layer(x, real)
        x = head.transform["LayerNorm"](F.gelu(head.transform["dense"](x)))
        return head.decoder(x).flatten(0, 1)


@pytest.mark.parametrize("lengths", [(9, 9), (9, 5), (1, 8)])
def test_bert(library, lengths):  # noqa: F811
    batch, positions, vocabulary, layers, heads, width = 2, 9, 13, 3, 2, 8
    tokens = torch.randint(vocabulary, (batch, positions))
    for row, length in zip(tokens, lengths):
        row[length:] = -1
    x = tokens.double().reshape(batch, positions, 1, 1)
    module = Bert(positions, vocabulary, layers, heads, width)
    spec = f"bert-base:layers={layers},heads={heads},width={width},dropout=0"
    compare(library, spec, module, x, tokens, vocabulary)


def test_first_loss(library):  # noqa: F811
    """With the initial weights all tokens are about equally likely."""
    net = Net(library, "gpt-mini:layers=2,heads=2,width=64", (16, 1, 1), 65, 4)
    tokens = torch.randint(65, (4, 16, 1, 1)).double()
    _, loss = net.run(tokens, torch.randint(65, (64,)).int())
    assert abs(float(loss) - math.log(65)) < 0.05
    net.close()
