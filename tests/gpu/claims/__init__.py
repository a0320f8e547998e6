"""All rows, in the order in which they run: what is quick and needs no GPU first, measurements last."""

from harness import Row

from . import devices, hangs, here, nccl, training

GPU, CUDA = ("gpu",), ("gpu", "cuda")


def _row(function, seconds, needs=(), lies=()):
    claim = function.__doc__.strip().splitlines()[0].rstrip(".")
    return Row(function.__name__.replace("_", "-"), claim, function, seconds, needs, lies)


ROWS = [
    _row(here.ranks, 15),
    _row(here.numa, 15),
    _row(here.native, 30),
    _row(here.rows, 60),
    _row(devices.listed, 20, GPU, ("uuid", "second")),
    _row(devices.topo, 20, GPU, ("address", "model", "driver", "generation", "width")),
    _row(devices.doctor, 30, GPU),
    _row(devices.masked, 40, CUDA, ("uuid", "second", "unmasked")),
    _row(devices.monitor, 45, CUDA, ("busy", "used", "total", "power", "temperature")),
    _row(devices.metrics, 45, CUDA, ("busy", "used", "total", "power", "temperature")),
    _row(nccl.refused, 45, CUDA, ("accepted",)),
    _row(nccl.shared_2, 90, CUDA, ("loss", "ib", "silent")),
    _row(nccl.shared_4, 90, CUDA, ("loss", "silent")),
    _row(nccl.variables, 60, CUDA, ("host-id", "unset", "extra")),
    _row(hangs.skipped, 75, CUDA, ("ras", "recorder")),
    _row(hangs.spinning, 75, CUDA),
    _row(hangs.waiting, 45, CUDA),
    _row(training.backend, 45, CUDA),
    _row(training.restarted, 75, CUDA, ("kept",)),
    _row(training.compiled, 100, ("torch",)),
    _row(training.resnet, 150, CUDA),
]
