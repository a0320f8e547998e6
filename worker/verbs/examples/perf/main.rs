//! Writes to a peer as perftest's `ib_write_bw` and `ib_write_lat` do, to be measured beside them:
//!
//! * `perf write_bw|write_lat [--size BYTES] [--iterations N] [--inline BYTES] [--port TCP]
//!   DEVICE GID_INDEX` serves one peer;
//! * the same with the server's address behind connects to it.
//!
//! Of bandwidth the latter prints `BYTES N MiB/s`, of latency both print `BYTES N MIN MAX MEDIAN
//! MEAN`, halves of round trips in microseconds.

mod meeting;
mod streams;
mod ticks;

use meeting::Meeting;
use rlaunch_verbs::{
    CompletionQueue, Connected, Depth, Device, MemoryRegion, ProtectionDomain, QueuePair,
    RemoteAddr, Resources, Settings,
};
use std::process::ExitCode;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "perf write_bw|write_lat [--size BYTES] [--iterations N] [--inline BYTES] \
                     [--port TCP] DEVICE GID_INDEX [SERVER]";
/// As perftest has it: writes at once.
const WRITES: u32 = 128;
/// As perftest has it, on devices that it knows: how many bytes a request carries itself when
/// latency is measured.
const INLINE: u32 = 220;
/// As perftest has it: an answer within 67 ms, seven tries.
const SETTINGS: (u8, u8) = (14, 7);
/// What is sent and what comes lie on pages of their own.
const PAGE: usize = 4096;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bandwidth,
    Latency,
}

/// What was asked for.
struct Plan {
    kind: Kind,
    /// Of each message, in bytes.
    size: usize,
    iterations: usize,
    /// The most bytes that a request carries itself.
    inline: u32,
    device: String,
    gid_index: u16,
    /// Where to meet.
    port: u16,
    server: Option<String>,
}

/// This end, connected, and where the other takes messages.
struct End {
    plan: Plan,
    pair: QueuePair<Connected>,
    completions: Arc<CompletionQueue>,
    region: MemoryRegion,
    /// What the device has room for of the plan's.
    inline: u32,
    /// Half of the region: what is sent lies before, what comes behind.
    half: usize,
    there: RemoteAddr,
    depth: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Plan::of(&words).and_then(run) {
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
    fn of(words: &[String]) -> Result<Plan, Failure> {
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
            return Err("a byte and two iterations are the least".into());
        }
        let (device, gid_index) = (device.clone(), gid_index.parse()?);
        Ok(Plan { kind, size, iterations, inline, device, gid_index, port, server })
    }
}

/// Connects and measures; gives what is to be printed.
fn run(plan: Plan) -> Result<Option<String>, Failure> {
    let mut meeting = Meeting::at(plan.server.as_deref(), plan.port)?;
    let end = End::connect(plan, &mut meeting)?;
    let line = end.measure()?;
    // Until the peer has got everything, this end's memory stays.
    meeting.wait_for_peer()?;
    Ok(line)
}

impl End {
    fn connect(plan: Plan, meeting: &mut Meeting) -> Result<End, Failure> {
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
        let peer = meeting.exchange(&prepared.endpoint().with_memory(&region))?;
        let (timeout, retries) = SETTINGS;
        let settings = Settings { timeout, retries, ..Settings::default() };
        let pair = prepared.connect(&peer, &settings)?;
        meeting.wait_for_peer()?;
        let (there, depth) = (peer.remote_addr(half as u64), usize::try_from(send)?);
        let inline = pair.inline();
        Ok(End { plan, pair, completions, region, inline, half, there, depth })
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
