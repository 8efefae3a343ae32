"""A residual network on CIFAR-10 by SGD, without and with K-FAC.

    python cifar10_resnet.py --data DIR                  # the folder cifar-10-batches-bin
    torchrun --nproc_per_node 4 cifar10_resnet.py --data DIR --kfac --lr 0.4
    torchrun --nproc_per_node 4 cifar10_resnet.py --data DIR --consensus sgp --lr 0.4
    python cifar10_resnet.py --steps 20 --device cpu     # built-in images

K-FAC is three lines: `KFAC(model, ...)`, `kfac.step()` before the optimiser's, and its state in the
checkpoint. Gossip is two: `GossipOptimizer(optimizer, ...)` in place of DistributedDataParallel,
and `optimizer.averaged()` around the evaluation.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import lzma
import os
from typing import Any, Dict, List, Optional, Tuple

import common
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from descent.torch import KFAC, GossipOptimizer

Data = Tuple[torch.Tensor, torch.Tensor]


# ---- data ----


def read_batches(paths: List[str], device: torch.device) -> Data:
    """Official binary batches, perhaps compressed: a label and 3 x 32 x 32 bytes for each image."""
    parts = []
    for path in paths:
        with lzma.open(path) if path.endswith(".xz") else open(path, "rb") as file:
            parts.append(np.frombuffer(file.read(), dtype=np.uint8).reshape(-1, 3073))
    raw = np.concatenate(parts)
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images.to(device), torch.from_numpy(raw[:, 0].astype(np.int64)).to(device)


def read_cifar(folder: str, device: torch.device) -> Tuple[Data, Data]:
    """Training and test images. Without a test batch every tenth image is held out."""
    train = sorted(glob.glob(os.path.join(folder, "data_batch_*.bin*")))
    test = glob.glob(os.path.join(folder, "test_batch.bin*"))
    if not train:
        raise SystemExit(f"there is no data_batch_*.bin in '{folder}'")
    images, labels = read_batches(train, device)
    if test:
        return (images, labels), read_batches(test[:1], device)
    held = torch.arange(len(labels), device=device) % 10 == 9
    return (images[~held], labels[~held]), (images[held], labels[held])


def draw_images(count: int, seed: int, device: torch.device) -> Data:
    """Built-in images: waves whose direction and colour belong to the class, with noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=g)
    angle = labels * (np.pi / 10) + 0.1 * torch.randn(count, generator=g)
    phase = 6.28 * torch.rand(count, generator=g)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    along = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    wave = torch.sin(0.6 * along + phase[:, None, None])
    colour = torch.stack([torch.cos(labels * k + 1.0) for k in (1.0, 2.0, 3.0)], dim=1)
    images = 128 + 40 * wave[:, None] * colour[:, :, None, None]
    images += 40 * torch.randn(count, 3, 32, 32, generator=g)
    return images.clamp(0, 255).to(torch.uint8).to(device), labels.to(device)


def normalise(images: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([0.4914, 0.4822, 0.4465], device=images.device).view(1, 3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616], device=images.device).view(1, 3, 1, 1)
    x = (images.float() / 255 - mean) / std
    return x.contiguous(memory_format=torch.channels_last)


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Crops of 32 x 32 from images with a border of 4, and mirror images."""
    n, device = len(images), images.device
    padded = F.pad(images, (4, 4, 4, 4))
    shift = torch.randint(0, 9, (2, n), generator=generator).to(device)
    mirror = torch.rand(n, generator=generator).lt(0.5).to(device)
    line = torch.arange(32, device=device)
    columns = torch.where(mirror[:, None], 31 - line, line) + shift[1][:, None]
    rows = line + shift[0][:, None]
    i = torch.arange(n, device=device).view(n, 1, 1, 1)
    channel = torch.arange(3, device=device).view(1, 3, 1, 1)
    return padded[i, channel, rows[:, None, :, None], columns[:, None, None, :]]


class Batches:
    """The batches of this rank. Each depends on the seed and the step alone, so that a run which
    resumes sees what an uninterrupted one would have seen."""

    def __init__(self, data: Data, size: int, seed: int) -> None:
        self.images, self.labels = data
        self.size, self.seed = size, seed
        self.per_epoch = max(1, len(self.labels) // (size * common.ranks()))
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int) -> Data:
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            g = torch.Generator().manual_seed(self.seed * 1000003 + epoch)
            order = torch.randperm(len(self.labels), generator=g)
            self._epoch, self._order = epoch, order.to(self.labels.device)
        first = (place * common.ranks() + common.rank()) * self.size
        chosen = self._order[first : first + self.size]
        g = torch.Generator().manual_seed((self.seed * 1000003 + step) * 1009 + common.rank())
        return normalise(augment(self.images[chosen], g)), self.labels[chosen]


# ---- model ----


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.more:  # a shortcut without parameters: fewer pixels, further channels of zeros
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(x + y)


class ResNet(nn.Module):
    """The residual network for CIFAR of 6n + 2 layers."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage in range(3):
            for block in range((depth - 2) // 6):
                outputs = width << stage
                blocks.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, 10)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.linear(x.mean(dim=(2, 3)))


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> Dict[str, float]:
    model.eval()
    loss = right = 0.0
    for images, labels in zip(data[0].split(500), data[1].split(500)):
        output = model(normalise(images))
        loss += float(F.cross_entropy(output, labels, reduction="sum"))
        right += float((output.argmax(1) == labels).sum())
    model.train()
    return {"test_loss": loss / len(data[1]), "test_accuracy": right / len(data[1])}


