//! `cargo lab soak frameworks`: command lines of the frameworks' own pages, with the real frameworks where they can be
//! installed, each beside the framework's own way to start the same; then steps of torchrun and torch.compile beside those
//! without rlaunch, and jobs of Ray that end in every way.

mod ray;
mod rows;
mod tries;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use super::{install, left_on};
use crate::bench::Series;
use crate::command::background::Background;
use crate::command::{last_lines, run as run_program, wait_until};
use crate::setup::{self, PackageSet, python};
use crate::{Account, Lab, LabError, Options, files};
use rows::{ROWS, Row, TORCH};
use tries::{Beside, SLOW, Try};

const NAME: &str = "soakframe";
const NET: [u8; 2] = [10, 86];
/// Number of hosts of a line, and of those of Ray's jobs.
const HOSTS: usize = 3;
/// Time limit of a line. One that exceeds it hangs.
const BOUND: Duration = Duration::from_secs(90);
/// Time limit for the hosts to be empty after a line.
const GONE: Duration = Duration::from_secs(20);
/// PATH of the launch node and of hosts, after the framework's own programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Words of the frameworks' own ways.
const OWN: &str = include_str!("frameworks/own.sh");
/// Makes the name of a host resolve to a loopback address on that host, as Debian's and Ubuntu's installers do.
const OWN_NAME: &str = r#"sed "s/^[0-9.]*\( $(hostname)\)$/127.0.1.1\1/" /etc/hosts >/run/hosts &&
    grep -q ^127.0.1.1 /run/hosts && mount --bind /run/hosts /etc/hosts"#;

/// Copies rlaunch, under the name `mpirun` as well, and the keys of an account. Arguments: a directory and its copy, of each.
const COPY: &str = r#"mkdir -p "$2" "$4"
    cp -rT "$1" "$2" && ln -s rlaunch "$2/mpirun"
    cp -rT --preserve=mode "$3" "$4""#;

/// Files of programs in their directory on hosts.
const PROGRAMS: &[(&str, &str, u32)] = &[
    ("ddp.py", include_str!("../../../netns/frameworks/ddp.py"), 0o644),
    ("pkg/__init__.py", "", 0o644),
    ("pkg/train.py", include_str!("../../../netns/frameworks/ddp.py"), 0o644),
    ("steps.py", include_str!("../../../netns/frameworks/steps.py"), 0o644),
    ("compiled.py", include_str!("../../../netns/frameworks/compiled.py"), 0o644),
    ("fit.py", include_str!("../../../netns/frameworks/fit.py"), 0o644),
    ("gathered.py", include_str!("../../../netns/frameworks/gathered.py"), 0o644),
    ("deep.py", include_str!("../../../netns/frameworks/deep.py"), 0o644),
    ("add_up.py", include_str!("../../../netns/frameworks/add_up.py"), 0o644),
    ("workers.py", include_str!("../../../netns/frameworks/workers.py"), 0o644),
    ("driver.py", include_str!("../../../netns/frameworks/driver.py"), 0o644),
    ("client.py", include_str!("../../../netns/frameworks/client.py"), 0o644),
    ("stand-ins/vllm", include_str!("../../../netns/frameworks/vllm_stand_in.py"), 0o755),
    (
        "sglang/launch_server.py",
        include_str!("../../../netns/frameworks/sglang_stand_in.py"),
        0o644,
    ),
    ("hosts", "a slots=2\nb slots=2\n", 0o644),
];

/// What a line must do to be right.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// It succeeds, and so many lines of its stdout have this text.
    Prints(&'static str, usize),
    /// It ends, and what it prints has this text.
    Says(&'static str),
}

/// Options of the soak.
#[derive(Debug, Clone, clap::Args)]
pub struct FrameworkOptions {
    /// Only lines in which this occurs, or whose framework's name has it; or only one of the others: `steps` of torchrun,
    /// `compiled` for a second torch.compile, `jobs` of Ray.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Runs of each line on plain hosts, in turn with as many of its framework's own way.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// No runs on hosts whose own name resolves to 127.0.1.1.
    #[arg(long)]
    plain: bool,
    /// Rounds of torchrun's steps, with and without rlaunch in turn.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Jobs of Ray, two at once, each of which ends in another way.
    #[arg(long, default_value_t = 20)]
    jobs: usize,
}

/// Runs all lines by `rlaunch`, on hosts of two kinds; returns whether all were right.
pub(super) fn soak(options: &FrameworkOptions, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    for venv in python::all() {
        // A row without its framework says so.
        if let Err(error) = venv.build() {
            println!("{error}");
        }
    }
    Lab::with_fresh(&Options { net: NET, ..Options::new(NAME, HOSTS) }, |lab| {
        let field = Field::new(&lab, rlaunch)?;
        let is_wanted = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
        let mut is_right = true;
        // Before the rows, after which the hosts' names lead to themselves: torchrun alone does not bear that.
        if is_wanted("steps") {
            is_right &= field.steps(options.rounds)?;
        }
        if is_wanted("compiled") {
            is_right &= field.compiled(5)?;
        }
        is_right &= field.all_rows(options)? == 0;
        if is_wanted("jobs") {
            is_right &= ray::run(&field, options.jobs)?;
        }
        Ok(is_right)
    })
}

/// Hosts with the programs.
struct Field<'a> {
    lab: &'a Lab,
    rlaunch: PathBuf,
    /// Directory of the programs, here and on hosts.
    directory: PathBuf,
}

