"""Messages and collectives between the ranks of an rlaunch job.

    import array, rlaunch

    comm = rlaunch.init()
    x = array.array("f", [comm.rank + 1]) * 1024
    comm.all_reduce(x)

Buffers: calls work directly on the memory of their arguments, without a copy. An argument may be
any object with the buffer protocol (``array.array``, ``bytearray``, ``memoryview``, numpy), with
``__dlpack__`` on the CPU (torch), or with ``__array_interface__``. It must be C-contiguous,
aligned and in native byte order; TypeError otherwise. ``x`` and ``out`` must have the same type
and not overlap.

Types: float16, bfloat16, float32, float64, int32, int64, uint8 and uint64 can be reduced, by
``"sum"``, ``"prod"``, ``"min"`` or ``"max"`` (NaN if any operand is NaN). All other types can be
transferred.

Collectives (barrier to all_to_all, and split) have to be called by all ranks of the communicator,
in the same order, with the same type, operation, root and number of elements for each rank.

Nonblocking operations: each call has a form with the prefix ``i`` (``isend``, ``iall_reduce``)
that only starts it and returns a Request, with ``test()`` and ``wait()``. Until it completes, its
input must not be modified and its output must not be accessed. An operation whose request is
dropped continues, as long as the program makes calls.

Threads: several threads may make calls at the same time. While a call waits, other threads run;
they must not access its buffers. A forked child cannot use its parent's communicators.

Errors: calls raise Error, PeerLost (a rank has died or left) or TimedOut; both are subclasses of
Error, which is a RuntimeError. Unsuitable arguments raise TypeError, ValueError or OverflowError.

Debugging: ``breakpoint()`` in a rank, here and in the built-in function, waits for
``rlaunch attach RANK``, which connects pdb with a terminal.

Registration: memory that is used for long messages repeatedly should be registered once, by
``with comm.register(x):`` or until ``release()``. Otherwise RDMA devices register it for each
message.
"""

import os as _os
import sys as _sys
import threading as _threading


def _load():
    """Returns the extension module, or the ctypes module if this Python cannot load the extension
    or RLAUNCH_PYTHON=ctypes is set."""
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
            f"rlaunch cannot load either of its libraries: its extension ({refused}); "
            f"librlaunch.so ({error})"
        ) from None


_impl = _load()

from ._debugger import breakpoint  # noqa: E402, A004
Communicator, Received, Request = _impl.Communicator, _impl.Received, _impl.Request
Registration = _impl.Registration
Error, PeerLost, TimedOut = _impl.Error, _impl.PeerLost, _impl.TimedOut

__all__ = [
    "Communicator",
    "Error",
    "PeerLost",
    "Received",
    "Registration",
    "Request",
    "TimedOut",
    "breakpoint",
    "init",
]

_lock = _threading.Lock()
_world = None


def init():
    """Returns the communicator of all ranks of the job; in a process that rlaunch has not started,
    a communicator of one rank.

    The first call waits until all ranks have made it, at most RLAUNCH_INIT_TIMEOUT seconds, and
    raises Error if that fails. Later calls return the same communicator.
    """
    global _world
    with _lock:
        if _world is None:
            _world = _impl.start()
        return _world


def _after_fork():
    """Resets the module in a forked child, which is not a rank."""
    global _lock, _world
    _impl.forked()
    _lock = _threading.Lock()
    _world = None


_os.register_at_fork(after_in_child=_after_fork)
