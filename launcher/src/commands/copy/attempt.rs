//! One attempt at a copy: the job on the hosts, and the program on this machine beside it.

use super::reports::{RankReports, Reports, SharedReports, Source};
use super::{CopyArgs, HostCopy, LeftOut, TransferArgs, Way, resume_hint};
use crate::cli::args::{ConnectArgs, MeasurementArgs};
use crate::cli::config::LoadedConfig;
use crate::cli::lower::MeasurementJob;
use crate::commands::bench::own_program;
use crate::commands::bench::records::{self, Ended};
use nix::sys::signal::Signal;
use ring::rand::{SecureRandom, SystemRandom};
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{PortRange, WorkingDir};
use rlaunch_console::{messages, progress};
use rlaunch_copy::control::{ImageCopy, Report, Request, Role, Secret, TreeLimit};
use rlaunch_engine::connect::agent::store;
use rlaunch_engine::run::job_run::{Launch, NoRandom, Stdio, new_identity};
use rlaunch_engine::run::live::client::RunningJob;
use rlaunch_engine::run::signals::{Signals, ended_by};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::stdin::{Readers, Stdin};
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::{Options, Preflight, Transport};
use rlaunch_plan::placement::Bind;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Interval at which the program on this machine is looked after.
const LOOK: Duration = Duration::from_millis(200);
/// Time after the job's end until a line says what the launcher waits for.
const SAID_AFTER: Duration = Duration::from_secs(3);
/// Time in which the program on this machine has to end once it is killed; it cannot while a disk keeps it.
const KILLED: Duration = Duration::from_secs(10);
/// Line for a shell on a rank's host that carries bytes between its stdin, its stdout and the port in `$0`.
const PIPE: &str = "exec \"$RLAUNCH_PRELOAD_DIR/rlaunch-copier\" pipe \"$0\"";

/// End of an attempt that tells how to go on.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// Files are on all hosts; an image was refused by the engines of some.
    Complete {
        hosts: Vec<HostCopy>,
        refused: Vec<LeftOut>,
        /// Hosts whose files are those of another host, with the latter.
        shared: Vec<(String, String)>,
    },
    /// A host has failed. The copy can go on with `rest`, which is empty if no other host has the files.
    Without { lost: LeftOut, rest: Vec<String> },
    /// The working tree is larger than it may be, and nothing was copied.
    TooLarge { files: u64, bytes: u64, failed: Failed },
}

/// Where the hosts of a copy come from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// Options of a verb.
    Verb {
        hosts: &'a [String],
        connect: &'a ConnectArgs,
        ports: PortRange,
        config: &'a LoadedConfig,
    },
    /// Job, ahead of which files are copied to its hosts.
    Job(&'a Launch),
}

impl<'a> Origin<'a> {
    pub(super) fn of(args: &'a CopyArgs, config: &'a LoadedConfig) -> Origin<'a> {
        let CopyArgs { hosts, connect, port_range, .. } = args;
        Origin::Verb { hosts, connect, ports: *port_range, config }
    }

    /// Returns the agent's executable, beside which the program that copies is.
    pub(super) fn agent(&self) -> Option<&'a Path> {
        match *self {
            Origin::Verb { connect, .. } => connect.agent.as_deref(),
            Origin::Job(job) => job.reach.agent.as_deref(),
        }
    }

    /// Makes a job of the program that copies, with one rank on each host.
    pub(super) fn launch(&self, words: &[&str]) -> Result<Launch, Failed> {
        let argv = [&[store::COPIER][..], words].concat().into_iter().map(OsString::from).collect();
        match *self {
            Origin::Verb { hosts, connect, ports, config } => {
                let mut launch = launch_on((hosts, connect), argv, config)?;
                launch.spec.port_range = ports;
                Ok(launch)
            }
            Origin::Job(job) => launch_ahead_of(job, argv),
        }
    }

    /// Makes the job of a copy: hosts are in the order in which bytes pass them, without those in `left_out`.
    pub(super) fn launch_copy(&self, way: &Way, left_out: &[LeftOut]) -> Result<Launch, Failed> {
        let PortRange { first, last } = match self {
            Origin::Verb { ports, .. } => *ports,
            Origin::Job(job) => job.spec.port_range,
        };
        let ports = format!("{first}-{last}");
        let mut launch = self.launch(&[way.words().rank, &ports])?;
        let spec = &mut launch.spec;
        spec.hosts.retain(|host| left_out.iter().all(|left| left.host != host.to_string()));
        if let Way::Image { hosts, .. } = way {
            let is_wanted = |host: &Host| hosts.contains(&host.to_string());
            spec.hosts
                .retain(|host| is_wanted(host) || way.from().is_some_and(|from| is(host, from)));
        }
        if let Some(from) = way.from() {
            put_first(spec, from)?;
        }
        Ok(launch)
    }
}

