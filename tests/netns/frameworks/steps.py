# Steps of training, and how long they take by rank 0's clock. steps.py [STEPS]
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.randn(64, 512)


def step():
    optimizer.zero_grad()
    net(data).pow(2).mean().backward()
    optimizer.step()


for _ in range(3):
    step()
dist.barrier()
began = time.perf_counter()
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
    step()
dist.barrier()
if dist.get_rank() == 0:
    print(f"steps {time.perf_counter() - began:.3f}")
dist.destroy_process_group()
