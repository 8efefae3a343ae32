"""The layers of U-Nets against PyTorch's in float64, through the C functions: logits and the gradients
of all parameters, whose order of numbers is PyTorch's in the state dict."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from descent._library import MAX_DIMS, Conv2dShape, DeviceOptions, Param, Tensor

F64, I32 = 1, 4
BATCH, HEIGHT, WIDTH, CHANNELS = 2, 5, 4, 3


class ModelOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("seed", c_uint64),
        ("dtype", c_int),
        ("label_smoothing", c_double),
        ("activations", c_int),
        ("name", ctypes.c_char_p),
    ]


class StateEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("tensor", POINTER(Tensor)),
        ("ndim", c_int),
        ("dim", c_int64 * MAX_DIMS),
        ("permuted", c_int),
        ("ohwc", c_int64 * 4),
    ]


@pytest.fixture
def library():
    lib = ctypes.CDLL(os.environ["DESCENT_LIBRARY"])
    lib.dsc_error_message.restype = ctypes.c_char_p
    lib.dsc_model_params.restype = POINTER(Param)
    lib.dsc_model_state.restype = POINTER(StateEntry)
    lib.dsc_exec_logits.restype = POINTER(Tensor)
    for name in ("dsc_model_param_count", "dsc_model_classes"):
        getattr(lib, name).restype = c_int64
    return lib


class Net:
    """Input, then what `build` adds, as logits, on the reference device."""

    def __init__(self, lib, build):
        self.lib = lib
        self.device, self.queue, self.model, self.exec = (c_void_p() for _ in range(4))
        device, model = DeviceOptions(), ModelOptions()
        lib.dsc_device_options_init_sized(byref(device), c_size_t(ctypes.sizeof(device)))
        device.name = b"ref"
        lib.dsc_model_options_init_sized(byref(model), c_size_t(ctypes.sizeof(model)))
        model.dtype = F64
        self.call("dsc_device_create", byref(device), byref(self.device))
        self.call("dsc_queue_create", self.device, byref(self.queue))
        self.call("dsc_model_create", self.device, byref(model), byref(self.model))
        x = self.layer("dsc_model_input", *map(c_int64, (HEIGHT, WIDTH, CHANNELS)))
        logits = self.layer("dsc_model_flatten", build(self, x))
        self.call("dsc_model_seal", self.model, logits)
        self.call("dsc_exec_create", self.model, 0, c_int64(BATCH), byref(self.exec))

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        assert status == 0, self.lib.dsc_error_message()

    def layer(self, name, *arguments):
        value = c_int()
        self.call(name, self.model, *arguments, byref(value))
        return value

    def conv_transpose2d(self, name, x, bias=True, **members):
        shape = Conv2dShape()
        self.lib.dsc_conv2d_shape_init_sized(byref(shape), c_size_t(ctypes.sizeof(shape)))
        for member, value in members.items():
            setattr(shape, member, value)
        return self.layer("dsc_model_conv_transpose2d", name, x, byref(shape), int(bias))

    def tensor(self, array, dtype):
        dim = (c_int64 * MAX_DIMS)(*array.shape)
        return Tensor(array.data_ptr(), self.device, dtype, array.dim(), dim)

    def run(self, images, labels):
        """Logits; the gradients of the mean loss are then in state()."""
        x, y = images.permute(0, 2, 3, 1).contiguous(), labels.int()
        self.call("dsc_exec_forward", self.exec, self.queue, byref(self.tensor(x, F64)))
        labels_t, scale = self.tensor(y, I32), c_double(1 / BATCH)
        self.call("dsc_exec_loss", self.exec, self.queue, byref(labels_t), scale)
        self.call("dsc_exec_backward", self.exec, self.queue, None)
        return view(self.lib.dsc_exec_logits(self.exec).contents).clone()

    def state(self):
        """Name, values and gradients of every parameter in PyTorch's order."""
        entries = self.lib.dsc_model_state(self.model)
        params = self.lib.dsc_model_params(self.model)
        for i in range(self.lib.dsc_model_param_count(self.model)):
            yield entries[i].name.decode(), *(
                as_pytorch(entries[i], view(t)) for t in (params[i].value, params[i].grad)
            )

    def close(self):
        for name, handle in (("exec", self.exec), ("model", self.model), ("queue", self.queue)):
            getattr(self.lib, f"dsc_{name}_destroy")(byref(handle))
        self.lib.dsc_device_destroy(byref(self.device))


