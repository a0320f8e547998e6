"""Ranks that hang in NCCL and CUDA, and what rlaunch says about them."""

import socket

from harness import check, found

# Seconds of silence after which a job hangs: longer than the first collective takes.
PATIENCE = 10


def _hangs(run, *arguments):
    """A job of two ranks on one GPU that makes no progress."""
    patience, options = PATIENCE, []
    if run.machine.stand_in:
        # rlaunch sees no GPU there, and sets none of these itself.
        patience, options = 1, ["-x", "TORCH_FR_BUFFER_SIZE=10", "-x", f"NCCL_RAS_ADDR=localhost:{_free_port()}"]
        options += ["-x", f"TORCH_FR_DUMP_TEMP_FILE={run.work}/dump-", *run.lie_words()]
    words = ["-np", 2, "--nccl-share-gpu", "--hang-timeout", patience, "--timeout", 60, *options]
    ran = run.rlaunch("job", *words, run.python, run.program("skip.py"), *arguments)
    found("three are done", ran.out, "the ranks have not met by NCCL")
    check(ran.code == 124, f"exit code {ran.code}: {ran.last()}")
    found(r"no progress for \d+ s: ", ran.err, "no report of a hang")
    return ran.err


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def skipped(run):
    """A rank that skips a collective is named by NCCL's RAS service and by torch's flight recorder."""
    text = _hangs(run)
    ras = r"NCCL communicator 0x[0-9a-f]+ of 2 ranks: rank 1 on localhost has launched (\d+) AllReduce; rank 0 on localhost (\d+)"
    behind, ahead = map(int, found(ras, text, "the RAS service names no rank that is behind").groups())
    check(behind + 1 == ahead, f"RAS: rank 1 has launched {behind} AllReduce, rank 0 {ahead}")
    recorder = r"process group [^\n]* of 2 ranks: rank 1 on localhost has not entered all_?reduce \d+ "
    recorder += r"\([^\n)]*skip\.py:\d+\), which rank 0 on localhost entered"
    line = found(recorder, text, "torch's flight recorder names no rank that is behind").group()
    return f"RAS: {behind} and {ahead} AllReduce; {line}"


def spinning(run):
    """A rank whose kernel never ends is a hang, and the report says where both ranks wait."""
    text = _hangs(run, "spin")
    place = found(r"[^\n]*skip\.py:\d+[^\n]*", text, "no line of skip.py")
    return place.group().strip()


def waiting(run):
    """stack --native shows a rank in cudaStreamSynchronize, and the line of Python that called it."""
    words = [run.machine.rlaunch, "-np", "1", "--timeout", "40", run.python, run.program("wait.py")]
    with run.spawn("job", words) as job:
        job.wait_for_text("the kernel runs", 25)
        ran = run.rlaunch("stack", "stack", "--native", "--full").passed("rlaunch stack --native")
    found(r"wait\.py:\d+", ran.out, "no frame of wait.py")
    return found(r"[^\n]*cu(?:da)?StreamSynchronize[^\n]*", ran.out, "no frame of cudaStreamSynchronize").group().strip()
