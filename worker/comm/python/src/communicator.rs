//! The class `Communicator`. Each method gets access to the memory of its arguments, detaches from
//! the interpreter, and calls the function of the same name in `rlaunch-comm`.

use crate::buffer::{Access, Buffer};
use crate::collective::{Argument, CollectiveCall, Memory, Received};
use crate::error::{self, start_exception, to_exception};
use crate::request::{self, InFlight, Registration, Request, SharedComm};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rlaunch_comm as comm;
use rlaunch_comm::raw::{self, CollectiveKind, Pending};
use rlaunch_comm::{CommError, ElementType, Op};
use std::sync::Arc;

/// A group of ranks that exchange messages. Messages of different communicators never match.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Communicator {
    shared: Arc<SharedComm>,
}

/// Joins the job; waits until all ranks have called it.
#[pyfunction]
pub(crate) fn start(py: Python<'_>) -> PyResult<Communicator> {
    let inner = py.detach(comm::Communicator::from_env).map_err(|error| start_exception(&error))?;
    inner.set_interrupt_check(error::is_pending);
    Ok(Communicator::new(inner))
}

/// Marks all communicators as the parent's. Must be called in each forked child.
#[pyfunction]
pub(crate) fn forked() {
    request::count_fork();
}

/// Reduction operation that Python passes by its name.
#[derive(Clone, Copy)]
struct OpName(Op);

const SUM: OpName = OpName(Op::Sum);

impl<'py> FromPyObject<'_, 'py> for OpName {
    type Error = PyErr;

    fn extract(name: Borrowed<'_, 'py, PyAny>) -> PyResult<OpName> {
        let text = name.cast::<PyString>().map_err(PyErr::from)?;
        let text = text.to_cow()?;
        let op = Op::ALL.into_iter().find(|op| op.name() == text).map(OpName);
        let known = Op::ALL.map(Op::name).join(", ");
        op.ok_or_else(|| {
            PyValueError::new_err(format!("unknown operation {text}, expected one of {known}"))
        })
    }
}

impl Communicator {
    fn new(inner: comm::Communicator) -> Communicator {
        Communicator { shared: Arc::new(SharedComm::new(inner)) }
    }

