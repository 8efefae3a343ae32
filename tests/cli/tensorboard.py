#!/usr/bin/env python3
"""tensorboard.py RUN FOLDER FILES [--resumed STEP]: decodes the FILES event files in FOLDER and compares them with RUN/metrics.jsonl.

Field numbers are declared here a second time, so that a mistake in src/train/tensorboard.proto shows."""
import glob
import json
import math
import struct
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PHASES = "data forward backward exchange factor decompose precondition update".split()
TRAFFIC = "gradients factors decompositions preconditioned parameters".split()
# Message: {field: (number, type)}; a star: repeated.
MESSAGES = {
    "Event": {"wall_time": (1, "double"), "step": (2, "int64"), "file_version": (3, "string"), "summary": (5, "Summary"),
              "session_log": (7, "SessionLog")},
    "SessionLog": {"status": (1, "int32")},
    "Summary": {"value": (1, "*Value")},
    "Value": {"tag": (1, "string"), "simple_value": (2, "float"), "histo": (5, "Histogram"), "tensor": (8, "Tensor"),
              "metadata": (9, "Metadata")},
    "Metadata": {"plugin_data": (1, "Plugin")},
    "Plugin": {"plugin_name": (1, "string"), "content": (2, "bytes")},
    "Histogram": {"min": (1, "double"), "max": (2, "double"), "num": (3, "double"), "sum": (4, "double"),
                  "sum_squares": (5, "double"), "bucket_limit": (6, "*double"), "bucket": (7, "*double")},
    "Tensor": {"dtype": (1, "int32"), "tensor_shape": (2, "Shape"), "float_val": (5, "*float")},
    "Shape": {"dim": (2, "*Dim")},
    "Dim": {"size": (1, "int64")},
    "Hparams": {"version": (1, "int32"), "experiment": (2, "Experiment"), "start": (3, "Start"), "end": (4, "End")},
    "Experiment": {"time_created_secs": (3, "double"), "hparam_infos": (4, "*Info"), "metric_infos": (5, "*Metric")},
    "Info": {"name": (1, "string"), "type": (4, "int32")},
    "Metric": {"name": (1, "Name"), "display_name": (3, "string")},
    "Name": {"tag": (2, "string")},
    "Start": {"hparams": (1, "*Entry"), "start_time_secs": (5, "double")},
    "Entry": {"key": (1, "string"), "value": (2, "Any")},
    "Any": {"number_value": (2, "double"), "string_value": (3, "string"), "bool_value": (4, "bool")},
    "End": {"status": (1, "int32"), "end_time_secs": (2, "double")},
}


def declare():
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            entry = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.startswith("*"):
                entry.label, kind = kinds.LABEL_REPEATED, kind[1:]
            if kind in MESSAGES:
                entry.type, entry.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
            else:
                entry.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if kind in ("double", "float") and entry.label == kinds.LABEL_REPEATED:
                entry.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def records(path):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        (length,), (check,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        assert check == masked(data[at:at + 8]), f"{path}: check sum of the length at {at}"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"{path}: half a record at {at}"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), f"{path}: check sum of the record at {at}"
        yield body
        at += 16 + length


def no_unknown_fields(message):
    assert message.ByteSize() == len(message.SerializeToString())
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    assert known.ByteSize() == message.ByteSize(), f"unknown fields in {message}"


def read(folder, files):
    """Events in the order of the files, with the hyper-parameters by their tags."""
    classes = declare()
    events, hparams = [], {}
    paths = sorted(glob.glob(f"{folder}/events.out.tfevents.*"))
    assert len(paths) == files, f"{len(paths)} event files instead of {files}"
    for path in paths:
        own = []
        for body in records(path):
            event = classes["Event"].FromString(body)
            no_unknown_fields(event)
            assert event.wall_time > 1.7e9
            own.append(event)
            for value in event.summary.value:
                if value.HasField("metadata"):
                    assert value.metadata.plugin_data.plugin_name == "hparams" and value.tensor.dtype == 1
                    assert [d.size for d in value.tensor.tensor_shape.dim] == [1] == [len(value.tensor.float_val)]
                    hparams[value.tag] = classes["Hparams"].FromString(value.metadata.plugin_data.content)
                    no_unknown_fields(hparams[value.tag])
        assert own[0].file_version == "brain.Event:2" and not any(e.HasField("file_version") for e in own[1:])
        events += own
    return events, hparams


