"""Training on the GPU: speed, restarts, caches, and rlaunch's own backend of torch."""

import json
import random
import statistics

from harness import check, found

# Share of torchrun's speed below which rlaunch costs something.
SHARE = 0.95
# MiB that may be left in use after a restart: the driver returns pages in the background.
KEPT = 64


def backend(run):
    """Backend rlaunch of torch refuses tensors of the GPU in a sentence, and goes on with those of the CPU."""
    ran = run.rlaunch("job", "-np", 2, "--timeout", 40, run.python, run.program("backend.py")).passed("backend rlaunch")
    check(ran.out.count("on the CPU: done") == 2, ran.last())
    line = found(r"on the GPU: [^\n]*", ran.out, "no word about the GPU").group()
    check("CPU" in line or "device type cuda" in line, line)
    return line


def restarted(run):
    """After a rank was killed, its GPU's memory is free before the next attempt begins."""
    words = ["-np", 2, "--max-restarts", 1, "--timeout", 60, *run.lie_words(), run.python, run.program("hold.py")]
    words += ["--without-memory"] if run.machine.stand_in else []
    ran = run.rlaunch("job", *words).passed("rlaunch --max-restarts 1")
    found("restart 1 of 1 after: rank 1 on localhost", ran.err, "no restart")
    before, after = (
        int(found(rf"attempt {number}: (\d+) MiB in use", ran.out, f"no attempt {number}").group(1)) for number in (0, 1)
    )
    check(after - before <= KEPT, f"{before} MiB in use before attempt 0, {after} MiB before attempt 1")
    return f"{before} MiB in use before attempt 0, {after} MiB before attempt 1"


def compiled(run):
    """What torch.compile has made is still there in a second job."""
    constant = f"{random.uniform(1, 2):.9f}"
    jobs = []
    for label in ("first", "second"):
        ran = run.rlaunch(label, "-np", 1, run.python, run.program("compiled.py"), constant).passed(f"the {label} job")
        jobs.append(json.loads(found(r"^\{.*\}$", ran.out.strip(), f"the {label} job prints nothing").group()))
    first, second = jobs
    seen = f"first {first['s']} s, second {second['s']} s with {second['hits']} hits and {second['misses']} misses"
    check(second["hits"] > 0 and second["misses"] == 0, seen)
    return seen


def resnet(run):
    """ResNet-50 trains as fast by rlaunch as by torchrun, in turn."""
    program = [run.example("resnet/resnet.py"), "--backend", "nccl", "--model", "resnet50", "--dtype", "bf16"]
    program += ["--batch-size", "128", "--steps", "60", "--warmup", "10", "--loss-every", "60"]
    launchers = {
        "rlaunch": [run.machine.rlaunch, "-np", "1", run.python, *program],
        "torchrun": [run.python, "-m", "torch.distributed.run", "--nproc-per-node", "1", *program],
    }
    rates = {name: [] for name in launchers}
    # The card gets warm, so that no launcher always comes second.
    for number, name in enumerate(["rlaunch", "torchrun", "torchrun", "rlaunch"]):
        ran = run.run(f"{number}-{name}", launchers[name], 60).passed(name)
        rates[name].append(float(found(r"total images/sec: ([\d.]+)", ran.out, f"{name} prints no speed").group(1)))
    own, theirs = (statistics.mean(rates[name]) for name in launchers)
    seen = f"{own:.0f} images/s, by torchrun {theirs:.0f} (runs: {rates})"
    check(own >= SHARE * theirs, seen)
    return seen
