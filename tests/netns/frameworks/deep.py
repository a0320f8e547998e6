# deepspeed.init_distributed(), whose ranks add up their numbers, counted from 1.
import argparse
import os
import torch
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
deepspeed.add_config_arguments(parser).parse_args()
# Not compiled at the first use, which takes longer than all else.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
total = torch.tensor([deepspeed.comm.get_rank() + 1.0])
torch.distributed.all_reduce(total)
print(f"sum {int(total)} of {deepspeed.comm.get_world_size()} on {os.uname().nodename}", flush=True)
torch.distributed.destroy_process_group()
