//! RDMA operations between rank 0 and rank 1, measured as perftest's `ib_write_lat`, `ib_write_bw`
//! and their like measure them: the same requests to the device for each message.
//!
//! | file | subject |
//! |---|---|
//! | `ends` | queue pairs and memory of this rank, connected with the peer's |
//! | `echo` | times of single messages |
//! | `stream` | rate of many messages; `turns` counts those of each queue pair |
//! | `pace` | highest rate of any part of a stream |
//! | `times` | quantiles and distribution of times |
//! | `stall` | end of a measurement that makes no progress |

mod echo;
mod ends;
mod pace;
mod stall;
mod stream;
mod times;
mod turns;

use ends::{EndOptions, Ends};
use rlaunch_bootstrap::bench::{
    BenchRecord, StreamRate, VerbsAmount, VerbsHeader, VerbsOperation, VerbsPart, VerbsRequest,
    VerbsRow,
};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_comm::{CommError, Communicator};
use rlaunch_sys::Ticks;
use rlaunch_verbs::{Completion, VerbsError};
use std::io;

/// Tag of messages by which the ranks prepare measurements.
const TAG: u32 = 5;
/// Maximum size of messages that are copied into the request where latency is measured, in bytes,
/// as perftest chooses for most devices.
const INLINE: u32 = 220;

/// Reason why RDMA operations could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerbsBenchError {
    #[error("RDMA operations are measured between 2 ranks, but there are {0}")]
    Ranks(usize),
    #[error("rank 0 and rank 1 are connected by {0}, not by RDMA")]
    NoRdma(&'static str),
    #[error("the rank table names no device for rank {0}")]
    NoDevice(usize),
    #[error("{name} of {bytes} bytes failed: {status}")]
    Failed { name: &'static str, bytes: usize, status: String },
    #[error("no {name} of {bytes} bytes has completed for {seconds} s")]
    Stalled { name: &'static str, bytes: usize, seconds: u64 },
    #[error("cannot write results: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Message size and operation that a measurement is of.
#[derive(Clone, Copy, Debug)]
struct Subject {
    operation: VerbsOperation,
    bytes: usize,
    amount: VerbsAmount,
}

impl Subject {
    /// Returns the name of the operation for messages.
    fn name(self) -> &'static str {
        match self.operation {
            VerbsOperation::Write => "RDMA write",
            VerbsOperation::Read => "RDMA read",
            VerbsOperation::Send => "send",
        }
    }

    /// Fails unless the request that has completed was successful.
    fn checked(self, done: Completion) -> Result<Completion, VerbsBenchError> {
        if done.status.is_success() {
            return Ok(done);
        }
        let (name, bytes, status) = (self.name(), self.bytes, done.status.to_string());
        Err(VerbsBenchError::Failed { name, bytes, status })
    }
}

/// Measures all sizes, and passes the results on rank 0 to `write`.
pub(crate) fn measure(
    comm: &Communicator,
    table: Option<&RankTable>,
    request: &VerbsRequest,
    mut write: impl FnMut(&BenchRecord) -> io::Result<()>,
) -> Result<(), VerbsBenchError> {
    if comm.size() != 2 {
        return Err(VerbsBenchError::Ranks(comm.size()));
    }
    let table = table.ok_or(VerbsBenchError::NoDevice(comm.rank()))?;
    let ticks = Ticks::start();
    let (latency, bandwidth) = end_options(request);
    let connect = |options: Option<EndOptions>| {
        options.map(|options| Ends::connect(comm, table, options)).transpose()
    };
    let (latency, mut bandwidth) = (connect(latency)?, connect(bandwidth)?);
    let is_first = comm.rank() == 0;
    if let Some(ends) = latency.as_ref().or(bandwidth.as_ref()).filter(|_| is_first) {
        let inline = |ends: &Option<Ends>| ends.as_ref().map_or(0, Ends::max_inline);
        let inline = (inline(&latency), inline(&bandwidth));
        write(&BenchRecord::VerbsBegin(header(request, ends, inline)))?;
    }
    for bytes in request.sizes.iter().copied() {
        let subject = Subject { operation: request.operation, bytes, amount: request.amount };
        let times = latency.as_ref().map(|ends| echo::measure(comm, ends, subject, &ticks));
        let times = times.transpose()?.flatten();
        let mut second = |rate: StreamRate| Ok(write(&BenchRecord::VerbsSecond(rate))?);
        let rate = bandwidth.as_mut().map(|ends| {
            stream::measure(comm, ends, subject, request.bidirectional, &ticks, &mut second)
        });
        let rate = rate.transpose()?;
        if is_first {
            write(&BenchRecord::VerbsRow(VerbsRow { bytes, latency: times, bandwidth: rate }))?;
        }
    }
    Ok(())
}

/// Returns what the queue pairs for latency and those for streams need.
fn end_options(request: &VerbsRequest) -> (Option<EndOptions>, Option<EndOptions>) {
    let bytes = request.sizes.iter().copied().max().unwrap_or(1);
    let common = EndOptions {
        bytes,
        mtu: request.mtu,
        receives: request.operation == VerbsOperation::Send,
        reads: request.operation == VerbsOperation::Read,
        ..EndOptions::default()
    };
    let latency = EndOptions { inline: request.inline.unwrap_or(INLINE), ..common };
    let (qps, depth) = (request.qps.max(1) as usize, request.depth.max(1));
    let bandwidth = EndOptions { qps, depth, inline: request.inline.unwrap_or(0), ..common };
    (
        (request.part != VerbsPart::Bandwidth).then_some(latency),
        (request.part != VerbsPart::Latency).then_some(bandwidth),
    )
}

fn header(request: &VerbsRequest, ends: &Ends, inline: (u32, u32)) -> VerbsHeader {
    VerbsHeader {
        request: request.clone(),
        inline,
        mtu: ends.mtu(),
        reads: ends.reads(),
        ports: ends.ports.clone(),
        by_manager: ends.by_manager,
    }
}

/// Returns the name of a transport.
fn transport_name(transport: PairTransport) -> &'static str {
    match transport {
        PairTransport::SharedMemory => "shared memory",
        PairTransport::Tcp => "TCP",
        PairTransport::Rdma | PairTransport::RdmaCm => "RDMA",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: VerbsOperation, part: VerbsPart) -> VerbsRequest {
        VerbsRequest {
            operation,
            part,
            sizes: vec![2, 1 << 20],
            amount: VerbsAmount::Messages(10),
            qps: 3,
            depth: 128,
            inline: None,
            mtu: None,
            bidirectional: false,
        }
    }

    #[test]
    fn latency_takes_one_queue_pair_and_a_stream_as_many_as_asked_for() {
        let (latency, bandwidth) = end_options(&request(VerbsOperation::Write, VerbsPart::Both));
        let (latency, bandwidth) = (latency.unwrap(), bandwidth.unwrap());
        assert_eq!((latency.qps, latency.depth, latency.inline), (1, 1, INLINE));
        assert_eq!((bandwidth.qps, bandwidth.depth, bandwidth.inline), (3, 128, 0));
        assert!(!latency.receives && !latency.reads && latency.bytes == 1 << 20);
        let (latency, bandwidth) = end_options(&request(VerbsOperation::Send, VerbsPart::Latency));
        assert!(latency.unwrap().receives && bandwidth.is_none());
    }

    #[test]
    fn a_rank_alone_measures_nothing() {
        let comm = Communicator::from_env().unwrap();
        let request = request(VerbsOperation::Write, VerbsPart::Both);
        let error = measure(&comm, None, &request, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "RDMA operations are measured between 2 ranks, but there are 1");
    }
}
