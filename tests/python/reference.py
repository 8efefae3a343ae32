"""K-FAC in float64 NumPy, slow and plain: the truth that the package is compared with."""

from __future__ import annotations

import numpy as np


def patches(x, kernel, stride, padding, dilation):
    """Patches [n, oh, ow, kh, kw, c] of x [n, c, h, w]; padding: ((top, bottom), (left, right))."""
    x = np.pad(x, ((0, 0), (0, 0), padding[0], padding[1]))
    n, c, h, w = x.shape
    oh = (h - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    ow = (w - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    out = np.zeros((n, oh, ow, kernel[0], kernel[1], c))
    for i in range(oh):
        for j in range(ow):
            for p in range(kernel[0]):
                for q in range(kernel[1]):
                    row, column = i * stride[0] + p * dilation[0], j * stride[1] + q * dilation[1]
                    out[:, i, j, p, q] = x[:, :, row, column]
    return out


class Unit:
    """A layer, or one group of a convolution: factors, their averages, a decomposition."""

    def __init__(self, bias, scaling="paper"):
        self.bias = bias
        self.scaling = scaling
        self.average = None
        self.solved = None

    def factors(self, rows_a, rows_g, samples, positions):
        """Batch factors of one pass: rows of A [r, columns] and of G [r, out]."""
        if self.bias:
            rows_a = np.concatenate([rows_a, np.ones((len(rows_a), 1))], axis=1)
        n, s = samples, positions
        a, g = rows_a.T @ rows_a, rows_g.T @ rows_g
        if self.scaling == "paper":
            return a / (n * s * s), g * (n * s)
        return a / (n * s**3), g / (n * s**3)

    def absorb(self, batch, decay):
        if self.average is None:
            self.average = [np.eye(len(f)) for f in batch]
        self.average = [decay * f + (1 - decay) * b for f, b in zip(self.average, batch)]

    def decompose(self, method, damping):
        a, g = self.average
        if method == "eigen":
            self.solved = [np.linalg.eigh(f) for f in (a, g)]
        else:
            self.solved = [np.linalg.inv(f + damping * np.eye(len(f))) for f in (a, g)]

    def precondition(self, d, method, damping):
        if self.solved is None:
            return d
        if method == "inverse":
            return self.solved[1] @ d @ self.solved[0]
        (va, qa), (vg, qg) = self.solved
        va, vg = np.maximum(va, 0), np.maximum(vg, 0)
        return qg @ ((qg.T @ d @ qa) / (np.outer(vg, va) + damping)) @ qa.T


class LinearReference:
    """A linear layer whose rows are samples; transposed: weights are [in, out]."""

    def __init__(self, module, transposed=False, scaling="paper"):
        self.module, self.transposed = module, transposed
        self.units = [Unit(module.bias is not None, scaling)]

    def pass_factors(self, a, g):
        a, g = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
        return [self.units[0].factors(a, g, len(a), 1)]

    def read(self):
        d = self.module.weight.grad.detach().cpu().double().numpy()
        d = d.T if self.transposed else d
        if self.module.bias is not None:
            bias = self.module.bias.grad.detach().cpu().double().numpy()
            d = np.concatenate([d, bias[:, None]], axis=1)
        return [d]

    def split(self, p):
        p = p[0]
        weight = p[:, :-1] if self.module.bias is not None else p
        bias = p[:, -1] if self.module.bias is not None else None
        return (weight.T if self.transposed else weight), bias


class ConvReference:
    """A two-dimensional convolution; padding as ((top, bottom), (left, right))."""

    def __init__(self, module, padding, scaling="paper"):
        self.module, self.padding = module, padding
        self.units = [Unit(module.bias is not None, scaling) for _ in range(module.groups)]

    def pass_factors(self, a, g):
        m = self.module
        rows = patches(a, m.kernel_size, m.stride, self.padding, m.dilation)
        n, oh, ow = rows.shape[:3]
        c, o = m.in_channels // m.groups, m.out_channels // m.groups
        result = []
        for i, unit in enumerate(self.units):
            part = rows[..., i * c : (i + 1) * c].reshape(n * oh * ow, -1)
            rows_g = g[:, i * o : (i + 1) * o].transpose(0, 2, 3, 1).reshape(n * oh * ow, o)
            result.append(unit.factors(part, rows_g, n, oh * ow))
        return result

    def read(self):
        m = self.module
        w = m.weight.grad.detach().cpu().double().numpy()
        o = m.out_channels // m.groups
        result = []
        for i in range(m.groups):
            d = w[i * o : (i + 1) * o].transpose(0, 2, 3, 1).reshape(o, -1)
            if m.bias is not None:
                bias = m.bias.grad.detach().cpu().double().numpy()[i * o : (i + 1) * o]
                d = np.concatenate([d, bias[:, None]], axis=1)
            result.append(d)
        return result

    def split(self, p):
        m = self.module
        kh, kw = m.kernel_size
        weights, biases = [], []
        for q in p:
            if m.bias is not None:
                biases.append(q[:, -1])
                q = q[:, :-1]
            q = q.reshape(len(q), kh, kw, m.in_channels // m.groups).transpose(0, 3, 1, 2)
            weights.append(q)
        return np.concatenate(weights), np.concatenate(biases) if biases else None


class NormUnit(Unit):
    """Scale and shift of a normalisation: a matrix of 2 x 2 numbers for each channel, which every
    step solves with as it is."""

    def __init__(self, diagonal):
        super().__init__(False)
        self.diagonal = diagonal

    def absorb(self, batch, decay):
        if self.average is None:
            self.average = np.tile(np.eye(2), (len(batch[1]), 1, 1))
        self.average = decay * self.average + (1 - decay) * batch[1]

    def decompose(self, method, damping):
        pass

    def precondition(self, d, method, damping):
        if self.average is None:
            return d
        f = self.average * np.eye(2) if self.diagonal else self.average
        return np.linalg.solve(f + damping * np.eye(2), d[..., None])[..., 0]


class NormReference:
    """nn.BatchNorm of any dimension, or nn.LayerNorm over the last one."""

    def __init__(self, module, diagonal=False):
        self.module = module
        self.units = [NormUnit(diagonal)]

    def normalised(self, a):
        """The input as [samples, positions, channels] before scale and shift."""
        m = self.module
        if hasattr(m, "normalized_shape"):
            x = a.reshape(-1, 1, a.shape[-1])
            mean, var = x.mean(axis=2, keepdims=True), x.var(axis=2, keepdims=True)
        else:
            x = np.moveaxis(a, 1, -1).reshape(a.shape[0], -1, a.shape[1])
            mean, var = x.mean(axis=(0, 1)), x.var(axis=(0, 1))
            if not m.training:
                mean = m.running_mean.detach().cpu().double().numpy()
                var = m.running_var.detach().cpu().double().numpy()
        return (x - mean) / np.sqrt(var + m.eps)

    def pass_factors(self, a, g):
        """(0, mean over the samples of u u'), u [channels, 2] the gradient of one sample's loss."""
        x = self.normalised(a)
        if not hasattr(self.module, "normalized_shape"):
            g = np.moveaxis(g, 1, -1)
        g = g.reshape(x.shape)
        u = len(x) * np.stack([(g * x).sum(axis=1), g.sum(axis=1)], axis=-1)
        return [(0.0, (u[..., :, None] * u[..., None, :]).mean(axis=0))]

    def read(self):
        m = self.module
        both = [p.grad.detach().cpu().double().numpy() for p in (m.weight, m.bias)]
        return [np.stack(both, axis=-1)]

    def split(self, p):
        return p[0][:, 0], p[0][:, 1]


class Reference:
    """K-FAC over layers that note their inputs and output gradients by plain hooks."""

    def __init__(self, layers, lr=0.1, damping=0.003, decay=0.95, kl_clip=0.001, method="eigen",
                 factor_every=1, update_every=1, loss_scale=1.0):
        self.layers = layers
        self.lr, self.damping, self.decay, self.kl_clip = lr, damping, decay, kl_clip
        self.method, self.factor_every, self.update_every = method, factor_every, update_every
        self.loss_scale = loss_scale
        self.steps = 0
        self.seen = {id(layer): [] for layer in layers}
        self.hooks = [
            layer.module.register_forward_hook(self._forward(layer)) for layer in layers
        ]

    def _forward(self, layer):
        def hook(module, inputs, output):
            a = inputs[0].detach().cpu().double().numpy().copy()

            def backward(g):
                self.seen[id(layer)].append((a, g.detach().cpu().double().numpy().copy()))

            if output.requires_grad:
                output.register_hook(backward)

        return hook

    def step(self, passes=1):
        """What the gradients must become: a dict from parameter to array, in the order of layers.
        passes: backward passes since the last step, each of a loss divided by that number."""
        ran = [layer for layer in self.layers if self.seen[id(layer)]]
        if self.steps % self.factor_every == 0:
            for layer in ran:
                scale = self.loss_scale / passes
                batches = [layer.pass_factors(a, g / scale) for a, g in self.seen[id(layer)]]
                uses = len(batches) / passes
                for u, unit in enumerate(layer.units):
                    # Over passes the factors are averaged; uses in one pass add up in G.
                    a = sum(b[u][0] for b in batches) / (passes * uses)
                    g = sum(b[u][1] for b in batches) / passes
                    unit.absorb((a, g), self.decay)
        if self.steps % self.update_every == 0:
            for layer in ran:
                for unit in layer.units:
                    unit.decompose(self.method, self.damping)
        results, total = [], 0.0
        for layer in self.layers:
            if layer.module.weight.grad is None:
                continue
            d = layer.read()
            p = [u.precondition(x, self.method, self.damping) for u, x in zip(layer.units, d)]
            total += sum((x * y).sum() for x, y in zip(d, p))
            results.append((layer, p))
        self.nu = 1.0
        if self.kl_clip and total != 0:
            self.nu = min(1.0, np.sqrt(self.kl_clip / abs(self.lr**2 * total)))
        expected = {}
        for layer, p in results:
            weight, bias = layer.split([self.nu * x for x in p])
            expected[layer.module.weight] = weight
            if bias is not None:
                expected[layer.module.bias] = bias
        for noted in self.seen.values():
            noted.clear()
        self.steps += 1
        return expected


def compare(expected, tolerance):
    """Largest difference of gradients from what they must be, relative to each tensor's norm."""
    worst = 0.0
    for parameter, value in expected.items():
        got = parameter.grad.detach().cpu().double().numpy()
        norm = np.linalg.norm(value) or 1.0
        worst = max(worst, float(np.linalg.norm(got - value) / norm))
    assert worst <= tolerance, f"differs by {worst:.2e}, allowed {tolerance:.0e}"
    return worst
