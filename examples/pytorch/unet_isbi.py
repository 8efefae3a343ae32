"""A U-Net that finds cell membranes (ISBI 2012), by Adam, without and with K-FAC.

    python unet_isbi.py --data DIR                       # DIR/image/0.png ..., DIR/label/0.png ...
    python unet_isbi.py --steps 20 --device cpu --width 4 --crop 64 --levels 2    # drawn cells

Slices 0 to 23 are trained on; 24 to 29, one piece of the stack because neighbours are alike, are
validated. The loss is the mean over all pixels of a batch, so each image stands for height x width
terms of it: K-FAC has to know that (loss_terms).
"""

from __future__ import annotations

import argparse
import os
from typing import Dict, Tuple

import common
import torch
from torch import nn
from torch.nn import functional as F

from descent.torch import KFAC

Data = Tuple[torch.Tensor, torch.Tensor]  # images [n, 1, h, w], membranes [n, 1, h, w] of 0 and 1


# ---- data ----


def read_png(path: str) -> torch.Tensor:
    """A grey image as floats from 0 to 1."""
    try:
        from torchvision.io import ImageReadMode, read_image

        return read_image(path, ImageReadMode.GRAY)[0].float() / 255
    except (ImportError, RuntimeError):
        import numpy
        from PIL import Image

        return torch.from_numpy(numpy.array(Image.open(path).convert("L"))).float() / 255


def read_stack(folder: str) -> Data:
    numbers = range(30)
    images = [read_png(os.path.join(folder, "image", f"{i}.png")) for i in numbers]
    labels = [read_png(os.path.join(folder, "label", f"{i}.png")) for i in numbers]
    membranes = 1 - torch.stack(labels).round()  # the files have 0 for membranes
    return torch.stack(images).unsqueeze(1), membranes.unsqueeze(1)


def draw_stack(size: int) -> Data:
    """Drawn cells: pixels that have two of some random points at nearly the same distance are
    membranes. The points move from slice to slice."""
    g = torch.Generator().manual_seed(1)
    points = torch.rand(1 + size * size // 500, 2, generator=g) * size
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    grid = torch.stack([y, x], dim=-1).view(-1, 2)
    images, membranes = [], []
    for _ in range(30):
        nearest = torch.cdist(grid, points).topk(2, largest=False).values
        membrane = ((nearest[:, 1] - nearest[:, 0]) < 3).float().view(1, size, size)
        soft = F.avg_pool2d(membrane, 3, stride=1, padding=1)
        texture = F.avg_pool2d(torch.randn(1, size, size, generator=g), 3, stride=1, padding=1)
        images.append(0.7 - 0.4 * soft + 0.25 * texture)
        membranes.append(membrane)
        points = points + 2 * torch.randn(points.shape, generator=g)
    return torch.stack(images), torch.stack(membranes)


def random_crops(data: Data, count: int, size: int, generator: torch.Generator) -> Data:
    """Crops that are turned by a multiple of 90 degrees and mirrored at random."""
    n, _, h, w = data[0].shape
    crops = []
    for _ in range(count):
        i, y, x, turns, mirror = (
            int(torch.randint(0, limit, (1,), generator=generator))
            for limit in (n, h - size + 1, w - size + 1, 4, 2)
        )
        pair = torch.stack([part[i, :, y : y + size, x : x + size] for part in data])
        pair = torch.rot90(pair, turns, dims=(-2, -1))
        crops.append(pair.flip(-1) if mirror else pair)
    images, membranes = torch.stack(crops, dim=1)
    return images, membranes


# ---- model ----


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions, each with batch norm and ReLU."""
    layers = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A contracting and an expanding path with shortcuts between equal sizes."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([1] + sizes[:-2], sizes[:-1]))
        self.bottom = double(sizes[-2], sizes[-1])
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes[:-1], sizes[1:])
        )
        self.join = nn.ModuleList(double(2 * a, a) for a in sizes[:-1])
        self.last = nn.Conv2d(width, 1, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for step in self.down:
            x = step(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(kept)):
            x = join(torch.cat([up(x), skip], dim=1))
        return self.last(x)


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> Dict[str, float]:
    """Cross-entropy, part of wrong pixels, and Dice of the membranes, over all pixels."""
    model.eval()
    loss = wrong = both = either = 0.0
    for image, membrane in zip(data[0].split(1), data[1].split(1)):
        output = model(image)
        found = (output > 0).float()
        loss += float(F.binary_cross_entropy_with_logits(output, membrane))
        wrong += float((found != membrane).float().mean())
        both += float((found * membrane).sum())
        either += float(found.sum() + membrane.sum())
    model.train()
    n = len(data[0])
    return {
        "validation_loss": loss / n,
        "pixel_error": wrong / n,
        "dice": 2 * both / max(either, 1.0),
    }


# ---- training ----


def train(args: argparse.Namespace, device: torch.device, data: Data, use_kfac: bool) -> Dict:
    training = (data[0][:24], data[1][:24])
    validation = (data[0][24:], data[1][24:])
    inner = UNet(args.width, args.levels).to(device).to(memory_format=torch.channels_last)
    model = common.distributed(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    kfac = None
    if use_kfac:
        kfac = KFAC(
            model,
            lr=lambda step: optimizer.param_groups[0]["lr"],
            skip_layers=["ConvTranspose2d"],
            loss_terms=args.crop * args.crop,
            **common.kfac_options(args),
        )
    generator = torch.Generator().manual_seed(args.seed * 1009 + common.rank())
    run = common.Run(args, "K-FAC" if use_kfac else "Adam")
    while run.going():
        common.set_rate(optimizer, args.lr * common.cosine(run.progress))
        images, membranes = random_crops(training, args.batch_size, args.crop, generator)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(images), membranes)
        loss.backward()
        if kfac is not None:
            kfac.step()
        optimizer.step()
        run.count(loss)
    result = run.finish(**evaluate(inner, validation))
    if kfac is not None:
        kfac.close()
    return result


def main() -> None:
    parser = common.arguments("A U-Net on ISBI 2012, without and with K-FAC.")
    parser.add_argument("--data", help="folder with image/ and label/; without: drawn cells")
    parser.add_argument("--width", type=int, default=16, help="channels of the first level")
    parser.add_argument("--levels", type=int, default=4, help="times that the size is halved")
    parser.add_argument("--crop", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=4, help="crops per rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    common.kfac_arguments(parser, kl_clip=0.0, factor_decay=0.9, factor_steps=5, inv_steps=50)
    args = parser.parse_args()
    if args.crop % (1 << args.levels):
        parser.error(f"--crop {args.crop} must be a multiple of {1 << args.levels}")
    device = common.start(args)
    images, membranes = read_stack(args.data) if args.data else draw_stack(max(96, args.crop))
    images = (images - images[:24].mean()) / images[:24].std()
    data = (images.to(device), membranes.to(device))
    common.run_all(args, lambda use_kfac: train(args, device, data, use_kfac))


if __name__ == "__main__":
    main()
