"""All-reduces a tensor of the GPU by rlaunch's own backend, which is for tensors of the CPU."""

import torch
import torch.distributed as dist

dist.init_process_group("rlaunch")
on_cpu = torch.ones(4)
dist.all_reduce(on_cpu)
assert on_cpu[0].item() == dist.get_world_size()
print("on the CPU: done", flush=True)
try:
    on_gpu = torch.ones(4, device="cuda")
    dist.all_reduce(on_gpu)
    torch.cuda.synchronize()
    print(f"on the GPU: sum {on_gpu[0].item():g}", flush=True)
except (RuntimeError, ValueError) as error:
    print(f"on the GPU: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
dist.barrier()
dist.destroy_process_group()
