"""The classes of the extension module by way of librlaunch.so and ctypes, for a Python that cannot
load the extension.

Differences: DLPack is not supported, only the buffer protocol and ``__array_interface__``; and
signals such as Ctrl-C do not interrupt a wait.
"""

import ctypes
import operator
import os
import threading
import weakref
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

from ._memory import TYPES, U8, pair


class Error(RuntimeError):
    """A call of the communicator failed. The message names the operation, the rank and the cause."""


class PeerLost(Error):
    """A rank has died or left, or the connection to it has failed."""


class TimedOut(Error):
    """A call has waited for RLAUNCH_COMM_TIMEOUT seconds. The message names the missing ranks."""


# Constants of rlaunch.h.
_IN_PLACE = c_void_p(-1)
_ERRORS = {16: PeerLost, 17: PeerLost, 18: TimedOut}
_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3}


class _Received(ctypes.Structure):
    _fields_ = [("source", c_size_t), ("length", c_size_t)]


def _load():
    """Loads librlaunch.so from beside the package, as rlaunch installs it, or else from the library
    path, and declares its functions."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, os.pardir, os.pardir, "librlaunch.so")
    library = ctypes.CDLL(beside if os.path.exists(beside) else "librlaunch.so")
    library.rl_error.restype = c_char_p
    memory = [c_void_p, c_void_p]
    count = [c_size_t, c_int]
    received = [POINTER(_Received)]
    request = [POINTER(c_void_p)]
    calls = {
        "rl_init": request,
        "rl_finalize": [c_void_p],
        "rl_abort": [c_void_p, c_char_p],
        "rl_split": [c_void_p, c_uint32, c_int64] + request,
        "rl_send": memory + count + [c_size_t, c_uint32],
        "rl_isend": memory + count + [c_size_t, c_uint32] + request,
        "rl_recv": memory + count + [c_size_t, c_uint32] + received,
        "rl_irecv": memory + count + [c_size_t, c_uint32] + request,
        "rl_recv_any": memory + count + [c_uint32] + received,
        "rl_irecv_any": memory + count + [c_uint32] + request,
        "rl_register": memory + [c_size_t] + request,
        "rl_unregister": request,
        "rl_wait": request + received,
        "rl_test": request + [POINTER(c_int)] + received,
    }
    for number in ("rank", "size", "local_rank", "local_size"):
        calls["rl_" + number] = [c_void_p, POINTER(c_size_t)]
    both = [c_void_p] + memory + count
    for name, arguments in {
        "barrier": [c_void_p],
        "broadcast": memory + count + [c_size_t],
        "reduce": both + [c_int, c_size_t],
        "all_reduce": both + [c_int],
        "gather": both + [c_size_t],
        "scatter": both + [c_size_t],
        "all_gather": both,
        "reduce_scatter": both + [c_int],
        "all_to_all": both,
    }.items():
        calls["rl_" + name] = arguments
        calls["rl_i" + name] = arguments + request
    for name, arguments in calls.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int32
    return library


_library = _load()


def _check(result):
    """Raises the error of a call of the library."""
    if result != 0:
        raise _failure(result)


def _failure(result):
    text = _library.rl_error().decode("utf-8", "replace")
    return _ERRORS.get(result, Error)(text.replace("\nhint: ", "; "))


def _number(value):
    value = operator.index(value)
    if value < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return value


def _tag(value):
    value = _number(value)
    if value > 0xFFFFFFFF:
        raise OverflowError("out of range integral type conversion attempted")
    return value


class Received:
    """Source and length (in elements) of a received message."""

    def __init__(self, received, buffer):
        if received.length % buffer.size:
            raise Error(
                f"a message of {received.length} bytes, which is not a whole number of {buffer.name}"
            )
        self.source = received.source
        self.length = received.length // buffer.size

    def __repr__(self):
        return f"Received(source={self.source}, length={self.length})"


class _InFlight:
    """An operation in progress, and its memory."""

    def __init__(self, handle, memory, receives):
        self.handle, self.memory, self.receives = handle, memory, receives
        self.lock = threading.Lock()
        self.is_done, self.failure, self.received = False, None, None

    def finish(self, result, received):
        """Stores the result and releases the memory."""
        try:
            _check(result)
            if self.receives:
                self.received = Received(received, self.receives)
        except Error as failure:
            self.failure = failure.with_traceback(None)
        self.is_done, self.memory, self.receives = True, None, None

    def test(self):
        received, done = _Received(), c_int()
        result = _library.rl_test(byref(self.handle), byref(done), byref(received))
        if result != 0 or done.value:
            self.finish(result, received)
        return self.is_done


class Request:
    """A nonblocking operation. The objects passed to it keep their memory until it completes, and
    must not be accessed before. An operation whose request is dropped continues, as long as the
    program makes calls."""

    def __init__(self, comm, operation):
        self._comm, self._operation = comm, operation

    def wait(self):
        """Waits until the operation completes. Returns a Received for a receive, else None. Raises
        the operation's error, also if called again."""
        self._comm._handle()
        operation = self._operation
        if not operation.lock.acquire(False):
            raise Error("another thread is waiting for this request")
        try:
            if not operation.is_done:
                received = _Received()
                operation.finish(_library.rl_wait(byref(operation.handle), byref(received)), received)
        finally:
            operation.lock.release()
        if operation.failure:
            raise type(operation.failure)(*operation.failure.args)
        return operation.received

    def test(self):
        """Tells whether the operation has completed, without waiting; wait() then returns its
        result. False while another thread waits."""
        self._comm._handle()
        operation = self._operation
        if not operation.lock.acquire(False):
            return False
        try:
            return operation.is_done or operation.test()
        finally:
            operation.lock.release()