fn launch_on(
    (hosts, connect): (&[String], &ConnectArgs),
    argv: Vec<OsString>,
    config: &LoadedConfig,
) -> Result<Launch, Failed> {
    let args = MeasurementArgs::for_hosts(hosts.to_vec(), connect.clone())?;
    let mut job = MeasurementJob::new(args, argv).with_one_rank_on_each_host();
    // There relative paths begin.
    job.process.wdir = Some("~".into());
    let mut launch = job.launch(config)?;
    let is_nowhere = hosts.is_empty() && launch.spec.is_local;
    if is_nowhere {
        let failed = Failed::new(Exit::USAGE, "no hosts are named");
        return Err(failed.hint(Some("-H a,b names them; `rlaunch help hosts` lists other ways")));
    }
    only_copies(&mut launch.spec);
    Ok(launch)
}

/// Makes a job on the hosts of another one, before that starts.
fn launch_ahead_of(job: &Launch, argv: Vec<OsString>) -> Result<Launch, Failed> {
    let app = AppSpec::new(argv, WorkingDir::Required("~".into()));
    let identity = new_identity().map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    let mut spec = JobSpec::new(identity, hosts_with_ranks(&job.spec), app);
    spec.map_by = MapBy::Ppr(1);
    spec.command_line.clone_from(&job.spec.command_line);
    spec.directory.clone_from(&job.spec.directory);
    spec.node_timeout = job.spec.node_timeout;
    spec.port_range = job.spec.port_range;
    spec.oob = job.spec.oob.clone();
    only_copies(&mut spec);
    // Files are on the hosts, which containers of an image mount.
    let (reach, stdio) = (job.reach.outside(), Stdio::Stdout);
    Ok(Launch { spec, reach, stdio, detaching: None })
}

/// Returns the hosts that get ranks; all of the job while nobody knows how many GPUs they have.
pub(super) fn hosts_with_ranks(spec: &JobSpec) -> Vec<Host> {
    if let Ok(map) = spec.map_ranks() {
        return map.nodes.into_iter().map(|node| node.host).collect();
    }
    let of_programs = spec.apps.iter().filter_map(|app| app.hosts.as_ref()).flatten();
    let mut all: Vec<Host> = Vec::new();
    for host in spec.hosts.iter().chain(of_programs) {
        if all.iter().all(|other| other.to_string() != host.to_string()) {
            all.push(host.clone());
        }
    }
    all
}

/// Sets what all jobs that copy have in common: their ranks need no variables of this shell, no RDMA and no CPUs of their own.
fn only_copies(spec: &mut JobSpec) {
    spec.no_env = true;
    for app in &mut spec.apps {
        app.env.clear();
        app.user_set_vars.clear();
    }
    spec.options = Options {
        map_by: MapBy::Ppr(1),
        transport: Transport::Tcp,
        preflight: Preflight::Off,
        bind: Some(Bind::None),
        ..Options::default()
    };
    spec.is_recorded = false;
    spec.runs_copier = true;
}

/// Tells whether a host is the one that the user means by a word.
pub(super) fn is(host: &Host, word: &str) -> bool {
    host.to_string() == word || host.name == word
}

