//! Measurements between two guests: n1 runs the server, n2 the client.

use std::time::Duration;

use super::VmLab;
use crate::LabError;

const SERVER: &str = "n1";
const CLIENT: &str = "n2";
/// Path of the example `perf` of rlaunch-verbs on both guests; the second one has no `/share`.
const PERF: &str = "/run/perf";
/// First TCP port on which the ends connect; each measurement uses the next one.
const FIRST_PORT: u16 = 18515;
/// Time limit of a measurement, in which an emulated computer can write 200 MiB.
const LIMIT: Duration = Duration::from_secs(50);
/// Number of messages of a stream that count as one repetition.
const STREAM: usize = 8;
/// Command line that measures the communicator between both guests, as n1 sees it.
const RANKS: &str = "/share/rlaunch -H n1,n2 -np 2 --hca rxe0 --transport rdma --mesh off --no-watch \
                     --preload /share/measure measure";

/// Program that measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `ib_write_bw` and its like.
    Perftest,
    /// The verbs' example `perf`.
    Rlaunch,
    /// Two ranks with a communicator.
    Ranks,
}

/// Quantity that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Benchmark {
    /// Bandwidth of RDMA writes in one direction, with as many in flight as the queue holds.
    WriteBandwidth,
    /// Latency of RDMA writes, each end in turn.
    WriteLatency,
    /// Latency of messages that the peer receives, each end in turn.
    SendLatency,
}

/// The two guests.
#[derive(Debug)]
pub struct Pair<'a> {
    lab: &'a VmLab,
    /// Address of the server in the fabric.
    address: String,
    port: u16,
}

impl Benchmark {
    fn name(self) -> &'static str {
        match self {
            Benchmark::WriteBandwidth => "write_bw",
            Benchmark::WriteLatency => "write_lat",
            Benchmark::SendLatency => "send_lat",
        }
    }
}

impl Program {
    /// Returns the command line of a server on the first fabric interface.
    fn line(self, benchmark: Benchmark, size: usize, iterations: usize, port: u16) -> String {
        let benchmark = benchmark.name();
        match self {
            Program::Ranks => String::new(),
            Program::Perftest => {
                format!("ib_{benchmark} -d rxe0 -x 1 -F -s {size} -n {iterations} -p {port}")
            }
            // `--inline 0`, since perftest sends no inline data on devices it does not know, and it
            // does not know soft RoCE.
            Program::Rlaunch => format!(
                "{PERF} {benchmark} --size {size} --iterations {iterations} --inline 0 --port {port} \
                 rxe0 1"
            ),
        }
    }
}

/// Returns the command line of two ranks. For latencies each of `iterations` messages is timed by
/// itself, for bandwidths they are sent in a stream.
fn ranks(benchmark: Benchmark, size: usize, iterations: usize) -> String {
    match benchmark {
        Benchmark::WriteBandwidth => {
            format!("{RANKS} 0 1 bandwidth/{size}/{}", iterations.div_ceil(STREAM))
        }
        Benchmark::WriteLatency | Benchmark::SendLatency => {
            format!("{RANKS} 0 {iterations} latency/{size}/1")
        }
    }
}

impl Pair<'_> {
    /// Prepares the first two guests of a lab whose share has `perf`.
    pub fn new(lab: &VmLab) -> Result<Pair<'_>, LabError> {
        let server = lab.status().into_iter().find(|guest| guest.name == SERVER);
        let address = server.and_then(|guest| guest.addresses.get(1).cloned());
        let missing = || LabError::Unexpected(format!("{SERVER} has no fabric interface"));
        let pair = Pair { lab, address: address.ok_or_else(missing)?, port: FIRST_PORT };
        pair.shell(SERVER, &format!("cp /share/perf {PERF}"))?;
        pair.copy(PERF)?;
        Ok(pair)
    }

    /// Copies a program from the server to the client.
    pub fn copy(&self, path: &str) -> Result<(), LabError> {
        let line = format!("ssh {CLIENT} 'cat > {path} && chmod +x {path}' < {path}");
        self.shell(SERVER, &line).map(drop)
    }

    /// Runs both ends of a benchmark with `environment`, as assignments of a shell, before their
    /// command lines. Returns what the client printed.
    pub fn run(
        &mut self,
        program: Program,
        benchmark: Benchmark,
        (size, iterations): (usize, usize),
        environment: &str,
    ) -> Result<String, LabError> {
        if program == Program::Ranks {
            return self.shell(SERVER, &ranks(benchmark, size, iterations));
        }
        self.port += 1;
        let line = program.line(benchmark, size, iterations, self.port);
        // Matches a listening socket on any address, IPv4 or IPv6, in the kernel's list.
        let port = self.port;
        let listens = format!("grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6");
        self.shell(
            SERVER,
            &format!(
                "{environment} {line} > /run/served 2>&1 & echo $! > /run/serving; \
                 timeout 40 sh -c \"until {listens}; do sleep 0.05; done\" || cat /run/served >&2"
            ),
        )?;
        let printed = self.shell(CLIENT, &format!("{environment} {line} {}", self.address));
        let over = "while kill -0 $(cat /run/serving) 2> /dev/null; do sleep 0.05; done";
        let ended = self.shell(SERVER, &format!("timeout 40 sh -c '{over}'"));
        let printed = printed?;
        ended.map(|_| printed)
    }

    /// Runs a shell command line on the server and returns its stdout.
    pub fn on_server(&self, line: &str) -> Result<String, LabError> {
        self.shell(SERVER, line)
    }

    /// Runs a shell command line on the client and returns its stdout.
    pub fn on_client(&self, line: &str) -> Result<String, LabError> {
        self.shell(CLIENT, line)
    }

    fn shell(&self, guest: &str, line: &str) -> Result<String, LabError> {
        let output = self.lab.run_within(guest, &["sh", "-c", line], LIMIT)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(LabError::Tool {
            operation: format!("run `{line}` on {guest}"),
            program: "sh".into(),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        })
    }
}
