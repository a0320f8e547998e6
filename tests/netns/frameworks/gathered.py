# Accelerator() adds up the numbers of its processes, counted from 1.
import os
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
mine = torch.tensor([accelerator.process_index + 1.0])
total = accelerator.reduce(mine, reduction="sum")
print(f"sum {int(total)} of {accelerator.num_processes} on {os.uname().nodename}", flush=True)
accelerator.end_training()
