//! The communicator as Python sees it: each call takes the memory of its arguments, leaves the
//! interpreter to other threads, and does what Rust's call of the same name does.

use crate::buffer::{Access, Buffer};
use crate::collective::Asked;
use crate::error::{raise, raise_start};
use crate::interrupt;
use crate::memory::{Argument, Memory};
use crate::received::Received;
use crate::registration::Registration;
use crate::request::Request;
use crate::shared::{self, Begun, Shared};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rlaunch_comm::raw::{self, CollectiveKind, Pending};
use rlaunch_comm::{self as comm, CommError, ElementType, Op};
use std::sync::Arc;

/// The ranks of a job, or some of them.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Communicator {
    shared: Arc<Shared>,
}

/// Becomes one of the ranks; waits until all have called it.
#[pyfunction]
pub(crate) fn start(py: Python<'_>) -> PyResult<Communicator> {
    let inner = py.detach(comm::Communicator::from_env).map_err(|error| raise_start(&error))?;
    inner.set_interrupt_check(interrupt::is_pending);
    Ok(Communicator::new(inner))
}

/// To be called in a process that was just forked.
#[pyfunction]
pub(crate) fn forked() {
    shared::count_fork();
}

/// An operation by its name.
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
        op.ok_or_else(|| PyValueError::new_err(format!("there is no {text}, but {known}")))
    }
}

impl Communicator {
    fn new(inner: comm::Communicator) -> Communicator {
        Communicator { shared: Arc::new(Shared::new(inner)) }
    }

