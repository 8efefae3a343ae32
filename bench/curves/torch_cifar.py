#!/usr/bin/env python3
"""The peer's curve: a CIFAR ResNet trained by PyTorch with the recipe that docs/results.md gives for descent.

Recipe: SGD, momentum 0.9, weight decay 5e-4 on everything, learning rate rising linearly from 0 to LR over the first
epoch, then constant; batch 128, last incomplete batch dropped; pad 4, random crop, flip; He normal over the fan-in.
Prints, per epoch, the mean training loss and the accuracy on the test set.
"""
import argparse
import sys
import time

try:
    import numpy as np
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as missing:
    sys.exit(f"torch_cifar: {missing}: install python3-torch and python3-numpy")


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.stride, self.pad = stride, (c_out - c_in) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNet(nn.Module):
    def __init__(self, depth, classes=10):
        super().__init__()
        per_stage = (depth - 2) // 6
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stages, c_in = [], 16
        for c_out in (16, 32, 64):
            blocks = []
            for i in range(per_stage):
                blocks.append(Block(c_in, c_out, 2 if i == 0 and c_out != 16 else 1))
                c_in = c_out
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(64, classes)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(m.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)


def read_batches(paths):
    raw = np.concatenate([np.fromfile(p, np.uint8).reshape(-1, 3073) for p in paths])
    x = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255)
    return (x - MEAN) / STD, torch.from_numpy(raw[:, 0].astype(np.int64))


def augment(x):
    n, at = x.shape[0], x.device
    black = (-MEAN / STD).to(at)  # the padding is black, as where images are cropped before they are normalised
    padded = F.pad(x - black, (4, 4, 4, 4)) + black
    rows = torch.randint(0, 9, (n, 1), device=at) + torch.arange(32, device=at)
    cols = torch.randint(0, 9, (n, 1), device=at) + torch.arange(32, device=at)
    cols = torch.where(torch.rand(n, 1, device=at) < 0.5, cols.flip(1), cols)
    i = torch.arange(n, device=at).view(n, 1, 1, 1)
    return padded[i, torch.arange(3, device=at).view(1, 3, 1, 1), rows.view(n, 1, 32, 1), cols.view(n, 1, 1, 32)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of the CIFAR-10 binary batches")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    at = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = (t.to(at) for t in read_batches([f"{args.data}/data_batch_{i}.bin" for i in range(1, 6)]))
    xv, yv = (t.to(at) for t in read_batches([f"{args.data}/test_batch.bin"]))
    net = ResNet(args.depth).to(at)
    optim = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    steps, step, start = x.shape[0] // args.batch_size, 0, time.time()
    for epoch in range(args.epochs):
        net.train()
        total, order = torch.zeros((), device=at), torch.randperm(x.shape[0], device=at)
        for t in range(steps):
            optim.param_groups[0]["lr"] = args.lr * min(1.0, step / steps)
            pick = order[t * args.batch_size : (t + 1) * args.batch_size]
            optim.zero_grad()
            loss = F.cross_entropy(net(augment(x[pick])), y[pick])
            loss.backward()
            optim.step()
            total += loss.detach()
            step += 1
        net.eval()
        with torch.no_grad():
            right = sum((net(xv[i : i + 500]).argmax(1) == yv[i : i + 500]).sum().item() for i in range(0, len(yv), 500))
        print(f"epoch {epoch + 1}: loss {total.item() / steps:.4f}, top1 {100 * right / len(yv):.2f} %, "
              f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
