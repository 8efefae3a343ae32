#!/usr/bin/env python3
"""Seconds per training step of a CIFAR ResNet in PyTorch on the CPU: the peer of `descent bench`.

The same net (parameter-free shortcuts: every second pixel, channels padded with zeros on both sides), the same
batch of random images in memory, SGD with momentum 0.9 and weight decay 5e-4. Prints one JSON object with the
keys of `descent bench --json`, and which layout and BLAS were used.
"""
import argparse
import json
import os
import re
import resource
import statistics
import sys
import time

WARM_UP = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet32", choices=["resnet20", "resnet32", "resnet44", "resnet56", "resnet110"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after %d that are not" % WARM_UP)
    parser.add_argument("--layout", default="contiguous", choices=["contiguous", "channels_last"])
    return parser.parse_args()


def active_blas():
    """The BLAS that is loaded, by its file; Debian's reference BLAS is many times slower than OpenBLAS."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = set(re.findall(r"/\S*(?:blas|mkl)\S*", maps.read()))
    for kind in ("openblas", "mkl", "blis", "atlas"):
        found = sorted(f for f in files if kind in os.path.basename(f))
        if found:
            return os.path.basename(found[0])
    return "reference BLAS (slow)" if files else "none"


def build(torch, depth):
    nn = torch.nn
    functional = torch.nn.functional

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.pad = (outputs - inputs) // 2

        def forward(self, x):
            y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
            y = self.bn2(self.conv2(y))
            if self.pad:
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
            return functional.relu(y + x, inplace=True)

    blocks, width = [], 16
    for stage in range(3):
        for i in range((depth - 2) // 6):
            outputs = 16 << stage
            blocks.append(Block(width, outputs, 2 if stage and i == 0 else 1))
            width = outputs
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    try:
        import torch
    except ImportError:
        sys.exit("torch_resnet.py: this Python (%s) has no PyTorch; on Debian and Ubuntu: apt install python3-torch"
                 % sys.executable)
    torch.set_num_threads(args.threads)
    torch.manual_seed(42)
    model = build(torch, int(args.model[6:]))
    x = torch.randn(args.batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (args.batch_size,))
    if args.layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    seconds = []
    for _ in range(WARM_UP + args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss_function(model(x), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[WARM_UP:]
    median = statistics.median(seconds)
    print(json.dumps({
        "model": args.model, "batch_size": args.batch_size, "threads": args.threads, "ranks": 1, "steps": args.steps,
        "median_s": median, "min_s": min(seconds), "images_per_s": args.batch_size / median,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layout": args.layout, "torch": torch.__version__, "blas": active_blas()}))


if __name__ == "__main__":
    main()