def _unregister(handle, process, memory):
    # A registration that is still in use is leaked, together with its memory.
    if os.getpid() == process and handle.value and _library.rl_unregister(byref(handle)) != 0:
        _IN_USE.append(memory)


_IN_USE = []


class Registration:
    """Memory of an object that is registered with the RDMA devices, which speeds up long messages
    from and to any part of it. The object keeps its memory until release(), or until the end of a
    ``with`` block."""

    def __init__(self, comm, handle, memory):
        self._comm, self._own = comm, handle
        self._finalizer = weakref.finalize(self, _unregister, handle, os.getpid(), memory)

    def release(self):
        """Deregisters the memory. Raises Error while a request that uses the memory is in progress.
        Does nothing the second time."""
        self._comm._handle()
        if self._own.value:
            _check(_library.rl_unregister(byref(self._own)))
            self._finalizer.detach()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.release()


def _finalize(handle, process):
    # Not in a forked child: it would tell the other ranks that the parent has left.
    if os.getpid() == process:
        _library.rl_finalize(handle)


class Communicator:
    """A group of ranks that exchange messages. Messages of different communicators never match."""

    def __init__(self, handle):
        self._process, self._own = os.getpid(), handle
        # Operations in progress, each with a weak reference to its request.
        self._in_flight, self._lock = [], threading.Lock()
        self._finalizer = weakref.finalize(self, _finalize, handle, self._process)
        self._ranks, self._me = self._ask("size"), self._ask("rank")

    def _handle(self):
        if os.getpid() != self._process:
            raise Error("the communicator belongs to the process that forked this one")
        return self._own

    def _ask(self, what):
        number = c_size_t()
        _check(getattr(_library, "rl_" + what)(self._handle(), byref(number)))
        return number.value

    def __repr__(self):
        if os.getpid() != self._process:
            return "<rlaunch.Communicator of another process>"
        return f"<rlaunch.Communicator: rank {self.rank} of {self.size}>"

    @property
    def rank(self):
        """Rank of this process, from 0 to size - 1."""
        self._handle()
        return self._me

    @property
    def size(self):
        """Number of ranks."""
        self._handle()
        return self._ranks

    @property
    def local_rank(self):
        """Rank of this process among the communicator's ranks on its node, from 0."""
        return self._ask("local_rank")

    @property
    def local_size(self):
        """Number of the communicator's ranks on the node of this process."""
        return self._ask("local_size")

    def split(self, color, key=0):
        """Creates a communicator of the ranks that pass the same color, ordered by key, and among
        equal keys by their rank here. A collective: all ranks have to call it."""
        part = c_void_p()
        _check(_library.rl_split(self._handle(), _tag(color), operator.index(key), byref(part)))
        return Communicator(part)

    def abort(self, why):
        """Ends the job: rlaunch prints why, and terminates all ranks, this one included. Always
        raises Error, because the termination takes a moment."""
        _check(_library.rl_abort(self._handle(), why.encode()))

    def register(self, x):
        """Registers the memory of x with the RDMA devices, until the returned Registration is
        released. This speeds up long messages, which otherwise register their memory each time."""
        _, x = pair("register", None, x)
        handle = c_void_p()
        _check(_library.rl_register(self._handle(), x.address, x.bytes, byref(handle)))
        return Registration(self, handle, x)

    def _start(self, name, arguments, memory, receives=None):
        """Starts an operation by a function of the library whose last argument is the request."""
        handle = c_void_p()
        _check(getattr(_library, name)(self._handle(), *arguments, byref(handle)))
        operation = _InFlight(handle, memory, receives)
        request = Request(self, operation)
        with self._lock:
            left = [(one, of) for one, of in self._in_flight if not self._is_over(one, of)]
            self._in_flight = left + [(operation, weakref.ref(request))]
        return request

    @staticmethod
    def _is_over(operation, request):
        return operation.is_done or (request() is None and operation.test())

    def send(self, x, to, tag=0):
        """Sends x to a rank; returns when x may be modified again. A long message blocks until the
        receiver has posted a matching receive."""
        x, _ = pair("send", x, None)
        where = (x.address, x.bytes, U8, _number(to), _tag(tag))
        _check(_library.rl_send(self._handle(), *where))

    def isend(self, x, to, tag=0):
        """Starts send. x must not be modified before the request completes."""
        x, _ = pair("isend", x, None)
        return self._isend(x, to, tag)

    def _isend(self, x, to, tag):
        where = (x.address, x.bytes, U8, _number(to), _tag(tag))
        return self._start("rl_isend", where, x)

    @staticmethod
    def _source_arguments(source, tag):
        """Returns the suffix and the arguments of the function that receives from source, or from
        any rank."""
        return ("_any", (_tag(tag),)) if source is None else ("", (_number(source), _tag(tag)))

    def recv(self, x, source=None, tag=0):
        """Receives a message with this tag into x, from the rank source, or from any rank if source
        is None. The message may be shorter than x; Error if it is longer."""
        _, x = pair("recv", None, x)
        (of, where), received = self._source_arguments(source, tag), _Received()
        call = getattr(_library, "rl_recv" + of)
        _check(call(self._handle(), x.address, x.bytes, U8, *where, byref(received)))
        return Received(received, x)

    def irecv(self, x, source=None, tag=0):
        """Starts recv. x must not be accessed before the request completes; its wait() returns a
        Received."""
        _, x = pair("irecv", None, x)
        return self._irecv(x, source, tag)

    def _irecv(self, x, source, tag):
        of, where = self._source_arguments(source, tag)
        return self._start("rl_irecv" + of, (x.address, x.bytes, U8) + where, x, receives=x)

    def sendrecv(self, x, to, out, source=None, tag=0, source_tag=None):
        """Sends x to the rank to with tag, and at the same time receives a message into out from the
        rank source (any rank if None) with source_tag (tag if None)."""
        x, out = pair("sendrecv", x, out)
        receives = self._irecv(out, source, tag if source_tag is None else source_tag)
        sends = self._isend(x, to, tag)
        received = receives.wait()
        sends.wait()
        return received

    def _arguments(self, call, x, out, root=None, op=None):
        """Returns the arguments of a collective, and the memory to keep. Without out, the call works
        in place in x at ranks that have both an input and an output."""
        handle_root = () if root is None else (_number(root),)
        is_root = root is None or root == self._me
        if op is not None and op not in _OPS:
            raise ValueError(f"unknown operation {op}, expected one of {', '.join(_OPS)}")
        in_place = False
        if call == "scatter" and x is None and out is None:
            raise TypeError("scatter: neither x nor out is given")
        if call == "broadcast":
            _, out = pair(call, None, x)
            x = None
        elif x is not None and out is None and (is_root or call == "scatter"):
            _, out = pair(call, None, x)
            x, in_place = None, True
        else:
            x, out = pair(call, x, out)
        self._check_reducible(call, x or out)
        count = self._count(call, x, out, is_root, in_place)
        # At ranks other than the root of a scatter x is None, or ignored by the library.
        data = [] if call == "broadcast" else [_IN_PLACE if in_place else x and x.address]
        data += [out and out.address, count, (x or out).type[0]]
        options = () if op is None else (_OPS[op],)
        return (*data, *options, *handle_root), (x, out)

    @staticmethod
    def _check_reducible(call, buffer):
        if "reduce" in call and not buffer.is_element:
            known = ", ".join(TYPES)
            raise TypeError(f"{call}: {buffer.name} cannot be reduced, only {known}")

    def _count(self, call, x, out, is_root, in_place):
        """Returns the number of elements in one rank's part; fails if a buffer has another length than
        follows from it."""
        has_all = {"gather": "out", "scatter": "x", "all_gather": "out", "reduce_scatter": "x"}
        whole, size = has_all.get(call), self._ranks
        lengths = {"x": x and x.type[1], "out": out and out.type[1]}
        if call == "all_to_all" or (in_place and whole and is_root):
            buffer = out if in_place else x
            part, over = divmod(buffer.type[1], size)
            if over or buffer.elements % size:
                message = f"{call}: {buffer.elements} elements of {buffer.name} for {size} ranks"
                raise (Error if buffer.is_element else ValueError)(message)
            expected = dict.fromkeys(lengths, part * size)
        else:
            one = "x" if x is not None and whole != "x" else "out"
            part = lengths[one] or 0
            expected = {name: part * (size if name == whole else 1) for name in lengths}
        for name, what in (("x", "input"), ("out", "output")):
            length, wanted = lengths[name], expected[name]
            if name == whole and not is_root and not in_place:
                continue
            if length is not None and length != wanted:
                raise Error(f"{call}: {what} has {length} elements but should have {wanted}")
        missing = whole and is_root and not in_place and lengths[whole] is None
        if missing and part:
            raise Error(f"{call}: {'input' if whole == 'x' else 'output'} has 0 elements "
                        f"but should have {part * size}")
        return part

    def _collective(self, call, *arguments, **named):
        arguments, _memory = self._arguments(call, *arguments, **named)
        _check(getattr(_library, "rl_" + call)(self._handle(), *arguments))

    def _icollective(self, call, *arguments, **named):
        arguments, memory = self._arguments(call, *arguments, **named)
        return self._start("rl_i" + call, arguments, memory)

    def barrier(self):
        """Returns once every rank has called it."""
        _check(_library.rl_barrier(self._handle()))

    def ibarrier(self):
        """Starts barrier."""
        return self._start("rl_ibarrier", (), None)

    def broadcast(self, x, root=0):
        """Copies x of rank root to x of all ranks."""
        self._collective("broadcast", x, None, root)

    def ibroadcast(self, x, root=0):
        """Starts broadcast."""
        return self._icollective("broadcast", x, None, root)

    def all_reduce(self, x, op="sum", *, out=None):
        """Reduces x of all ranks, element by element, into out of every rank; without out, in place.
        All ranks get bitwise equal results."""
        self._collective("all_reduce", x, out, op=op)

    def iall_reduce(self, x, op="sum", *, out=None):
        """Starts all_reduce."""
        return self._icollective("all_reduce", x, out, op=op)

    def reduce(self, x, op="sum", root=0, *, out=None):
        """Reduces x of all ranks, element by element, into out of rank root; without out, into x
        there."""
        self._collective("reduce", x, out, root, op)

    def ireduce(self, x, op="sum", root=0, *, out=None):
        """Starts reduce."""
        return self._icollective("reduce", x, out, root, op)

    def gather(self, x, root=0, *, out=None):
        """Concatenates x of all ranks, in rank order, into out of rank root, which has size times as
        many elements. Without out, x of root is as long as that, and has root's own part in its
        place."""
        self._collective("gather", x, out, root)

    def igather(self, x, root=0, *, out=None):
        """Starts gather."""
        return self._icollective("gather", x, out, root)

    def scatter(self, x, root=0, *, out=None):
        """Splits x of rank root into size equal parts, in rank order, and copies each rank's part to
        its out; x of other ranks may be None. Without out, the other ranks receive their part in x,
        and root's part stays in its place."""
        self._collective("scatter", x, out, root)

    def iscatter(self, x, root=0, *, out=None):
        """Starts scatter."""
        return self._icollective("scatter", x, out, root)

    def all_gather(self, x, *, out=None):
        """Concatenates x of all ranks, in rank order, into out of every rank, which has size times as
        many elements. Without out, x is as long as that, and has the rank's own part in its
        place."""
        self._collective("all_gather", x, out)

    def iall_gather(self, x, *, out=None):
        """Starts all_gather."""
        return self._icollective("all_gather", x, out)

    def reduce_scatter(self, x, op="sum", *, out=None):
        """Reduces x of all ranks, element by element, splits the result into size equal parts, and
        copies each rank's part to its out. Without out, the part is at the front of x, and the rest
        of x is undefined."""
        self._collective("reduce_scatter", x, out, op=op)

    def ireduce_scatter(self, x, op="sum", *, out=None):
        """Starts reduce_scatter."""
        return self._icollective("reduce_scatter", x, out, op=op)

    def all_to_all(self, x, *, out=None):
        """Sends part j of x to rank j, and stores the part received from rank i as part i of out,
        where x and out consist of size equal parts. Without out, in place."""
        self._collective("all_to_all", x, out)

    def iall_to_all(self, x, *, out=None):
        """Starts all_to_all."""
        return self._icollective("all_to_all", x, out)


def start():
    """Joins the job; waits until all ranks have called it."""
    handle = c_void_p()
    _check(_library.rl_init(byref(handle)))
    return Communicator(handle)


def forked():
    """Does nothing: communicators store the id of their process."""


for _class in (Error, PeerLost, TimedOut, Communicator, Received, Request):
    _class.__module__ = "rlaunch"