/// Makes a host that has the files the first of the chain.
fn put_first(spec: &mut JobSpec, from: &str) -> Result<(), Failed> {
    let place = spec.hosts.iter().position(|host| is(host, from));
    let Some(place) = place else {
        let hosts: Vec<String> = spec.hosts.iter().map(ToString::to_string).collect();
        let message = format!("--from {from} is not among the hosts: {}", hosts.join(", "));
        return Err(Failed::new(Exit::USAGE, message).hint(Some("-H names it too")));
    };
    spec.hosts[..=place].rotate_right(1);
    if spec.hosts.len() < 2 {
        let message = format!("{from} is the only host, and has the files");
        return Err(Failed::new(Exit::USAGE, message).hint(Some("-H names those that get them")));
    }
    Ok(())
}

/// Words by which the programs know what to do.
struct Words {
    rank: &'static str,
    /// `None` where no program runs on this machine.
    local: Option<&'static str>,
}

impl Way {
    fn words(&self) -> Words {
        match self {
            _ if self.from().is_some() => Words { rank: "receive", local: None },
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Words { rank: "receive", local: Some("send") }
            }
            Way::Fetch { .. } => Words { rank: "serve", local: Some("fetch") },
        }
    }

    /// Returns the host from which files come, if they come from one of several.
    fn from(&self) -> Option<&str> {
        match self {
            Way::Between { from, .. } => Some(from),
            Way::Image { from, .. } => from.as_deref(),
            Way::Push { .. } | Way::Tree { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the roles of the ranks and of the program on this machine.
    fn roles(&self) -> [Role; 2] {
        let source = |paths: &Vec<String>| Role::Source { paths: paths.clone() };
        match self {
            Way::Push { paths, .. } => [Role::Relay, source(paths)],
            Way::Tree { path, .. } => [Role::Relay, Role::Source { paths: vec![path.clone()] }],
            // The files are those of the image, wherever they are made.
            Way::Image { from: None, .. } => [Role::Relay, source(&Vec::new())],
            Way::Image { .. } => [source(&Vec::new()), Role::Relay],
            Way::Between { paths, .. } | Way::Fetch { paths, .. } => [source(paths), Role::Relay],
        }
    }

    fn destination(&self) -> &str {
        match self {
            Way::Push { destination, .. }
            | Way::Tree { destination, .. }
            | Way::Between { destination, .. }
            | Way::Fetch { destination, .. } => destination,
            // The job's directory.
            Way::Image { .. } => "",
        }
    }

    /// Tells who reports how far the copy is.
    fn source_of_progress(&self) -> Source {
        match self {
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Source::Rank
            }
            Way::Fetch { .. } => Source::Local,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } => "pushing",
            Way::Tree { .. } => "copying the working tree:",
            Way::Fetch { .. } => "fetching",
        }
    }

    fn tree(&self) -> Option<TreeLimit> {
        match self {
            Way::Tree { limit, .. } => Some(*limit),
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the image as ranks know it, which have other places for its files than this machine.
    fn image(&self) -> Option<&ImageCopy> {
        match self {
            Way::Image { image, .. } => Some(image),
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Fetch { .. } => None,
        }
    }
}

/// Runs the job. Also returns what each host has received.
pub(super) async fn run(
    way: &Way,
    transfer: &TransferArgs,
    mut launch: Launch,
) -> Result<(AttemptEnd, Vec<(String, u64)>), Failed> {
    let hosts: Vec<String> = launch.spec.hosts.iter().map(ToString::to_string).collect();
    let requests = requests(way, transfer, &hosts)?;
    let reports = Reports::new(hosts, way.verb(), way.source_of_progress());
    let reports: SharedReports = Arc::new(Mutex::new(reports));
    let stdin = give_to_ranks(&mut launch, line(&requests.of_ranks)?)?;
    let local = match way.words().local {
        Some(word) => {
            let request = line(&requests.of_local)?;
            let agent = launch.reach.agent.as_deref();
            Some(LocalCopier::start(word, launch.spec.id, &request, agent, &reports)?)
        }
        None => None,
    };
    let (to_local, local) = local.map_or((None, None), |(pipe, local)| (Some(pipe), Some(local)));
    let reader = RankReports { reports: Arc::clone(&reports), to_local };
    let job = launch.spec.id;
    let running = records::run_lines(launch, reader);
    tokio::pin!(running);
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = end_after_failure(job, &reports) => running.await,
    };
    let Ended { ended, reader, .. } = ended?;
    // The program here has heard of all ranks.
    drop((reader, stdin));
    let ended = match local {
        Some(local) => local.conclude(ended, &reports).await,
        None => ended,
    };
    progress::erase_step();
    let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((conclude(way, ended, &reports)?, reports.received()))
}

/// Decides how to go on after the job.
fn conclude(
    way: &Way,
    ended: Result<Exit, Failed>,
    reports: &Reports,
) -> Result<AttemptEnd, Failed> {
    let source = reports.hosts().first().filter(|_| way.from().is_some());
    let Err(failed) = ended else {
        let mut hosts = reports.complete()?;
        let refused = reports.refused();
        hosts.retain(|host| {
            source != Some(&host.host) && refused.iter().all(|left| left.host != host.host)
        });
        let shared = reports.shared();
        return Ok(AttemptEnd::Complete { hosts, refused, shared });
    };
    if let Some((files, bytes)) = reports.too_large().filter(|_| !failed.is_asked)
        && let Some(failed) = reports.local_failure()
    {
        return Ok(AttemptEnd::TooLarge { files, bytes, failed });
    }
    if let Some(lost) = reports.culprit(&failed) {
        let has_source = source != Some(&lost.host);
        let gets_files = |host: &&String| **host != lost.host && source != Some(*host);
        let rest = reports.hosts().iter().filter(|host| has_source && gets_files(host));
        return Ok(AttemptEnd::Without { rest: rest.cloned().collect(), lost });
    }
    // An end that the user has asked for makes all programs fail.
    let is_of_programs = failed.by_rank || reports.is_ended;
    let of_local = reports.local_failure().filter(|_| is_of_programs);
    // Of an image nothing stays.
    let hint = (reports.has_begun() && way.image().is_none()).then(resume_hint);
    Err(of_local.unwrap_or(failed).hint(hint))
}

/// Ends the job when the program on this machine has failed and the job goes on: its ranks would wait for that program.
async fn end_after_failure(job: JobId, reports: &SharedReports) {
    let is_over = || reports.lock().unwrap_or_else(PoisonError::into_inner).is_over(Instant::now());
    let name = job.to_string();
    loop {
        tokio::time::sleep(LOOK).await;
        if !is_over() {
            continue;
        }
        // It can be asked once its ranks run.
        if let Ok(mut job) = RunningJob::find(Some(&name)).await
            && job.end().await.is_ok()
        {
            reports.lock().unwrap_or_else(PoisonError::into_inner).is_ended = true;
            return;
        }
    }
}

/// What is asked of the ranks, and of the program on this machine.
struct Requests {
    of_ranks: Request,
    of_local: Request,
}

fn requests(way: &Way, transfer: &TransferArgs, hosts: &[String]) -> Result<Requests, Failed> {
    let mut secret = [0; 32];
    SystemRandom::new().fill(&mut secret).map_err(|_| Failed::from_error(Exit::BUG, &NoRandom))?;
    let secret = Secret(secret);
    let mut image = way.image().cloned();
    let [of_ranks, of_local] = way.roles().map(|role| Request {
        secret: secret.clone(),
        hosts: hosts.to_vec(),
        plain: transfer.plain,
        streams: transfer.streams,
        destination: way.destination().to_owned(),
        verify: transfer.verify,
        limit: transfer.limit,
        role,
        tree: way.tree(),
        image: image.clone(),
    });
    image.iter_mut().for_each(|image| image.scratch = None);
    Ok(Requests { of_ranks: Request { image, ..of_ranks }, of_local })
}

/// Makes a line the stdin of all ranks. Returns what is held until the job has opened it by its path.
pub(super) fn give_to_ranks(launch: &mut Launch, line: Vec<u8>) -> Result<PipeReader, Failed> {
    let stdin = pipe_with(line)?;
    let file = Some(PathBuf::from(format!("/dev/fd/{}", stdin.as_raw_fd())));
    launch.spec.stdin = Stdin { readers: Readers::All, file };
    Ok(stdin)
}

pub(super) fn line(request: &impl Serialize) -> Result<Vec<u8>, Failed> {
    let line = serde_json::to_vec(request);
    let mut line = line.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    line.push(b'\n');
    Ok(line)
}

/// Makes a pipe from which `line` can be read, and then its end.
fn pipe_with(line: Vec<u8>) -> Result<PipeReader, Failed> {
    let (reader, mut writer) = io::pipe().map_err(|error| no_pipe(&error))?;
    // A thread, since paths may be more than a pipe takes.
    std::thread::spawn(move || {
        // Fails if the job ends before its ranks start.
        let _ = writer.write_all(&line);
    });
    Ok(reader)
}

fn no_pipe(error: &io::Error) -> Failed {
    Failed::new(Exit::FILES, format!("cannot make a pipe for the copy: {error}"))
}

/// Program that copies on this machine. It is killed when this is dropped.
struct LocalCopier {
    child: Child,
    reading: JoinHandle<()>,
}

impl LocalCopier {
    /// Starts it, and writes its request. Also returns its stdin, where it reads of ranks.
    fn start(
        word: &str,
        job: JobId,
        request: &[u8],
        agent: Option<&Path>,
        reports: &SharedReports,
    ) -> Result<(PipeWriter, LocalCopier), Failed> {
        let program = own_program(store::COPIER, agent)?;
        let (stdin, mut to_child) = io::pipe().map_err(|error| no_pipe(&error))?;
        let (from_child, stdout) = io::pipe().map_err(|error| no_pipe(&error))?;
        let started = Command::new(&program)
            .arg(word)
            .args(way_through_the_job(job)?)
            .stdin(stdin)
            .stdout(stdout)
            // A Ctrl-C is for this process, which ends the job in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let child = started.map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot start {}: {error}", program.display()))
        })?;
        let reports = Arc::clone(reports);
        let reading = tokio::task::spawn_blocking(move || read_local(from_child, &reports));
        // Fails if the program has ended, which is noticed as that.
        let _ = to_child.write_all(request);
        Ok((to_child, LocalCopier { child, reading }))
    }

    /// Waits until it has ended, and has reported all. Ends it if the job has failed, or if it makes no progress. Returns the
    /// end of the copy: that of the job, unless only this program has failed.
    async fn conclude(
        self,
        ended: Result<Exit, Failed>,
        reports: &SharedReports,
    ) -> Result<Exit, Failed> {
        let LocalCopier { mut child, reading } = self;
        if ended.is_err() {
            if let Ok(Some(status)) = child.try_wait()
                && status.code().is_none()
            {
                let failed = silent_end(&Ok(status));
                reports.lock().unwrap_or_else(PoisonError::into_inner).local_was_killed(&failed);
            }
            // Fails if it has ended.
            let _ = child.start_kill();
        }
        let patience = if ended.is_err() {
            KILLED
        } else {
            reports.lock().unwrap_or_else(PoisonError::into_inner).patience_with_local()
        };
        let mut signals = Signals::install()?;
        let finished = async {
            let _ = reading.await;
            child.wait().await
        };
        let status = tokio::select! {
            status = finished => status,
            signal = signals.end() => return Err(interrupted(signal)),
            // The child is killed as it is dropped.
            failed = without_progress(reports, patience) => {
                return Err(ended.err().unwrap_or(failed));
            }
        };
        ended?;
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Ok(status) if status.success() => Ok(Exit::SUCCESS),
            status => Err(reports.local_failure().unwrap_or_else(|| silent_end(&status))),
        }
    }
}

