"""The output of a training on a terminal: terminal.py DESCENT.

Runs the program on a pseudo-terminal of several widths. No line may be wider than the terminal, the bar stands there, and colours
appear on a terminal only and not with NO_COLOR.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

DESCENT = sys.argv[1]
IMAGES = 1024 if "DESCENT_TEST_QUICK" in os.environ else 4096
LENGTH = ["train", "--model", "mlp", "--data", f"synthetic:{IMAGES}", "--batch-size", "8", "--epochs", "2", "--threads", "1",
          "--lr", "0.01", "--eval-every", "0", "--checkpoint-every=-1", "--out", "none"]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
failures = []


def complain(text):
    failures.append(text)
    print("FAILED:", text)


def run(columns, environment, arguments=()):
    """The output of the program on a terminal with this number of columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    variables.update({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})
    process = subprocess.Popen([DESCENT, *LENGTH, *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                               env=variables, close_fds=True)
    os.close(theirs)
    output, end = b"", time.monotonic() + 100
    while time.monotonic() < end:
        if select.select([ours], [], [], 1)[0]:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other side has been closed
                break
            if not block:
                break
            output += block
    os.close(ours)
    if process.wait() != 0:
        complain(f"{columns} columns: exit status {process.returncode}")
    return output.decode()


for columns in 30, 50, 80, 120:
    text = run(columns, {})
    drawn = [line for line in re.split(r"[\r\n]+", text) if line.startswith("epoch ") and "left" in line or "%" in line]
    plain = [COLOUR.sub("", line).replace("\x1b[K", "") for line in drawn]
    bars = [line for line in plain if not re.match(r"epoch +\d+/\d+: ", line)]
    if not bars:
        complain(f"{columns} columns: no bar")
    for line in bars:
        if len(line) >= columns:
            complain(f"{columns} columns: {len(line)} in {line!r}")
            break
    if columns >= 80 and not any("█" in line and "images/s" in line and "left" in line for line in bars):
        complain(f"{columns} columns: the bar does not tell images/s and the time left")
    if columns >= 120 and not any("left, mfu " in line for line in bars):
        complain(f"{columns} columns: the bar does not tell the utilisation")
    if not any("loss" in line for line in bars):
        complain(f"{columns} columns: the bar does not tell the loss")
    if not COLOUR.search(text):
        complain(f"{columns} columns: no colour")
    if "\x1b[1mmodel\x1b[0m" not in text:
        complain(f"{columns} columns: labels have no colour")

text = run(80, {"NO_COLOR": "1"})
if COLOUR.search(text) or "█" not in text:
    complain("NO_COLOR: there are colours, or there is no bar")
text = run(50, {}, ["--kfac-update-freq", "2", "--kfac-cov-update-freq", "5", "--steps", "3"])
if "\x1b[1;33mwarning: \x1b[0m" not in text:
    complain("a warning has no colour")
for line in re.split(r"[\r\n]+", text[text.index("warning: "):text.index("warning: ") + 250]):
    if len(COLOUR.sub("", line)) > 50 or line.startswith("  ") and line[2:3] == " ":
        complain(f"a warning is not wrapped: {line!r}")
text = run(80, {"TERM": "dumb"})
if "\x1b" in text:
    complain("a dumb terminal gets control sequences")

with tempfile.TemporaryFile() as file:
    subprocess.run([DESCENT, *LENGTH], stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=True)
    file.seek(0)
    if b"\x1b" in file.read():
        complain("a file gets control sequences")
sys.exit(1 if failures else 0)