    /// Runs a call without the interpreter.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Arc<comm::Communicator>) -> Result<R, CommError> + Send,
    ) -> PyResult<R> {
        let inner = self.shared.comm()?;
        py.detach(|| call(inner)).map_err(|error| raise(&error))
    }

    fn collective(
        &self,
        py: Python<'_>,
        what: (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<()> {
        let mut asked = Asked::new(self.shared.comm()?, what, x, out)?;
        let (kind, what) = (asked.kind, asked.what);
        let given = asked.given();
        self.run(py, |inner| raw::collective(inner, kind, what, given))
    }

    fn begin_collective(
        &self,
        py: Python<'_>,
        what: (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Request> {
        let mut asked = Asked::new(self.shared.comm()?, what, x, out)?;
        let (kind, what) = (asked.kind, asked.what);
        let given = asked.given();
        #[expect(unsafe_code, reason = "the memory has to stay")]
        // SAFETY: the memory stays beside the request, and is dropped after it.
        let begin = |inner: &Arc<_>| unsafe { raw::icollective(inner, kind, what, given) };
        let pending = self.run(py, begin)?;
        Ok(self.begun(py, pending, asked.memory, false))
    }

    fn begun(&self, py: Python<'_>, pending: Pending, memory: Memory, receives: bool) -> Request {
        self.shared.sweep(py);
        let receives = memory.written().filter(|_| receives);
        Request::new(&self.shared, Begun { pending, memory }, receives)
    }
}

/// Sends and receives bytes at the same time.
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
    /// Tells RDMA devices of x's memory, until what is returned is released: for memory that is
    /// sent from and received into again and again. x may be read-only, and is only sent then.
    fn register(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Registration> {
        let buffer = Buffer::of(x, "register", Access::Read)?;
        let place = buffer.place();
        #[expect(unsafe_code, reason = "the memory has to stay")]
        // SAFETY: the buffer stays beside the registration, and is dropped after it.
        let registration =
            self.run(py, move |inner| unsafe { raw::register(inner, place.raw()) })?;
        Ok(Registration::new(&self.shared, registration, buffer))
    }

    /// This process's number, from 0.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.rank())
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.size())
    }

    /// This process's number among the ranks of its node.
    #[getter]
    fn local_rank(&self) -> PyResult<usize> {
        Ok(self.shared.comm()?.local_rank())
    }

    /// How many ranks its node has.
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

    /// Makes a communicator of those ranks that give the same color, ordered by key and then by
    /// their rank here. Every rank has to call it.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: u32, key: i64) -> PyResult<Communicator> {
        self.run(py, |inner| inner.split(color, key)).map(Communicator::new)
    }

    /// Ends the job: rlaunch says why, and ends all ranks, this one included. The end takes a
    /// moment, so it raises an error.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        self.run(py, |inner| Err(inner.abort(why)))
    }

    /// Sends x to a rank; returns when x may be used again.
    #[pyo3(signature = (x, to, tag=0))]
    fn send(&self, py: Python<'_>, x: &Bound<'_, PyAny>, to: usize, tag: u32) -> PyResult<()> {
        let mut memory = Memory::apart("send", Some(x), None)?;
        let (data, _) = memory.bytes();
        self.run(py, |inner| inner.send(data, to, tag))
    }

    /// Begins to send x to a rank.
    #[pyo3(signature = (x, to, tag=0))]
    fn isend(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<Request> {
        let mut memory = Memory::apart("isend", Some(x), None)?;
        let (data, _) = memory.bytes();
        #[expect(unsafe_code, reason = "the memory has to stay")]
        // SAFETY: the memory stays beside the request, and is dropped after it.
        let begin = |inner: &Arc<_>| unsafe { raw::isend(inner, data, (to, tag)) };
        let pending = self.run(py, begin)?;
        Ok(self.begun(py, pending, memory, false))
    }

    /// Receives a message into x, from whichever rank sends one first where no source is given.
    #[pyo3(signature = (x, source=None, tag=0))]
    fn recv(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Received> {
        let mut memory = Memory::to_write("recv", x)?;
        let (_, into) = memory.bytes();
        let element = ElementType::U8;
        let came = self.run(py, |inner| raw::receive(inner, (into, element), (source, tag)))?;
        memory.received(came)
    }

    /// Begins to receive a message into x.
    #[pyo3(signature = (x, source=None, tag=0))]
    fn irecv(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Request> {
        let mut memory = Memory::to_write("irecv", x)?;
        let (_, into) = memory.bytes();
        let from = (source, tag);
        #[expect(unsafe_code, reason = "the memory has to stay")]
        // SAFETY: the memory stays beside the request, and is dropped after it.
        let begin = |inner: &Arc<_>| unsafe { raw::ireceive(inner, (into, ElementType::U8), from) };
        let pending = self.run(py, begin)?;
        Ok(self.begun(py, pending, memory, true))
    }

    /// Sends x to one rank and receives out from another at the same time.
    #[pyo3(signature = (x, to, out, source=None, tag=0, source_tag=None))]
    #[expect(clippy::too_many_arguments, reason = "as Python calls it")]
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
        let mut memory = Memory::apart("sendrecv", Some(x), Some(out))?;
        let (data, into) = memory.bytes();
        let (sends, receives) = ((data, to, tag), (into, source, source_tag.unwrap_or(tag)));
        let came = self.run(py, |inner| exchange(inner, sends, receives))?;
        memory.received(came)
    }

    /// Returns when every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Barrier, Op::Sum), None, None)
    }

    /// Begins barrier.
    fn ibarrier(&self, py: Python<'_>) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::Barrier, Op::Sum), None, None)
    }

    /// Gives every rank what root has in x.
    #[pyo3(signature = (x, root=0))]
    fn broadcast(&self, py: Python<'_>, x: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        self.collective(py, (CollectiveKind::Broadcast { root }, Op::Sum), Some(x), None)
    }

    /// Begins broadcast.
    #[pyo3(signature = (x, root=0))]
    fn ibroadcast(&self, py: Python<'_>, x: &Bound<'_, PyAny>, root: usize) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::Broadcast { root }, Op::Sum), Some(x), None)
    }

    /// Reduces what all ranks have in x, for all: to out, or in place.
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

    /// Begins all_reduce.
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
        self.begin_collective(py, (CollectiveKind::AllReduce, op.0), Some(x), out)
    }

    /// Reduces what all ranks have in x to out of root, or in place there.
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

    /// Begins reduce.
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
        self.begin_collective(py, (CollectiveKind::Reduce { root }, op.0), Some(x), out)
    }

    /// Puts x of all ranks, by rank, to out of root; without out, x of root is long enough for all
    /// and has its own part in place.
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

    /// Begins gather.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn igather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::Gather { root }, Op::Sum), Some(x), out)
    }

    /// Gives out of each rank its part of x of root; without out, x of the others gets their part,
    /// and root keeps its own where it is. With out, x of the others may be None.
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

    /// Begins scatter.
    #[pyo3(signature = (x, root=0, *, out=None))]
    fn iscatter(
        &self,
        py: Python<'_>,
        x: Option<&Bound<'_, PyAny>>,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::Scatter { root }, Op::Sum), x, out)
    }

    /// Puts x of all ranks, by rank, to everyone's out; without out, x is long enough for all and
    /// has this rank's part in place.
    #[pyo3(signature = (x, *, out=None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::AllGather, Op::Sum), Some(x), out)
    }

    /// Begins all_gather.
    #[pyo3(signature = (x, *, out=None))]
    fn iall_gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::AllGather, Op::Sum), Some(x), out)
    }

    /// Reduces what all ranks have in x, and gives out of each rank its part; without out, the
    /// part is at the front of x afterwards.
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

    /// Begins reduce_scatter.
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
        self.begin_collective(py, (CollectiveKind::ReduceScatter, op.0), Some(x), out)
    }

    /// Sends a part of x to each rank, and puts a part of each to out, or in place.
    #[pyo3(signature = (x, *, out=None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.collective(py, (CollectiveKind::AllToAll, Op::Sum), Some(x), out)
    }

    /// Begins all_to_all.
    #[pyo3(signature = (x, *, out=None))]
    fn iall_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        self.begin_collective(py, (CollectiveKind::AllToAll, Op::Sum), Some(x), out)
    }
}
