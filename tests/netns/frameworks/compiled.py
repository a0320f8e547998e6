# A network that torch.compile compiles, and the seconds of its first call.
import time
import torch

torch.manual_seed(1)
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)))
data = torch.randn(8, 64, requires_grad=True)
began = time.perf_counter()
net(data).sum().backward()
print(f"compiled {time.perf_counter() - began:.3f}")
