"""Waits in cudaStreamSynchronize for a kernel that does not end."""

import torch

torch.cuda._sleep(1 << 50)
print("the kernel runs", flush=True)
torch.cuda.current_stream().synchronize()
