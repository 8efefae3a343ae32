"""The C library: where it is found, its structs and functions, and how its errors become exceptions.

Structs and functions are those of the public headers (include/descent). Every function that returns
a dsc_status raises an exception instead; nothing outside this file looks at a status. ctypes
releases the interpreter's lock during a call.
"""

from __future__ import annotations

import ctypes
import os
import threading

from ctypes import (
    CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_int, c_int64, c_size_t,
    c_uint64, c_void_p,
)  # fmt: skip
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from . import _openmp
from ._version import __version__
from .errors import STATUS_NAMES, LibraryError, from_status

# dsc_dtype
F32, F64, BF16, F16, I32, I64, U8 = range(7)
# dsc_image_layout
NHWC, NCHW = range(2)
# dsc_reduction, and the kind of traffic (dsc_traffic) that the package's own messages are
SUM, MAX, MIN = range(3)
TRAFFIC_OTHER = 5
MAX_DIMS = 6

Handle = c_void_p  # an opaque object of the library


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", c_void_p),
        ("dtype", c_int),
        ("ndim", c_int),
        ("dim", c_int64 * MAX_DIMS),
    ]


class Param(Structure):
    _fields_ = [("name", c_char_p), ("value", Tensor), ("grad", Tensor)]


class Conv2dShape(Structure):
    _fields_ = [
        ("size", c_size_t),
        *[
            (name, c_int64)
            for name in (
                "in_h", "in_w", "in_c", "out_c", "kernel_h", "kernel_w", "stride_h", "stride_w",
                "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "extra_h", "extra_w",
            )
        ],
    ]  # fmt: skip


class DeviceOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("threads", c_int),
        ("ordinal", c_int),
        ("tune", c_int),
    ]


class CommOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_char_p),
        ("thread_multiple", c_int),
        ("message_limit", c_int64),
        ("survive", c_int),
        ("mpi_comm", c_void_p),
    ]


class CommMessage(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("op", c_int),
        ("reduction", c_int),
        ("dtype", c_int),
        ("peer", c_int),
        ("tag", c_int),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("count", c_int64),
    ]


class CommFunctions(Structure):
    pass


CommStart = CFUNCTYPE(c_int, c_void_p, POINTER(CommMessage), POINTER(c_void_p))
CommTest = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_int))
CommWait = CFUNCTYPE(c_int, c_void_p, c_void_p)
CommSplit = CFUNCTYPE(c_int, c_void_p, c_int, c_int, POINTER(CommFunctions))
CommClose = CFUNCTYPE(None, c_void_p)
CommExchange = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)

CommFunctions._fields_ = [
    ("size", c_size_t),
    ("name", c_char_p),
    ("context", c_void_p),
    ("rank", c_int),
    ("ranks", c_int),
    ("local_rank", c_int),
    ("local_ranks", c_int),
    ("start", CommStart),
    ("test", CommTest),
    ("wait", CommWait),
    ("split", CommSplit),
    ("close", CommClose),
]


class CommContact(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("context", c_void_p),
        ("rank", c_int),
        ("ranks", c_int),
        ("local_rank", c_int),
        ("local_ranks", c_int),
        ("exchange", CommExchange),
        ("close", CommClose),
    ]


class KfacLayer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("kind", c_int),
        ("in_c", c_int64),
        ("out_c", c_int64),
        ("conv", POINTER(Conv2dShape)),
        ("weight_grad", Tensor),
        ("bias_grad", Tensor),
        ("late_gradients", c_int),
        ("leave_out", c_int),
        ("out_blocks", c_int64),
        ("same_input", c_int64),
    ]


class KfacHyper(Structure):
    _fields_ = [
        ("damping", c_double),
        ("stat_decay", c_double),
        ("kl_clip", c_double),
        ("factor_freq", c_int64),
        ("update_freq", c_int64),
        ("diag_blocks", c_int64),
    ]


class KfacOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("damping", c_double),
        ("stat_decay", c_double),
        ("kl_clip", c_double),
        ("factor_freq", c_int64),
        ("update_freq", c_int64),
        ("schedule", c_void_p),
        ("context", c_void_p),
        ("method", c_int),
        ("scaling", c_int),
        ("strategy", c_int),
        ("grad_worker_fraction", c_double),
        ("placement", c_int),
        ("colocate_factors", c_int),
        ("symmetric", c_int),
        ("outer_product", c_int),
        ("diag_blocks", c_int64),
        ("skip_layers", c_char_p),
        ("factor_dtype", c_int),
        ("inverse_dtype", c_int),
        ("passes", c_int64),
        ("bucket_bytes", c_size_t),
        ("late_factors", c_int),
        ("damping_split", c_int),
        ("warmup_factors", c_int),
        ("ekfac", c_int),
        ("refresh", c_int),
        ("kl_clip_scaling", c_int),
        ("health_steps", c_int64),
        ("factor_samples", c_int64),
        ("norm", c_int),
        ("rank", c_double),
        ("clip", c_int),
        ("async_steps", c_int64),
        ("loss_terms", c_int64),
        ("sharing", c_int),
        ("embeddings", c_int),
        ("tied_head", c_int),
    ]


class KfacGradients(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("out_stride", c_int64),
        ("in_stride", c_int64),
        ("position_stride", c_int64),
    ]


class KfacSample(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("a", Tensor),
        ("g", Tensor),
        ("a_layout", c_int),
        ("g_layout", c_int),
        ("mean", Tensor),
        ("invstd", Tensor),
        ("y", Tensor),
        ("tokens", Tensor),
    ]


class KfacMemory(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("factors", c_size_t * 2),
        ("batches", c_size_t * 2),
        ("decompositions", c_size_t * 2),
        ("outer_products", c_size_t),
        ("moments", c_size_t),
        ("norms", c_size_t),
        ("work", c_size_t),
    ]


class KfacHealthReport(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("degenerate", c_int),
        ("smallest_cosine", c_double),
        ("since", c_int64),
        ("alarm", c_int),
        ("message", c_char_p),
        ("nu", c_double),
    ]


class KfacTimes(Structure):
    _fields_ = [("factor", c_double), ("decompose", c_double), ("precondition", c_double)]


class KfacLayerReport(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("cosine", c_double),
        ("a_min", c_double),
        ("a_max", c_double),
        ("g_min", c_double),
        ("g_max", c_double),
        ("condition", c_double),
    ]


class KfacReport(Structure):
    _fields_ = [
        ("step", c_int64),
        ("updated", c_int),
        ("decomposed", c_int),
        ("hyper", POINTER(KfacHyper)),
        ("times", POINTER(KfacTimes)),
        ("nu", c_double),
        ("failed_solves", c_int64),
        ("retried_solves", c_int64),
        ("rejected_factors", c_int64),
        ("factor_bytes", c_size_t),
        ("decomposition_bytes", c_size_t),
        ("exchange_bytes", c_size_t),
        ("work_bytes", c_size_t),
        ("ranks", c_int),
        ("work", POINTER(c_double)),
        ("solve_ms", POINTER(c_double)),
        ("layer_count", c_int64),
        ("layers", POINTER(KfacLayerReport)),
        ("refreshed_factors", c_int64),
        ("extra_iterations", c_int64),
        ("exact_fallbacks", c_int64),
        ("layer_nus", POINTER(c_double)),
    ]


class KfacEntry(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("ndim", c_int),
        ("dim", c_int64 * 2),
        ("optional", c_int),
    ]


class KfacItem(Structure):
    _fields_ = [
        ("unit", c_int64),
        ("side", c_int),
        ("block", c_int64),
        ("first", c_int64),
        ("n", c_int64),
        ("owner", c_int),
    ]


class KfacUnit(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("layer", c_int64),
        ("group", c_int64),
        ("kind", c_int),
        ("a_n", c_int64),
        ("g_n", c_int64),
        ("a_blocks", c_int64),
        ("g_blocks", c_int64),
        ("first_item", c_int64),
        ("column", c_int),
    ]