impl Field<'_> {
    fn new<'a>(lab: &'a Lab, rlaunch: &Path) -> Result<Field<'a>, LabError> {
        let rlaunch = install(lab, rlaunch)?;
        let directory = lab.installed().with_file_name("work");
        for (name, text, mode) in PROGRAMS {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&directory))
                .map_err(LabError::io("make a directory"))?;
            files::write(&path, text, *mode)?;
            for host in lab.hosts() {
                lab.write_file(&host, &path, text.as_bytes(), *mode)?;
            }
        }
        let field = Field { lab, rlaunch, directory };
        field.put_launcher_on("a")?;
        run_program("run a first job", &mut field.shell("", "rlaunch -H a,b,c true")?)?;
        Ok(field)
    }

    /// Gives root on a host rlaunch under the name `mpirun`, and the keys to the other hosts.
    fn put_launcher_on(&self, host: &str) -> Result<(), LabError> {
        let programs = self.lab.path(host, &self.directory.join("dist"))?;
        let keys = self.lab.path(host, &Account::Root.home().join(".ssh"))?;
        let mut copy = Command::new("sh");
        copy.args(["-euc", COPY, "sh"]).arg(self.lab.installed()).arg(programs);
        copy.arg(self.lab.ssh_dir(Account::Root)).arg(keys);
        run_program("copy rlaunch and keys to a host", &mut copy).map(drop)
    }

    /// Makes a command that runs a line on the launch node, whose PATH begins with `programs`.
    fn shell(&self, programs: &str, line: &str) -> Result<Command, LabError> {
        let command = self.lab.exec_in(Account::Root, &self.directory);
        self.with_environment(command, programs, line)
    }

    fn with_environment(
        &self,
        mut command: Command,
        programs: &str,
        line: &str,
    ) -> Result<Command, LabError> {
        let rlaunch = format!("rlaunch() {{ {} \"$@\"; }}", self.rlaunch.display());
        command.args(["sh", "-c", &format!("{rlaunch}\n{OWN}\n{line}")]);
        let programs =
            programs.replace("stand-ins", &self.directory.join("stand-ins").to_string_lossy());
        let first = if programs.is_empty() { programs } else { programs + ":" };
        command.env_clear().env("PATH", format!("{first}{PATH}")).env("LANG", "C.UTF-8");
        command.env("HOME", Account::Root.home()).env("USER", "root").env("LOGNAME", "root");
        // For those that are services, and for Debian's mpirun.
        command.env("STAND_IN_ENDS", "1").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        for (name, host) in [("A", "a"), ("B", "b"), ("C", "c")] {
            command.env(name, self.lab.address(host)?.to_string());
        }
        Ok(command)
    }

    /// Runs all rows on plain hosts, beside their own ways, and then on hosts as Ubuntu sets them up; returns how many were
    /// wrong or slow.
    fn all_rows(&self, options: &FrameworkOptions) -> Result<usize, LabError> {
        let is_wanted = |row: &&Row| {
            options
                .only
                .as_ref()
                .is_none_or(|text| row.framework.contains(text) || row.line.contains(text))
        };
        let rows: Vec<&Row> = ROWS.iter().filter(is_wanted).collect();
        if rows.is_empty() {
            let names = options.only.as_deref().unwrap_or_default();
            let is_part = ["steps", "compiled", "jobs"].contains(&names);
            let none = || LabError::Unexpected(format!("no line and no framework has `{names}`"));
            return if is_part { Ok(0) } else { Err(none()) };
        }
        let plain = rows.iter().map(|row| self.beside_own_way(row, options.runs));
        let plain = plain.collect::<Result<Vec<_>, _>>()?;
        let loopback = if options.plain { Vec::new() } else { self.all_by_loopback(&rows)? };
        println!(
            "\n| framework | line | result | own name 127.0.1.1 | seconds | its own way | ratio |"
        );
        println!("|---|---|---|---|---|---|---|");
        for (index, (row, beside)) in rows.iter().zip(&plain).enumerate() {
            println!(
                "| {} | `{}` | {} | {} | {} | {} | {} |",
                row.framework,
                row.typed(),
                beside.result(),
                loopback.get(index).map_or("–", Try::result),
                beside.ours.seconds.summary(),
                beside.own.seconds.summary(),
                beside.ratios().summary(),
            );
        }
        let wrong_plain = plain.iter().filter(|beside| beside.ours.wrong.is_some()).count();
        let wrong_loopback = loopback.iter().filter(|by| by.wrong.is_some()).count();
        let slow = plain.iter().filter(|beside| beside.is_slow()).count();
        println!(
            "\n{} lines: {wrong_plain} wrong, {wrong_loopback} wrong at 127.0.1.1, {slow} slower than their own way",
            rows.len()
        );
        Ok(wrong_plain + wrong_loopback + slow)
    }

    /// Runs rows on hosts whose own names resolve to 127.0.1.1, which they do from then on.
    fn all_by_loopback(&self, rows: &[&Row]) -> Result<Vec<Try>, LabError> {
        println!("\nhosts whose own name resolves to 127.0.1.1:");
        for host in self.lab.hosts() {
            let mut command = self.lab.on(&host, Account::Root)?;
            run_program("change /etc/hosts", command.args(["sh", "-c", OWN_NAME]))?;
        }
        rows.iter().map(|row| self.row_by_loopback(row)).collect()
    }

    /// Runs a row by rlaunch and its framework's own way in turn, so many times each.
    fn beside_own_way(&self, row: &Row, runs: u16) -> Result<Beside, LabError> {
        let mut beside = Beside::default();
        for round in 0..runs {
            // The order changes with each round: the first run of all reads files that are in no cache.
            for is_ours in [round % 2 == 0, round % 2 == 1] {
                if is_ours {
                    beside.ours.push(self.row(row)?);
                } else if !row.own.is_empty() {
                    beside.own.push(self.own_way(row)?);
                }
            }
        }
        Ok(beside)
    }

    /// Runs a row by rlaunch, which must leave nothing.
    fn row(&self, row: &Row) -> Result<Try, LabError> {
        let mut ours = if row.is_on_host {
            let programs = format!("{}:{}", self.directory.join("dist").display(), row.programs);
            run(self.on_host(row, &programs)?, row.wanted)?
        } else {
            run(self.shell(row.programs, &row.typed())?, row.wanted)?
        };
        if let Err(left) = self.gone() {
            ours.wrong = ours.wrong.or(Some(format!("left {left}")));
            self.clear()?;
        }
        ours.show(&format!("{}: {}", row.framework, row.typed()));
        Ok(ours)
    }

    /// Runs a row on hosts whose own name leads to themselves. What fails there by the framework's own way, too, since it
    /// tells others that name or address, is no fault of rlaunch's.
    fn row_by_loopback(&self, row: &Row) -> Result<Try, LabError> {
        let ours = self.row(row)?;
        let is_excused =
            ours.wrong.is_some() && row.tells_own_name && self.own_way(row)?.wrong.is_some();
        Ok(Try { wrong: ours.wrong.filter(|_| !is_excused), is_excused, ..ours })
    }

    /// Runs a row as its framework does, and removes what that leaves.
    fn own_way(&self, row: &Row) -> Result<Try, LabError> {
        let command = if row.is_on_host {
            self.on_host(row, row.programs)?
        } else {
            self.shell(row.programs, row.own)?
        };
        let own = run(command, row.wanted)?;
        own.show("    its own way");
        self.clear()?;
        Ok(own)
    }

    fn on_host(&self, row: &Row, programs: &str) -> Result<Command, LabError> {
        let line = format!("cd {} && {}", self.directory.display(), row.line);
        self.with_environment(self.lab.on("a", Account::Root)?, programs, &line)
    }

    /// Waits until nothing is left on any host but what torch.compile keeps for later jobs; returns what is.
    fn gone(&self) -> Result<(), String> {
        let left = || -> Result<Vec<String>, LabError> {
            let hosts = self.lab.hosts();
            let left =
                hosts.iter().map(|host| left_on(self.lab, host)).collect::<Result<Vec<_>, _>>()?;
            Ok(left
                .concat()
                .into_iter()
                .filter(|left| !left.contains("/tmp/torchinductor_"))
                .collect())
        };
        wait_until(GONE, "the hosts to be empty", || Ok(left()?.is_empty()))
            .map_err(|error| left().map_or_else(|_| error.to_string(), |left| left.join("; ")))
    }

    fn clear(&self) -> Result<(), LabError> {
        self.lab.clear()?;
        for host in self.lab.hosts() {
            let mut command = self.lab.on(&host, Account::Root)?;
            let line = "rm -rf /tmp/* /dev/shm/*; find /sys/fs/cgroup -depth -name 'rlaunch-*' -exec rmdir {} \\; ; :";
            run_program("clear a host", command.args(["sh", "-c", line]))?;
        }
        Ok(())
    }

    /// Compares the time of torch's steps under torchrun with those of torchrun in a job, in turn.
    fn steps(&self, rounds: usize) -> Result<bool, LabError> {
        const STEPS: &str = "--nproc-per-node 2 steps.py 60";
        let lines = [
            format!("rlaunch -H a,b torchrun {STEPS}"),
            format!("each 2 torchrun --nnodes 2 --node-rank %i --master-addr $A {STEPS}"),
        ];
        self.in_turn("steps", "steps of torchrun, 4 processes", rounds, &lines)
    }

    /// Compares torch.compile's second run with and without rlaunch.
    fn compiled(&self, rounds: usize) -> Result<bool, LabError> {
        let lines = ["rlaunch -H a python3 compiled.py", "at a python3 compiled.py"];
        for line in lines {
            let mut command = self.shell(TORCH.1, line)?;
            run_program("compile for the first time", &mut command)?;
        }
        self.in_turn("compiled", "a second torch.compile", rounds, &lines.map(str::to_owned))
    }

    /// Prints the seconds that two lines print after `word`, and their ratio; returns whether the first is not [`SLOW`]
    /// beside the second, in the median of all rounds.
    fn in_turn(
        &self,
        word: &str,
        what: &str,
        rounds: usize,
        lines: &[String; 2],
    ) -> Result<bool, LabError> {
        let mut times = [Series::default(), Series::default()];
        for round in 0..rounds {
            // Whoever is first in a round is second in the next.
            for which in [round % 2, (round + 1) % 2] {
                let command = self.shell(TORCH.1, &lines[which])?;
                let mut job = Background::start(command)?;
                let status = job.wait(BOUND)?;
                let stdout = job.stdout();
                let seconds = stdout
                    .lines()
                    .find_map(|line| line.split_once(&format!("{word} "))?.1.parse::<f64>().ok());
                if seconds.is_none() {
                    println!("{}", ended_as(status, &job));
                    // Its processes would hinder the runs that follow.
                    self.lab.clear()?;
                }
                times[which].push(seconds);
            }
        }
        // Leftovers of torchrun alone are not rlaunch's.
        self.clear()?;
        let [ours, own] = &times;
        let ratios = ours.ratios_to(own);
        println!(
            "{what}, seconds: rlaunch {}, alone {}, ratio {}",
            ours.summary(),
            own.summary(),
            ratios.summary()
        );
        Ok(ours.missed() == 0 && ratios.median().is_some_and(|ratio| ratio <= SLOW))
    }
}

