"""Claims that need no GPU: they show that launcher, ranks and rows work on this machine at all."""

import os
import re
from pathlib import Path

from harness import HERE, RowSkipped, check, found


def ranks(run):
    """Two ranks start on this machine without sshd and know their numbers."""
    words = 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK"'
    ran = run.rlaunch("job", "-np", "2", "sh", "-c", words).passed("rlaunch -np 2")
    lines = sorted(ran.out.splitlines())
    check(lines == [f"rank {rank} of 2, local {rank}" for rank in range(2)], ran.last())
    return "; ".join(lines)


def numa(run):
    """topo shows the NUMA nodes and CPUs of sysfs."""
    text = run.rlaunch("topo", "topo", "--tree").passed("rlaunch topo").out
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    if not nodes:
        raise RowSkipped("sysfs shows no NUMA nodes here")
    expected = [(node.name[4:], (node / "cpulist").read_text().strip()) for node in nodes]
    shown = re.findall(r"NUMA node (\d+): CPUs (\d[\d,-]*\d|\d)", text)
    check(shown == expected, f"topo: {shown}; sysfs: {expected}")
    return "; ".join(f"node {node}: CPUs {cpus}" for node, cpus in shown)


def native(run):
    """stack --native names the function of the C library in which a rank waits."""
    words = [run.machine.rlaunch, "-np", "1", "--timeout", "25", run.python, run.program("native.py")]
    with run.spawn("job", words) as job:
        job.wait_for_text("waits", 15)
        ran = run.rlaunch("stack", "stack", "--native", "--full").passed("rlaunch stack --native")
    function = found(r"\b\w*pause\b[^\n]*", ran.out, "no frame of pause()")
    found(r"native\.py:\d+", ran.out, "no frame of native.py")
    return function.group().strip()


def rows(run):
    """Rows that read nvidia-smi or NCCL's log turn red beside stand-ins that lie."""
    words = ["python3", HERE / "run", "--prove-rows", "--rlaunch", run.machine.rlaunch]
    ran = run.run("prove", words, env={"PATH": os.environ.get("PATH", os.defpath)})
    check(ran.code == 0, next((line for line in ran.out.splitlines() if "WRONG" in line), ran.last()))
    return ran.out.splitlines()[-1]
