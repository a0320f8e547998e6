//! `cargo lab bench comm`: messages and collectives of rlaunch's communicator beside those of MPICH
//! and Open MPI, on the same hosts in the same run, or beside an earlier build.
//!
//! In each round each library is started once and measures every row. The time until ranks can
//! communicate is measured beside `MPI_Init`, with a bar in milliseconds: all ranks begin at the
//! same moment, when all of them run, since the time until then depends on the launcher and is
//! measured by `cargo lab bench launch`.
//!
//! The communicator is linked into the programs of ranks, so each build has its own programs,
//! started by its own launcher.

use std::fmt;
use std::iter::zip;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use super::against::{Against, EarlierBuild, bars};
use super::contender::{Contender, Launcher, ON_HOST, Place, Ran, Scratch, Testbed, compile};
use super::rendezvous::{self, INIT};
use super::table::{Bar, Rounds, Row, Table, Turn};
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

const PEER: (&str, &str) = ("peer.c", include_str!("comm/peer.c"));
/// Minimum duration of a batch of operations in seconds.
const SECONDS: &str = "0.02";
/// Minimum duration of a batch with a given number of operations; so short that only the number
/// counts.
const NO_SECONDS: &str = "0.000001";
/// Number of batches of a row that a program times at each start; it reports their median.
const BATCHES: &str = "3";
/// Command that starts a rank with high priority. The kernel compares sessions first, then
/// processes.
const HIGH_PRIORITY: [&str; 4] =
    ["sh", "-c", r#"echo -20 2>/dev/null >/proc/self/autogroup; exec nice -n -20 "$@""#, "sh"];

/// Programs of ranks.
const MEASURE_PROGRAM: &str = "measure";
const INIT_PROGRAM: &str = "init";
/// Maximum of the median over all rounds of the slowest rank's time, in milliseconds.
const INIT_BAR: Bar = Bar::Median(10.0);
/// Time from the start of a launcher until ranks begin. Every launcher has started all ranks by
/// then.
const LEAD: Duration = Duration::from_secs(3);

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct CommOptions {
    /// Number of timed rounds, after one warm-up round.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Measure only rows whose names contain this: latency/8, bandwidth/1048576, barrier/0,
    /// allreduce/8, allreduce/65536, allreduce/16777216, init.
    #[arg(long)]
    row: Option<String>,
    #[command(flatten)]
    against: Against,
}

impl CommOptions {
    /// Returns whether the time until ranks are ready is measured.
    fn wants_init(&self) -> bool {
        self.row.as_ref().is_none_or(|row| INIT_PROGRAM.contains(row.as_str()))
    }
}

/// Placement of ranks: those of one host talk over its shared memory, those of several over TCP.
#[derive(Debug, Clone, Copy)]
struct Setting {
    hosts: usize,
    per_host: usize,
    /// Whether rows of this setting have a bar. With more ranks than processors they have none,
    /// since the results depend mostly on the kernel's scheduling.
    has_bar: bool,
    peers: [Peer; 2],
}

/// Name, launcher and the options that make it fastest in a setting.
type Peer = (&'static str, Launcher, &'static str);

const fn setting(
    hosts: usize,
    per_host: usize,
    has_bar: bool,
    mpich: &'static str,
    open_mpi: &'static str,
) -> Setting {
    let peers = [("MPICH", Launcher::Hydra, mpich), ("Open MPI", Launcher::OpenMpi, open_mpi)];
    Setting { hosts, per_host, has_bar, peers }
}

const SETTINGS: [Setting; 4] = [
    setting(1, 2, true, "-bind-to core", OB1_SHM),
    setting(2, 1, true, UCX_TCP_HYDRA, OB1_TCP),
    setting(1, 4, false, "", OB1_SHM_CROWDED),
    setting(4, 1, false, UCX_TCP_HYDRA, OB1_TCP_CROWDED),
];
/// Setting in which the time until ranks can communicate is measured.
const INIT_SETTING: Setting = setting(2, 4, false, UCX_TCP_HYDRA, OB1_TCP_CROWDED);

const OB1_SHM: &str = "--mca pml ob1 --mca btl self,vader --bind-to core";
/// Options for more ranks than processors, where waiting ranks have to yield.
const OB1_SHM_CROWDED: &str =
    "--mca pml ob1 --mca btl self,vader --bind-to none --mca mpi_yield_when_idle 1";
/// Options for TCP. Without `--bind-to none` each host would bind its rank to the first core, and
/// that is the same core for all hosts.
const OB1_TCP: &str =
    "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none";
const OB1_TCP_CROWDED: &str = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none --mca \
     mpi_yield_when_idle 1";
const UCX_TCP_HYDRA: &str = "-genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0";

impl Setting {
    fn place<'a>(&self, testbed: &'a Testbed) -> Place<'a> {
        // Without a bar, spinning ranks may keep the processor from the rank that they wait for, and
        // take minutes.
        let limit = if self.has_bar { 120 } else { 30 };
        Place { limit, ..testbed.first(self.hosts, self.per_host) }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.hosts * self.per_host;
        match self.hosts {
            1 => write!(f, "shared memory, {ranks} ranks on one host"),
            hosts => write!(f, "TCP, {ranks} ranks on {hosts} hosts"),
        }
    }
}

