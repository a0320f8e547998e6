"""Rank 1 skips the fourth all-reduce of a process group by NCCL, for which rank 0 waits; or, with the argument
`spin`, its kernel before that never ends."""

import sys
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
if dist.get_rank() == 1 and "spin" in sys.argv:
    torch.cuda._sleep(1 << 50)
elif dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(one)
torch.cuda.synchronize()
