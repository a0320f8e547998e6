//! What takes turns, a launcher or a build of rlaunch, and the hosts on which it does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::run;
use crate::setup::mpi::{DEBIAN, MpiLibrary};
use crate::{Account, Lab, LabError, Options};

/// Script that starts a program by plain ssh, with its fastest key exchange: newer defaults take
/// three times as long. Arguments: program, hosts.
const PLAIN_SSH: &str = r#"program=$1; shift
    for host; do ssh -o KexAlgorithms=curve25519-sha256 $host "$program" & done; wait"#;
/// Time limit for hosts to become idle after a launcher has returned.
const IDLE: Duration = Duration::from_secs(30);
/// Directory of programs on hosts.
pub(super) const ON_HOST: &str = "/tmp/bench";

/// Program that starts another one on many hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    Rlaunch,
    Hydra,
    OpenMpi,
    PlainSsh,
}

impl Launcher {
    pub(super) const ALL: [Launcher; 4] =
        [Launcher::Rlaunch, Launcher::Hydra, Launcher::OpenMpi, Launcher::PlainSsh];

    pub(super) fn name(self) -> &'static str {
        match self {
            Launcher::Rlaunch => "rlaunch",
            Launcher::Hydra => "hydra",
            Launcher::OpenMpi => "mpirun",
            Launcher::PlainSsh => "ssh",
        }
    }
}

/// Launcher of one build, with the options that it always has.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) launcher: Launcher,
    /// Path of `rlaunch`, if that is the launcher.
    pub(super) rlaunch: PathBuf,
    /// Options as on a command line, without quotes.
    pub(super) options: &'static str,
}

/// Where a job runs, and for how long at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) lab: &'a Lab,
    pub(super) hosts: &'a [String],
    pub(super) per_host: usize,
    /// Time limit in seconds.
    pub(super) limit: u32,
}

impl Place<'_> {
    pub(super) fn ranks(&self) -> usize {
        self.hosts.len() * self.per_host
    }

    fn slots(&self) -> String {
        let slots = self.hosts.iter().map(|host| format!("{host}:{}", self.per_host));
        slots.collect::<Vec<_>>().join(",")
    }

    /// Makes a command by which the launcher of an MPI library starts ranks on every host; the caller
    /// appends the program. See [`Contender::command`].
    pub(super) fn launched_by(&self, library: &MpiLibrary) -> Command {
        let mut command = self.lab.exec_in(Account::Root, Path::new("/"));
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        command.args(library.own_launcher(&hosts, self.per_host));
        let limit = self.limit.to_string();
        match library.is_mpich {
            true => command.env("MPIEXEC_TIMEOUT", limit),
            false => command.args(["--timeout", &limit]),
        };
        command
    }
}

impl Contender {
    pub(super) fn new(launcher: Launcher, rlaunch: &Path) -> Contender {
        Contender { name: launcher.name(), launcher, rlaunch: rlaunch.into(), options: "" }
    }

    /// Makes rlaunch and the launchers with services through which ranks exchange data.
    pub(super) fn with_services(rlaunch: &Path) -> Vec<Contender> {
        Launcher::ALL[..3].iter().map(|launcher| Contender::new(*launcher, rlaunch)).collect()
    }

    /// Makes the command for ranks of `program` on every host. The command runs in `/`, since Hydra
    /// and Open MPI need the current directory on every host, and its process becomes the launcher.
    /// Plain ssh takes no options.
    pub(super) fn command(
        &self,
        place: Place<'_>,
        options: &[&str],
        program: &[impl AsRef<str>],
    ) -> Command {
        let program = program.iter().map(AsRef::as_ref);
        let alone = || place.lab.exec_in(Account::Root, Path::new("/"));
        let mut command = match self.launcher {
            Launcher::Rlaunch => {
                let mut command = alone();
                command.arg(&self.rlaunch).args(["-H", &place.slots()]);
                command.args(["-np", &place.ranks().to_string()]);
                command.args(["--timeout", &place.limit.to_string()]);
                command
            }
            Launcher::Hydra => place.launched_by(&DEBIAN[0]),
            Launcher::OpenMpi => place.launched_by(&DEBIAN[1]),
            Launcher::PlainSsh => {
                let program = program.collect::<Vec<_>>().join(" ");
                let mut command = alone();
                command.args(["sh", "-c", PLAIN_SSH, "sh", &program]).args(place.hosts);
                return command;
            }
        };
        command.args(self.options.split_whitespace()).args(options).args(program);
        command
    }
}

/// Hosts of a lab.
pub(super) struct Testbed {
    pub(super) lab: Lab,
    pub(super) hosts: Vec<String>,
}