/// Operation with its length in bytes, as programs know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Operation {
    kind: &'static str,
    bytes: usize,
}

const OPERATIONS: [Operation; 6] = [
    Operation { kind: "latency", bytes: 8 },
    Operation { kind: BANDWIDTH, bytes: 1 << 20 },
    Operation { kind: "barrier", bytes: 0 },
    Operation { kind: "allreduce", bytes: 8 },
    Operation { kind: "allreduce", bytes: 64 << 10 },
    Operation { kind: "allreduce", bytes: 16 << 20 },
];
const BANDWIDTH: &str = "bandwidth";

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.bytes)
    }
}

impl Operation {
    /// Lists the operations whose names contain `part`.
    fn with_name(part: &str) -> Vec<Operation> {
        OPERATIONS.into_iter().filter(|one| one.to_string().contains(part)).collect()
    }

    fn row(self, bars: &[Bar]) -> Row {
        match self.kind {
            // Exact: no message has 2^53 bytes.
            BANDWIDTH => Row::new(self.to_string(), "GB/s", bars).rate_of(self.bytes as f64 / 1e9),
            _ => Row::new(self.to_string(), "µs", bars),
        }
    }

    /// Converts seconds to what its row is given.
    fn value(self, seconds: f64) -> f64 {
        if self.kind == BANDWIDTH { seconds } else { seconds * 1e6 }
    }

    /// Reads seconds of one operation and number of operations in a batch from the line that begins
    /// with the name.
    fn read(self, printed: &str) -> Result<(f64, u64), LabError> {
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            words.next().filter(|name| *name == self.to_string())?;
            let (seconds, count): (f64, u64) =
                (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            // Anything else would make ratios meaningless.
            (seconds.is_finite() && seconds > 0.0 && count > 0).then_some((seconds, count))
        };
        let missing = || LabError::Unexpected(format!("no result of {self} in:\n{printed}"));
        printed.lines().find_map(parse).ok_or_else(missing)
    }
}

/// Measures and prints; returns whether every row with a bar meets it.
pub(super) fn run(options: &CommOptions) -> Result<bool, LabError> {
    let operations = Operation::with_name(options.row.as_deref().unwrap_or(""));
    let wants_init = options.wants_init();
    if operations.is_empty() && !wants_init {
        let all = OPERATIONS.map(|one| one.to_string()).join(" ");
        return Err(LabError::Usage(format!("no such row; there are {all} {INIT_PROGRAM}")));
    }
    let earlier = options.against.find()?;
    // With more ranks than processors the kernel's scheduling varies more from run to run than
    // builds differ.
    let is_wanted =
        |setting: &Setting| !operations.is_empty() && (earlier.is_none() || setting.has_bar);
    let settings: Vec<Setting> = SETTINGS.into_iter().filter(is_wanted).collect();
    let scratch = Scratch::make(std::env::temp_dir())?;
    let programs =
        [(!settings.is_empty(), MEASURE_PROGRAM, PEER), (wants_init, INIT_PROGRAM, INIT)];
    let builds = prepare(&scratch, earlier.as_ref(), options.rounds, &programs)?;
    let hosts = settings.iter().chain(wants_init.then_some(&INIT_SETTING));
    let hosts = hosts.map(|setting| setting.hosts).max().unwrap_or(1);
    Testbed::with_fresh(hosts, |testbed| {
        earlier.as_ref().map_or(Ok(()), |earlier| earlier.needs_cpu(testbed))?;
        let bench = Bench { testbed, scratch: &scratch, earlier: earlier.as_ref(), builds };
        let mut met = true;
        for setting in &settings {
            println!("\n{setting}");
            met &= bench.measure(setting, &operations, options.rounds)?;
        }
        if wants_init {
            met &= bench.measure_init(options.rounds)?;
        }
        Ok(met)
    })
}

