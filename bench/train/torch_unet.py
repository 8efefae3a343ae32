#!/usr/bin/env python3
"""Seconds per training step of a U-Net in PyTorch: the peer of `descent bench --model unet-bn`.

The same net (padded, with batch norm), random images in memory, binary cross-entropy of one output per pixel, Adam; on a GPU
in channels_last. Prints one JSON object with the keys of `descent bench --json`.
"""
import argparse
import json
import os
import resource
import statistics
import sys

sys.dont_write_bytecode = True  # leave no files in the source tree
import torch_gpt
import torch_resnet

LEVELS = 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    return parser.parse_args()


def build(torch, width):
    nn = torch.nn

    def block(inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [width << level for level in range(LEVELS + 1)]
            self.down = nn.ModuleList(block(inputs, outputs) for inputs, outputs in zip([3] + sizes[:-2], sizes[:-1]))
            self.bottom, self.pool = block(sizes[-2], sizes[-1]), nn.MaxPool2d(2)
            self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in sizes[-2::-1])
            self.merge = nn.ModuleList(block(2 * size, size) for size in sizes[-2::-1])
            self.last = nn.Conv2d(width, 1, 1)

        def forward(self, x, labels):
            skips = []
            for part in self.down:
                x = part(x)
                skips.append(x)
                x = self.pool(x)
            x = self.bottom(x)
            for up, merge in zip(self.up, self.merge):
                x = merge(torch.cat((up(x), skips.pop()), 1))
            return nn.functional.binary_cross_entropy_with_logits(self.last(x).float(), labels)

    return UNet()


def make_step(torch, args):
    layout = torch.channels_last if args.device == "cuda" else torch.contiguous_format
    plain = build(torch, args.width).to(args.device, memory_format=layout)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    x = torch.randn(shape, device=args.device).to(memory_format=layout)
    labels = torch.randint(0, 2, (shape[0], 1) + shape[2:], device=args.device).float()
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3, **({"fused": True} if args.device == "cuda" else {}))
    model = torch.compile(plain) if args.compile else plain

    def step():
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(x, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, plain


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    try:
        import torch
    except ImportError:
        sys.exit("torch_unet.py: this Python (%s) has no PyTorch; on Debian and Ubuntu: apt install python3-torch"
                 % sys.executable)
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(42)
    step, model = make_step(torch, args)
    seconds = torch_gpt.measure(torch, step, args)
    median = statistics.median(seconds)
    print(json.dumps({
        "model": "unet-bn:width=%d" % args.width, "batch_size": args.batch_size, "threads": args.threads, "ranks": 1,
        "steps": args.steps, "median_s": median, "min_s": min(seconds), "images_per_s": args.batch_size / median,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "device_peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else 0,
        "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
        "blas": torch_resnet.active_blas()}))


if __name__ == "__main__":
    main()
