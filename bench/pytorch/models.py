"""The models of the benchmark, with inputs of random numbers and the loss of a step."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Callable, Dict, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

_HERE = os.path.dirname(os.path.abspath(__file__))
_EXAMPLES = os.path.join(_HERE, "..", "..", "examples", "pytorch")


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


class OwnResNet50(nn.Module):
    """ResNet-50 for ImageNet, for machines without torchvision; `width` is 64."""

    def __init__(self, width: int = 64, blocks: tuple = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        self.blocks = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.fc(self.blocks(x).mean(dim=(2, 3)))


class Task(NamedTuple):
    """A model, and a function that returns the loss of a forward pass on the same batch."""

    model: nn.Module
    loss: Callable[[nn.Module], torch.Tensor]


class Case(NamedTuple):
    """One row of the table."""

    title: str
    images: bool  # has convolutions: both memory formats are measured
    make: Callable[[bool, torch.device, bool], Task]  # toy size, device, channels last
    needs: Optional[str]  # a package


def _images(model: nn.Module, batch: int, size: int, classes: int, device: torch.device,
            channels_last: bool) -> Task:  # fmt: skip
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(device).to(memory_format=layout)
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=layout)
    y = torch.randint(0, classes, (batch,), device=device)
    return Task(model, lambda m: F.cross_entropy(m(x), y))


def _resnet50(toy: bool, device: torch.device, channels_last: bool) -> Task:
    if toy:
        return _images(OwnResNet50(4, (1, 1), 10), 2, 32, 10, device, channels_last)
    if importlib.util.find_spec("torchvision") is not None:
        import torchvision

        model = torchvision.models.resnet50()
    else:
        model = OwnResNet50()
    return _images(model, 64, 224, 1000, device, channels_last)


def _resnet32(toy: bool, device: torch.device, channels_last: bool) -> Task:
    sys.path.insert(0, _EXAMPLES)
    try:
        from cifar10_resnet import ResNet
    finally:
        sys.path.remove(_EXAMPLES)
    model = ResNet(8, 4) if toy else ResNet(32, 16)
    return _images(model, 4 if toy else 128, 32, 10, device, channels_last)


def _bert(toy: bool, device: torch.device, channels_last: bool) -> Task:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig()
    if toy:
        config = BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16,
        )  # fmt: skip
    model = BertForMaskedLM(config).to(device)
    shape = (2, 8) if toy else (32, 128)
    tokens = torch.randint(0, config.vocab_size, shape, device=device)
    return Task(model, lambda m: m(input_ids=tokens, labels=tokens).loss)


CASES: Dict[str, Case] = {
    "resnet50": Case("ResNet-50, batch 64", True, _resnet50, None),
    "resnet32": Case("ResNet-32, batch 128", True, _resnet32, None),
    "bert": Case("BERT-Base, batch 32 x 128", False, _bert, "transformers"),
}
