"""The communicator as a backend of ``torch.distributed``, for tensors on the CPU.

    import torch.distributed as dist

    dist.init_process_group("rlaunch")

Nothing else has to be imported where rlaunch has started the ranks. A group has all ranks of the
job. Collectives of a group go on in a thread of their own, one after the other, while the program
computes; messages begin at once. Waits end after the timeout of ``init_process_group``, unless
RLAUNCH_COMM_TIMEOUT says otherwise.
"""

import os
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

import rlaunch

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
# Of messages that belong to a collective; torch's own tags are less.
_TAG = 0xFFFFFFFF
_FOREVER = timedelta(0)


def create(_store, rank, size, timeout):
    """A process group of all ranks, as torch asks for one."""
    # While one thread waits here, others compute.
    os.environ.setdefault("RLAUNCH_SPIN", "0")
    os.environ.setdefault("RLAUNCH_COMM_TIMEOUT", str(timeout.total_seconds()))
    world = rlaunch.init()
    if size != world.size:
        raise ValueError(
            f"backend rlaunch joins all {world.size} ranks of the job, and this group has {size}; "
            'new_group(..., backend="gloo") joins some of them'
        )
    # Of its own, so that what the program says by rlaunch.init() does not get in between.
    return ProcessGroup(world.split(color=0, key=rank))


def _lend(tensor):
    """The same values in one piece of memory: the tensor's own where that is one."""
    return tensor.detach().contiguous()


def _give_back(tensor, lent):
    """Puts back what has come into ``lent`` if it was a copy."""
    if lent.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(lent)


def _on_cpu(*tensors):
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"backend rlaunch is for tensors on the CPU, not on {tensor.device}")


def _op(opts):
    op = opts.reduceOp
    op = getattr(op, "op", op)
    if op not in _OPS:
        known = ", ".join(known.name for known in _OPS)
        raise ValueError(f"backend rlaunch has no {op.name}, but {known}")
    return op


class Work(dist.Work):
    """A collective that waits for its turn, goes on, or is over."""

    def __init__(self, call, tensors):
        super().__init__()
        self._call, self._tensors = call, tensors
        self._failure = None
        self._is_over = threading.Event()
        self._over = torch.futures.Future()

    def run(self):
        """Does it, whatever comes of it."""
        try:
            self._call()
        except Exception as failure:
            self._failure = failure
        # The memory of what was only read is not needed any more.
        self._call = None
        self._is_over.set()
        self._over.set_result(None)

    def _outcome(self, _over=None):
        if self._failure is not None:
            raise self._failure
        return self._tensors

    def wait(self, timeout=_FOREVER):
        limit = timeout.total_seconds() if timeout > _FOREVER else None
        if not self._is_over.wait(limit):
            raise rlaunch.TimedOut(f"a collective is not over after {limit} s")
        self._outcome()
        return True

    def result(self):
        self.wait()
        return self._tensors

    def get_future(self):
        # What this raises is the future's own error, which the gradients of C++ see.
        return self._over.then(self._outcome)

    def is_completed(self):
        return self._is_over.is_set()

    def is_success(self):
        return self._is_over.is_set() and self._failure is None

    def exception(self):
        return self._failure


class Message(dist.Work):
    """A tensor on its way."""

    def __init__(self, request, tensor, lent):
        super().__init__()
        self._request, self._tensor, self._lent = request, tensor, lent
        self._source = None

    def wait(self, timeout=_FOREVER):
        received = self._request.wait()
        if received is not None:
            self._source = received.source
            _give_back(self._tensor, self._lent)
        return True

    def is_completed(self):
        return self._request.test()

    def source_rank(self):
        self.wait()
        return self._source

    _source_rank = source_rank


def _run_all(works):
    for work in iter(works.get, None):
        work.run()


