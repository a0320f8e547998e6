# Ranks of torch add up their numbers, counted from 1.
import os
import sys
import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    threads = torch.get_num_threads()
    elastic = dist.is_torchelastic_launched()
    words = " ".join(sys.argv[1:])
    line = f"sum {int(total)} of {dist.get_world_size()} on {os.uname().nodename}, threads {threads}, elastic {elastic} {words}"
    # By one write: torchrun's processes share their stream, and run with -u, where print writes a newline on its own.
    sys.stdout.write(line.strip() + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
