#!/usr/bin/env python3
"""trace.py FILE [--metrics FILE] [--spans NAME...] [--tracks NAME...] [--messages KIND...] [--with FILE...] [--killed]

Reads a trace. Spans of a track must contain each other or be apart; with --metrics, phases must add up to those of the `step`
lines; spans, tracks and messages of these names must be there. --with: traces of ranks 1, 2, ... on the same clock. --killed: the
closing bracket is missing."""
import argparse
import json

PHASES = "data forward backward exchange factor decompose precondition update".split()


def read(path, killed):
    text = open(path).read()
    if killed:
        assert not text.rstrip().endswith("]"), f"{path} is complete"
        text += "]"
    return json.loads(text)


def nanoseconds(microseconds):
    return round(1000 * microseconds)


def nest(spans):
    """Sets `own` of every span, its time without that of the spans inside; fails where spans overlap."""
    stack = []
    for span in sorted(spans, key=lambda s: (s["begin"], -s["end"])):
        while stack and stack[-1]["end"] <= span["begin"]:
            stack.pop()
        assert not stack or span["end"] <= stack[-1]["end"], f"{span} overlaps {stack[-1]}"
        span["own"] = span["end"] - span["begin"]
        if stack:
            stack[-1]["own"] -= span["own"]
        stack.append(span)


def check_events(events, rank):
    tracks, names, messages = {}, {}, {}
    for event in events:
        assert event["pid"] == rank + 1, event
        if event["ph"] == "M":
            names[event["name"], event.get("tid")] = event["args"]
        elif event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            span = dict(event, begin=begin, end=begin + nanoseconds(event["dur"]))
            assert begin >= 0 and ("thread_name", event["tid"]) in names, f"{event} comes before the name of its track"
            tracks.setdefault(event["tid"], []).append(span)
        elif event["ph"] == "b":
            assert event["id2"]["local"] not in messages
            messages[event["id2"]["local"]] = event
        else:
            begin = messages[event["id2"]["local"]]
            assert event["ph"] == "e" and begin["ts"] <= event["ts"] and begin["name"] == event["name"], event
            begin["ended"] = True
    assert names["process_name", None]["name"].startswith(f"rank {rank}")
    assert all("ended" in message for message in messages.values())
    for spans in tracks.values():
        nest(spans)
    return {names["thread_name", tid]["name"]: spans for tid, spans in tracks.items()}, list(messages.values())


def check_sums(tracks, path):
    """The phases of every step, on the host's track and the device's."""
    sums, seconds = {}, {}
    for name in ("steps", "device"):
        for span in tracks.get(name, []):
            if span["name"] in PHASES:
                key = span["args"]["step"], span["name"]
                sums[key] = sums.get(key, 0) + 1e-6 * span["own"]
            elif span["name"] == "step":
                seconds[span["args"]["step"]] = 1e-6 * (span["end"] - span["begin"])
    steps = [line for line in map(json.loads, open(path)) if line["kind"] == "step"]
    assert len(steps) == len(seconds) > 0
    for line in steps:
        for phase in PHASES:
            difference = abs(line[phase] - sums.get((line["step"], phase), 0))
            assert difference < 1e-3 + 1e-4 * line[phase], f"{phase} of step {line['step']}: {line[phase]} ms, {difference} off"
        assert sum(line[phase] for phase in PHASES) <= seconds[line["step"]] + 1e-3, f"phases of step {line['step']} are too long"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--metrics")
    parser.add_argument("--spans", nargs="*", default=[])
    parser.add_argument("--tracks", nargs="*", default=[])
    parser.add_argument("--messages", nargs="*", default=[])
    parser.add_argument("--with", nargs="*", default=[], dest="others")
    parser.add_argument("--killed", action="store_true")
    a = parser.parse_args()
    ranks = [check_events(read(path, a.killed), rank) for rank, path in enumerate([a.file, *a.others])]
    for tracks, messages in ranks:
        assert set(a.tracks) <= set(tracks), sorted(tracks)
        found = {span["name"] for spans in tracks.values() for span in spans}
        assert set(a.spans) <= found, sorted(found)
        assert set(a.messages) <= {message["name"] for message in messages if message["args"]["bytes"] > 0}
    if a.metrics:
        check_sums(ranks[0][0], a.metrics)
        # Steps of all-reduce end together, so steps of the same number overlap once the times of a rank are shifted by one
        # amount: the time between the moments at which two ranks opened their traces.
        steps = [{s["args"]["step"]: s for s in tracks["steps"] if s["name"] == "step"} for tracks, _ in ranks]
        for other in steps[1:]:
            least = max(steps[0][number]["begin"] - span["end"] for number, span in other.items())
            most = min(steps[0][number]["end"] - span["begin"] for number, span in other.items())
            assert least < most and least < 10**9 and most > -10**9, f"steps of two ranks: {least} to {most} ns"
    print(f"{a.file}: {sum(len(spans) for tracks, _ in ranks for spans in tracks.values())} spans, "
          f"{sum(len(messages) for _, messages in ranks)} messages")


main()
