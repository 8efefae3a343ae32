"""BERT as a masked language model on a text file, by AdamW, without and with K-FAC.

    python bert_mlm.py --text tinyshakespeare.txt
    python bert_mlm.py --text wikitext2-valid.txt --tokens words --vocabulary 8000
    python bert_mlm.py --steps 20 --device cpu --hidden 32 --layers 1    # built-in text

The model is Hugging Face's, with random weights; nothing is downloaded. K-FAC preconditions the
linear layers of the encoder. The embeddings, and the output layer that shares their weights, keep
their plain gradients.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
from typing import Any, Dict, List, Tuple

import common
import torch
from torch import nn

from descent.torch import KFAC

PAD, MASK, UNKNOWN, SPECIAL = 0, 1, 2, 3  # numbers of the special tokens; others follow
IGNORED = -100  # the label of positions that are not predicted


# ---- text ----


def built_in_text(words: int) -> str:
    """Sentences of a small grammar, so that masked words can be learnt."""
    draw = random.Random(1)
    names = ["cat", "dog", "bird", "fish", "horse"]
    verbs = ["sees", "hears", "follows", "likes"]
    adjectives = ["small", "red", "old", "quick"]
    out: List[str] = []
    while len(out) < words:
        for _ in range(2):
            out += ["the", draw.choice(adjectives), draw.choice(names), draw.choice(verbs)]
        out += ["the", draw.choice(names), "."]
    return " ".join(out)


def tokenise(text: str, kind: str, limit: int) -> Tuple[torch.Tensor, int]:
    """Token numbers of a text and the size of the vocabulary. kind: bytes or words."""
    items: List[Any] = list(text.encode()) if kind == "bytes" else re.findall(r"\w+|[^\w\s]", text)
    common_items = [item for item, _ in collections.Counter(items).most_common(limit - SPECIAL)]
    number = {item: SPECIAL + i for i, item in enumerate(sorted(common_items))}
    return torch.tensor([number.get(item, UNKNOWN) for item in items]), SPECIAL + len(number)


def mask(
    tokens: torch.Tensor, vocabulary: int, share: float, generator: torch.Generator
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Input and labels: of the chosen tokens 80 % are masked, 10 % replaced and 10 % kept."""
    draw = torch.rand(tokens.shape, generator=generator)
    chosen = draw < share
    labels = torch.where(chosen, tokens, torch.full_like(tokens, IGNORED))
    other = torch.randint(SPECIAL, vocabulary, tokens.shape, generator=generator)
    inputs = torch.where(draw < 0.8 * share, torch.full_like(tokens, MASK), tokens)
    inputs = torch.where((draw >= 0.8 * share) & (draw < 0.9 * share), other, inputs)
    return inputs, labels


def rows_of(tokens: torch.Tensor, length: int) -> torch.Tensor:
    count = len(tokens) // length
    return tokens[: count * length].view(count, length)


# ---- model ----


def make_model(args: argparse.Namespace, vocabulary: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
        pad_token_id=PAD,
    )
    return BertForMaskedLM(config)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))


@torch.no_grad()
def evaluate(model: nn.Module, rows: torch.Tensor, vocabulary: int, args: Any) -> Dict[str, float]:
    """Loss and accuracy of the predicted tokens, with masks that are the same in every run."""
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(7)
    loss = right = count = 0.0
    for tokens in rows.split(args.batch_size):
        inputs, labels = mask(tokens, vocabulary, args.share, generator)
        inputs, labels = inputs.to(device), labels.to(device)
        logits = model(input_ids=inputs).logits
        chosen = labels != IGNORED
        loss += float(nn.functional.cross_entropy(logits[chosen], labels[chosen], reduction="sum"))
        right += float((logits[chosen].argmax(-1) == labels[chosen]).sum())
        count += float(chosen.sum())
    model.train()
    return {"validation_loss": loss / count, "validation_accuracy": right / count}


# ---- training ----


def train(
    args: argparse.Namespace, device: torch.device, tokens: torch.Tensor, vocabulary: int,
    use_kfac: bool,
) -> Dict[str, Any]:  # fmt: skip
    cut = len(tokens) * 9 // 10
    train_tokens, validation = tokens[:cut], rows_of(tokens[cut:], args.length)
    inner = make_model(args, vocabulary).to(device)
    model = common.distributed(inner)
    optimizer = make_optimizer(model, args)
    kfac = None
    if use_kfac:
        kfac = KFAC(
            model,
            lr=lambda step: optimizer.param_groups[0]["lr"],
            skip_layers=["embeddings", "cls"],
            loss_terms=args.share,  # the loss averages over this part of the tokens
            **common.kfac_options(args),
        )
    generator = torch.Generator().manual_seed(args.seed * 1009 + common.rank())
    run = common.Run(args, "K-FAC" if use_kfac else "AdamW")
    while run.going():
        common.set_rate(optimizer, args.lr * common.cosine(run.progress, warmup=0.1))
        first = torch.randint(
            0, len(train_tokens) - args.length + 1, (args.batch_size, 1), generator=generator
        )
        batch = train_tokens[first + torch.arange(args.length)]
        inputs, labels = mask(batch, vocabulary, args.share, generator)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            logits = model(input_ids=inputs.to(device)).logits
        loss = nn.functional.cross_entropy(
            logits.float().view(-1, vocabulary), labels.to(device).view(-1), ignore_index=IGNORED
        )
        loss.backward()
        if kfac is not None:
            kfac.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.count(loss)
    result = run.finish(**evaluate(inner, validation[: args.validation], vocabulary, args))
    if kfac is not None:
        kfac.close()
    return result


def main() -> None:
    parser = common.arguments("BERT as a masked language model, without and with K-FAC.")
    parser.add_argument("--text", metavar="FILE", help="a text file; without: built-in sentences")
    parser.add_argument("--tokens", choices=["bytes", "words"], default="bytes")
    parser.add_argument("--vocabulary", type=int, default=8192, help="at most this many tokens")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences per rank")
    parser.add_argument("--share", type=float, default=0.15, help="part of tokens to predict")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--validation", type=int, default=512, help="sequences to validate on")
    common.kfac_arguments(parser, kl_clip=0.0, factor_decay=0.9, factor_steps=2, inv_steps=20)
    args = parser.parse_args()
    common.need("transformers", "of Hugging Face (pip install transformers)")
    device = common.start(args)
    if args.text:
        with open(args.text, encoding="utf-8") as file:
            text = file.read()
    else:
        text = built_in_text(20000)
    tokens, vocabulary = tokenise(text, args.tokens, args.vocabulary)
    common.run_all(args, lambda use_kfac: train(args, device, tokens, vocabulary, use_kfac))


if __name__ == "__main__":
    main()
