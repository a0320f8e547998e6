#!/usr/bin/env python3
"""How many images per second all ranks train together, on made-up images.

Every rank holds the same network and its own part of one batch, on which it trains over and over.
After each step the ranks average their gradients, which is what is measured beside the arithmetic.

    rlaunch -H a,b -np 2 --copy resnet.py --copy by_numpy.py python3 resnet.py --backend numpy

--backend numpy is a small network in nothing but numpy, whose gradients are averaged by rlaunch's
communicator; nccl, gloo and rlaunch are those of torch, by DistributedDataParallel.

With --norm group no image has a say in how another is normalised, so N ranks with a batch of B
each do what one process does with a batch of N * B, but for rounding: --dtype float64 shows it.
"""

import argparse
import statistics
import sys
import time

MODELS = ("resnet18", "resnet50", "tiny")
BACKENDS = ("nccl", "gloo", "rlaunch", "numpy")
DTYPES = ("fp32", "fp16", "bf16", "float64")
RULE = "-" * 64


def positive(text):
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def arguments():
    """What was asked for, and can be done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, help="resnet50; by numpy there is tiny alone")
    add("--backend", choices=BACKENDS, default="numpy", help="who averages gradients (numpy)")
    add("--batch-size", type=positive, default=32, help="images of one rank in each step (32)")
    add("--image-size", type=positive, help="pixels of a side (224, of tiny 32)")
    add("--steps", type=positive, default=100, help="how many steps are measured (100)")
    add("--warmup", type=int, default=5, help="how many come before them (5)")
    add("--dtype", choices=DTYPES, default="fp32", help="fp16 and bf16 are mixed precision (fp32)")
    add("--norm", choices=("batch", "group"), default="batch", help="over what to normalise (batch)")
    add("--loss-every", type=positive, default=10, help="steps from line to line (10)")
    args = parser.parse_args()
    by_numpy = args.backend == "numpy"
    args.model = args.model or ("tiny" if by_numpy else "resnet50")
    args.image_size = args.image_size or (32 if args.model == "tiny" else 224)
    if by_numpy and args.model != "tiny":
        parser.error("by numpy there is --model tiny alone; the others want torch and --backend gloo")
    if by_numpy and args.dtype not in ("fp32", "float64"):
        parser.error(f"numpy has no --dtype {args.dtype}, but fp32 and float64")
    return args


class Rates:
    """Images per second, step by step."""

    def __init__(self, images):
        self.images, self.seconds = images, []

    def mean(self):
        """Over all steps: images by time."""
        return self.images * len(self.seconds) / sum(self.seconds)

    def __str__(self):
        """With the error of the mean, and the jitter: the median distance from the median, made
        comparable with a standard deviation."""
        rates = [self.images / seconds for seconds in self.seconds]
        error = statistics.pstdev(rates) / len(rates) ** 0.5
        middle = statistics.median(rates)
        jitter = 1.4826 * statistics.median(abs(rate - middle) for rate in rates)
        return f"images/sec: {self.mean():.1f} +/- {error:.1f} (jitter = {jitter:.1f})"


def train(net, args):
    """Trains and prints: every rank its own rate, rank 0 that of all."""
    say = print if net.rank == 0 else lambda *_, **__: None
    say(f"Model: {args.model}, {args.image_size}x{args.image_size}, {args.norm} norm, {args.dtype}")
    say(f"Backend: {args.backend}, {net.size} rank{'s' if net.size > 1 else ''} on {net.device}")
    say(f"Batch size: {args.batch_size} of each rank, {args.batch_size * net.size} of all")
    say("Step\tImg/sec\ttotal_loss", flush=True)
    for _ in range(args.warmup):
        net.step()
    net.mean(0.0)  # All begin to measure together.
    rates = Rates(args.batch_size)
    for step in range(1, args.steps + 1):
        begin = time.perf_counter()
        loss = net.step()
        rates.seconds.append(time.perf_counter() - begin)
        if step == 1 or step % args.loss_every == 0:
            print(f"{step}\t{rates}\t{net.mean(loss):.3f}", flush=True)
    loss, total = net.mean(loss), net.mean(rates.mean()) * net.size
    say(RULE, f"total images/sec: {total:.2f}", RULE, sep="\n", flush=True)
    say(f"loss of the last step: {loss:.12f}", flush=True)


def main():
    args = arguments()
    try:
        if args.backend == "numpy":
            from by_numpy import Training
        else:
            from by_torch import Training
    except ImportError as error:
        sys.exit(f"resnet.py: --backend {args.backend}: {error}")
    net = Training(args)
    try:
        train(net, args)
    finally:
        net.close()


if __name__ == "__main__":
    main()