/// Returns an error once the program on this machine has made no progress for `patience`. Says meanwhile what is waited for.
async fn without_progress(reports: &SharedReports, patience: Duration) -> Failed {
    let look = || {
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        (reports.local_progress(), reports.local_wait())
    };
    let began = Instant::now();
    let ((mut before, _), mut since, mut is_said) = (look(), began, false);
    loop {
        tokio::time::sleep(LOOK).await;
        let (progress, wait) = look();
        let now = Instant::now();
        if progress != before {
            (before, since) = (progress, now);
        }
        if !is_said && now.saturating_duration_since(began) >= SAID_AFTER {
            is_said = true;
            messages::info(&format!("the job is over; waiting for {wait}…"));
        }
        if now.saturating_duration_since(since) >= patience {
            return stuck(wait, patience);
        }
    }
}

fn stuck(wait: &str, patience: Duration) -> Failed {
    let seconds = patience.as_secs();
    let copier = store::COPIER;
    let message = format!(
        "gave up on {wait}, and killed {copier}: no progress for {seconds} s after the job"
    );
    let disks = "`dmesg | tail` and `cat /proc/pressure/io` tell of slow or broken disks";
    Failed::new(Exit::FILES, message).hint(Some(disks)).hint(Some(resume_hint()))
}

fn interrupted(signal: Signal) -> Failed {
    Failed { is_asked: signal == Signal::SIGINT, ..ended_by(signal, "") }.hint(Some(resume_hint()))
}

