"""What the ranks of a job say to each other.

    import array, rlaunch

    comm = rlaunch.init()
    x = array.array("f", [comm.rank + 1]) * 1024
    comm.all_reduce(x)

Messages go straight out of and into the memory of their arguments: anything with the buffer
protocol (``array.array``, ``bytearray``, ``memoryview``, numpy), with ``__dlpack__`` on the CPU
(torch) or with ``__array_interface__``, as long as it is contiguous. Other threads run meanwhile;
they must leave memory alone that a call is sending or receiving.

Each call ``f`` has an ``if`` that only begins it and returns a request, to be asked by ``test()``
and awaited by ``wait()``; until then the memory is the request's. What is not awaited goes on, as
long as the program makes calls.

Memory that is sent or received again and again should be registered once, with ``with
comm.register(x):`` or until ``release()``: RDMA devices are told of it for each long message
otherwise.

float16, bfloat16, float32, float64, int32, int64, uint8 and uint64 can be reduced, by ``"sum"``,
``"prod"``, ``"min"`` or ``"max"``; anything else can be moved.
"""

import os as _os
import sys as _sys
import threading as _threading


def _load():
    """The extension, or what does the same where this Python cannot load it. RLAUNCH_PYTHON=ctypes
    asks for that."""
    try:
        if _os.environ.get("RLAUNCH_PYTHON") == "ctypes":
            raise ImportError("RLAUNCH_PYTHON is ctypes")
        if _sys.version_info < (3, 9):
            raise ImportError("it needs Python 3.9 or later")
        from . import _rlaunch

        return _rlaunch
    except ImportError as error:
        refused = error
    try:
        from . import _fallback

        return _fallback
    except (AttributeError, ImportError, OSError) as error:
        raise ImportError(
            f"rlaunch works by neither of its libraries: its extension ({refused}); "
            f"librlaunch.so ({error})"
        ) from None


_by = _load()
Communicator, Received, Request = _by.Communicator, _by.Received, _by.Request
Registration = _by.Registration
Error, PeerLost, TimedOut = _by.Error, _by.PeerLost, _by.TimedOut

__all__ = [
    "Communicator",
    "Error",
    "PeerLost",
    "Received",
    "Registration",
    "Request",
    "TimedOut",
    "init",
]

_lock = _threading.Lock()
_world = None


def init():
    """The communicator of all ranks; of this process alone where nobody launched it.

    The first call waits until all ranks have made it, RLAUNCH_INIT_TIMEOUT seconds at most; later
    ones return the same communicator.
    """
    global _world
    with _lock:
        if _world is None:
            _world = _by.start()
        return _world


def _after_fork():
    """A forked process is no rank."""
    global _lock, _world
    _by.forked()
    _lock = _threading.Lock()
    _world = None


_os.register_at_fork(after_in_child=_after_fork)