def expected_scalars(lines):
    """{(tag, step): values in the order of the lines}"""
    found = {}
    for line in lines:
        kind = line["kind"]
        if kind in ("run", "end"):
            continue
        for key, value in line.items():
            if not isinstance(value, (int, float)) or key in ("step", "epoch", "time_s") or (kind == "kfac" and key == "nu"):
                continue
            group = kind
            if kind == "step":
                group = "phase_ms" if key in PHASES else "sent_bytes" if key in TRAFFIC else "kfac" if key == "nu" else "train"
            found.setdefault((f"{group}/{key}", line["step"]), []).append(float(value))
    return found


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def check_scalars(events, lines):
    found = {}
    for event in events:
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    wanted = {key: [float32(v) for v in values] for key, values in expected_scalars(lines).items()}
    assert found == wanted, f"differ: {sorted(set(found) ^ set(wanted))[:8]}"
    assert ("train/loss", lines[-1]["steps"]) in found or len(found) > 3
    return found


def check_histograms(events, lines):
    decompositions = {line["step"] for line in lines if line["kind"] == "kfac"}
    eigen = any(layer["a_max"] is not None for line in lines if line["kind"] == "kfac" for layer in line["layers"])
    found = {}
    for event in events:
        for value in event.summary.value:
            if value.HasField("histo"):
                found.setdefault(value.tag, {})[event.step] = value.histo
                h = value.histo
                assert len(h.bucket) == len(h.bucket_limit) > 0 and sum(h.bucket) == h.num > 0
                assert list(h.bucket_limit) == sorted(h.bucket_limit) and h.bucket[0] and h.min <= h.max or value.tag == "kfac/cosine"
                assert h.min * h.num - 1e-9 <= h.sum <= h.max * h.num + 1e-9
    names = {"kfac/cosine"} | ({"kfac/log10_eigenvalues_a", "kfac/log10_eigenvalues_g"} if eigen else set())
    assert set(found) == (names if decompositions else set()), sorted(found)
    assert all(set(steps) == decompositions for steps in found.values())
    for line in lines if eigen else []:
        if line["kind"] != "kfac":
            continue
        for side in "ag":  # the ends are those of the layers
            h = found[f"kfac/log10_eigenvalues_{side}"][line["step"]]
            smallest = min(layer[f"{side}_min"] for layer in line["layers"])
            largest = max(layer[f"{side}_max"] for layer in line["layers"])
            assert math.isclose(h.max, math.log10(largest), abs_tol=1e-6), (h.max, largest)
            assert math.isclose(h.min, max(-12, math.log10(smallest) if smallest > 0 else -12), abs_tol=1e-4), (h.min, smallest)


def check_hparams(hparams, lines):
    run = [line for line in lines if line["kind"] == "run"][-1]
    start = {e.key: e.value for e in hparams["_hparams_/session_start_info"].start.hparams}
    experiment = hparams["_hparams_/experiment"].experiment
    assert [info.name for info in experiment.hparam_infos] == list(start)
    assert {m.name.tag for m in experiment.metric_infos} >= {"eval/top1", "epoch/loss"}
    flat = {"ranks": run["ranks"], "device": run["device"]}
    for key, value in run["config"].items():
        flat.update({f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value})
    flat = {key: value for key, value in flat.items() if value is not None}
    assert set(flat) == set(start), sorted(set(flat) ^ set(start))
    types = {info.name: info.type for info in experiment.hparam_infos}
    for key, value in flat.items():
        if isinstance(value, bool):
            assert types[key] == 2 and start[key].bool_value is value, key
        elif isinstance(value, (int, float)):
            assert types[key] == 3 and start[key].number_value == value, key
        else:
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            assert types[key] == 1, key
            assert start[key].string_value == text or not isinstance(value, str), (key, start[key].string_value, text)
    ended = {"done": 1, "failed": 2}.get(lines[-1].get("status"))
    assert hparams["_hparams_/session_end_info"].end.status == ended


def main():
    run, folder, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    events, hparams = read(folder, files)
    scalars = check_scalars(events, lines)
    check_histograms(events, lines)
    check_hparams(hparams, lines)
    restarts = [(e.step, e.session_log.status) for e in events if e.HasField("session_log")]
    assert restarts == ([(int(sys.argv[5]) + 1, 1)] if "--resumed" in sys.argv else []), restarts
    print(f"{folder}: {len(events)} events, {len(scalars)} scalars")


main()