    /// Runs `call` while detached from the interpreter, and converts its error to an exception.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Arc<comm::Communicator>) -> Result<R, CommError> + Send,
    ) -> PyResult<R> {
        let inner = self.shared.comm()?;
        py.detach(|| call(inner)).map_err(|error| to_exception(&error))
    }

    fn collective(
        &self,
        py: Python<'_>,
        what: (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<()> {
        let mut call = CollectiveCall::new(self.shared.comm()?, what, x, out)?;
        let (kind, element_and_op) = (call.kind, call.element_and_op);
        let buffers = call.buffers();
        self.run(py, |inner| raw::collective(inner, kind, element_and_op, buffers))
    }

    fn start_collective(
        &self,
        py: Python<'_>,
        what: (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Request> {
        let mut call = CollectiveCall::new(self.shared.comm()?, what, x, out)?;
        let (kind, element_and_op) = (call.kind, call.element_and_op);
        let buffers = call.buffers();
        #[expect(unsafe_code, reason = "the memory must outlive the operation")]
        // SAFETY: the request keeps the memory, and drops it after the operation.
        let begin =
            |inner: &Arc<_>| unsafe { raw::icollective(inner, kind, element_and_op, buffers) };
        let pending = self.run(py, begin)?;
        Ok(self.new_request(py, pending, call.memory, false))
    }

    fn new_request(
        &self,
        py: Python<'_>,
        pending: Pending,
        memory: Memory,
        receives: bool,
    ) -> Request {
        self.shared.sweep(py);
        let receives = memory.output_dtype().filter(|_| receives);
        Request::new(&self.shared, InFlight { pending, memory }, receives)
    }
}

/// Sends and receives bytes at the same time. If `source` is `None`, receives from any rank.
fn exchange(
    inner: &comm::Communicator,
    (data, to, tag): (&[u8], usize, u32),
    (into, source, source_tag): (&mut [u8], Option<usize>, u32),
) -> Result<comm::Received, CommError> {
    inner.scope(|scope| {
        let receives = match source {
            Some(source) => scope.irecv(into, source, source_tag)?,
            None => scope.irecv_any(into, source_tag)?,
        };
        let sends = scope.isend(data, to, tag)?;
        let received = scope.wait(receives)?;
        scope.wait(sends)?;
        Ok(received)
    })
}

#[pymethods]
impl Communicator {
    /// Registers the memory of x with the RDMA devices, until the returned Registration is
    /// released. This speeds up long messages, which otherwise register their memory each time. x
    /// may be read-only; it can only be sent then.
    fn register(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Registration> {
        let buffer = Buffer::from_object(x, "register", Access::Read)?;
        let range = buffer.raw_range();
        #[expect(unsafe_code, reason = "the memory must outlive the registration")]
        // SAFETY: `Registration` keeps the buffer, and drops it after the registration.
        let registration =
            self.run(py, move |inner| unsafe { raw::register(inner, range.raw()) })?;
        Ok(Registration::new(&self.shared, registration, buffer))
    }

    /// Rank of this process, from 0 to size - 1.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.rank())
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.size())
    }

    /// Rank of this process among the communicator's ranks on its node, from 0.
    #[getter]
    fn local_rank(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.local_rank())
    }

    /// Number of the communicator's ranks on the node of this process.
    #[getter]
    fn local_size(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.local_size())
    }

    fn __repr__(&self) -> String {
        match self.shared.comm() {
            Ok(inner) => {
                format!("<rlaunch.Communicator: rank {} of {}>", inner.rank(), inner.size())
            }
            Err(_) => "<rlaunch.Communicator of another process>".to_owned(),
        }
    }

    /// Creates a communicator of the ranks that pass the same color, ordered by key, and among
    /// equal keys by their rank here. A collective: all ranks have to call it.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: u32, key: i64) -> PyResult<Communicator> {
        self.run(py, |inner| inner.split(color, key)).map(Communicator::new)
    }

    /// Ends the job: rlaunch prints why, and terminates all ranks, this one included. Always raises
    /// Error, because the termination takes a moment.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        self.run(py, |inner| Err(inner.abort(why)))
    }

    /// Sends x to a rank; returns when x may be modified again. A long message blocks until the
    /// receiver has posted a matching receive.
    #[pyo3(signature = (x, to, tag=0))]
    fn send(&self, py: Python<'_>, x: &Bound<'_, PyAny>, to: usize, tag: u32) -> PyResult<()> {
        let mut memory = Memory::separate("send", Some(x), None)?;
        let (data, _) = memory.bytes();
        self.run(py, |inner| inner.send(data, to, tag))
    }

    /// Starts send. x must not be modified before the request completes.
    #[pyo3(signature = (x, to, tag=0))]
    fn isend(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<Request> {
        let mut memory = Memory::separate("isend", Some(x), None)?;
        let (data, _) = memory.bytes();
        #[expect(unsafe_code, reason = "the memory must outlive the operation")]
        // SAFETY: the request keeps the memory, and drops it after the operation.
        let begin = |inner: &Arc<_>| unsafe { raw::isend(inner, data, (to, tag)) };
        let pending = self.run(py, begin)?;
        Ok(self.new_request(py, pending, memory, false))
    }

    /// Receives a message with this tag into x, from the rank source, or from any rank if source is
    /// None. The message may be shorter than x; Error if it is longer.
    #[pyo3(signature = (x, source=None, tag=0))]
    fn recv(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Received> {
        let mut memory = Memory::for_receive("recv", x)?;
        let (_, into) = memory.bytes();
        let element = ElementType::U8;
        let received = self.run(py, |inner| raw::receive(inner, (into, element), (source, tag)))?;
        memory.received(received)
    }

    /// Starts recv. x must not be accessed before the request completes; its wait() returns a
    /// Received.
    #[pyo3(signature = (x, source=None, tag=0))]
    fn irecv(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Request> {
        let mut memory = Memory::for_receive("irecv", x)?;
        let (_, into) = memory.bytes();
        let from = (source, tag);
        #[expect(unsafe_code, reason = "the memory must outlive the operation")]
        // SAFETY: the request keeps the memory, and drops it after the operation.
        let begin = |inner: &Arc<_>| unsafe { raw::ireceive(inner, (into, ElementType::U8), from) };
        let pending = self.run(py, begin)?;
        Ok(self.new_request(py, pending, memory, true))
    }

    /// Sends x to the rank to with tag, and at the same time receives a message into out from the
    /// rank source (any rank if None) with source_tag (tag if None).
    #[pyo3(signature = (x, to, out, source=None, tag=0, source_tag=None))]
    #[expect(clippy::too_many_arguments, reason = "the signature is that of the Python method")]
    fn sendrecv(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        to: usize,
        out: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
        source_tag: Option<u32>,
    ) -> PyResult<Received> {
        let mut memory = Memory::separate("sendrecv", Some(x), Some(out))?;
        let (data, into) = memory.bytes();
        let (sends, receives) = ((data, to, tag), (into, source, source_tag.unwrap_or(tag)));
        let received = self.run(py, |inner| exchange(inner, sends, receives))?;
        memory.received(received)
    }

    /// Returns once every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Barrier, Op::Sum), None, None)
    }

    /// Starts barrier.
    fn ibarrier(&self, py: Python<'_>) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::Barrier, Op::Sum), None, None)
    }

    /// Copies x of rank root to x of all ranks.
    #[pyo3(signature = (x, root=0))]
    fn broadcast(&self, py: Python<'_>, x: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Broadcast { root }, Op::Sum), Some(x), None)
    }

    /// Starts broadcast.
    #[pyo3(signature = (x, root=0))]
    fn ibroadcast(&self, py: Python<'_>, x: &Bound<'_, PyAny>, root: usize) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::Broadcast { root }, Op::Sum), Some(x), None)
    }

    /// Reduces x of all ranks, element by element, into out of every rank; without out, in place.
    /// All ranks get bitwise equal results.
    #[pyo3(
        signature = (x, op=SUM, *, out=None),
        text_signature = "($self, x, op='sum', *, out=None)"
    )]
    fn all_reduce(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::AllReduce, op.0), Some(x), out)
    }

    /// Starts all_reduce.
    #[pyo3(
        signature = (x, op=SUM, *, out=None),
        text_signature = "($self, x, op='sum', *, out=None)"
    )]
    fn iall_reduce(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::AllReduce, op.0), Some(x), out)
    }

    /// Reduces x of all ranks, element by element, into out of rank root; without out, into x
    /// there.
    #[pyo3(
        signature = (x, op=SUM, root=0, *, out=None),
        text_signature = "($self, x, op='sum', root=0, *, out=None)"
    )]
    fn reduce(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Reduce { root }, op.0), Some(x), out)
    }

    /// Starts reduce.
    #[pyo3(
        signature = (x, op=SUM, root=0, *, out=None),
        text_signature = "($self, x, op='sum', root=0, *, out=None)"
    )]
    fn ireduce(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::Reduce { root }, op.0), Some(x), out)
    }

    /// Concatenates x of all ranks, in rank order, into out of rank root, which has size times as
    /// many elements. Without out, x of root is as long as that, and has root's own part in its
    /// place.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Gather { root }, Op::Sum), Some(x), out)
    }

    /// Starts gather.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn igather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::Gather { root }, Op::Sum), Some(x), out)
    }

    /// Splits x of rank root into size equal parts, in rank order, and copies each rank's part to
    /// its out; x of other ranks may be None. Without out, the other ranks receive their part in x,
    /// and root's part stays in its place.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn scatter(
        &self,
        py: Python<'_>,
        x: Option<&Bound<'_, PyAny>>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Scatter { root }, Op::Sum), x, out)
    }

    /// Starts scatter.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn iscatter(
        &self,
        py: Python<'_>,
        x: Option<&Bound<'_, PyAny>>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::Scatter { root }, Op::Sum), x, out)
    }

    /// Concatenates x of all ranks, in rank order, into out of every rank, which has size times as
    /// many elements. Without out, x is as long as that, and has the rank's own part in its place.
    #[pyo3(signature = (x, *, out=None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::AllGather, Op::Sum), Some(x), out)
    }

    /// Starts all_gather.
    #[pyo3(signature = (x, *, out=None))]
    fn iall_gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::AllGather, Op::Sum), Some(x), out)
    }

    /// Reduces x of all ranks, element by element, splits the result into size equal parts, and
    /// copies each rank's part to its out. Without out, the part is at the front of x, and the rest
    /// of x is undefined.
    #[pyo3(
        signature = (x, op=SUM, *, out=None),
        text_signature = "($self, x, op='sum', *, out=None)"
    )]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::ReduceScatter, op.0), Some(x), out)
    }

    /// Starts reduce_scatter.
    #[pyo3(
        signature = (x, op=SUM, *, out=None),
        text_signature = "($self, x, op='sum', *, out=None)"
    )]
    fn ireduce_scatter(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        op: OpName,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::ReduceScatter, op.0), Some(x), out)
    }

    /// Sends part j of x to rank j, and stores the part received from rank i as part i of out,
    /// where x and out consist of size equal parts. Without out, in place.
    #[pyo3(signature = (x, *, out=None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::AllToAll, Op::Sum), Some(x), out)
    }

    /// Starts all_to_all.
    #[pyo3(signature = (x, *, out=None))]
    fn iall_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.start_collective(py, (CollectiveKind::AllToAll, Op::Sum), Some(x), out)
    }
}
