//! Two guests that run both ends of a measurement: n1 serves, n2 connects.

use std::time::Duration;

use super::VmLab;
use crate::LabError;

const SERVER: &str = "n1";
const CLIENT: &str = "n2";
/// Where both find the verbs' example `perf`; the second guest has no `/share`.
const PERF: &str = "/run/perf";
/// The first TCP port by which ends meet; each meeting has the next.
const FIRST_PORT: u16 = 18515;
/// An emulated computer writes 200 MiB within.
const LIMIT: Duration = Duration::from_secs(50);
/// So many messages of a stream are one repetition of it.
const STREAM: usize = 8;
/// What measures the communicator between both, as the server's guest sees it.
const RANKS: &str = "/share/rlaunch -H n1,n2 -np 2 --hca rxe0 --transport rdma --mesh off --no-watch \
                     --preload /share/measure measure";

/// What does the measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `ib_write_bw` and its like.
    Perftest,
    /// The verbs' example `perf`.
    Rlaunch,
    /// Two ranks and their communicator.
    Ranks,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Benchmark {
    /// Writes one way, as many at once as fit.
    WriteBandwidth,
    /// Writes in turn.
    WriteLatency,
    /// Messages in turn, which the peer receives.
    SendLatency,
}

/// The two guests.
#[derive(Debug)]
pub struct Pair<'a> {
    lab: &'a VmLab,
    /// Of the server, in the fabric.
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
    /// The command line of a server on the first fabric interface.
    fn line(self, benchmark: Benchmark, size: usize, iterations: usize, port: u16) -> String {
        let benchmark = benchmark.name();
        match self {
            Program::Ranks => String::new(),
            Program::Perftest => {
                format!("ib_{benchmark} -d rxe0 -x 1 -F -s {size} -n {iterations} -p {port}")
            }
            // perftest has requests carry nothing themselves on devices that it does not know, and
            // soft RoCE is none that it knows.
            Program::Rlaunch => format!(
                "{PERF} {benchmark} --size {size} --iterations {iterations} --inline 0 --port {port} \
                 rxe0 1"
            ),
        }
    }
}

/// What two ranks measure: as many messages in turn, each timed by itself, or in a stream.
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
    /// The first two guests of a lab whose share has `perf`.
    pub fn new(lab: &VmLab) -> Result<Pair<'_>, LabError> {
        let server = lab.status().into_iter().find(|guest| guest.name == SERVER);
        let address = server.and_then(|guest| guest.addresses.get(1).cloned());
        let missing = || LabError::Unexpected(format!("{SERVER} has no fabric interface"));
        let pair = Pair { lab, address: address.ok_or_else(missing)?, port: FIRST_PORT };
        pair.shell(SERVER, &format!("cp /share/perf {PERF}"))?;
        pair.copy(PERF)?;
        Ok(pair)
    }

    /// Copies a program from the server's guest to the client's.
    pub fn copy(&self, path: &str) -> Result<(), LabError> {
        let line = format!("ssh {CLIENT} 'cat > {path} && chmod +x {path}' < {path}");
        self.shell(SERVER, &line).map(drop)
    }

    /// Runs both ends of an benchmark, whose environments begin with `environment`; gives what the client
    /// printed.
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
        // Listening, in the kernel's words, on any address of either family.
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

    /// The same of a shell line on one guest.
    pub fn on_server(&self, line: &str) -> Result<String, LabError> {
        self.shell(SERVER, line)
    }

    /// And on the other.
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
