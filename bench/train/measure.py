"""What the benchmark scripts share: running programs that print one JSON object, and one table."""
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
    """An OpenBLAS older than the processor falls back to slow kernels; descent corrects that for itself, so the peer gets
    the same help."""
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
    """Every contestant (name, command, environment) once a round, so that all meet the same machine."""
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
