# Workers of TensorFlow add up their numbers, counted from 1. workers.py [RESOLVER]
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

resolver = None
if sys.argv[1:]:
    # It asks nvidia-smi for GPUs unless it is told their number.
    gpus = {"gpus_per_node": 1, "gpus_per_task": 1, "auto_set_gpu": False}
    resolver = getattr(tf.distribute.cluster_resolver, sys.argv[1])(**gpus)
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)


@tf.function
def add():
    context = tf.distribute.get_replica_context()
    mine = tf.cast(strategy.cluster_resolver.task_id or 0, tf.float32) + 1.0
    return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)


total = strategy.run(add)
print(f"sum {int(total)} of {strategy.num_replicas_in_sync} on {os.uname().nodename}", flush=True)
