"""Stand-in of `python3 -m sglang.launch_server`: its options, and a rendezvous of the nodes in place of a model. With
STAND_IN_ENDS set it ends once they have met."""
import argparse
import os
import socket
import threading
import time

options = argparse.ArgumentParser(allow_abbrev=False)
options.add_argument("--model-path", "--model", required=True)
options.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
options.add_argument("--pp-size", "--pipeline-parallel-size", type=int, default=1)
options.add_argument("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
options.add_argument("--dist-init-addr", "--nccl-init-addr")
options.add_argument("--nnodes", type=int, default=1)
options.add_argument("--node-rank", type=int, default=0)
options.add_argument("--host", default="127.0.0.1")
options.add_argument("--port", type=int, default=30000)
for flag in ["--trust-remote-code", "--enable-dp-attention", "--disable-cuda-graph"]:
    options.add_argument(flag, action="store_true")
args = options.parse_args()
host, port = args.dist_init_addr.rsplit(":", 1)
if args.node_rank == 0:
    listener = socket.create_server((host, int(port)))
    members = [listener.accept()[0] for _ in range(args.nnodes - 1)]
    ranks = sorted(int(member.makefile().readline()) for member in members)
    assert ranks == list(range(1, args.nnodes)), ranks
    print(f"serving {args.model_path} on {args.nnodes} nodes, tensor parallel {args.tp_size}", flush=True)
    if "STAND_IN_ENDS" not in os.environ:
        threading.Event().wait()
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            leader = socket.create_connection((host, int(port)), timeout=60)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    leader.settimeout(None)
    leader.sendall(f"{args.node_rank}\n".encode())
    while leader.recv(100):
        pass
