"""Runs of `descent train` that can be interrupted and continued, for the scripts of this folder."""
import json
import os
import signal
import subprocess
import sys


def lines(folder):
    """The objects of a run's metrics.jsonl; none where there is no such file."""
    try:
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def is_done(folder):
    return any(line["kind"] == "end" and line["status"] == "done" for line in lines(folder))


def is_diverged(folder):
    """Whether the run ended because its loss was not a number: repeated, it would end in the same way."""
    return any(line["kind"] == "end" and "is not a number" in (line.get("error") or "") for line in lines(folder))


def evaluations(folder):
    """{epoch: (top-1 %, seconds since the start)}. A resumed run may report an epoch again."""
    found = {}
    for line in lines(folder):
        if line["kind"] == "eval":
            found[line["epoch"] + 1] = (100 * line["top1"], line["time_s"])
    return found


def last_evaluation(folder):
    """The newest `eval` line; None where there is none."""
    found = [line for line in lines(folder) if line["kind"] == "eval"]
    return found[-1] if found else None


def train(command, folder, left):
    """Trains a run. Returns False when the time is over; the next call then continues from the checkpoint."""
    log = folder + ".log"
    with open(log, "a", encoding="utf-8") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = child.wait(timeout=max(left, 0))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.send_signal(signal.SIGTERM)
            child.wait()
            return False
    if code != 0 and not is_diverged(folder):
        sys.exit("%s: status %d, see %s" % (" ".join(command), code, log))
    return True
