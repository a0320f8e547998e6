"""Several ranks on one GPU by NCCL: their results, and what rlaunch reads from NCCL's log."""

import re
from pathlib import Path

from harness import check, found

# Images of all ranks, and by how much losses may differ: sums of the same numbers in another order.
BATCH, LEEWAY = 16, 1e-5
STEPS = "6"
LOGGED = ["-x", "NCCL_DEBUG=INFO", "-x", "NCCL_DEBUG_SUBSYS=INIT,NET,ENV"]


def _training(run, ranks):
    """Words that train on the same images, however many ranks share them."""
    words = [run.python, run.example("resnet/resnet.py"), "--backend", "nccl", "--model", "tiny", "--norm", "group"]
    return [*words, "--dtype", "float64", "--batch-size", BATCH // ranks, "--steps", STEPS, "--warmup", "0"]


def _loss(text, what):
    return float(found(r"loss of the last step: (\d+\.\d+)", text, f"{what} prints no loss").group(1))


def refused(run):
    """Without --nccl-share-gpu NCCL refuses two ranks on one GPU."""
    ran = run.rlaunch("job", "-np", "2", *run.lie_words(), *_training(run, 2))
    check(ran.code != 0, "two ranks train on one GPU without --nccl-share-gpu")
    return found(r"[^\n]*Duplicate GPU detected[^\n]*", ran.both, "no refusal by NCCL").group().strip()[-160:]


def shared_2(run):
    """Two ranks share the GPU: their loss is that of one process, and --nccl-verify reads NCCL's real log."""
    return _shared(run, 2)


def shared_4(run):
    """Four ranks share the GPU: their loss is that of one process, and --nccl-verify reads NCCL's real log."""
    return _shared(run, 4)


def _shared(run, size):
    one = run.once(lambda: run.run("one-process", _training(run, 1), seconds=40)).passed("one process")
    expected = _loss(one.out, "one process")
    output = run.work / "output"
    words = ["-np", size, "--nccl-share-gpu", "--nccl-verify", "--output-dir", output, *LOGGED, *run.lie_words()]
    ran = run.rlaunch("job", *words, *_training(run, size)).passed(f"{size} ranks")
    loss = _loss(ran.out, f"{size} ranks")
    check(abs(loss - expected) <= LEEWAY, f"loss {loss:.12f} of {size} ranks, {expected:.12f} of one process")
    found("ranks share GPUs: their data goes by the network", ran.err, "no word about ranks that share GPUs")
    has_rdma = Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir())
    for rank in range(size):
        text = (output / f"rank.{rank}" / "stdout").read_text(errors="replace")
        network = found(r"NCCL INFO Using network (.*)", text, f"rank {rank}: NCCL does not log a network").group(1).strip()
        said = found(rf"rank {rank} on localhost: (.*)", ran.err, f"--nccl-verify does not name rank {rank}").group(1)
        meant = "TCP (Socket): RDMA is not used" if network == "Socket" else network
        check(said.startswith(meant), f"--nccl-verify: {said}; NCCL's log of rank {rank}: {network}")
        check(network == "Socket" or has_rdma, f"rank {rank}: NCCL logs {network}, and there is no RDMA device here")
    return f"loss {loss:.9f}, of one process {expected:.9f}; rank {size - 1}: {said}"


# Variables that switch the log itself, which it does not list.
SWITCHES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")


def _has(ranks, rank):
    """Tells whether a list such as 0,2-4 has a rank."""
    spans = (part.split("-") for part in ranks.split(","))
    return any(int(span[0]) <= rank <= int(span[-1]) for span in spans)


def variables(run):
    """NCCL takes the variables that --show env lists, and no others."""
    output = run.work / "output"
    words = ["-np", 2, "--show", "env", "--nccl-share-gpu", "--output-dir", output, *LOGGED, *run.lie_words()]
    ran = run.rlaunch("job", *words, *_training(run, 2)).passed("rlaunch --show env")
    silent = set()
    for rank in range(2):
        rows = re.findall(r"^(NCCL_\w+)=(\S*) +([\d,-]+) ", ran.out, re.MULTILINE)
        shown = {name: value for name, value, ranks in rows if _has(ranks, rank)}
        check(shown, f"--show env lists no NCCL_* of rank {rank}")
        log = (output / f"rank.{rank}" / "stdout").read_text(errors="replace")
        taken = dict(re.findall(r"NCCL INFO (NCCL_\w+) set by environment to (\S+?)\.?$", log, re.MULTILINE))
        for name, value in taken.items():
            by = shown.get(name, "nothing")
            check(by == value, f"rank {rank}: NCCL took {name}={value}; --show env: {by}")
        check("NCCL_HOSTID" in taken, f"rank {rank}: NCCL does not say that it took NCCL_HOSTID={shown.get('NCCL_HOSTID')}")
        silent |= set(shown) - set(taken) - set(SWITCHES)
    also = f"; it does not log {', '.join(sorted(silent))}" if silent else ""
    return f"rank 1 took {', '.join(f'{name}={value}' for name, value in sorted(taken.items()))}{also}"
