"""Checkpoints as PyTorch sees them: every name and shape fits a model that is defined here as PyTorch users define
it (strict loading), and the model gives the logits that descent gives. The files are read by hand, without the
safetensors package. Exit status 77 when PyTorch is not there."""
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    from torch import nn
    import torch.nn.functional as F
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)


def read_safetensors(path):
    """All tensors of a file, and its metadata."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    assert (8 + length) % 8 == 0, "the data is not aligned"
    types = {"F32": torch.float32, "I64": torch.int64}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + length + begin:8 + length + end])
        tensors[name] = torch.frombuffer(raw, dtype=types[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


class CifarBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, (channels - inputs) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        return F.relu(x + y)


class CifarResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        inputs = 16
        for stage, channels in enumerate((16, 32, 64)):
            layers = []
            for i in range(blocks):
                layers.append(CifarBlock(inputs, channels, 2 if stage > 0 and i == 0 else 1))
                inputs = channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class ImageNetBlock(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels at the end."""

    def __init__(self, inputs, channels, stride, bottleneck):
        super().__init__()
        if bottleneck:
            shapes = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, 4 * channels, 1, 1)]
        else:
            shapes = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        for i, (c_in, c_out, kernel, step) in enumerate(shapes):
            setattr(self, f"conv{i + 1}", nn.Conv2d(c_in, c_out, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(c_out))
        self.count, self.outputs, self.downsample = len(shapes), shapes[-1][1], None
        if stride > 1 or inputs != self.outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, self.outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(self.outputs))

    def forward(self, x):
        y = x
        for i in range(self.count):
            y = getattr(self, f"bn{i + 1}")(getattr(self, f"conv{i + 1}")(y))
            if i < self.count - 1:
                y = F.relu(y)
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ImageNetResNet(nn.Module):
    def __init__(self, counts, bottleneck):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(counts):
            layers = []
            for i in range(count):
                layers.append(ImageNetBlock(inputs, 64 << stage, 2 if stage > 0 and i == 0 else 1, bottleneck))
                inputs = layers[-1].outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 6 * 6, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(3072, 256), nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


MODELS = {
    "mlp": Mlp,
    "lenet": LeNet,
    "resnet20": lambda: CifarResNet(3),
    "resnet18": lambda: ImageNetResNet([2, 2, 2, 2], False),
    "resnet50": lambda: ImageNetResNet([3, 4, 6, 3], True),
}


def check(name, directory):
    program = os.path.join(os.environ.get("DESCENT_BINARY_DIR", "."), "tests", "train_export")
    subprocess.run([program, name, directory], check=True)
    tensors, metadata = read_safetensors(os.path.join(directory, "checkpoint-3.safetensors"))
    batch, _ = read_safetensors(os.path.join(directory, "io.safetensors"))
    assert metadata["model"] == name, metadata
    model = MODELS[name]()
    model.load_state_dict(tensors, strict=True)
    for key, tensor in model.state_dict().items():
        if key.endswith("num_batches_tracked"):
            assert tensor == 3, f"{name}: {key} is {tensor}"
    model.eval()
    with torch.no_grad():
        logits = model(batch["x"].permute(0, 3, 1, 2))
    worst = (logits - batch["logits"]).abs().max() / batch["logits"].abs().max()
    print(f"{name}: {len(tensors)} tensors, logits differ by {worst:.1e} of the largest")
    assert worst < 1e-4, name


def main():
    torch.set_num_threads(1)
    for name in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            check(name, directory)


if __name__ == "__main__":
    main()
