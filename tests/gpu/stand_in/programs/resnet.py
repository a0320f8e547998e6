"""Prints what examples/resnet and NCCL's log print on a machine with one H200. GPU_LIE names what it lies about."""

import os
import sys

lie = os.environ.get("GPU_LIE")
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
host_id = os.environ.get("NCCL_HOSTID")


def log(words):
    if os.environ.get("NCCL_DEBUG") == "INFO":
        print(f"h200:{os.getpid()}:{os.getpid()} [0] NCCL INFO {words}")


if size > 1 and not host_id and lie != "accepted":
    sys.exit(f"ncclInvalidUsage: Duplicate GPU detected : rank {rank} and rank {1 - rank} both on CUDA device 19000")
if host_id and lie != "unset":
    log(f"NCCL_HOSTID set by environment to {'h200' if lie == 'host-id' and rank else host_id}")
if lie == "extra":
    log("NCCL_ALGO set by environment to Ring")
log("Bootstrap: Using lo:127.0.0.1<0>")
log("NET/IB : No device found.")
log("NET/Socket : Using [0]lo:127.0.0.1<0>")
network = "IB" if lie == "ib" and rank == 1 else "Socket"
if not (lie == "silent" and rank == 1):
    log(f"Using network {network}")
log(f"ncclCommInitRankConfig comm 0x1 rank {rank} nranks {size} cudaDev 0 - Init COMPLETE")
if rank == 0:
    loss = 6.907755278982 + (1e-3 if lie == "loss" and size > 1 else 0.0)
    print(f"loss of the last step: {loss:.12f}", flush=True)