class KfacLoad(Structure):
    _fields_ = [
        ("work", c_double),
        ("factor_bytes", c_size_t),
        ("decomposition_bytes", c_size_t),
        ("exchange_bytes", c_size_t),
        ("factors_sent", c_double),
        ("decompositions_sent", c_double),
        ("preconditioned_sent", c_double),
    ]


class Edge(Structure):
    _fields_ = [("rank", c_int), ("share", c_double)]


class TopologyOptions(Structure):
    _fields_ = [("size", c_size_t), ("peers", c_int)]


class AverageOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("graph", c_char_p),
        ("peers", c_int),
        ("pairwise", c_int),
        ("bucket_bytes", c_size_t),
        ("wire", c_int),
        ("traffic", c_int),
        ("timeout", c_double),
        ("layouts", POINTER(c_char_p)),
    ]


class ConsensusOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("bucket_bytes", c_size_t),
        ("wire", c_int),
        ("graph", c_char_p),
        ("peers", c_int),
        ("synch_freq", c_int64),
        ("group", c_int),
        ("average_every", c_int64),
        ("slow_momentum", c_double),
        ("slow_rate", c_double),
        ("peer_timeout", c_double),
        ("layouts", POINTER(c_char_p)),
    ]


# The structs of the headers, for the test that compares their sizes and offsets with the compiler's.
STRUCTS: Dict[str, Type[Structure]] = {
    "dsc_tensor": Tensor,
    "dsc_param": Param,
    "dsc_conv2d_shape": Conv2dShape,
    "dsc_device_options": DeviceOptions,
    "dsc_comm_options": CommOptions,
    "dsc_comm_message": CommMessage,
    "dsc_comm_functions": CommFunctions,
    "dsc_comm_contact": CommContact,
    "dsc_kfac_layer": KfacLayer,
    "dsc_kfac_hyper": KfacHyper,
    "dsc_kfac_options": KfacOptions,
    "dsc_kfac_gradients": KfacGradients,
    "dsc_kfac_sample": KfacSample,
    "dsc_kfac_memory": KfacMemory,
    "dsc_kfac_health_report": KfacHealthReport,
    "dsc_kfac_times": KfacTimes,
    "dsc_kfac_layer_report": KfacLayerReport,
    "dsc_kfac_report": KfacReport,
    "dsc_kfac_entry": KfacEntry,
    "dsc_kfac_item": KfacItem,
    "dsc_kfac_unit": KfacUnit,
    "dsc_kfac_load": KfacLoad,
    "dsc_edge": Edge,
    "dsc_topology_options": TopologyOptions,
    "dsc_average_options": AverageOptions,
    "dsc_consensus_options": ConsensusOptions,
}

LogHandler = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class _Status:
    """Marks a function that returns a dsc_status; calling it raises an exception instead."""


_T = POINTER(Tensor)
_H = Handle
_HP = POINTER(Handle)
_TEXT = c_char_p