# ---- training ----


def rate(args: argparse.Namespace, progress: float) -> float:
    """Linear warm-up to --lr, then a tenth after each point of --decay."""
    if progress < args.warmup:
        return args.lr * (0.1 + 0.9 * progress / args.warmup)
    return args.lr * 0.1 ** sum(progress >= point for point in args.decay)


def file_of(path: str, step: int, gossip: bool) -> str:
    """Ranks that gossip have models of their own, and so a file each."""
    return path.format(step=step) + (f".rank{common.rank()}" if gossip else "")


def save(path: str, step: int, model: nn.Module, optimizer: Any, kfac: Optional[KFAC]) -> None:
    gossip = isinstance(optimizer, GossipOptimizer)
    if gossip:
        optimizer.settle()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if kfac is not None:
        state["kfac"] = kfac.state_dict()  # by all ranks
    if common.rank() == 0 or gossip:
        torch.save(state, file_of(path, step, gossip))


def load(path: str, model: nn.Module, optimizer: Any, kfac: Optional[KFAC]) -> int:
    gossip = isinstance(optimizer, GossipOptimizer)
    state = torch.load(file_of(path, 0, gossip), map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if kfac is not None:
        kfac.load_state_dict(state["kfac"])
    return int(state["step"])


def train(args: argparse.Namespace, device: torch.device, data: Any, use_kfac: bool) -> Dict:
    inner = ResNet(args.depth, args.width).to(device).to(memory_format=torch.channels_last)
    optimizer: Any = torch.optim.SGD(
        inner.parameters(), lr=args.lr, momentum=0.9, weight_decay=args.weight_decay
    )
    if args.consensus == "allreduce":
        model, mean_of_ranks = common.distributed(inner), contextlib.nullcontext
    else:
        optimizer = GossipOptimizer(optimizer, inner, args.consensus)
        model, mean_of_ranks = inner, optimizer.averaged
    kfac = None
    if use_kfac:
        kfac = KFAC(
            model, lr=lambda step: optimizer.param_groups[0]["lr"], **common.kfac_options(args)
        )
    first = load(args.resume, inner, optimizer, kfac) if args.resume else 0
    batches = Batches(data[0], args.batch_size, args.seed)
    run = common.Run(args, "K-FAC" if use_kfac else "SGD", first)
    while run.going():
        common.set_rate(optimizer, rate(args, run.progress))
        images, labels = batches(run.step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        if kfac is not None:
            kfac.step()
        optimizer.step()
        run.count(loss)
        if args.checkpoint and run.step % args.checkpoint_every == 0:
            save(args.checkpoint, run.step, inner, optimizer, kfac)
    with mean_of_ranks():
        scores = evaluate(inner, data[1])
    for user in (kfac, optimizer):
        if hasattr(user, "close"):
            user.close()
    return run.finish(**scores)


def main() -> None:
    parser = common.arguments("A residual network on CIFAR-10, without and with K-FAC.")
    parser.add_argument("--data", help="folder of the binary batches; without: built-in images")
    parser.add_argument("--depth", type=int, default=20, help="20, 32, 44, 56 ...")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--batch-size", type=int, default=128, help="images per rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--warmup", type=float, default=0.05, help="part of the run")
    parser.add_argument(
        "--decay", type=float, nargs="*", default=[0.5, 0.75, 0.9], help="points of the run"
    )
    parser.add_argument(
        "--consensus", choices=["allreduce", "sgp", "osgp", "dpsgd", "adpsgd"], default="allreduce",
        help="average gradients over the ranks, or parameters by gossip",
    )  # fmt: skip
    parser.add_argument("--checkpoint", metavar="FILE", help="may contain {step}")
    parser.add_argument("--checkpoint-every", type=int, default=1000, metavar="STEPS")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
    common.kfac_arguments(parser)
    args = parser.parse_args()
    if (args.resume or args.checkpoint) and args.kfac is None:
        parser.error("--checkpoint and --resume need --kfac or --no-kfac")
    device = common.start(args)
    if args.data:
        data = read_cifar(args.data, device)
    else:
        data = draw_images(2000, 1, device), draw_images(500, 2, device)
    common.run_all(args, lambda use_kfac: train(args, device, data, use_kfac))


if __name__ == "__main__":
    main()
