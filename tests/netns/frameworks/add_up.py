# Processes of JAX add up their numbers, counted from 1. add_up.py [ADDRESS PROCESSES ID]
import os
import sys
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
if len(sys.argv) > 3:
    jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
else:
    jax.distributed.initialize()
mesh = Mesh(jax.devices(), ("all",))
mine = jnp.array([jax.process_index() + 1.0])
spread = multihost_utils.host_local_array_to_global_array(mine, mesh, PartitionSpec("all"))
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(spread)
print(f"sum {int(total)} of {jax.process_count()} on {os.uname().nodename}, jax {jax.__version__}", flush=True)
jax.distributed.shutdown()
