# A task of Ray on each node. driver.py NODES [SECONDS]
import os
import sys
import time
import ray

ray.init(address="auto", log_to_driver=False)
nodes = int(sys.argv[1])
while len([node for node in ray.nodes() if node["Alive"]]) < nodes:
    time.sleep(0.2)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    time.sleep(0.5)
    return os.uname().nodename


print("ready", flush=True)
found = ray.get([where.remote() for _ in range(2 * nodes)])
print(f"tasks {len(found)} on {len(set(found))} nodes", flush=True)
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
