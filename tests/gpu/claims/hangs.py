"""Ranks that hang in NCCL and CUDA, and what rlaunch says about them."""

from harness import check, found

PATIENCE = "10"


def _hangs(run, program):
    """A job of two ranks on one GPU that makes no progress."""
    words = ["-np", 2, "--nccl-share-gpu", "--hang-timeout", PATIENCE, "--timeout", 60, run.python, run.program(program)]
    ran = run.rlaunch("job", *words)
    found("is done|are done", ran.out, "the ranks have not met by NCCL")
    check(ran.code == 124, f"exit code {ran.code}: {ran.last()}")
    found(rf"no progress for {PATIENCE} s: ", ran.err, "no report of a hang")
    return ran.err


def skipped(run):
    """A rank that skips a collective is named by NCCL's RAS service and by torch's flight recorder."""
    text = _hangs(run, "skip.py")
    ras = r"NCCL communicator 0x[0-9a-f]+ of 2 ranks: rank 1 on localhost has launched (\d+) AllReduce; rank 0 on localhost (\d+)"
    behind, ahead = map(int, found(ras, text, "the RAS service names no rank that is behind").groups())
    check(behind + 1 == ahead, f"RAS: rank 1 has launched {behind} AllReduce, rank 0 {ahead}")
    recorder = r"process group [^\n]* of 2 ranks: rank 1 on localhost has not entered all_?reduce \d+[^\n]*, which rank 0 on localhost"
    line = found(recorder, text.replace("\n      ", " "), "torch's flight recorder names no rank that is behind").group()
    found(r"skip\.py:\d+", text, "no line of skip.py")
    return f"RAS: {behind} and {ahead} AllReduce; {line}"


def spinning(run):
    """A rank whose kernel never ends is a hang, and the report says where both ranks wait."""
    text = _hangs(run, "spin.py")
    place = found(r"[^\n]*spin\.py:\d+[^\n]*", text, "no line of spin.py")
    return place.group().strip()


def waiting(run):
    """stack --native shows a rank in cudaStreamSynchronize, and the line of Python that called it."""
    words = [run.machine.rlaunch, "-np", "1", "--timeout", "40", run.python, run.program("wait.py")]
    with run.spawn("job", words) as job:
        job.wait_for_text("the kernel runs", 25)
        ran = run.rlaunch("stack", "stack", "--native", "--full").passed("rlaunch stack --native")
    found(r"wait\.py:\d+", ran.out, "no frame of wait.py")
    return found(r"[^\n]*cu(?:da)?StreamSynchronize[^\n]*", ran.out, "no frame of cudaStreamSynchronize").group().strip()