# name: (result, arguments), as in the headers.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "dsc_version": (_TEXT, []),
    "dsc_build_info": (_TEXT, []),
    "dsc_error_message": (_TEXT, []),
    "dsc_error_trace": (_TEXT, []),
    "dsc_log_set_handler": (None, [LogHandler, c_void_p]),
    # device.h
    "dsc_device_options_init_sized": (None, [POINTER(DeviceOptions), c_size_t]),
    "dsc_device_create": (_Status, [POINTER(DeviceOptions), _HP]),
    "dsc_device_destroy": (None, [_HP]),
    "dsc_device_name": (_TEXT, [_H]),
    "dsc_device_description": (_TEXT, [_H]),
    "dsc_device_bytes": (c_size_t, [_H]),
    "dsc_device_peak_bytes": (c_size_t, [_H]),
    "dsc_device_count": (c_int, [_TEXT]),
    "dsc_device_identity": (c_uint64, [_H]),
    "dsc_queue_wrap": (_Status, [_H, c_void_p, _HP]),
    "dsc_queue_rewrap": (_Status, [_H, c_void_p]),
    "dsc_queue_destroy": (None, [_HP]),
    "dsc_queue_sync": (_Status, [_H]),
    "dsc_tensor_check": (_Status, [_T]),
    "dsc_conv2d_shape_init_sized": (None, [POINTER(Conv2dShape), c_size_t]),
    # comm.h
    "dsc_comm_options_init_sized": (None, [POINTER(CommOptions), c_size_t]),
    "dsc_comm_check_kind": (_Status, [_TEXT]),
    "dsc_comm_create": (_Status, [POINTER(CommOptions), _HP]),
    "dsc_comm_functions_init_sized": (None, [POINTER(CommFunctions), c_size_t]),
    "dsc_comm_create_from_functions": (
        _Status, [POINTER(CommFunctions), POINTER(CommOptions), _HP]),
    "dsc_comm_contact_init_sized": (None, [POINTER(CommContact), c_size_t]),
    "dsc_comm_create_from_contact": (_Status, [POINTER(CommContact), POINTER(CommOptions), _HP]),
    "dsc_comm_destroy": (None, [_HP]),
    "dsc_comm_abandon": (None, [_HP]),
    "dsc_comm_abort": (None, [_H, c_int]),
    "dsc_comm_rank": (c_int, [_H]),
    "dsc_comm_size": (c_int, [_H]),
    "dsc_comm_local_rank": (c_int, [_H]),
    "dsc_comm_local_size": (c_int, [_H]),
    "dsc_comm_name": (_TEXT, [_H]),
    "dsc_comm_description": (_TEXT, [_H]),
    "dsc_comm_split": (_Status, [_H, c_int, c_int, _HP]),
    "dsc_comm_use_queue": (_Status, [_H, _H]),
    "dsc_comm_set_timeout": (_Status, [_H, c_double]),
    "dsc_comm_barrier": (_Status, [_H]),
    "dsc_comm_allreduce": (_Status, [_H, c_int, c_int, _T]),
    "dsc_comm_broadcast": (_Status, [_H, c_int, c_int, _T]),
    "dsc_comm_bytes": (c_uint64, [_H, c_int]),
    # kfac.h
    "dsc_kfac_layer_init_sized": (None, [POINTER(KfacLayer), c_size_t]),
    "dsc_kfac_options_init_sized": (None, [POINTER(KfacOptions), c_size_t]),
    "dsc_kfac_gradients_init_sized": (None, [POINTER(KfacGradients), c_size_t]),
    "dsc_kfac_sample_init_sized": (None, [POINTER(KfacSample), c_size_t]),
    "dsc_kfac_create": (
        _Status, [_H, _H, POINTER(KfacLayer), c_int64, POINTER(KfacOptions), _HP]),
    "dsc_kfac_destroy": (None, [_HP]),
    "dsc_kfac_abandon": (None, [_HP]),
    "dsc_kfac_begin": (_Status, [_H, c_double]),
    "dsc_kfac_wants_factors": (c_int, [_H]),
    "dsc_kfac_capture_sample": (_Status, [_H, _H, c_int64, POINTER(KfacSample)]),
    "dsc_kfac_set_gradients": (_Status, [_H, c_int64, c_int64, POINTER(KfacGradients)]),
    "dsc_kfac_set_uses": (_Status, [_H, c_int64, c_int64]),
    "dsc_kfac_set_passes": (_Status, [_H, c_int64]),
    "dsc_kfac_set_hyper": (_Status, [_H, POINTER(KfacHyper)]),
    "dsc_kfac_scale_g": (None, [_H, _T]),
    "dsc_kfac_step": (_Status, [_H, _H, c_double]),
    "dsc_kfac_steps": (c_int64, [_H]),
    "dsc_kfac_decomposed": (c_int, [_H]),
    "dsc_kfac_nu": (_Status, [_H, _H, POINTER(c_double)]),
    "dsc_kfac_get_report": (_Status, [_H, _H, POINTER(POINTER(KfacReport))]),
    "dsc_kfac_get_memory": (_Status, [_H, POINTER(KfacMemory)]),
    "dsc_kfac_health": (_Status, [_H, _H, POINTER(KfacHealthReport)]),
    "dsc_kfac_state_count": (c_int64, [_H]),
    "dsc_kfac_state_entries": (POINTER(KfacEntry), [_H]),
    "dsc_kfac_state_get": (_Status, [_H, _H, c_int64, c_void_p]),
    "dsc_kfac_state_get_own": (_Status, [_H, _H, c_int64, c_void_p, POINTER(c_int)]),
    "dsc_kfac_state_set": (_Status, [_H, _H, c_int64, c_void_p]),
    "dsc_kfac_state_done": (_Status, [_H, _H, c_int]),
    "dsc_kfac_plan_create": (
        _Status, [POINTER(KfacLayer), c_int64, c_int, POINTER(KfacOptions), c_int64, _HP]),
    "dsc_kfac_plan_destroy": (None, [_HP]),
    "dsc_kfac_plan_unit_count": (c_int64, [_H]),
    "dsc_kfac_plan_units": (POINTER(KfacUnit), [_H]),
    "dsc_kfac_plan_item_count": (c_int64, [_H]),
    "dsc_kfac_plan_items": (POINTER(KfacItem), [_H]),
    "dsc_kfac_plan_rows": (c_int, [_H]),
    "dsc_kfac_plan_columns": (c_int, [_H]),
    "dsc_kfac_plan_loads": (POINTER(KfacLoad), [_H]),
    # topology.h
    "dsc_topology_options_init_sized": (None, [POINTER(TopologyOptions), c_size_t]),
    "dsc_topology_create": (_Status, [_TEXT, c_int, POINTER(TopologyOptions), _HP]),
    "dsc_topology_destroy": (None, [_HP]),
    "dsc_topology_period": (c_int64, [_H]),
    "dsc_topology_most_peers": (c_int, [_H]),
    "dsc_topology_is_regular": (c_int, [_H]),
    "dsc_topology_is_matching": (c_int, [_H]),
    "dsc_topology_out": (c_int, [_H, c_int, c_int64, POINTER(Edge), POINTER(c_double)]),
    "dsc_topology_in": (c_int, [_H, c_int, c_int64, POINTER(Edge)]),
    "dsc_topology_rate": (_Status, [_H, POINTER(c_int64), POINTER(c_double)]),
    # consensus.h
    "dsc_average_options_init_sized": (None, [POINTER(AverageOptions), c_size_t]),
    "dsc_average_create": (_Status, [_H, _H, _T, c_int64, POINTER(AverageOptions), _HP]),
    "dsc_average_destroy": (None, [_HP]),
    "dsc_average_abandon": (None, [_HP]),
    "dsc_average_begin": (_Status, [_H, _H]),
    "dsc_average_test": (_Status, [_H, POINTER(c_int)]),
    "dsc_average_end": (_Status, [_H, _H]),
    "dsc_average_settle": (_Status, [_H, _H]),
    "dsc_average_weight": (c_double, [_H]),
    "dsc_average_rounds": (c_int64, [_H]),
    "dsc_average_restore": (_Status, [_H, c_double, c_int64]),
    "dsc_average_set_peers": (_Status, [_H, c_int]),
    "dsc_consensus_options_init_sized": (None, [POINTER(ConsensusOptions), c_size_t]),
    "dsc_consensus_create": (
        _Status, [_H, _H, POINTER(Param), c_int64, POINTER(ConsensusOptions), _HP]),
    "dsc_consensus_destroy": (None, [_HP]),
    "dsc_consensus_abandon": (None, [_HP]),
    "dsc_consensus_start": (_Status, [_H]),
    "dsc_consensus_before_forward": (_Status, [_H, _H]),
    "dsc_consensus_after_backward": (_Status, [_H, _H]),
    "dsc_consensus_set_gradients": (_Status, [_H, c_int64, c_int64, POINTER(c_void_p)]),
    "dsc_consensus_update_begin": (_Status, [_H, _H, POINTER(_T)]),
    "dsc_consensus_update_end": (_Status, [_H, _H]),
    "dsc_consensus_update_cancel": (None, [_H]),
    "dsc_consensus_set_rate": (None, [_H, c_double]),
    "dsc_consensus_settle": (_Status, [_H, _H]),
    "dsc_consensus_swap_in": (_Status, [_H, _H, c_int]),
    "dsc_consensus_swap_out": (_Status, [_H, _H]),
    "dsc_consensus_distance": (_Status, [_H, _H, POINTER(c_double), POINTER(c_double)]),
    "dsc_consensus_set_peers": (_Status, [_H, c_int]),
    "dsc_consensus_mass": (_Status, [_H, POINTER(c_double)]),
    "dsc_consensus_weight": (c_double, [_H]),
    "dsc_consensus_rounds": (c_int64, [_H]),
    "dsc_consensus_steps": (c_int64, [_H]),
    "dsc_consensus_restore": (_Status, [_H, c_double, c_int64, c_int64]),
}  # fmt: skip