class ProcessGroup(dist.ProcessGroup):
    """All ranks of the job."""

    def __init__(self, comm):
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._works = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run_all, args=(self._works,), name="rlaunch collectives", daemon=True
        )
        self._thread.start()

    def getBackendName(self):
        return "rlaunch"

    def _get_backend(self, _device):
        # torch asks it whether it can join messages.
        return self

    def shutdown(self):
        """Ends the thread after what was begun."""
        self._works.put(None)
        self._thread.join()

    def _begin(self, call, tensors):
        work = Work(call, tensors)
        self._works.put(work)
        return work

    # What the thread does.

    def _reduce_all(self, tensor, op, out=None):
        """In place, or to ``out``, which is in one piece."""
        lent = _lend(tensor)
        self._comm.all_reduce(lent, _OPS[op], out=out)
        self._divide(lent if out is None else out, op)
        if out is None:
            _give_back(tensor, lent)

    def _divide(self, tensor, op):
        if op == dist.ReduceOp.AVG:
            tensor.div_(self._comm.size)

    def _broadcast(self, tensor, root):
        lent = _lend(tensor)
        self._comm.broadcast(lent, root)
        _give_back(tensor, lent)

    def _reduce(self, tensor, op, root):
        lent = _lend(tensor)
        self._comm.reduce(lent, _OPS[op], root)
        if self._comm.rank == root:
            self._divide(lent, op)
            _give_back(tensor, lent)

    def _gather_all(self, outputs, tensor):
        parts = tensor.new_empty((self._comm.size, tensor.numel()))
        self._comm.all_gather(_lend(tensor), out=parts)
        self._deal(outputs, parts)

    def _gather_into(self, output, tensor):
        lent = _lend(output)
        self._comm.all_gather(_lend(tensor), out=lent)
        _give_back(output, lent)

    def _gather(self, outputs, tensor, root):
        parts = tensor.new_empty((self._comm.size, tensor.numel())) if outputs else None
        self._comm.gather(_lend(tensor), root, out=parts)
        if outputs:
            self._deal(outputs, parts)

    def _scatter(self, output, tensors, root):
        lent = _lend(output)
        self._comm.scatter(self._join(tensors) if tensors else None, root, out=lent)
        _give_back(output, lent)

    def _scatter_reduced(self, output, parts, op):
        lent = _lend(output)
        self._comm.reduce_scatter(parts(), _OPS[op], out=lent)
        self._divide(lent, op)
        _give_back(output, lent)

    def _exchange(self, outputs, inputs):
        """A tensor to each rank and one from each, of whatever lengths; other than in a collective
        nothing tells equal lengths here from others elsewhere."""
        lent = [_lend(output) for output in outputs]
        requests = [self._comm.irecv(into, rank, _TAG) for rank, into in enumerate(lent)]
        for rank, tensor in enumerate(inputs):
            requests.append(self._comm.isend(_lend(tensor), rank, _TAG))
        for request in requests:
            request.wait()
        for output, into in zip(outputs, lent):
            _give_back(output, into)

    @staticmethod
    def _join(tensors):
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    @staticmethod
    def _deal(outputs, parts):
        for output, part in zip(outputs, parts):
            output.detach().copy_(part.view(output.shape))

    # What torch calls, by its names and with its arguments.

    def broadcast(self, tensors, opts):
        (tensor,) = tensors
        _on_cpu(tensor)
        return self._begin(lambda: self._broadcast(tensor, opts.rootRank), tensors)

    def allreduce(self, tensors, opts=None):
        (tensor,) = tensors
        return self.allreduce_coalesced([tensor], opts)

    def allreduce_coalesced(self, tensors, opts=None):
        _on_cpu(*tensors)
        op = _op(opts or dist.AllreduceOptions())

        def call():
            for tensor in tensors:
                self._reduce_all(tensor, op)

        return self._begin(call, tensors)

    def reduce(self, tensors, opts):
        (tensor,) = tensors
        _on_cpu(tensor)
        op, root = _op(opts), opts.rootRank
        return self._begin(lambda: self._reduce(tensor, op, root), tensors)

    def allgather(self, outputs, inputs, opts=None):
        return self.allgather_coalesced(list(zip(*outputs)), inputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """``outputs`` has a list for each rank."""
        _on_cpu(*inputs)

        def call():
            for of_all, tensor in zip(zip(*outputs), inputs):
                self._gather_all(of_all, tensor)

        return self._begin(call, outputs)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)

        def call():
            for output, tensor in zip(outputs, inputs):
                self._gather_into(output, tensor)

        return self._begin(call, outputs)

    def gather(self, outputs, inputs, opts):
        (tensor,), of_all = inputs, outputs[0] if outputs else None
        _on_cpu(tensor)
        return self._begin(lambda: self._gather(of_all, tensor, opts.rootRank), outputs)

    def scatter(self, outputs, inputs, opts):
        (output,), tensors = outputs, inputs[0] if inputs else None
        _on_cpu(output)
        return self._begin(lambda: self._scatter(output, tensors, opts.rootRank), outputs)

    def reduce_scatter(self, outputs, inputs, opts=None):
        ((output,), (tensors,)) = outputs, inputs
        _on_cpu(output, *tensors)
        op = _op(opts or dist.ReduceScatterOptions())
        parts = lambda: self._join(tensors)  # noqa: E731
        return self._begin(lambda: self._scatter_reduced(output, parts, op), outputs)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)
        op = _op(opts or dist.ReduceScatterOptions())

        def call():
            for output, tensor in zip(outputs, inputs):
                self._scatter_reduced(output, lambda: _lend(tensor), op)

        return self._begin(call, outputs)

    def alltoall(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)
        return self._begin(lambda: self._exchange(outputs, inputs), outputs)

    def all_to_all_single(self, output, tensor, output_sizes, input_sizes, opts=None):
        def parts(whole, sizes):
            return whole.split(sizes) if sizes else whole.chunk(self._comm.size)

        outputs, inputs = parts(output, output_sizes), parts(tensor, input_sizes)
        return self.alltoall(outputs, inputs, opts)

    def barrier(self, opts=None):
        return self._begin(self._comm.barrier, [])

    # Of messages several may be on their way, and need no turn.

    def send(self, tensors, rank, tag):
        (tensor,) = tensors
        _on_cpu(tensor)
        lent = _lend(tensor)
        return Message(self._comm.isend(lent, rank, tag), tensor, lent)

    def recv(self, tensors, rank, tag):
        (tensor,) = tensors
        _on_cpu(tensor)
        lent = _lend(tensor)
        return Message(self._comm.irecv(lent, rank, tag), tensor, lent)

    def recv_anysource(self, tensors, tag):
        return self.recv(tensors, None, tag)

    # As older versions of torch call them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
