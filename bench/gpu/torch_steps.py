#!/usr/bin/env python3
"""Milliseconds of PyTorch's training step and eigen solver on one GPU: the peer of bench/gpu/steps.

CIFAR ResNets as in bench/train/torch_resnet.py, ResNet-50 of torchvision; TF32 convolutions, channels-last, random
input in memory; SGD with momentum 0.9 and weight decay 5e-4. Prints one JSON object.
"""
import argparse
import importlib.util
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
EIGH = (65, 145, 289, 577, 1153, 2305, 4608)


def cifar(torch, name):
    path = os.path.join(HERE, "..", "train", "torch_resnet.py")
    spec = importlib.util.spec_from_file_location("torch_resnet", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(torch, int(name[6:])), 32, 10


def imagenet(name):
    import torchvision
    return getattr(torchvision.models, name)(), 224, 1000


def measure(torch, step, count, warm_up):
    times = []
    for i in range(warm_up + count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        if i >= warm_up:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def sgd(torch, name, batch, precision, count):
    model, side, classes = cifar(torch, name) if int(name[6:]) in (20, 32, 44, 56, 110) else imagenet(name)
    model = model.cuda().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    loss_function = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_function(model(x), labels)
        loss.backward()
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    ms = measure(torch, step, count, 5)
    return {"model": name, "batch_size": batch, "precision": precision, "ms": ms,
            "peak_mb": torch.cuda.max_memory_allocated() / 1e6}


def eigh(torch, n):
    x = torch.randn(2 * n, n, device="cuda")
    a = x.T @ x / (2 * n)
    return measure(torch, lambda: torch.linalg.eigh(a), 5 if n > 2000 else 9, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("models", nargs="*", help="NAME:BATCH:PRECISION, as in resnet32:128:fp32")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch_steps.py: this Python (%s) has no PyTorch" % sys.executable)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(42)
    result = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "sgd": [], "eigh_ms": {}}
    for text in args.models:
        name, batch, precision = text.split(":")
        result["sgd"].append(sgd(torch, name, int(batch), precision, args.steps))
        torch.cuda.empty_cache()
    for n in EIGH:
        result["eigh_ms"][str(n)] = eigh(torch, n)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
