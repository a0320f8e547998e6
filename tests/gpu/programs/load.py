"""Keeps the GPU busy and 4 GiB of its memory in use for a minute."""

import time

import torch

kept = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
begin = time.monotonic()
is_told = False
while time.monotonic() - begin < 60:
    for _ in range(100):
        one @ one
    torch.cuda.synchronize()
    # Power and use are means over the last second.
    if not is_told and time.monotonic() - begin > 3:
        print("busy", flush=True)
        is_told = True