/// Builds rlaunch and the programs of ranks that are wanted; returns the builds of rlaunch.
fn prepare(
    scratch: &Scratch,
    earlier: Option<&EarlierBuild>,
    rounds: usize,
    programs: &[(bool, &str, (&str, &str))],
) -> Result<Vec<Contender>, LabError> {
    let mut programs = programs.iter().filter(|(is_wanted, ..)| *is_wanted);
    let builds = if let Some(earlier) = earlier {
        programs.try_for_each(|(_, name, _)| earlier.has_program(name))?;
        earlier.contenders(rounds)?
    } else {
        setup::install(PackageSet::Headers)?;
        for (_, name, source) in programs {
            for (launcher, compiler) in
                [(Launcher::Hydra, "mpicc.mpich"), (Launcher::OpenMpi, "mpicc.openmpi")]
            {
                compile(compiler, scratch, *source, &format!("{name}-{}", launcher.name()), &[])?;
            }
        }
        vec![Contender::new(Launcher::Rlaunch, &dist::build(Profile::Release)?)]
    };
    dist::build_measure()?;
    Ok(builds)
}

/// What is the same in all settings.
struct Bench<'a> {
    testbed: &'a Testbed,
    /// Directory with the peers' programs.
    scratch: &'a Scratch,
    earlier: Option<&'a EarlierBuild>,
    /// This build of rlaunch, and the earlier one.
    builds: Vec<Contender>,
}

