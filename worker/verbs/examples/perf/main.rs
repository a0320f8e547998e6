//! Benchmark of RDMA writes, for comparison with perftest's `ib_write_bw` and `ib_write_lat`, whose
//! method it follows:
//!
//! * `perf write_bw|write_lat [--size BYTES] [--iterations N] [--inline BYTES] [--port TCP] DEVICE
//!   GID_INDEX` is the server of one client.
//! * The same command with the server's address appended is the client.
//!
//! `write_bw` prints `BYTES N MiB/s` at the client. `write_lat` prints `BYTES N MIN MAX MEDIAN
//! MEAN` at both ends; the last four are half of the round-trip time, in microseconds.

mod control;
mod streams;
mod ticks;

use control::Control;
use rlaunch_verbs::{
    CompletionQueue, Connected, Depth, Device, MemoryRegion, ProtectionDomain, QueuePair,
    RemoteAddr, Resources, Settings,
};
use std::process::ExitCode;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "perf write_bw|write_lat [--size BYTES] [--iterations N] [--inline BYTES] \
                     [--port TCP] DEVICE GID_INDEX [SERVER]";
/// Maximum number of outstanding writes of `write_bw`, as in perftest.
const WRITES: u32 = 128;
/// Inline capacity for `write_lat`, in bytes, as perftest chooses for most devices.
const INLINE: u32 = 220;
/// Timeout (exponent 14, which is 67 ms) and retry count of the connection, as in perftest.
const SETTINGS: (u8, u8) = (14, 7);
/// Alignment of the send buffer and of the receive buffer, in bytes.
const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bandwidth,
    Latency,
}

/// Options of the command line.
struct Plan {
    kind: Kind,
    /// Size of a message, in bytes.
    size: usize,
    iterations: usize,
    /// Requested inline capacity, in bytes.
    inline: u32,
    device: String,
    gid_index: u16,
    /// TCP port of the control connection.
    port: u16,
    /// Host of the server; `None` if this process is the server.
    server: Option<String>,
}

/// State of this end of the connection.
struct End {
    plan: Plan,
    pair: QueuePair<Connected>,
    completions: Arc<CompletionQueue>,
    /// Send buffer in the first half, receive buffer in the second.
    region: MemoryRegion,
    /// Inline capacity of the queue pair, in bytes.
    inline: u32,
    /// Offset of the receive buffer in the region, in bytes; the same at both ends.
    half: usize,
    /// Address of the peer's receive buffer.
    remote: RemoteAddr,
    /// Maximum number of outstanding writes of the queue pair.
    depth: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Plan::parse(&words).and_then(run) {
        Ok(line) => {
            line.into_iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    fn parse(words: &[String]) -> Result<Plan, Failure> {
        let (mut size, mut iterations, mut inline, mut port) = (2, 1000, INLINE, 18515);
        let mut plain = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--size" => size = value()?.parse()?,
                "--iterations" => iterations = value()?.parse()?,
                "--inline" => inline = value()?.parse()?,
                "--port" => port = value()?.parse()?,
                _ => plain.push(word.clone()),
            }
        }
        let (kind, device, gid_index, server) = match &plain[..] {
            [kind, device, gid_index] => (kind, device, gid_index, None),
            [kind, device, gid_index, server] => (kind, device, gid_index, Some(server.clone())),
            _ => return Err(USAGE.into()),
        };
        let kind = match kind.as_str() {
            "write_bw" => Kind::Bandwidth,
            "write_lat" => Kind::Latency,
            _ => return Err(USAGE.into()),
        };
        if size == 0 || iterations < 2 {
            return Err("at least 1 byte and 2 iterations are needed".into());
        }
        let (device, gid_index) = (device.clone(), gid_index.parse()?);
        Ok(Plan { kind, size, iterations, inline, device, gid_index, port, server })
    }
}

/// Connects and measures. Returns the line to print; `None` if this end prints nothing.
fn run(plan: Plan) -> Result<Option<String>, Failure> {
    let mut control = Control::connect(plan.server.as_deref(), plan.port)?;
    let end = End::connect(plan, &mut control)?;
    let line = end.measure()?;
    // The memory must stay registered until the peer has finished its writes.
    control.wait_for_peer()?;
    Ok(line)
}

impl End {
    fn connect(plan: Plan, control: &mut Control) -> Result<End, Failure> {
        let context = Device::by_name(&plan.device)?.open()?;
        let domain = ProtectionDomain::allocate(&context)?;
        let half = plan.size.next_multiple_of(PAGE);
        let region = MemoryRegion::register(&domain, 2 * half)?;
        let (send, inline) = match plan.kind {
            Kind::Bandwidth => (WRITES.min(u32::try_from(plan.iterations)?), 0),
            Kind::Latency => (1, plan.inline),
        };
        let completions = CompletionQueue::create(&context, send)?;
        let depth = Depth { send, inline, ..Depth::default() };
        let resources = Resources { depth, ..Resources::new(&domain, &completions) };
        let prepared = QueuePair::prepare(&resources, 1, Some(plan.gid_index))?;
        let peer = control.exchange(&prepared.endpoint().with_memory(&region))?;
        let (timeout, retries) = SETTINGS;
        let settings = Settings { timeout, retries, ..Settings::default() };
        let pair = prepared.connect(&peer, &settings)?;
        control.wait_for_peer()?;
        let (remote, depth) = (peer.remote_addr(half as u64), usize::try_from(send)?);
        let inline = pair.max_inline();
        Ok(End { plan, pair, completions, region, inline, half, remote, depth })
    }

    fn measure(&self) -> Result<Option<String>, Failure> {
        let Plan { size, iterations, .. } = self.plan;
        match (self.plan.kind, &self.plan.server) {
            (Kind::Bandwidth, None) => Ok(None),
            (Kind::Bandwidth, Some(_)) => {
                let seconds = self.stream()?;
                let rate = (size * iterations) as f64 / seconds / f64::from(1 << 20);
                Ok(Some(format!("{size} {iterations} {rate:.2}")))
            }
            (Kind::Latency, _) => {
                let mut halves = self.echo()?;
                halves.sort_by(f64::total_cmp);
                let mean = halves.iter().sum::<f64>() / halves.len() as f64;
                let at = |index: usize| halves.get(index).copied().unwrap_or(f64::NAN);
                let (min, max, median) = (at(0), at(halves.len() - 1), at(halves.len() / 2));
                Ok(Some(format!("{size} {iterations} {min:.2} {max:.2} {median:.2} {mean:.2}")))
            }
        }
    }
}
