"""Training by torch's DistributedDataParallel, whose backend averages the gradients."""

import os
import sys

import torch
import torch.distributed as dist
from nets import build
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

CLASSES = 1000
RATE, MOMENTUM = 0.05, 0.9
MIXED = {"fp16": torch.float16, "bf16": torch.bfloat16}


def images(first, count, side):
    """Images of the whole batch from number ``first``, the same whoever makes them."""
    pixels, labels = torch.empty(count, 3, side, side), torch.empty(count, dtype=torch.long)
    for i in range(count):
        random = torch.Generator().manual_seed(first + i)
        pixels[i].normal_(generator=random)
        labels[i] = torch.randint(CLASSES, (), generator=random)
    return pixels, labels


def pick_device(args):
    """A GPU of this rank's own for nccl; otherwise the CPU."""
    if args.backend != "nccl":
        if args.dtype == "fp16":
            sys.exit("resnet.py: --dtype fp16 is for GPUs: take bf16, or --backend nccl")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("resnet.py: --backend nccl: torch finds no GPU; --backend gloo needs none")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class Training:
    """The network, this rank's images, and the other ranks."""

    def __init__(self, args):
        self.device = pick_device(args)
        # Without a launcher, a world of one.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ.setdefault("RANK", "0")
        os.environ.setdefault("WORLD_SIZE", "1")
        dist.init_process_group(args.backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        dtype = torch.float64 if args.dtype == "float64" else torch.float32
        torch.manual_seed(0)
        net = build(args.model, args.norm, CLASSES).to(self.device, dtype)
        self.net = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
        self.mixed = MIXED.get(args.dtype)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.dtype == "fp16")
        first = self.rank * args.batch_size
        pixels, labels = images(first, args.batch_size, args.image_size)
        self.pixels, self.labels = pixels.to(self.device, dtype), labels.to(self.device)

    def step(self):
        """Trains on this rank's images; their loss before."""
        mixed = self.mixed is not None
        with torch.autocast(self.device.type, dtype=self.mixed, enabled=mixed):
            loss = cross_entropy(self.net(self.pixels), self.labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # A GPU is done with it all when it can say this.
        return loss.item()

    def mean(self, value):
        """Of what all ranks give."""
        values = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(values)
        return values.item() / self.size

    def close(self):
        # Gloo aborts if Python ends before gloo's threads have let go of the last tensors.
        dist.barrier()
        dist.destroy_process_group()