/// Job that has succeeded.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) seconds: f64,
    /// Seconds of CPU time on all nodes together, until the hosts were idle; none on a machine
    /// without cgroup v2.
    pub(super) cpu: Option<f64>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Testbed {
    /// Starts fresh hosts, calls `act` with them and removes them. Of these labs only one exists at
    /// a time.
    pub(super) fn with_fresh<T>(
        hosts: usize,
        act: impl FnOnce(&Testbed) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        println!("starting {hosts} hosts");
        let lab = Options { net: [10, 97], ..Options::new("bench", hosts) };
        Lab::with_fresh(&lab, |lab| act(&Testbed { hosts: lab.hosts(), lab }))
    }

    /// Returns the first `hosts` hosts.
    pub(super) fn first(&self, hosts: usize, per_host: usize) -> Place<'_> {
        Place { lab: &self.lab, hosts: &self.hosts[..hosts], per_host, limit: 300 }
    }

    pub(super) fn all(&self, per_host: usize) -> Place<'_> {
        self.first(self.hosts.len(), per_host)
    }

    /// Runs a command and waits until nothing runs on any host.
    pub(super) fn run(&self, operation: &str, mut command: Command) -> Result<Ran, LabError> {
        let ((output, seconds), cpu) = self.with_cpu(|| {
            let start = Instant::now();
            let output = run(operation, &mut command)?;
            Ok((output, start.elapsed().as_secs_f64()))
        })?;
        let [stdout, stderr] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Ran { seconds, cpu, stdout, stderr })
    }

    /// Calls `act`; returns its result and the CPU time, see [`Ran::cpu`].
    pub(super) fn with_cpu<T>(
        &self,
        act: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<(T, Option<f64>), LabError> {
        let before = self.lab.cpu_usage();
        let done = act()?;
        self.lab.wait_until_idle(IDLE)?;
        let used = self.lab.cpu_usage().zip(before).map(|(after, before)| after - before);
        Ok((done, used.map(|used| used.as_secs_f64())))
    }

    /// Copies a file of this machine to a path on these hosts.
    pub(super) fn copy(&self, from: &Path, to: &str, hosts: &[String]) -> Result<(), LabError> {
        let bytes = fs::read(from).map_err(LabError::io(format!("read {}", from.display())))?;
        let to = Path::new(to);
        hosts.iter().try_for_each(|host| self.lab.write_file(host, to, &bytes, 0o755))
    }

    /// Copies a file of this machine to [`ON_HOST`] on every host.
    pub(super) fn place(&self, from: &Path) -> Result<(), LabError> {
        let name = from.file_name().unwrap_or_default().display();
        self.copy(from, &format!("{ON_HOST}/{name}"), &self.hosts)
    }
}

/// Checks what a job of `hostname` has printed: the name of each of these hosts once.
pub(super) fn check_names(printed: &str, hosts: &[String]) -> Result<(), LabError> {
    let mut names: Vec<&str> = printed.lines().collect();
    names.sort_unstable();
    let mut wanted: Vec<&str> = hosts.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    if names == wanted {
        return Ok(());
    }
    let wanted = wanted.join(", ");
    Err(LabError::Unexpected(format!(
        "{wanted} should print their names once each, but this came:\n{printed}"
    )))
}

/// Compiles `source`, which is in the directory `scratch`, to `program` there; returns its path.
pub(super) fn compile(
    compiler: impl AsRef<Path>,
    scratch: &Scratch,
    source: (&str, &str),
    program: &str,
    flags: &[&str],
) -> Result<PathBuf, LabError> {
    scratch.write(source)?;
    let mut compile = Command::new(compiler.as_ref());
    compile.current_dir(&scratch.0).args(["-O2", "-o", program, source.0]).args(flags);
    let compiler = compiler.as_ref().display();
    run(&format!("compile {} by {compiler}", source.0), &mut compile)?;
    Ok(scratch.0.join(program))
}

/// Returns the peak resident memory of a process in MiB, or nothing if it has ended, or if its name is
/// not `name`: it may have become another program since it was found.
pub(super) fn peak_memory(pid: u32, name: Option<&str>) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |field: &str| status.lines().find_map(|line| line.strip_prefix(field));
    let is_it = name.is_none_or(|name| field("Name:").is_some_and(|of| of.trim() == name));
    // A zombie has no memory.
    let kib = field("VmHWM:").filter(|_| is_it)?.trim().trim_end_matches("kB");
    Some(kib.trim().parse::<f64>().ok()? / 1024.0)
}

/// Temporary directory of this machine, removed when dropped.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    /// Makes the directory below `parent`.
    pub(super) fn make(parent: impl AsRef<Path>) -> Result<Scratch, LabError> {
        let path = parent.as_ref().join(format!("rlaunch-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(LabError::io(format!("make {}", path.display())))?;
        Ok(Scratch(path))
    }

    pub(super) fn write(&self, (name, text): (&str, &str)) -> Result<(), LabError> {
        fs::write(self.0.join(name), text).map_err(LabError::io(format!("write {name}")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