def view(t):
    """The numbers of a tensor in host memory, as a vector."""
    count = 1
    for d in t.dim[: t.ndim]:
        count *= d
    return torch.frombuffer((c_double * count).from_address(t.data), dtype=torch.float64)


def as_pytorch(entry, numbers):
    if entry.permuted:
        o, h, w, c = entry.ohwc
        numbers = numbers.reshape(o, h, w, c).permute(0, 3, 1, 2)
    return numbers.reshape(*entry.dim[: entry.ndim])


def check(lib, build, layers, forward):
    """`layers`: PyTorch's, by the names of `build`'s; `forward` maps images to a map."""
    torch.manual_seed(1)
    images = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64)
    net = Net(lib, build)
    module = nn.ModuleDict(layers).double()
    state = {name: value.clone() for name, value, _ in net.state()}
    module.load_state_dict(state)  # strict: all names and shapes fit
    labels = torch.randint(lib.dsc_model_classes(net.model), (BATCH,))
    logits = net.run(images, labels)
    want = forward(module, images).permute(0, 2, 3, 1).flatten(1)
    F.cross_entropy(want, labels).backward()
    torch.testing.assert_close(logits.reshape(BATCH, -1), want, rtol=1e-12, atol=1e-12)
    for name, _, gradient in net.state():
        expected = module.get_parameter(name).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    net.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "bias": False},
        {"kernel_size": (4, 3), "stride": (2, 3), "padding": (1, 2), "output_padding": (1, 2)},
        {"kernel_size": (2, 3), "stride": (3, 1), "dilation": (1, 2), "groups": 3},
    ],
)
def test_transposed_convolution(library, arguments):
    members = {"kernel_size": "kernel", "padding": "pad", "output_padding": "extra"}
    shape = {"out_c": 6}
    for name, value in arguments.items():
        if name == "groups":
            shape["groups"] = value
        elif name != "bias":
            pair = value if isinstance(value, tuple) else (value, value)
            for side, number in zip("hw", pair):
                shape[f"{members.get(name, name)}_{side}"] = number
    bias = arguments.get("bias", True)
    check(
        library,
        lambda net, x: net.conv_transpose2d(b"up", x, bias, **shape),
        {"up": nn.ConvTranspose2d(CHANNELS, 6, **arguments)},
        lambda module, x: module["up"](x),
    )


@pytest.mark.parametrize("kind, mode", [(0, "nearest"), (1, "bilinear")])
def test_upsample_concat_crop(library, kind, mode):
    """The gradient of `first` passes all of the other layers."""

    def build(net, x):
        y = net.conv_transpose2d(b"first", x, out_c=4, kernel_h=2, kernel_w=2)
        y = net.layer("dsc_model_upsample", y, kind)
        small = net.layer("dsc_model_crop", y, c_int64(5), c_int64(4))
        y = net.layer("dsc_model_concat", small, x)
        return net.conv_transpose2d(b"last", y, out_c=2, kernel_h=2, kernel_w=2)

    def forward(module, x):
        y = F.interpolate(module["first"](x), scale_factor=2, mode=mode)  # 12 x 10
        y = torch.cat([y[:, :, 3:8, 3:7], x], 1)
        return module["last"](y)

    layers = {"first": nn.ConvTranspose2d(CHANNELS, 4, 2), "last": nn.ConvTranspose2d(7, 2, 2)}
    check(library, build, layers, forward)
