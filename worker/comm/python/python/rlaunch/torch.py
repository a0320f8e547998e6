"""Backend ``rlaunch`` of ``torch.distributed``, for tensors on the CPU.

    import torch.distributed as dist

    dist.init_process_group("rlaunch")

In ranks that rlaunch has started, nothing else has to be imported. A group always has all ranks of
the job. The collectives of a group run in a thread of their own, one after the other, while the
program computes; sends and receives start at once. Waits fail after the timeout of
``init_process_group``, unless RLAUNCH_COMM_TIMEOUT is set.
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
# Tag of the messages of all_to_all; torch's own tags are smaller.
_TAG = 0xFFFFFFFF
_FOREVER = timedelta(0)


def create(_store, rank, size, timeout):
    """Creates a process group of all ranks. Torch calls it with these arguments."""
    # Do not spin: other threads compute while one waits here.
    os.environ.setdefault("RLAUNCH_SPIN", "0")
    os.environ.setdefault("RLAUNCH_COMM_TIMEOUT", str(timeout.total_seconds()))
    world = rlaunch.init()
    if size != world.size:
        raise ValueError(
            f"backend rlaunch needs all {world.size} ranks of the job, but this group has {size}; "
            'use new_group(..., backend="gloo") for some of them'
        )
    # A communicator of its own, so that its messages do not match those of the program.
    return ProcessGroup(world.split(color=0, key=rank))


def _contiguous(tensor):
    """Returns the tensor itself if it is contiguous, else a contiguous copy."""
    return tensor.detach().contiguous()


def _copy_back(tensor, buffer):
    """Copies ``buffer``, which ``_contiguous(tensor)`` has returned, to the tensor if it is a copy."""
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer)


def _on_cpu(*tensors):
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"backend rlaunch needs tensors on the CPU, not on {tensor.device}")


def _op(opts):
    op = opts.reduceOp
    op = getattr(op, "op", op)
    if op not in _OPS:
        known = ", ".join(known.name for known in _OPS)
        raise ValueError(f"backend rlaunch does not support {op.name}, only {known}")
    return op


class Work(dist.Work):
    """A collective that is queued, running or complete."""

    def __init__(self, call, tensors):
        super().__init__()
        self._call, self._tensors = call, tensors
        self._failure = None
        self._is_done = threading.Event()
        self._done = torch.futures.Future()

    def run(self):
        """Runs the collective, and stores its error if it fails."""
        try:
            self._call()
        except Exception as failure:
            self._failure = failure
        # Release the input tensors.
        self._call = None
        self._is_done.set()
        self._done.set_result(None)

    def _outcome(self, _done=None):
        if self._failure is not None:
            raise self._failure
        return self._tensors

    def wait(self, timeout=_FOREVER):
        limit = timeout.total_seconds() if timeout > _FOREVER else None
        if not self._is_done.wait(limit):
            raise rlaunch.TimedOut(f"a collective has not completed within {limit} s")
        self._outcome()
        return True

    def result(self):
        self.wait()
        return self._tensors

    def get_future(self):
        # An exception of _outcome becomes the error of the returned future, which torch's C++ code
        # (gradient reduction) checks.
        return self._done.then(self._outcome)

    def is_completed(self):
        return self._is_done.is_set()

    def is_success(self):
        return self._is_done.is_set() and self._failure is None

    def exception(self):
        return self._failure


class Message(dist.Work):
    """A send or a receive in progress."""

    def __init__(self, request, tensor, buffer):
        super().__init__()
        self._request, self._tensor, self._buffer = request, tensor, buffer
        self._source = None

    def wait(self, timeout=_FOREVER):
        received = self._request.wait()
        if received is not None:
            self._source = received.source
            _copy_back(self._tensor, self._buffer)
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
    """A process group of all ranks of the job."""

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
        # Torch asks the returned object whether it can coalesce operations.
        return self

    def shutdown(self):
        """Ends the thread after the queued collectives."""
        self._works.put(None)
        self._thread.join()

    def _enqueue(self, call, tensors):
        work = Work(call, tensors)
        self._works.put(work)
        return work

    # Methods that the thread runs.

    def _reduce_all(self, tensor, op, out=None):
        """Reduces in place, or into ``out``, which must be contiguous."""
        buffer = _contiguous(tensor)
        self._comm.all_reduce(buffer, _OPS[op], out=out)
        self._divide(buffer if out is None else out, op)
        if out is None:
            _copy_back(tensor, buffer)

    def _divide(self, tensor, op):
        if op == dist.ReduceOp.AVG:
            tensor.div_(self._comm.size)

    def _broadcast(self, tensor, root):
        buffer = _contiguous(tensor)
        self._comm.broadcast(buffer, root)
        _copy_back(tensor, buffer)

    def _reduce(self, tensor, op, root):
        buffer = _contiguous(tensor)
        self._comm.reduce(buffer, _OPS[op], root)
        if self._comm.rank == root:
            self._divide(buffer, op)
            _copy_back(tensor, buffer)

    def _gather_all(self, outputs, tensor):
        parts = tensor.new_empty((self._comm.size, tensor.numel()))
        self._comm.all_gather(_contiguous(tensor), out=parts)
        self._deal(outputs, parts)

    def _gather_into(self, output, tensor):
        buffer = _contiguous(output)
        self._comm.all_gather(_contiguous(tensor), out=buffer)
        _copy_back(output, buffer)

    def _gather(self, outputs, tensor, root):
        parts = tensor.new_empty((self._comm.size, tensor.numel())) if outputs else None
        self._comm.gather(_contiguous(tensor), root, out=parts)
        if outputs:
            self._deal(outputs, parts)

    def _scatter(self, output, tensors, root):
        buffer = _contiguous(output)
        self._comm.scatter(self._join(tensors) if tensors else None, root, out=buffer)
        _copy_back(output, buffer)

    def _scatter_reduced(self, output, parts, op):
        buffer = _contiguous(output)
        self._comm.reduce_scatter(parts(), _OPS[op], out=buffer)
        self._divide(buffer, op)
        _copy_back(output, buffer)

    def _exchange(self, outputs, inputs):
        """Sends a tensor to each rank and receives one from each, of any lengths. Uses messages,
        because the collective requires equal lengths, and a rank does not know those of others."""
        buffers = [_contiguous(output) for output in outputs]
        requests = [self._comm.irecv(into, rank, _TAG) for rank, into in enumerate(buffers)]
        for rank, tensor in enumerate(inputs):
            requests.append(self._comm.isend(_contiguous(tensor), rank, _TAG))
        for request in requests:
            request.wait()
        for output, into in zip(outputs, buffers):
            _copy_back(output, into)

    @staticmethod
    def _join(tensors):
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    @staticmethod
    def _deal(outputs, parts):
        for output, part in zip(outputs, parts):
            output.detach().copy_(part.view(output.shape))

    # Methods that torch calls, with torch's names and arguments.

    def broadcast(self, tensors, opts):
        (tensor,) = tensors
        _on_cpu(tensor)
        return self._enqueue(lambda: self._broadcast(tensor, opts.rootRank), tensors)

    def allreduce(self, tensors, opts=None):
        (tensor,) = tensors
        return self.allreduce_coalesced([tensor], opts)

    def allreduce_coalesced(self, tensors, opts=None):
        _on_cpu(*tensors)
        op = _op(opts or dist.AllreduceOptions())

        def call():
            for tensor in tensors:
                self._reduce_all(tensor, op)

        return self._enqueue(call, tensors)

    def reduce(self, tensors, opts):
        (tensor,) = tensors
        _on_cpu(tensor)
        op, root = _op(opts), opts.rootRank
        return self._enqueue(lambda: self._reduce(tensor, op, root), tensors)

    def allgather(self, outputs, inputs, opts=None):
        return self.allgather_coalesced(list(zip(*outputs)), inputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """Gathers several tensors. ``outputs`` has a list of tensors for each rank."""
        _on_cpu(*inputs)

        def call():
            for of_all, tensor in zip(zip(*outputs), inputs):
                self._gather_all(of_all, tensor)

        return self._enqueue(call, outputs)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)

        def call():
            for output, tensor in zip(outputs, inputs):
                self._gather_into(output, tensor)

        return self._enqueue(call, outputs)

    def gather(self, outputs, inputs, opts):
        (tensor,), of_all = inputs, outputs[0] if outputs else None
        _on_cpu(tensor)
        return self._enqueue(lambda: self._gather(of_all, tensor, opts.rootRank), outputs)

    def scatter(self, outputs, inputs, opts):
        (output,), tensors = outputs, inputs[0] if inputs else None
        _on_cpu(output)
        return self._enqueue(lambda: self._scatter(output, tensors, opts.rootRank), outputs)

    def reduce_scatter(self, outputs, inputs, opts=None):
        ((output,), (tensors,)) = outputs, inputs
        _on_cpu(output, *tensors)
        op = _op(opts or dist.ReduceScatterOptions())
        parts = lambda: self._join(tensors)  # noqa: E731
        return self._enqueue(lambda: self._scatter_reduced(output, parts, op), outputs)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)
        op = _op(opts or dist.ReduceScatterOptions())

        def call():
            for output, tensor in zip(outputs, inputs):
                self._scatter_reduced(output, lambda: _contiguous(tensor), op)

        return self._enqueue(call, outputs)

    def alltoall(self, outputs, inputs, opts=None):
        _on_cpu(*outputs, *inputs)
        return self._enqueue(lambda: self._exchange(outputs, inputs), outputs)

    def all_to_all_single(self, output, tensor, output_sizes, input_sizes, opts=None):
        def parts(whole, sizes):
            return whole.split(sizes) if sizes else whole.chunk(self._comm.size)

        outputs, inputs = parts(output, output_sizes), parts(tensor, input_sizes)
        return self.alltoall(outputs, inputs, opts)

    def barrier(self, opts=None):
        return self._enqueue(self._comm.barrier, [])

    # Sends and receives are not queued, because several may be in progress.

    def send(self, tensors, rank, tag):
        (tensor,) = tensors
        _on_cpu(tensor)
        buffer = _contiguous(tensor)
        return Message(self._comm.isend(buffer, rank, tag), tensor, buffer)

    def recv(self, tensors, rank, tag):
        (tensor,) = tensors
        _on_cpu(tensor)
        buffer = _contiguous(tensor)
        return Message(self._comm.irecv(buffer, rank, tag), tensor, buffer)

    def recv_anysource(self, tensors, tag):
        return self.recv(tensors, None, tag)

    # Names in older versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
