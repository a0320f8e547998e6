//! Measurements between two guests: n1 runs the server, n2 the client.

use rlaunch_lab::LabError;
use rlaunch_lab::vm::VmLab;

const SERVER: &str = "n1";
const CLIENT: &str = "n2";
/// First TCP port on which perftest's ends connect; each measurement uses the next one.
const FIRST_PORT: u16 = 18515;
/// Options of a job on two guests, whose processors are slow.
const JOB: &str = "--hca rxe0 --transport rdma --mesh off --node-timeout 20";

/// Program that measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// `ib_write_bw` and its like.
    Perftest,
    /// `rlaunch bench write` and its like.
    Rlaunch,
}

/// Operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RdmaOperation {
    /// RDMA writes.
    Write,
    /// RDMA reads.
    Read,
    /// Messages that the peer receives.
    Send,
}

/// Quantity that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Bandwidth in one direction, with as many messages in flight as the queue holds.
    Bandwidth,
    /// Latency of single messages.
    Latency,
}

/// Measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Benchmark {
    /// Operation that is measured.
    pub(super) operation: RdmaOperation,
    /// Quantity that is measured.
    pub(super) quantity: Quantity,
}

/// The two guests.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    lab: &'a VmLab,
    /// Address of the server in the fabric.
    address: String,
    port: u16,
}

impl RdmaOperation {
    fn name(self) -> &'static str {
        match self {
            RdmaOperation::Write => "write",
            RdmaOperation::Read => "read",
            RdmaOperation::Send => "send",
        }
    }
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Bandwidth => "bw",
            Quantity::Latency => "lat",
        }
    }
}

/// Returns the command line of perftest's server on the first fabric interface.
fn perftest(benchmark: Benchmark, (size, iterations): (usize, usize), port: u16) -> String {
    let (operation, quantity) = (benchmark.operation.name(), benchmark.quantity.name());
    format!("ib_{operation}_{quantity} -d rxe0 -x 1 -F -s {size} -n {iterations} -p {port}")
}

/// Returns the command line of `rlaunch bench`, as n1 sees it, with n2 as the sender. perftest sends
/// no inline data on devices that it does not know, and it does not know soft RoCE.
fn bench(
    benchmark: Benchmark,
    (size, iterations): (usize, usize),
    environment: &[(&str, &str)],
) -> String {
    let (operation, quantity) = (benchmark.operation.name(), benchmark.quantity.name());
    let variables = environment.iter().map(|(name, value)| format!(" -x {name}={value}"));
    let variables: String = variables.collect();
    format!(
        "/share/rlaunch bench {operation} {quantity} -H n2,n1 {JOB}{variables} --sizes {size} \
         --iterations {iterations} --inline 0 --perftest"
    )
}

impl Pair<'_> {
    /// Prepares the first two guests of a lab.
    pub(super) fn new(lab: &VmLab) -> Result<Pair<'_>, LabError> {
        let server = lab.status().into_iter().find(|guest| guest.name == SERVER);
        let address = server.and_then(|guest| guest.addresses.get(1).cloned());
        let missing = || LabError::Unexpected(format!("{SERVER} has no fabric interface"));
        Ok(Pair { lab, address: address.ok_or_else(missing)?, port: FIRST_PORT })
    }

    /// Copies a program from the server to the client.
    pub(super) fn copy(&self, path: &str) -> Result<(), LabError> {
        let line = format!("ssh {CLIENT} 'cat > {path} && chmod +x {path}' < {path}");
        self.shell(SERVER, &line).map(drop)
    }

    /// Runs both ends of a benchmark with messages of this size, so many times, and with these
    /// variables set. Returns what the client printed.
    pub(super) fn run(
        &mut self,
        program: Program,
        benchmark: Benchmark,
        amount: (usize, usize),
        environment: &[(&str, &str)],
    ) -> Result<String, LabError> {
        match program {
            Program::Perftest => self.perftest(benchmark, amount, environment),
            Program::Rlaunch => self.shell(SERVER, &bench(benchmark, amount, environment)),
        }
    }

    fn perftest(
        &mut self,
        benchmark: Benchmark,
        amount: (usize, usize),
        environment: &[(&str, &str)],
    ) -> Result<String, LabError> {
        self.port += 1;
        let variables = environment.iter().map(|(name, value)| format!("{name}={value} "));
        let variables: String = variables.collect();
        let line = variables + &perftest(benchmark, amount, self.port);
        // Matches a listening socket on any address, IPv4 or IPv6, in the kernel's list.
        let port = self.port;
        let listens = format!("grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6");
        self.shell(
            SERVER,
            &format!(
                "{line} > /run/served 2>&1 & echo $! > /run/serving; \
                 timeout 40 sh -c \"until {listens}; do sleep 0.05; done\" || cat /run/served >&2"
            ),
        )?;
        let printed = self.shell(CLIENT, &format!("{line} {}", self.address));
        let over = "while kill -0 $(cat /run/serving) 2> /dev/null; do sleep 0.05; done";
        let ended = self.shell(SERVER, &format!("timeout 40 sh -c '{over}'"));
        let printed = printed?;
        ended.map(|_| printed)
    }

    /// Runs a shell command line on the server and returns its stdout.
    pub(super) fn on_server(&self, line: &str) -> Result<String, LabError> {
        self.shell(SERVER, line)
    }

    /// Runs a shell command line on the client and returns its stdout.
    pub(super) fn on_client(&self, line: &str) -> Result<String, LabError> {
        self.shell(CLIENT, line)
    }

    fn shell(&self, guest: &str, line: &str) -> Result<String, LabError> {
        self.lab.checked(guest, &["sh", "-c", line])
    }
}
