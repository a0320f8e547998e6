"""Registers the backend ``rlaunch`` of ``torch.distributed``. Torch calls ``register`` whenever torch
is imported, so it has to be quick and must not fail."""


def register():
    """Makes ``torch.distributed.init_process_group("rlaunch")`` work."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "RLAUNCH"):
        dist.Backend.register_backend("rlaunch", _create, devices=["cpu"])


def _create(*arguments):
    from rlaunch.torch import create

    return create(*arguments)
