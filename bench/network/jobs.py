"""Shared by the scripts of this folder: hosts with slow links on one machine, jobs on them, and their results."""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "train"))
from measure import fail  # noqa: E402 (the folder has to be on the path first)

# Messages in units of the parameters that a rank sends in a step, of n ranks; adpsgd sends when it can.
MESSAGES = {"allreduce": lambda n: 2 * (n - 1) / n, "sgp": lambda n: 1, "osgp": lambda n: 1, "dpsgd": lambda n: 1,
            "adpsgd": lambda n: None}


class Way:
    """One algorithm as the command line of these scripts names it: allreduce, sgp, osgp, osgp:4 (--synch-freq 4), ...

    Left alone, Open MPI 4 sums vectors in place along a binomial tree: with four ranks all parameters travel four
    times, one after the other. The library asks it for the best algorithm there is, so gossip is compared with that;
    allreduce:plain is what Open MPI chooses by itself.
    """

    def __init__(self, name):
        kind, _, detail = name.partition(":")
        known = kind in MESSAGES and (not detail or (kind == "osgp" and detail.isdigit()) or name == "allreduce:plain")
        if not known:
            fail("no algorithm '%s'; there are: %s, allreduce:plain, osgp:N" % (name, ", ".join(MESSAGES)))
        self.name = name
        self.messages = MESSAGES[kind]
        self.options = ["--consensus", kind]
        if kind == "osgp" and detail:
            self.options += ["--synch-freq", detail]
        self.environment = {}
        if name == "allreduce:plain":
            self.environment["OMPI_MCA_coll_libnbc_iallreduce_algorithm"] = "ignore"


def quietly(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def need(*programs):
    packages = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "sysctl": "procps",
                "mpirun": "openmpi-bin"}
    for program in programs:
        if not shutil.which(program):
            fail("no '%s' here; on Debian and Ubuntu: apt install %s" % (program, packages[program]))
    if "mpirun" in programs and "Open MPI" not in quietly("mpirun", "--version").stdout:
        fail("mpirun is not Open MPI's")


