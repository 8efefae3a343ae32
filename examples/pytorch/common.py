"""What the PyTorch examples have in common: arguments, ranks, the clock, and their results."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn

from descent import comm


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all examples take."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--kfac", action="store_true", default=None, help="train with K-FAC only")
    parser.add_argument(
        "--no-kfac", dest="kfac", action="store_false",
        help="train without K-FAC only; by default the model is trained twice, without and with",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--minutes", type=float, help="train for this long instead of --steps")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=int, default=20, help="steps between printed losses")
    parser.add_argument("--json", metavar="FILE", help="write the results into this file")
    return parser


def kfac_arguments(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Adds K-FAC's hyper-parameters with an example's own defaults."""
    group = parser.add_argument_group("K-FAC")
    group.add_argument("--damping", type=float, default=defaults.get("damping", 0.003))
    group.add_argument(
        "--kl-clip", type=float, default=defaults.get("kl_clip", 0.001), help="0: no clip"
    )
    group.add_argument("--factor-decay", type=float, default=defaults.get("factor_decay", 0.95))
    group.add_argument(
        "--factor-steps", type=int, default=defaults.get("factor_steps", 10),
        help="steps between updates of the factors",
    )  # fmt: skip
    group.add_argument(
        "--inv-steps", type=int, default=defaults.get("inv_steps", 100),
        help="steps between decompositions",
    )  # fmt: skip


def kfac_options(args: argparse.Namespace) -> Dict[str, Any]:
    """Those hyper-parameters as arguments of descent.torch.KFAC."""
    return {
        "damping": args.damping,
        "kl_clip": args.kl_clip or None,
        "factor_decay": args.factor_decay,
        "factor_update_steps": args.factor_steps,
        "inv_update_steps": args.inv_steps,
    }


# ---- ranks ----


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def start(args: argparse.Namespace) -> torch.device:
    """Joins the ranks when torchrun has started several, and returns the device of this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if args.device == "cuda":
            args.device = f"cuda:{os.environ['LOCAL_RANK']}"
        dist.init_process_group("nccl" if args.device.startswith("cuda") else "gloo")
    elif comm.default().size > 1:
        sys.exit("start several ranks of this example by torchrun")
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def distributed(model: nn.Module) -> nn.Module:
    """The model with gradients that are averaged over the ranks, when there are several."""
    return nn.parallel.DistributedDataParallel(model) if ranks() > 1 else model


# ---- schedules: factors of the learning rate at a point of the run between 0 and 1 ----


def cosine(progress: float, warmup: float = 0.05, last: float = 0.01) -> float:
    if progress < warmup:
        return max(progress, 0.1 * warmup) / warmup
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


# ---- a run ----


class Run:
    """Counts the steps and seconds of a run, prints its loss, and keeps what the results need.

    `progress` grows from 0 to 1. In a run of some minutes it is the same on all ranks, because rank
    0's clock is read at the printed steps only.
    """

    def __init__(self, args: argparse.Namespace, name: str, first_step: int = 0) -> None:
        self.args, self.name = args, name
        self.step = self._first = first_step
        self.progress = 0.0 if args.minutes else first_step / max(1, args.steps)
        self.curve: List[List[float]] = []
        self._losses: List[torch.Tensor] = []
        self.seconds = 0.0
        self._start = time.perf_counter()

    def going(self) -> bool:
        return self.progress < 1

    def count(self, loss: torch.Tensor) -> None:
        """Notes the loss of a step. Does not wait for the device but at printed steps."""
        self._losses.append(loss.detach())
        self.step += 1
        args = self.args
        if not args.minutes:
            self.progress = self.step / args.steps
        if self.step % args.report == 0 or self.progress >= 1:
            self._report()

    def _report(self) -> None:
        mean = float(torch.stack(self._losses).double().mean())
        self._losses.clear()
        self.seconds = time.perf_counter() - self._start
        if self.args.minutes:
            shared = [min(1.0, self.seconds / (60 * self.args.minutes))]
            if ranks() > 1:
                dist.broadcast_object_list(shared, src=0)
            self.progress = shared[0]
        self.curve.append([round(self.seconds, 3), self.step, mean])
        if rank() == 0:
            print(f"{self.name}: step {self.step} loss {mean:.4f} {self.seconds:.1f} s", flush=True)

    def finish(self, **scores: float) -> Dict[str, Any]:
        """Prints the last line and returns the result."""
        loss = self.curve[-1][2] if self.curve else float("nan")
        steps = self.step - self._first
        if rank() == 0:
            text = "".join(f", {name} {value:.4f}" for name, value in scores.items())
            print(
                f"{self.name}: {steps} steps in {self.seconds:.1f} s, training loss {loss:.4f}"
                + text,
                flush=True,
            )
        return {
            "name": self.name, "steps": steps, "seconds": round(self.seconds, 3),
            "loss": loss, **scores, "curve": self.curve,
        }  # fmt: skip


def run_all(args: argparse.Namespace, train: Callable[[bool], Dict[str, Any]]) -> None:
    """Trains without and with K-FAC, or as asked for, and writes the results."""
    results = []
    for use_kfac in [False, True] if args.kfac is None else [args.kfac]:
        torch.manual_seed(args.seed)
        results.append(train(use_kfac))
    if args.json and rank() == 0:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(args), "results": results}, file, indent=1)
            file.write("\n")
    if dist.is_initialized():
        dist.barrier()


def need(module: str, why: str) -> None:
    """Ends the program with a message when a package is missing."""
    try:
        __import__(module)
    except ImportError:
        sys.exit(f"this example needs the package {module} {why}")
