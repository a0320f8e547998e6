"""Rank 1 skips the fourth all-reduce of a process group by NCCL, for which rank 0 waits."""

import time

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
one = torch.ones(1 << 20, device="cuda")
for _ in range(3):
    dist.all_reduce(one)
torch.cuda.synchronize()
print("three are done", flush=True)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(one)
torch.cuda.synchronize()
