"""torchvision's Mask R-CNN on drawn shapes, by SGD, without and with K-FAC on its ROI heads.

    python mask_rcnn.py
    python mask_rcnn.py --steps 5 --device cpu --size 64 --batch-size 1 --images 4

The images are made here: circles, squares and triangles with their boxes and masks. The model has
random weights and a small backbone; nothing is downloaded. As in KAISA (SC'21), K-FAC preconditions
the heads without the two large linear layers fc6 and fc7.

The mask loss is the mean over all pixels of the positive regions' 28 x 28 masks, the box losses are
means over regions: loss_terms says so.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Tuple

import common
import torch
from torch import nn

from descent.torch import KFAC

Sample = Tuple[torch.Tensor, Dict[str, torch.Tensor]]
CLASSES = 4  # background, circle, square, triangle


# ---- data ----


def shape_mask(kind: int, y: float, x: float, r: float, size: int) -> torch.Tensor:
    line = torch.arange(size) + 0.5
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    v, u = (rows - y) / r, (columns - x) / r
    if kind == 1:
        return u * u + v * v <= 1
    if kind == 2:
        return (u.abs() <= 0.9) & (v.abs() <= 0.9)
    return (v <= 0.8) & (v >= 2 * u.abs() - 1)


def draw(count: int, size: int, seed: int) -> List[Sample]:
    """Images of one to three shapes on a noisy ground; later shapes cover earlier ones."""
    g = torch.Generator().manual_seed(seed)
    samples: List[Sample] = []
    while len(samples) < count:
        image = 0.3 * torch.rand(3, 1, 1, generator=g) + 0.15 * torch.rand(
            3, size, size, generator=g
        )
        masks: List[torch.Tensor] = []
        labels: List[int] = []
        for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
            kind = int(torch.randint(1, CLASSES, (1,), generator=g))
            y, x, r = torch.rand(3, generator=g).tolist()
            r = size * (0.1 + 0.12 * r)
            mask = shape_mask(kind, r + y * (size - 2 * r), r + x * (size - 2 * r), r, size)
            image[:, mask] = 0.3 + 0.7 * torch.rand(3, 1, generator=g)
            masks = [m & ~mask for m in masks] + [mask]
            labels.append(kind)
        if min(int(m.sum()) for m in masks) < size * size // 200:
            continue  # a shape is nearly covered
        image = (image + 0.1 * torch.randn(3, size, size, generator=g)).clamp(0, 1)
        stacked = torch.stack(masks)
        boxes = [[m.any(0).nonzero(), m.any(1).nonzero()] for m in masks]
        edges = [[int(x[0]), int(y[0]), int(x[-1]) + 1, int(y[-1]) + 1] for x, y in boxes]
        target = {
            "boxes": torch.tensor(edges, dtype=torch.float32),
            "labels": torch.tensor(labels),
            "masks": stacked.to(torch.uint8),
        }
        samples.append((image, target))
    return samples


def to(device: torch.device, samples: List[Sample]) -> List[Sample]:
    return [(x.to(device), {k: v.to(device) for k, v in t.items()}) for x, t in samples]


# ---- model ----


def make_model(args: argparse.Namespace) -> nn.Module:
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
    )
    sizes = tuple((args.size // part,) for part in (8, 4, 3, 2, 1))
    return MaskRCNN(
        backbone,
        CLASSES,
        min_size=args.size,
        max_size=args.size,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        rpn_pre_nms_top_n_train=400,
        rpn_post_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=100,
        box_batch_size_per_image=64,
        box_detections_per_img=20,
    )


def overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a & b).sum()) / max(1.0, float((a | b).sum()))


@torch.no_grad()
def evaluate(model: nn.Module, samples: List[Sample]) -> Dict[str, float]:
    """For every object the best overlap (intersection over union) of its mask with the masks found
    for its class, on average; and the part of objects with an overlap above one half."""
    model.eval()
    best: List[float] = []
    for image, target in samples:
        found = model([image])[0]
        for label, mask in zip(target["labels"], target["masks"]):
            keep = (found["labels"] == label) & (found["scores"] > 0.5)
            masks = found["masks"][keep, 0] > 0.5
            best.append(max([overlap(m, mask.bool()) for m in masks], default=0.0))
    model.train()
    return {
        "mask_overlap": sum(best) / len(best),
        "found": sum(b > 0.5 for b in best) / len(best),
    }


# ---- training ----


def train(
    args: argparse.Namespace, training: List[Sample], validation: List[Sample], use_kfac: bool
) -> Dict[str, Any]:
    inner = make_model(args).to(training[0][0].device)
    model = common.distributed(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    kfac = None
    if use_kfac:
        kfac = KFAC(
            inner.roi_heads,
            lr=lambda step: optimizer.param_groups[0]["lr"],
            skip_layers=["fc6", "fc7", "conv5_mask"],
            loss_terms={"mask": 28 * 28},
            **common.kfac_options(args),
        )
    generator = torch.Generator().manual_seed(args.seed * 1009 + common.rank())
    run = common.Run(args, "K-FAC" if use_kfac else "SGD")
    while run.going():
        common.set_rate(optimizer, args.lr * common.cosine(run.progress, warmup=0.1))
        chosen = torch.randint(0, len(training), (args.batch_size,), generator=generator).tolist()
        images, targets = zip(*[training[i] for i in chosen])
        optimizer.zero_grad()
        losses = model(list(images), [dict(target) for target in targets])
        loss = sum(losses.values())
        loss.backward()
        if kfac is not None:
            kfac.step()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        run.count(loss)
    result = run.finish(**evaluate(inner, validation))
    if kfac is not None:
        kfac.close()
    return result


def main() -> None:
    parser = common.arguments("Mask R-CNN on drawn shapes, without and with K-FAC on its heads.")
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--images", type=int, default=400, help="training images")
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank")
    parser.add_argument("--lr", type=float, default=0.02)
    common.kfac_arguments(parser, kl_clip=0.01, factor_steps=5, inv_steps=50)
    args = parser.parse_args()
    common.need("torchvision", "(pip install torchvision)")
    device = common.start(args)
    training = to(device, draw(args.images, args.size, 1))
    validation = to(device, draw(max(2, args.images // 8), args.size, 2))
    common.run_all(args, lambda use_kfac: train(args, training, validation, use_kfac))


if __name__ == "__main__":
    main()
