"""A kernel of rank 1 never ends; rank 0 waits for it in an all-reduce."""

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
one = torch.ones(1 << 20, device="cuda")
dist.all_reduce(one)
torch.cuda.synchronize()
print("one is done", flush=True)
if dist.get_rank() == 1:
    torch.cuda._sleep(1 << 50)
dist.all_reduce(one)
torch.cuda.synchronize()
