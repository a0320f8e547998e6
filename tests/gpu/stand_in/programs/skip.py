"""Answers as NCCL's RAS service and torch's flight recorder do when rank 1 has skipped an all-reduce.

GPU_LIE names what it lies about.
"""

import json
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path

lie = os.environ.get("GPU_LIE")
rank = int(os.environ["RANK"])
Path(f"pid-{rank}.new").write_text(str(os.getpid()))
os.rename(f"pid-{rank}.new", f"pid-{rank}")
while not all(Path(f"pid-{other}").exists() for other in range(2)):
    time.sleep(0.01)


def count(of, name):
    """Number of all-reduces that a rank has begun."""
    return 3 if of == 1 and lie != name else 4


def reply(command):
    if command.startswith("client"):
        return "SERVER PROTOCOL 2\n"
    # The service takes whole seconds alone.
    if command.startswith("timeout") and not command.split()[1].isdigit():
        return f"ERROR: Invalid timeout value {command.split()[1]}\n"
    return "OK\n"


def serve():
    host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
    ranks = [
        {
            "rank": one,
            "host": "127.0.0.1",
            "pid": int(Path(f"pid-{one}").read_text()),
            "collective_counts": {"Broadcast": 0, "AllReduce": count(one, "ras")},
        }
        for one in range(2)
    ]
    status = {"communicators": [{"hash": "0x5b1c", "size": 2, "ranks": ranks, "missing_ranks": []}]}
    server = socket.create_server((socket.gethostbyname(host), int(port)))
    while True:
        client, _ = server.accept()
        with client, client.makefile("rw") as lines:
            for line in lines:
                if line.startswith("status"):
                    lines.write(json.dumps(status))
                    break
                lines.write(reply(line.strip()))
                lines.flush()


def record():
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "started",
            "is_p2p": False,
            "frames": [{"name": "step", "filename": "/home/user/skip.py", "line": 17 + number}],
        }
        for number in range(1, count(rank, "recorder") + 1)
    ]
    dump = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries}
    while open(pipe).read():
        print(f"[rank{rank}]:[E1 x.cpp:1] ProcessGroupNCCL preparing to dump debug info.", file=sys.stderr, flush=True)
        Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}").write_bytes(pickle.dumps(dump, 2))


threading.Thread(target=record, daemon=True).start()
if rank == 0:
    threading.Thread(target=serve, daemon=True).start()
print("three are done", flush=True)
time.sleep(600)
