"""Compiles a function by torch.compile, and prints as JSON whether it came from the cache.

Argument: a number that makes the function one of its own.
"""

import json
import sys
import time

import torch
from torch._dynamo.utils import counters

constant = float(sys.argv[1])
device = "cuda" if torch.cuda.is_available() else "cpu"
begin = time.monotonic()
torch.compile(lambda x: (x.sin() * constant + x.cos()).sum())(torch.ones(4096, device=device))
took = time.monotonic() - begin
counts = counters["inductor"]
print(json.dumps({"s": round(took, 1), "hits": counts["fxgraph_cache_hit"], "misses": counts["fxgraph_cache_miss"]}))