def _check(result: int, function: Any, arguments: Tuple[Any, ...]) -> None:
    if result != 0:
        error = from_status(result, _text(lib.dsc_error_message()))
        cause = _causes.__dict__.pop("last", None)
        if isinstance(cause, (KeyboardInterrupt, SystemExit)):
            raise cause
        raise error from cause


def _text(value: Optional[bytes]) -> str:
    return value.decode(errors="replace") if value else ""


# The exception of a Python callback, by thread, until the library call that ran it reports it.
_causes = threading.local()


def callback(function: Callable[..., None]) -> Callable[..., int]:
    """Turns a Python function into one that the library can call: an exception becomes a status.

    The message of the status is the exception's, and the exception becomes the cause of the one
    that the interrupted call of the library raises.
    """

    def guarded(*arguments: Any) -> int:
        try:
            function(*arguments)
            return 0
        except BaseException as error:  # nothing may pass through C
            _causes.last = error
            message = f"{type(error).__name__}: {error}".encode()
            return int(_set_error(STATUS_NAMES.index("DSC_E_INTERNAL"), b"%s", message))

    return guarded


# ---- loading ----

_SONAME = "libdescent.so.0.2"  # soversion in cmake/libraries.cmake


def _candidates() -> List[str]:
    """Files to try, in order: that named by DESCENT_LIBRARY, the package's own, the system's."""
    named = os.environ.get("DESCENT_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    own = os.path.join(here, "lib", _SONAME)
    return [own, _SONAME]


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            _openmp.load()
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"  {path}: {error}")
    raise LibraryError(
        "libdescent was not found. Searched:\n" + "\n".join(tried) + "\nInstall the package with "
        "`pip install .` in a checkout of descent, or set DESCENT_LIBRARY to the file "
        f"{_SONAME} of an installation."
    )


def _declare(library: ctypes.CDLL) -> None:
    library.dsc_version.restype = _TEXT
    found = _text(library.dsc_version())
    if found != __version__:
        raise LibraryError(
            f"this is the Python package descent {__version__}, but the library that it has loaded "
            f"({library._name}) is version {found}: install both from the same source, or unset "
            "DESCENT_LIBRARY"
        )
    missing: List[str] = []
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            missing.append(name)
            continue
        function.argtypes = arguments
        if result is _Status:
            function.restype = c_int
            function.errcheck = _check
        else:
            function.restype = result
    if missing:
        raise LibraryError(f"{library._name} lacks {', '.join(missing)}: it is another build")


lib = _load()
_declare(lib)
_set_error = lib.dsc_error_set  # variadic: no argument types
_set_error.restype = c_int


def initialised(struct: Type[Structure], name: str) -> Any:
    """A struct of the library with its defaults, set by its own function dsc_NAME_init_sized."""
    value = struct()
    getattr(lib, f"dsc_{name}_init_sized")(byref(value), ctypes.sizeof(value))
    return value