def end_on_signals():
    """Makes signals end the program like an exception, so that everything is cleaned up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))


class Hosts:
    """Network namespaces as hosts: each has a link (veth) to one bridge, and tbf gives it a rate in both directions."""

    def __init__(self, count, delay_ms=0):
        if os.geteuid() != 0:
            fail("network namespaces need root")
        need("ip", "tc", "unshare", "sysctl", "mpirun")
        self.count, self.delay_ms = count, delay_ms
        self.prefix = "dscnet%d" % os.getpid()
        self.bridge = self.prefix[:14] + "b"
        # 198.18.0.0/15 is set aside for benchmarks of networks.
        self.network = "198.18.%d" % (os.getpid() % 250)
        self.subnet = self.network + ".0/24"

    def host(self, i):
        return "%s-%d" % (self.prefix, i + 1)

    def port(self, i):
        """The bridge's end of a host's link."""
        return "%s%c" % (self.prefix[:14], ord("c") + i)

    def make(self, *command):
        done = quietly(*command)
        if done.returncode != 0:
            kinds = [word for word in command if word in ("bridge", "veth", "tbf", "netem")]
            hint = "; does this kernel have %s?" % kinds[-1] if kinds else ""
            fail("'%s' failed: %s%s" % (" ".join(command), done.stderr.strip(), hint), 1)

    def __enter__(self):
        self.remove_stale()
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def build(self):
        self.make("ip", "link", "add", self.bridge, "type", "bridge")
        self.make("ip", "addr", "add", self.network + ".254/24", "dev", self.bridge)
        self.make("ip", "link", "set", self.bridge, "up")
        for i in range(self.count):
            host, port = self.host(i), self.port(i)
            self.make("ip", "netns", "add", host)
            self.make("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            self.make("ip", "link", "set", port, "master", self.bridge, "up")
            self.make("ip", "-n", host, "link", "set", "lo", "up")
            self.make("ip", "-n", host, "addr", "add", "%s.%d/24" % (self.network, i + 1), "dev", "eth0")
            self.make("ip", "-n", host, "link", "set", "eth0", "up")
            # BBR, which some machines have, finds no steady rate for messages in bursts; a namespace may choose Reno.
            self.make("ip", "netns", "exec", host, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno")

    def set_rate(self, mbit):
        """Sets the rate of every link, both ways, in Mbit/s; 0: no limit. A port buffers 4 MiB, as in switches."""
        burst = max(131072, int(mbit * 1e6 / 8 / 250))  # what passes in a tick of the kernel's clock, two large packets
        for i in range(self.count):
            for where in (["-n", self.host(i)], "eth0"), ([], self.port(i)):
                device = ["dev", where[1]]
                quietly("tc", *where[0], "qdisc", "del", *device, "root")
                if mbit:
                    self.make("tc", *where[0], "qdisc", "add", *device, "root", "handle", "1:", "tbf", "rate",
                              "%gmbit" % mbit, "burst", str(burst), "limit", "4194304")
                if self.delay_ms:
                    self.make("tc", *where[0], "qdisc", "add", *device, *(["parent", "1:"] if mbit else ["root"]),
                              "netem", "delay", "%gms" % (self.delay_ms / 2))

    def sent(self):
        """Bytes that left the hosts so far."""
        total = 0
        for i in range(self.count):
            with open("/sys/class/net/%s/statistics/rx_bytes" % self.port(i), encoding="ascii") as file:
                total += int(file.read())
        return total

    def command(self):
        """mpirun with one rank on each host and nothing but TCP over these links between them."""
        hosts = ",".join("%s.%d:1" % (self.network, i + 1) for i in range(self.count))
        return ["mpirun", "--host", hosts, "-n", str(self.count), "--map-by", "node", "--bind-to", "none", "--mca",
                "plm_rsh_agent", os.path.join(HERE, "agent"), "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "plm",
                "rsh", "--mca", "oob_tcp_if_include", self.subnet, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", self.subnet]

    def environment(self):
        return {"DESCENT_HOSTS": self.prefix}

    def remove(self):
        remove_hosts(self.prefix)

    def __exit__(self, *error):
        self.remove()

    @staticmethod
    def remove_stale():
        """Removes the namespaces and links that a killed run has left."""
        for line in quietly("ip", "netns", "list").stdout.splitlines():
            name = line.split()[0] if line.strip() else ""
            if name.startswith("dscnet") and name.endswith("-1"):
                pid = name[len("dscnet"):-len("-1")]
                if pid.isdigit() and not os.path.exists("/proc/" + pid):
                    remove_hosts("dscnet" + pid)


def remove_hosts(prefix):
    for line in quietly("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0] if line.strip() else ""
        if not name.startswith(prefix + "-"):
            continue
        for pid in quietly("ip", "netns", "pids", name).stdout.split():
            send(int(pid), signal.SIGKILL)
        quietly("ip", "netns", "del", name)
    for link in os.listdir("/sys/class/net"):  # the links to hosts are gone, or go with their namespace later
        if link[:-1] == prefix[:14]:
            quietly("ip", "link", "del", link)


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Job:
    """A training run in a directory of its own, watched while it runs."""

    def __init__(self, launch, program, options, environment=None):
        self.folder = tempfile.mkdtemp(prefix="descent-network-")
        self.out = os.path.join(self.folder, "run")
        full = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1", **(environment or {})}
        self.command = launch + [program, "train", "--threads", "1", "--out", self.out] + options
        with open(os.path.join(self.folder, "output"), "w", encoding="utf-8") as output:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            env=full, start_new_session=True)
        self.stopped = set()
        self.found = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pid in self.stopped:
            send(pid, signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def lines(self, kind):
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as file:
                rows = [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [row for row in rows if row["kind"] == kind]

    def step(self):
        """The last step that rank 0 has finished."""
        rows = self.lines("step")
        return rows[-1]["step"] if rows else 0

    def wait_for(self, step, limit=120):
        """1 when rank 0 has reached that step, 0 when the job has ended before."""
        start = time.monotonic()
        while self.step() < step:
            if self.process.poll() is not None:
                return self.step() >= step
            if time.monotonic() - start > limit:
                self.give_up("step %d was not reached within %d s" % (step, limit))
            time.sleep(0.02)
        return True

    def finish(self, limit=300):
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.give_up("not done after %d s" % limit)
        if status != 0:
            self.give_up("status %d" % status)

    def give_up(self, reason):
        with open(os.path.join(self.folder, "output"), encoding="utf-8") as file:
            text = file.read().strip()
        fail("%s: %s:\n%s" % (" ".join(self.command), reason, text[-3000:]), 1)

    def pid(self, rank):
        """The process of a rank, found by what its launcher put into its environment."""
        if rank not in self.found:
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    self.look_at(int(entry))
        if rank not in self.found:
            self.give_up("rank %d is not there" % rank)
        return self.found[rank]

    def look_at(self, pid):
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = file.read().split(b"\0")
            with open("/proc/%d/environ" % pid, "rb") as file:
                environment = dict(word.partition(b"=")[::2] for word in file.read().split(b"\0"))
        except OSError:
            return
        # mpirun has the same words among its own
        if self.out.encode() in words and words[1] == b"train" and b"OMPI_COMM_WORLD_RANK" in environment:
            self.found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = pid

    def stop(self, rank):
        self.stopped.add(self.pid(rank))
        send(self.pid(rank), signal.SIGSTOP)

    def go_on(self, rank):
        send(self.pid(rank), signal.SIGCONT)
        self.stopped.discard(self.pid(rank))


def step_times(rows):
    """Seconds from each line to the next."""
    return [b["time_s"] - a["time_s"] for a, b in zip(rows, rows[1:])]


def median(values):
    return statistics.median(values) if values else float("nan")