impl Bench<'_> {
    /// Lists the builds of rlaunch and, unless there is an earlier one, the peers of a setting.
    fn contenders(&self, setting: &Setting) -> Vec<Contender> {
        let peers = setting.peers.iter().filter(|_| self.earlier.is_none());
        let peers = peers.map(|&(name, launcher, options)| {
            let rlaunch = PathBuf::new();
            Contender { name, launcher, rlaunch, options }
        });
        self.builds.iter().cloned().chain(peers).collect()
    }

    /// Copies a program of the contender to the hosts and returns its path there. The path is the
    /// same for all, and the file is written again each time: the place of its pages in memory
    /// changes the speed by some percent, and must not favour one contender in all rounds.
    fn place(
        &self,
        contender: &Contender,
        name: &str,
        place: Place<'_>,
    ) -> Result<String, LabError> {
        let program = match contender.launcher {
            Launcher::Rlaunch => contender.rlaunch.with_file_name(name),
            launcher => self.scratch.0.join(format!("{name}-{}", launcher.name())),
        };
        let path = format!("{ON_HOST}/{name}");
        self.testbed.copy(&program, &path, place.hosts)?;
        Ok(path)
    }

    /// Measures operations in a setting. In the warm-up round programs find how many operations a
    /// batch of their own needs. Two builds use the larger number from then on, so that their runs
    /// do the same work and their CPU times can be compared.
    fn measure(
        &self,
        setting: &Setting,
        operations: &[Operation],
        rounds: usize,
    ) -> Result<bool, LabError> {
        let contenders = self.contenders(setting);
        let usual: &[Bar] = if setting.has_bar { &[Bar::AsFast] } else { &[] };
        let rows = operations.iter().map(|operation| operation.row(bars(self.earlier, usual)));
        let cpu = Row::new("CPU of a run", "s", bars(self.earlier, &[]));
        let names = contenders.iter().map(|contender| contender.name);
        let mut table = Table::new(names, rows.chain([cpu]));
        // Few rounds are enough for rows that have no bar.
        let rounds = if setting.has_bar { rounds } else { rounds.min(5) };
        let mut counts = vec![vec![0; operations.len()]; contenders.len()];
        table.measure(Rounds::new(rounds), |turn| {
            let is_given = self.earlier.is_some() && !turn.is_warm_up();
            let seconds = if is_given { NO_SECONDS } else { SECONDS };
            let asked = zip(operations, &counts[turn.contender]);
            let asked: Vec<String> = asked.map(|(one, count)| format!("{one}/{count}")).collect();
            let ran = self.measure_once(setting, &contenders[turn.contender], seconds, &asked);
            let read = |ran: Ran| {
                let all = operations.iter().map(|operation| operation.read(&ran.stdout));
                Ok((all.collect::<Result<Vec<_>, LabError>>()?, ran.cpu))
            };
            let (measured, cpu) = match ran.and_then(read) {
                Ok(measured) => measured,
                Err(error) if setting.has_bar => return Err(error),
                Err(error) => {
                    println!("round {}: {}: {error}", turn.round, contenders[turn.contender].name);
                    self.testbed.lab.clear()?;
                    return Ok(vec![None; operations.len()]);
                }
            };
            self.count(turn, setting, &measured, &mut counts);
            let values = zip(operations, &measured).map(|(one, (seconds, _))| one.value(*seconds));
            Ok(values.chain(cpu).map(Some).collect())
        })?;
        Ok(table.print(&format!("{setting}, {rounds} rounds")))
    }

    /// Notes how many operations batches need.
    fn count(
        &self,
        turn: Turn,
        setting: &Setting,
        measured: &[(f64, u64)],
        counts: &mut [Vec<u64>],
    ) {
        if self.earlier.is_some() && turn.is_warm_up() {
            for of_build in counts {
                zip(of_build, measured).for_each(|(most, (_, count))| *most = *count.max(most));
            }
        } else if self.earlier.is_none() && setting.has_bar {
            counts[turn.contender] = measured.iter().map(|(_, count)| *count).collect();
        }
    }

    /// Starts the program that measures once.
    fn measure_once(
        &self,
        setting: &Setting,
        contender: &Contender,
        seconds: &str,
        asked: &[String],
    ) -> Result<Ran, LabError> {
        let place = setting.place(self.testbed);
        let program = self.place(contender, MEASURE_PROGRAM, place)?;
        let mut words = [&HIGH_PRIORITY[..], &[&program, seconds, BATCHES]].concat();
        words.extend(asked.iter().map(String::as_str));
        let operation = format!("measure the communicator of {}", contender.name);
        self.testbed.run(&operation, contender.command(place, &[], &words))
    }

    /// Measures the time until ranks can communicate.
    fn measure_init(&self, rounds: usize) -> Result<bool, LabError> {
        let contenders = self.contenders(&INIT_SETTING);
        let (wall, cpu) = (bars(self.earlier, &[INIT_BAR]), bars(self.earlier, &[]));
        let rows = [Row::new(INIT_PROGRAM, "ms", wall), Row::new("CPU of a run", "s", cpu)];
        let mut table = Table::new(contenders.iter().map(|contender| contender.name), rows);
        let place = INIT_SETTING.place(self.testbed);
        // Hosts receive the agents now, or ranks would start too late in the warm-up round.
        for build in &self.builds {
            self.testbed.run("run true", build.command(place, &[], &["true"]))?;
        }
        table.measure(Rounds::new(rounds), |turn| {
            let contender = &contenders[turn.contender];
            let program = self.place(contender, INIT_PROGRAM, place)?;
            let moment = (SystemTime::now() + LEAD).duration_since(UNIX_EPOCH).unwrap_or_default();
            let words = [program, moment.as_secs_f64().to_string()];
            let command = contender.command(place, &[], &words);
            let ran =
                self.testbed.run(&format!("start ranks under {}", contender.name), command)?;
            let found = ran.stdout.lines().filter(|line| line.starts_with("ready ")).count();
            if found != place.ranks() {
                let text = ran.stdout;
                return Err(LabError::Unexpected(format!("{found} ranks are ready:\n{text}")));
            }
            let slowest = rendezvous::times(&ran.stdout, &["ready"])?[0] * 1e3;
            Ok([slowest].into_iter().chain(ran.cpu).map(Some).collect())
        })?;
        let what = "from one moment until the slowest is ready";
        Ok(table.print(&format!("{} ranks on 2 hosts, {what}, {rounds} rounds", place.ranks())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_measurement_is_an_error() {
        for end in ["", " fast 3", " 0 3", " nan 3", " -1 3", " inf 3", " 1e-6", " 1e-6 0"] {
            assert!(OPERATIONS[2].read(&format!("barrier/0{end}")).is_err(), "{end}");
        }
        assert!(OPERATIONS[2].read("").is_err());
    }
}
