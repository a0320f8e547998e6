#!/usr/bin/env python3
"""Trains a network on made-up images on all ranks, by torch's DistributedDataParallel.

There is nothing in here of what has started it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say
who this rank is and where the others are, as torch has it. With --checkpoint FILE rank 0 writes
down how far it has come, and a run that finds the file goes on from there, whichever ranks it has.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from nets import build
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10


def batch(step, rank, size, side):
    """This rank's images of a step: noise, brighter in the stripe that is their class."""
    random = torch.Generator().manual_seed(1_000_003 * step + rank)
    labels = torch.randint(CLASSES, (size,), generator=random)
    pixels = torch.randn(size, 3, side, side, generator=random)
    width = side // CLASSES
    for image, label in zip(pixels, labels.tolist()):
        image[:, :, label * width : (label + 1) * width] += 1
    return pixels, labels


def load(path):
    """What rank 0 has written to the file, on every rank; nothing if there is no file yet."""
    state = [None]
    if dist.get_rank() == 0 and path and os.path.exists(path):
        state = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state)
    return state[0]


def save(path, step, net, optimizer):
    """Writes a file in one step: a run that is killed meanwhile leaves the one before."""
    new = f"{path}.new"
    torch.save({"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, new)
    os.replace(new, path)


def own_gpu():
    """One for each rank of a host; by turns where there are fewer."""
    local_rank = int(os.environ["LOCAL_RANK"])
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def train(args):
    rank, size = dist.get_rank(), dist.get_world_size()
    on_gpu = args.backend == "nccl"
    device = own_gpu() if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    net = build(args.model, args.norm, CLASSES).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.rate, momentum=0.9)
    first, state = 0, load(args.checkpoint)
    if state is not None:
        first = state["step"]
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    if rank == 0:
        goes_on = f", going on after step {first}" if first else ""
        print(f"{args.model}, {size} ranks by {args.backend}{goes_on}", flush=True)
    ddp = DistributedDataParallel(net)
    begin = None
    for step in range(first + 1, args.steps + 1):
        pixels, labels = batch(step, rank, args.batch_size, args.image_size)
        loss = cross_entropy(ddp(pixels.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        begin = begin or time.perf_counter()  # The first step is slower than all others.
        if args.checkpoint and rank == 0 and step % args.save_every == 0:
            save(args.checkpoint, step, net, optimizer)
        if step % args.loss_every == 0 or step == args.steps:
            mean = loss.detach().double()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / size:.8f}", flush=True)
    images = (args.steps - first - 1) * args.batch_size * size
    if rank == 0 and images > 0:
        print(f"total images/sec: {images / (time.perf_counter() - begin):.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--backend", default="gloo", help="of torch.distributed (gloo)")
    add("--model", choices=("tiny", "resnet18"), default="tiny", help="the network (tiny)")
    add("--norm", choices=("batch", "group"), default="batch", help="over what to normalise (batch)")
    add("--steps", type=int, default=60, help="train until this step (60)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="of all numbers (float32)")
    add("--batch-size", type=int, default=16, help="images of one rank in each step (16)")
    add("--image-size", type=int, default=32, help="pixels of a side (32)")
    add("--rate", type=float, default=0.05, help="of learning (0.05)")
    add("--loss-every", type=int, default=10, help="steps from line to line (10)")
    add("--checkpoint", metavar="FILE", help="where rank 0 writes how far it has come")
    add("--save-every", type=int, default=10, help="steps from one writing to the next (10)")
    args = parser.parse_args()
    torch.set_default_dtype(getattr(torch, args.dtype))
    dist.init_process_group(args.backend)
    train(args)
    # Gloo aborts if Python ends before gloo's threads have let go of the last tensors.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
