#!/usr/bin/env python3
"""Seconds per training step of a GPT in PyTorch: the peer of `descent bench --model gpt...`.

The same net (nanoGPT's modules: tied weights, layer norms before both parts of a block), the same kind of batch, random
tokens in memory, AdamW with the joint norm of the gradients clipped to 1. Attention is PyTorch's own where there is one
(2.0 and later), and written out before. Prints one JSON object with the keys of `descent bench --json`.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import time

sys.dont_write_bytecode = True  # leave no files in the source tree
import torch_resnet

WARM_UP = 2
GROUP = 10  # steps that are timed together on a GPU, as descent does
# layers, heads, width, dropout, biases, tokens in the vocabulary, GELU: those of descent's zoo
MODELS = {
    "gpt-mini": (6, 6, 384, 0.2, 0, 65, "none"),
    "gpt2": (12, 12, 768, 0.1, 1, 50257, "tanh"),
    "gpt2-medium": (24, 16, 1024, 0.1, 1, 50257, "tanh"),
    "gpt2-large": (36, 20, 1280, 0.1, 1, 50257, "tanh"),
    "gpt2-xl": (48, 25, 1600, 0.1, 1, 50257, "tanh"),
}
KEYS = ("layers", "heads", "width", "dropout", "bias", "vocabulary", "gelu")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="gpt-mini", help="as descent names it: NAME:key=value,...; one of " + ", ".join(MODELS))
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="times that are taken, after %d that are not" % WARM_UP)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    return parser.parse_args()


def design(spec):
    """The design of a model, with the keys of its name."""
    name, _, keys = spec.partition(":")
    if name not in MODELS:
        sys.exit("torch_gpt.py: no model '%s' here: use one of %s" % (name, ", ".join(MODELS)))
    values = dict(zip(KEYS, MODELS[name]))
    for pair in keys.split(",") if keys else ():
        key, _, value = pair.partition("=")
        if key not in KEYS[:5]:
            sys.exit("torch_gpt.py: model '%s': the keys are %s" % (spec, ", ".join(KEYS[:5])))
        values[key] = float(value) if key == "dropout" else int(value)
    return values


def build(torch, d, context):
    nn, functional = torch.nn, torch.nn.functional
    has_attention = hasattr(functional, "scaled_dot_product_attention")
    width, heads = d["width"], d["heads"]

    class Norm(nn.Module):  # nn.LayerNorm of older versions has no `bias`
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width)) if d["bias"] else None

        def forward(self, x):
            return functional.layer_norm(x, (width,), self.weight, self.bias, 1e-5)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(width, 3 * width, bias=bool(d["bias"]))
            self.c_proj = nn.Linear(width, width, bias=bool(d["bias"]))
            if not has_attention:
                self.register_buffer("mask", torch.tril(torch.ones(context, context)) == 0, persistent=False)

        def forward(self, x):
            batch, positions, _ = x.shape
            q, k, v = (y.view(batch, positions, heads, width // heads).transpose(1, 2) for y in self.c_attn(x).split(width, 2))
            if has_attention:
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(2, 3)) / math.sqrt(width // heads)
                y = scores.masked_fill(self.mask, float("-inf")).softmax(3) @ v
            return self.c_proj(y.transpose(1, 2).reshape(batch, positions, width))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2, self.attn = Norm(), Norm(), Attention()
            self.c_fc = nn.Linear(width, 4 * width, bias=bool(d["bias"]))
            self.c_proj = nn.Linear(4 * width, width, bias=bool(d["bias"]))
            self.drop = nn.Dropout(d["dropout"])

        def forward(self, x):
            x = x + self.drop(self.attn(self.ln_1(x)))
            return x + self.drop(self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate=d["gelu"])))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(d["vocabulary"], width), nn.Embedding(context, width)
            self.drop, self.ln_f = nn.Dropout(d["dropout"]), Norm()
            self.h = nn.ModuleList(Block() for _ in range(d["layers"]))
            self.lm_head = nn.Linear(width, d["vocabulary"], bias=False)
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02 / math.sqrt(2 * d["layers"]) if name.endswith("c_proj.weight") else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)
            self.lm_head.weight = self.wte.weight
            self.register_buffer("positions", torch.arange(context), persistent=False)

        def forward(self, tokens, labels):
            x = self.drop(self.wte(tokens) + self.wpe(self.positions))
            for block in self.h:
                x = block(x)
            logits = self.lm_head(self.ln_f(x))
            return functional.cross_entropy(logits.view(-1, logits.shape[2]), labels.view(-1))

    return GPT()


def make_step(torch, args, d):
    """The function of one step, and the model."""
    cuda = args.device == "cuda"
    plain = build(torch, d, args.context).to(args.device)
    tokens, labels = torch.randint(0, d["vocabulary"], (2, args.batch_size, args.context), device=args.device)
    parameters = list(plain.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), **({"fused": True} if cuda else {}))
    model = torch.compile(plain) if args.compile else plain

    def step():
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, plain


def measure(torch, step, args):
    """Seconds of a step; on a GPU of a group of steps that are queued one after the other, divided by their number."""
    cuda, seconds = args.device == "cuda", []
    group = GROUP if cuda else 1
    for _ in range(WARM_UP + args.steps):
        start = time.perf_counter()
        for _ in range(group):
            step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / group)
    return seconds[WARM_UP:]


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    try:
        import torch
    except ImportError:
        sys.exit("torch_gpt.py: this Python (%s) has no PyTorch; on Debian and Ubuntu: apt install python3-torch"
                 % sys.executable)
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs
    torch.manual_seed(42)
    step, model = make_step(torch, args, design(args.model))
    seconds = measure(torch, step, args)
    median = statistics.median(seconds)
    print(json.dumps({
        "model": args.model, "batch_size": args.batch_size, "threads": args.threads, "ranks": 1, "steps": args.steps,
        "median_s": median, "min_s": min(seconds), "images_per_s": args.batch_size / median,
        "tokens_per_s": args.batch_size * args.context / median,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "device_peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else 0,
        "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
        "blas": torch_resnet.active_blas()}))


if __name__ == "__main__":
    main()