/// Describes the end of a program that has not said why it failed.
fn silent_end(status: &io::Result<ExitStatus>) -> Failed {
    let how = match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Failed::new(Exit::BUG, format!("{} on this machine has ended: {how}", store::COPIER))
}

/// Returns the command by which the program here reaches a rank where TCP does not: it is carried by the job.
fn way_through_the_job(job: JobId) -> Result<Vec<OsString>, Failed> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failed::new(Exit::BUG, format!("where is rlaunch? {error}")))?;
    let job = job.to_string();
    let words = ["exec", "-T", &job, "{rank}", "--", "sh", "-c", PIPE].map(OsString::from);
    Ok([OsString::from(own)].into_iter().chain(words).collect())
}

/// Reads what the program on this machine reports, until it ends.
fn read_local(pipe: PipeReader, reports: &SharedReports) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice::<Report>(&line) {
            Ok(report) => {
                let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
                reports.note(Source::Local, report);
            }
            Err(_) => messages::warn(&String::from_utf8_lossy(&line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FileCopy;
    use super::*;
    use clap::Parser;
    use rlaunch_copy::control::Limit;
    use std::io::Read;

    fn copy(hosts: &str, way: Way) -> FileCopy {
        let words = ["push", "-H", hosts, "x", "--plain", "--limit", "1M"];
        let args = super::super::push::PushArgs::try_parse_from(words).unwrap();
        FileCopy { way, args: args.copy }
    }

    fn push(hosts: &str) -> FileCopy {
        let paths = vec!["/x".to_owned()];
        copy(hosts, Way::Push { paths, destination: "~/".to_owned() })
    }

    #[test]
    fn each_host_of_the_chain_has_one_role() {
        let hosts = ["a".to_owned(), "b".to_owned()];
        let FileCopy { way, args: CopyArgs { transfer, .. } } = push("a,b");
        let Requests { of_ranks, of_local } = requests(&way, &transfer, &hosts).unwrap();
        assert_eq!(
            (of_ranks.role, of_ranks.plain, of_ranks.limit),
            (Role::Relay, true, Some(1 << 20))
        );
        assert_eq!(of_local.role, Role::Source { paths: vec!["/x".to_owned()] });
        assert_eq!((of_ranks.hosts, of_ranks.secret), (hosts.to_vec(), of_local.secret.clone()));
        let again = requests(&way, &transfer, &hosts).unwrap();
        assert_ne!(again.of_local.secret, of_local.secret, "a secret is for one copy");
    }

    #[test]
    fn programs_listen_at_the_ports_that_were_asked_for() {
        let mut copy = push("a,b");
        copy.args.port_range = PortRange { first: 4000, last: 4010 };
        let config = LoadedConfig::default();
        let launch = Origin::of(&copy.args, &config).launch_copy(&copy.way, &[]).unwrap();
        assert_eq!(launch.spec.port_range, copy.args.port_range);
        let argv = &launch.spec.first().argv;
        assert_eq!(argv[1..], ["receive", "4000-4010"].map(OsString::from));
    }

    #[test]
    fn an_image_goes_to_the_hosts_that_lack_it() {
        let image = ImageCopy {
            name: "x:1".into(),
            size: 1,
            engine: "docker".into(),
            engine_of_hosts: None,
            left_out: Vec::new(),
            scratch: Some("/tmp/x".into()),
        };
        let way = |from: Option<&str>| Way::Image {
            image: image.clone(),
            hosts: vec!["b".into(), "d".into()],
            from: from.map(str::to_owned),
        };
        let hosts = |way: &Way| {
            let (copy, config) = (push("a,b,c,d"), LoadedConfig::default());
            let launch = Origin::of(&copy.args, &config).launch_copy(way, &[]).unwrap();
            launch.spec.hosts.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(hosts(&way(None)), ["b", "d"]);
        assert_eq!(hosts(&way(Some("c"))), ["c", "b", "d"]);
        let transfer = push("a").args.transfer;
        let Requests { of_ranks, of_local } = requests(&way(None), &transfer, &[]).unwrap();
        // The directory is one of this machine.
        assert_eq!(of_ranks.image.unwrap().scratch, None);
        assert_eq!(of_local.image.unwrap().scratch.as_deref(), Some("/tmp/x"));
    }

    #[test]
    fn the_host_that_has_the_files_comes_first() {
        let paths = vec!["/x".to_owned()];
        let way = |from: &str| Way::Between {
            from: from.to_owned(),
            paths: paths.clone(),
            destination: "~/".to_owned(),
        };
        let mut spec = spec_of("a,b,c,d");
        put_first(&mut spec, "c").unwrap();
        let order: Vec<String> = spec.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(order, ["c", "a", "b", "d"]);
        let failed = put_first(&mut spec_of("a,b"), "x").unwrap_err();
        assert_eq!(failed.message, "--from x is not among the hosts: a, b");
        let alone = put_first(&mut spec_of("a"), "a").unwrap_err();
        assert_eq!(alone.message, "a is the only host, and has the files");
        assert!(way("c").words().local.is_none());
    }

    fn spec_of(hosts: &str) -> JobSpec {
        crate::cli::lower::parse(&format!("-H {hosts} x")).unwrap()
    }

    #[test]
    fn a_tree_goes_to_the_hosts_that_get_ranks() {
        let hosts = |line: &str| {
            let job = crate::cli::lower::parse(line).unwrap();
            let hosts: Vec<String> =
                hosts_with_ranks(&job).iter().map(ToString::to_string).collect();
            hosts.join(" ")
        };
        assert_eq!(hosts("-H a:2,b,c -np 3 x"), "a b");
        assert_eq!(hosts("-H a -np 1 x : -H b,c y"), "a b c");
    }

    #[test]
    fn the_way_through_a_job_ends_in_the_port() {
        let words = way_through_the_job(JobId(7)).unwrap();
        let words: Vec<String> =
            words[1..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let job = JobId(7).to_string();
        assert_eq!(words[..6], ["exec", "-T", &job, "{rank}", "--", "sh"].map(str::to_owned));
        assert!(words.last().unwrap().ends_with("pipe \"$0\""), "{words:?}");
    }

    #[tokio::test]
    async fn a_program_here_without_progress_is_not_waited_for() {
        let reports = Reports::new(vec!["a".into()], "fetching", Source::Local);
        let reports: SharedReports = Arc::new(Mutex::new(reports));
        let report = |written| Report::Progress {
            rank: 0,
            received: 9,
            written,
            total: 9,
            waits_for: Limit::Disk,
        };
        let note = |written| reports.lock().unwrap().note(Source::Local, report(written));
        note(1);
        // Much longer than this process may stand still.
        let patience = LOOK * 20;
        let progress = async {
            for written in 2..6 {
                tokio::time::sleep(LOOK * 2).await;
                note(written);
            }
            // A report of the same number is none of progress.
            for _ in 0..100 {
                tokio::time::sleep(LOOK).await;
                note(5);
            }
        };
        let began = Instant::now();
        let failed = tokio::select! {
            failed = without_progress(&reports, patience) => failed,
            () = progress => panic!("it is waited for without end"),
        };
        assert!(began.elapsed() >= LOOK * 26, "{:?}", began.elapsed());
        assert_eq!(failed.exit, Exit::FILES);
        let expected = "gave up on the disk of this machine, and killed rlaunch-copier: no progress \
                        for 4 s after the job";
        assert_eq!(failed.message, expected);
    }

    #[test]
    fn a_request_is_a_line_of_a_pipe() {
        let mut text = String::new();
        pipe_with(b"{}\n".to_vec()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
    }
}
