"""The first thing to run: who is there.

    rlaunch -H a,b -np 4 --copy main.py python3 main.py
"""

import os

import rlaunch

comm = rlaunch.init()
host = os.environ.get("RLAUNCH_HOST", "this host")
print(f"rank {comm.rank} of {comm.size}, {comm.local_rank} of {comm.local_size} on {host}")
comm.barrier()
