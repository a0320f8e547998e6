"""Fills GPU memory and dies in the first attempt; prints in each how much was in use before, by nvidia-smi.

The last rank kills itself as the kernel would; the others hold their memory until rlaunch ends them.
"""

import os
import signal
import subprocess
import sys
import time

HOLDING = "rank-0-holds-its-memory"
rank, attempt = int(os.environ["RANK"]), int(os.environ.get("RLAUNCH_RESTART_COUNT", 0))
if rank == 0:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split()[0]
    print(f"attempt {attempt}: {used} MiB in use before", flush=True)
if attempt > 0:
    sys.exit()
if "--without-memory" not in sys.argv:
    import torch

    kept = torch.zeros(8 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
if rank == 0:
    open(HOLDING, "w").close()
    time.sleep(600)
while not os.path.exists(HOLDING):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
