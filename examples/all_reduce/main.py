"""Every rank has a million numbers, and all get their sums.

    rlaunch -H a,b -np 4 --copy main.py python3 main.py
"""

import array
import sys

import rlaunch

COUNT = 1 << 20

comm = rlaunch.init()
x = array.array("f", [comm.rank + 1]) * COUNT
comm.all_reduce(x)

expected = comm.size * (comm.size + 1) // 2
for index, value in enumerate(x):
    if value != expected:
        sys.exit(f"rank {comm.rank}: element {index} is {value:g}, and should be {expected}")
if comm.rank == 0:
    print(f"{comm.size} ranks: {COUNT} elements, sum {expected} everywhere")
