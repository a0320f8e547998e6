"""The same calls by librlaunch.so and ctypes, for a Python that cannot load the extension.

Two things are less: memory is lent by the buffer protocol or ``__array_interface__`` only, and no
signal ends a wait.
"""

import ctypes
import operator
import os
import threading
import weakref
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

from ._memory import TYPES, U8, pair


class Error(RuntimeError):
    """The communicator failed; says what was being done, with whom, and why it did not work."""


class PeerLost(Error):
    """A rank is dead or has left, or the way to it is broken."""


class TimedOut(Error):
    """RLAUNCH_COMM_TIMEOUT has passed; says who has not answered."""


# Numbers of rlaunch.h.
_IN_PLACE = c_void_p(-1)
_ERRORS = {16: PeerLost, 17: PeerLost, 18: TimedOut}
_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3}


class _CameIn(ctypes.Structure):
    _fields_ = [("source", c_size_t), ("length", c_size_t)]


def _load():
    """From beside the package, where rlaunch keeps it, or from where libraries are."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, os.pardir, os.pardir, "librlaunch.so")
    library = ctypes.CDLL(beside if os.path.exists(beside) else "librlaunch.so")
    library.rl_error.restype = c_char_p
    memory = [c_void_p, c_void_p]
    count = [c_size_t, c_int]
    came = [POINTER(_CameIn)]
    request = [POINTER(c_void_p)]
    calls = {
        "rl_init": request,
        "rl_finalize": [c_void_p],
        "rl_abort": [c_void_p, c_char_p],
        "rl_split": [c_void_p, c_uint32, c_int64] + request,
        "rl_send": memory + count + [c_size_t, c_uint32],
        "rl_isend": memory + count + [c_size_t, c_uint32] + request,
        "rl_recv": memory + count + [c_size_t, c_uint32] + came,
        "rl_irecv": memory + count + [c_size_t, c_uint32] + request,
        "rl_recv_any": memory + count + [c_uint32] + came,
        "rl_irecv_any": memory + count + [c_uint32] + request,
        "rl_register": memory + [c_size_t] + request,
        "rl_unregister": request,
        "rl_wait": request + came,
        "rl_test": request + [POINTER(c_int)] + came,
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
    """Raises what a call of the library has said."""
    if result != 0:
        raise _failure(result)


def _failure(result):
    said = _library.rl_error().decode("utf-8", "replace")
    return _ERRORS.get(result, Error)(said.replace("\nhint: ", "; "))


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
    """What a receive has got: who sent it, and how many elements."""

    def __init__(self, came, buffer):
        if came.length % buffer.size:
            raise Error(
                f"a message of {came.length} bytes, which is no whole number of {buffer.name}"
            )
        self.source = came.source
        self.length = came.length // buffer.size

    def __repr__(self):
        return f"Received(source={self.source}, length={self.length})"


class _Begun:
    """What goes on, and the memory that it works on."""

    def __init__(self, handle, memory, receives):
        self.handle, self.memory, self.receives = handle, memory, receives
        self.lock = threading.Lock()
        self.is_done, self.failure, self.received = False, None, None

    def end(self, result, came):
        """Notes how it ended, and lets the memory go."""
        try:
            _check(result)
            if self.receives:
                self.received = Received(came, self.receives)
        except Error as failure:
            self.failure = failure.with_traceback(None)
        self.is_done, self.memory, self.receives = True, None, None

    def test(self):
        came, done = _CameIn(), c_int()
        result = _library.rl_test(byref(self.handle), byref(done), byref(came))
        if result != 0 or done.value:
            self.end(result, came)
        return self.is_done


class Request:
    """Something that goes on, and holds its memory until it is done. It goes on too when it is
    dropped."""

    def __init__(self, comm, begun):
        self._comm, self._begun = comm, begun

    def wait(self):
        """Waits until it is done; of a receive, says what came."""
        self._comm._handle()
        begun = self._begun
        if not begun.lock.acquire(False):
            raise Error("another thread waits for this request")
        try:
            if not begun.is_done:
                came = _CameIn()
                begun.end(_library.rl_wait(byref(begun.handle), byref(came)), came)
        finally:
            begun.lock.release()
        if begun.failure:
            raise type(begun.failure)(*begun.failure.args)
        return begun.received

    def test(self):
        """Whether it is done; `wait` says then what came of it."""
        self._comm._handle()
        begun = self._begun
        if not begun.lock.acquire(False):
            return False
        try:
            return begun.is_done or begun.test()
        finally:
            begun.lock.release()


def _unregister(handle, process, memory):
    # What is still in use is left to the library, and its memory held.
    if os.getpid() == process and handle.value and _library.rl_unregister(byref(handle)) != 0:
        _IN_USE.append(memory)


_IN_USE = []


class Registration:
    """Memory of an object that RDMA devices know until this is released: long messages from and to
    any part of it need not be told to them. The object keeps its memory until then."""

    def __init__(self, comm, handle, memory):
        self._comm, self._own = comm, handle
        self._finalizer = weakref.finalize(self, _unregister, handle, os.getpid(), memory)

    def release(self):
        """Has devices forget the memory. Fails while a request on it is not done."""
        self._comm._handle()
        if self._own.value:
            _check(_library.rl_unregister(byref(self._own)))
            self._finalizer.detach()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.release()


def _finalize(handle, process):
    # A forked process would take leave of the ranks in its parent's place.
    if os.getpid() == process:
        _library.rl_finalize(handle)


class Communicator:
    """The ranks of a job, or some of them."""

    def __init__(self, handle):
        self._process, self._own = os.getpid(), handle
        # With whom it was begun: what is dropped goes on, and is let go of when it is done.
        self._going, self._lock = [], threading.Lock()
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
        """This process's number, from 0."""
        self._handle()
        return self._me

    @property
    def size(self):
        """How many ranks there are."""
        self._handle()
        return self._ranks

    @property
    def local_rank(self):
        """This process's number among the ranks of its node."""
        return self._ask("local_rank")

    @property
    def local_size(self):
        """How many ranks its node has."""
        return self._ask("local_size")

    def split(self, color, key=0):
        """Makes a communicator of those ranks that give the same color, ordered by key and then by
        their rank here. Every rank has to call it."""
        part = c_void_p()
        _check(_library.rl_split(self._handle(), _tag(color), operator.index(key), byref(part)))
        return Communicator(part)

    def abort(self, why):
        """Ends the job: rlaunch says why, and ends all ranks, this one included. The end takes a
        moment, so it raises an error."""
        _check(_library.rl_abort(self._handle(), why.encode()))

    def register(self, x):
        """Tells RDMA devices of x's memory, until what is returned is released: for memory that is
        sent from and received into again and again."""
        _, x = pair("register", None, x)
        handle = c_void_p()
        _check(_library.rl_register(self._handle(), x.address, x.bytes, byref(handle)))
        return Registration(self, handle, x)

    def _begin(self, name, arguments, memory, receives=None):
        """Begins a call of the library, whose last argument is the request."""
        handle = c_void_p()
        _check(getattr(_library, name)(self._handle(), *arguments, byref(handle)))
        begun = _Begun(handle, memory, receives)
        request = Request(self, begun)
        with self._lock:
            left = [(one, of) for one, of in self._going if not self._is_over(one, of)]
            self._going = left + [(begun, weakref.ref(request))]
        return request

    @staticmethod
    def _is_over(begun, request):
        return begun.is_done or (request() is None and begun.test())

    def send(self, x, to, tag=0):
        """Sends x to a rank; returns when x may be used again."""
        x, _ = pair("send", x, None)
        where = (x.address, x.bytes, U8, _number(to), _tag(tag))
        _check(_library.rl_send(self._handle(), *where))

    def isend(self, x, to, tag=0):
        """Begins to send x to a rank."""
        x, _ = pair("isend", x, None)
        return self._isend(x, to, tag)

    def _isend(self, x, to, tag):
        where = (x.address, x.bytes, U8, _number(to), _tag(tag))
        return self._begin("rl_isend", where, x)

    @staticmethod
    def _of(source, tag):
        """How the call that receives from a rank, or from any, is called, and with what."""
        return ("_any", (_tag(tag),)) if source is None else ("", (_number(source), _tag(tag)))

    def recv(self, x, source=None, tag=0):
        """Receives a message into x, from whichever rank sends one first where no source is given."""
        _, x = pair("recv", None, x)
        (of, where), came = self._of(source, tag), _CameIn()
        call = getattr(_library, "rl_recv" + of)
        _check(call(self._handle(), x.address, x.bytes, U8, *where, byref(came)))
        return Received(came, x)

    def irecv(self, x, source=None, tag=0):
        """Begins to receive a message into x."""
        _, x = pair("irecv", None, x)
        return self._irecv(x, source, tag)

    def _irecv(self, x, source, tag):
        of, where = self._of(source, tag)
        return self._begin("rl_irecv" + of, (x.address, x.bytes, U8) + where, x, receives=x)

    def sendrecv(self, x, to, out, source=None, tag=0, source_tag=None):
        """Sends x to one rank and receives out from another at the same time."""
        x, out = pair("sendrecv", x, out)
        receives = self._irecv(out, source, tag if source_tag is None else source_tag)
        sends = self._isend(x, to, tag)
        received = receives.wait()
        sends.wait()
        return received

    def _asked(self, call, x, out, root=None, op=None):
        """The arguments of a collective, and the memory to hold; without out, x is both for the
        ranks that have both."""
        handle_root = () if root is None else (_number(root),)
        is_root = root is None or root == self._me
        if op is not None and op not in _OPS:
            raise ValueError(f"there is no {op}, but {', '.join(_OPS)}")
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
        self._can(call, x or out)
        count = self._count(call, x, out, is_root, in_place)
        # Who is no root of a scatter gives nothing, whatever x is.
        data = [] if call == "broadcast" else [_IN_PLACE if in_place else x and x.address]
        data += [out and out.address, count, (x or out).type[0]]
        options = () if op is None else (_OPS[op],)
        return (*data, *options, *handle_root), (x, out)

    @staticmethod
    def _can(call, buffer):
        if "reduce" in call and not buffer.is_element:
            known = ", ".join(TYPES)
            raise TypeError(f"{call}: {buffer.name} cannot be reduced, only {known}")

    def _count(self, call, x, out, is_root, in_place):
        """Elements of one rank's part, after a look at whether the buffers are as long as that."""
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
        arguments, _memory = self._asked(call, *arguments, **named)
        _check(getattr(_library, "rl_" + call)(self._handle(), *arguments))

    def _icollective(self, call, *arguments, **named):
        arguments, memory = self._asked(call, *arguments, **named)
        return self._begin("rl_i" + call, arguments, memory)

    def barrier(self):
        """Returns when every rank has called it."""
        _check(_library.rl_barrier(self._handle()))

    def ibarrier(self):
        """Begins barrier."""
        return self._begin("rl_ibarrier", (), None)

    def broadcast(self, x, root=0):
        """Gives every rank what root has in x."""
        self._collective("broadcast", x, None, root)

    def ibroadcast(self, x, root=0):
        """Begins broadcast."""
        return self._icollective("broadcast", x, None, root)

    def all_reduce(self, x, op="sum", *, out=None):
        """Reduces what all ranks have in x, for all: to out, or in place."""
        self._collective("all_reduce", x, out, op=op)

    def iall_reduce(self, x, op="sum", *, out=None):
        """Begins all_reduce."""
        return self._icollective("all_reduce", x, out, op=op)

    def reduce(self, x, op="sum", root=0, *, out=None):
        """Reduces what all ranks have in x to out of root, or in place there."""
        self._collective("reduce", x, out, root, op)

    def ireduce(self, x, op="sum", root=0, *, out=None):
        """Begins reduce."""
        return self._icollective("reduce", x, out, root, op)

    def gather(self, x, root=0, *, out=None):
        """Puts x of all ranks, by rank, to out of root; without out, x of root is long enough for
        all and has its own part in place."""
        self._collective("gather", x, out, root)

    def igather(self, x, root=0, *, out=None):
        """Begins gather."""
        return self._icollective("gather", x, out, root)

    def scatter(self, x, root=0, *, out=None):
        """Gives out of each rank its part of x of root; without out, x of the others gets their
        part, and root keeps its own where it is. With out, x of the others may be None."""
        self._collective("scatter", x, out, root)

    def iscatter(self, x, root=0, *, out=None):
        """Begins scatter."""
        return self._icollective("scatter", x, out, root)

    def all_gather(self, x, *, out=None):
        """Puts x of all ranks, by rank, to everyone's out; without out, x is long enough for all
        and has this rank's part in place."""
        self._collective("all_gather", x, out)

    def iall_gather(self, x, *, out=None):
        """Begins all_gather."""
        return self._icollective("all_gather", x, out)

    def reduce_scatter(self, x, op="sum", *, out=None):
        """Reduces what all ranks have in x, and gives out of each rank its part; without out, the
        part is at the front of x afterwards."""
        self._collective("reduce_scatter", x, out, op=op)

    def ireduce_scatter(self, x, op="sum", *, out=None):
        """Begins reduce_scatter."""
        return self._icollective("reduce_scatter", x, out, op=op)

    def all_to_all(self, x, *, out=None):
        """Sends a part of x to each rank, and puts a part of each to out, or in place."""
        self._collective("all_to_all", x, out)

    def iall_to_all(self, x, *, out=None):
        """Begins all_to_all."""
        return self._icollective("all_to_all", x, out)


def start():
    """Becomes one of the ranks; waits until all have called it."""
    handle = c_void_p()
    _check(_library.rl_init(byref(handle)))
    return Communicator(handle)


def forked():
    """Nothing to be done: communicators know their process."""


for _class in (Error, PeerLost, TimedOut, Communicator, Received, Request):
    _class.__module__ = "rlaunch"