/// Runs a command, and looks whether it does what is wanted.
fn run(command: Command, wanted: Wanted) -> Result<Try, LabError> {
    let start = Instant::now();
    let mut job = Background::start(command)?;
    let status = job.wait(BOUND)?;
    let seconds = start.elapsed().as_secs_f64();
    let (stdout, stderr) = (job.stdout(), job.stderr());
    let is_right = match wanted {
        Wanted::Prints(text, count) => {
            status.is_some_and(|status| status.success())
                && stdout.lines().filter(|line| line.contains(text)).count() == count
        }
        Wanted::Says(text) => status.is_some() && (stdout.contains(text) || stderr.contains(text)),
    };
    if is_right {
        return Ok(Try { seconds, wrong: None, is_excused: false });
    }
    Ok(Try { seconds, wrong: Some(ended_as(status, &job)), is_excused: false })
}

/// Says how a command ended that should have ended otherwise.
fn ended_as(status: Option<ExitStatus>, job: &Background) -> String {
    let how = status.map_or("hung".into(), |status| status.to_string());
    format!("{how}\n{}\n{}", last_lines(&job.stdout(), 6), last_lines(&job.stderr(), 12))
}

impl Row {
    /// The line as it is typed.
    fn typed(&self) -> String {
        let line =
            if self.is_on_host { self.line.into() } else { format!("rlaunch {}", self.line) };
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
