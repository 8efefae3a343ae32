"""Shared by the benchmark scripts: running programs that print one JSON object, and printing a table."""
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def add_arguments(parser, threads, samples="images"):
    parser.add_argument("--descent", metavar="FILE", default=os.path.join(ROOT, "build", "release", "descent"),
                        help="the program (default: build/release/descent)")
    parser.add_argument("--model", default="resnet32", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help=samples + " per process (default: %(default)s)")
    if threads:
        parser.add_argument("--threads", type=int, default=threads, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="how often each program runs, in turn (default: %(default)s)")
    parser.add_argument("--fail-below", type=float, default=0, metavar="X",
                        help="end with status 1 when the ratio is smaller")


def add_python(parser):
    parser.add_argument("--python", metavar="FILE", help="a Python with PyTorch (default: this one, then /usr/bin/python3)")


def find_torch(args):
    """A Python that can import torch, or None."""
    for python in [args.python] if args.python else [sys.executable, "/usr/bin/python3"]:
        try:
            if subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return python
        except OSError:
            pass
    return None


def blas_core():
    """The setting by which an OpenBLAS older than the processor avoids slow kernels: descent sets it for itself, so the
    peer gets it, too."""
    try:
        flags = open("/proc/cpuinfo", encoding="ascii").read()
    except OSError:
        return {}
    core = "SkylakeX" if "avx512dq" in flags else "Haswell" if "avx2" in flags else None
    return {"OPENBLAS_CORETYPE": core} if core and "OPENBLAS_CORETYPE" not in os.environ else {}


def fail(text, status=2):
    print("%s: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr)
    sys.exit(status)


def descent_command(args, threads):
    if not os.access(args.descent, os.X_OK):
        fail("'%s' is not there: build it first (cmake --preset release && cmake --build --preset release) or name it "
             "with --descent" % args.descent)
    return [args.descent, "bench", "--model", args.model, "--batch-size", str(args.batch_size), "--threads",
            str(threads), "--steps", str(args.steps), "--json"]


def try_run(command, environment=None):
    """The JSON object that the command prints and None, or None and why there is none."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        return None, "%s ended with status %d:\n%s" % (" ".join(command), done.returncode, done.stderr.strip())
    try:
        return json.loads(done.stdout), None
    except ValueError:
        return None, "%s printed no JSON:\n%s" % (" ".join(command), done.stdout.strip())


def run(command, environment=None):
    """The JSON object that the command prints."""
    result, problem = try_run(command, environment)
    if problem:
        fail(problem, 1)
    return result


def warn_of_load():
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > 0.5:
        print("warning: load average %.1f on %d cores: others are at work, the figures mean little" % (load, cores))


def run_in_turn(contestants, rounds):
    """Runs every contestant (name, command, environment) once a round, so that all see the same machine."""
    warn_of_load()
    results = {name: [] for name, _, _ in contestants}
    for i in range(rounds):
        for name, command, environment in contestants:
            results[name].append(run(command, environment))
            print("round %d of %d  %-22s %8.1f images/s" % (i + 1, rounds, name, results[name][-1]["images_per_s"]),
                  file=sys.stderr)
    return results


def median(results, key):
    return statistics.median(r[key] for r in results)


def least(results):
    return min(r["min_s"] for r in results)


def print_table(results):
    print("%-24s %14s %10s %12s %10s" % ("", "s/step median", "least", "images/s", "peak MB"))
    for name, rounds in results.items():
        print("%-24s %14.4f %10.4f %12.1f %10.0f" % (name, median(rounds, "median_s"), least(rounds),
                                                   median(rounds, "images_per_s"), median(rounds, "peak_rss_mb")))


def run_all(args, entries, rate):
    """{name: results} of programs {name: (command, environment)} that run in turn. A way to run PyTorch that does not work here
    is left out, with the reason; `rate` is the key that the progress shows."""
    warn_of_load()
    results = {name: [] for name in entries}
    for i in range(args.rounds):
        for name in list(results):
            result, problem = try_run(*entries[name])
            if problem and name == "descent":
                fail(problem, 1)
            if problem:
                print("warning: %s is left out: %s" % (name, problem[-2000:]), file=sys.stderr)
                del results[name]
                continue
            results[name].append(result)
            print("round %d of %d  %-16s %12.1f %s" % (i + 1, args.rounds, name, result[rate], shown(rate)), file=sys.stderr)
    return results


def shown(rate):
    return rate.replace("_per_s", "/s")


def print_rates(results, memory, rate):
    print("%-16s %14s %12s %14s %10s" % ("", "s/step median", "least", shown(rate), "peak MB"))
    for name, rounds in results.items():
        print("%-16s %14.5f %12.5f %14.1f %10.0f" % (name, median(rounds, "median_s"), least(rounds), median(rounds, rate),
                                                    median(rounds, memory)))


def compare(args, results, memory, rate):
    """Prints descent's rate and memory as a share of the fastest peer's; the exit status."""
    ours, peers = results["descent"], {name: rounds for name, rounds in results.items() if name != "descent"}
    if not peers:
        fail("no PyTorch works here, so descent was measured alone; on Debian and Ubuntu: apt install python3-torch "
             "libopenblas0-openmp", 77)
    peer = min(peers, key=lambda name: median(peers[name], "median_s"))
    theirs = peers[peer]
    if theirs[0]["parameters"] != ours[0]["parameters"]:
        fail("PyTorch's net has %d parameters: not the same net" % theirs[0]["parameters"], 1)
    ratio = statistics.median(t["median_s"] / o["median_s"] for t, o in zip(theirs, ours))  # of the rounds
    print("peer: %s, PyTorch %s, BLAS: %s" % (peer, theirs[0]["torch"], theirs[0]["blas"]))
    print("descent / peer: %.2f x the %s per second (best steps: %.2f x), %.2f x the memory" % (
        ratio, rate.split("_", maxsplit=1)[0], least(theirs) / least(ours), median(ours, memory) / median(theirs, memory)))
    return 1 if ratio < args.fail_below else 0
