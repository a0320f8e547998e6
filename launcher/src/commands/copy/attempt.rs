//! One attempt at a copy: the job on the hosts, and the program on this machine beside it.

use super::local::{LOOK, LocalCopier, no_pipe};
use super::reports::{RankReports, Reports, SharedReports};
use super::{CopyArgs, HostCopy, LeftOut, TransferArgs, Way, resume_hint};
use crate::cli::args::{ConnectArgs, MeasurementArgs};
use crate::cli::config::LoadedConfig;
use crate::cli::lower::MeasurementJob;
use crate::commands::bench::records::{self, Ended};
use ring::rand::{SecureRandom, SystemRandom};
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{PortRange, WorkingDir};
use rlaunch_console::progress;
use rlaunch_copy::Hash;
use rlaunch_copy::control::{Report, Request, Secret};
use rlaunch_engine::connect::agent::store;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_engine::run::job_run::{Launch, NoRandom, Stdio, new_identity};
use rlaunch_engine::run::live::client::RunningJob;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::job::stdin::{Readers, Stdin};
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::{Options, Preflight, Transport};
use rlaunch_plan::placement::Bind;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Verb after which jobs that bring files to hosts are named, also ahead of another job.
const PUSH: &str = "push";

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
    Job(&'a Ahead),
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
            Origin::Job(job) => job.launch(argv),
        }
    }

    /// Makes the job of a copy: hosts are in the order in which bytes pass them, without those in `left_out`.
    pub(super) fn launch_copy(&self, way: &Way, left_out: &[LeftOut]) -> Result<Launch, Failed> {
        let PortRange { first, last } = match self {
            Origin::Verb { ports, .. } => *ports,
            Origin::Job(job) => job.port_range,
        };
        let ports = format!("{first}-{last}");
        let mut launch = self.launch(&[way.words().rank, &ports])?;
        let spec = &mut launch.spec;
        if matches!(way, Way::Fetch { .. }) {
            spec.name = JobName::of_verb("fetch");
        }
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
    let mut job = MeasurementJob::new(PUSH, args, argv).with_one_rank_on_each_host();
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

/// What jobs ahead of another one have of that.
#[derive(Debug)]
pub(super) struct Ahead {
    hosts: Vec<Host>,
    command_line: Vec<OsString>,
    directory: Option<PathBuf>,
    node_timeout: Option<Duration>,
    port_range: PortRange,
    oob: AddressConstraints,
    pub(super) reach: Reach,
}

impl Ahead {
    pub(super) fn of(Launch { spec, reach, .. }: &Launch) -> Ahead {
        Ahead {
            hosts: hosts_with_ranks(spec),
            command_line: spec.command_line.clone(),
            directory: spec.directory.clone(),
            node_timeout: spec.node_timeout,
            port_range: spec.port_range,
            oob: spec.oob.clone(),
            // Files are on the hosts, which containers of an image mount.
            reach: reach.ahead(),
        }
    }

    /// Returns the number of hosts.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Makes a job on the same hosts.
    fn launch(&self, argv: Vec<OsString>) -> Result<Launch, Failed> {
        let app = AppSpec::new(argv, WorkingDir::Required("~".into()));
        let identity = new_identity().map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        let identity = Identity { name: JobName::of_verb(PUSH), ..identity };
        let mut spec = JobSpec::new(identity, self.hosts.clone(), app);
        spec.map_by = MapBy::Ppr(1);
        spec.command_line.clone_from(&self.command_line);
        spec.directory.clone_from(&self.directory);
        spec.node_timeout = self.node_timeout;
        spec.port_range = self.port_range;
        spec.oob = self.oob.clone();
        only_copies(&mut spec);
        let (reach, stdio) = (self.reach.clone(), Stdio::Stdout);
        Ok(Launch { spec, reach, stdio, detaching: None, tree: None })
    }
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

/// Runs an attempt to its end.
pub(super) async fn run(
    way: &Way,
    transfer: &TransferArgs,
    launch: Launch,
) -> Result<(AttemptEnd, Vec<(String, u64)>), Failed> {
    Attempt::begin(way, transfer, launch)?.finish().await
}

/// Attempt that has begun: the program on this machine runs, and the job does not.
pub(super) struct Attempt {
    way: Way,
    launch: Launch,
    reports: SharedReports,
    /// What the ranks read.
    stdin: PipeReader,
    local: Option<(PipeWriter, LocalCopier)>,
}

/// What the program on this machine knows of a working tree.
pub(super) enum TreeState {
    /// Hash of what it contains.
    Read([u8; 32]),
    /// It is larger than it may be, and the program has ended.
    TooLarge { files: u64, bytes: u64, failed: Failed },
}

impl Attempt {
    pub(super) fn begin(
        way: &Way,
        transfer: &TransferArgs,
        mut launch: Launch,
    ) -> Result<Attempt, Failed> {
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
        Ok(Attempt { way: way.clone(), launch, reports, stdin, local })
    }

    /// Waits until the program on this machine has read the working tree as it is now.
    pub(super) async fn tree(&mut self) -> Result<TreeState, Failed> {
        if let Some((to_local, _)) = &mut self.local {
            // Fails if the program has ended, which is noticed as that. It ignores a second one.
            let _ = to_local.write_all(&line(&Report::Reached)?);
        }
        self.reported(Reports::tree).await
    }

    /// Asks what has changed since the working tree, which was read, had a former content. Returns an encoded patch, unless
    /// that is not known, or too much.
    pub(super) async fn patch(&mut self, former: [u8; 32]) -> Result<Option<Vec<u8>>, Failed> {
        if let Some((to_local, _)) = &mut self.local {
            // Fails if the program has ended, which is noticed as that.
            let _ = to_local.write_all(&line(&Report::Since { hash: Hash(former) })?);
        }
        self.reported(Reports::patch).await
    }

    /// Waits until the program on this machine has reported something.
    async fn reported<T>(
        &self,
        take: fn(&Reports) -> Option<Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let changed = lock(&self.reports).changed();
        loop {
            if let Some(reported) = take(&lock(&self.reports)) {
                return reported;
            }
            changed.notified().await;
        }
    }

    /// Runs the job. Also returns what each host has received.
    pub(super) async fn finish(self) -> Result<(AttemptEnd, Vec<(String, u64)>), Failed> {
        let Attempt { way, launch, reports, stdin, local } = self;
        let (to_local, local) = local.unzip();
        let reader = RankReports { reports: Arc::clone(&reports), to_local };
        let job = launch.spec.id;
        // Of the size of the future of a job, in which this one may be.
        let mut running = Box::pin(records::run_lines(launch, reader));
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
        let reports = lock(&reports);
        Ok((conclude(&way, ended, &reports)?, reports.received()))
    }
}

fn lock(reports: &SharedReports) -> MutexGuard<'_, Reports> {
    reports.lock().unwrap_or_else(PoisonError::into_inner)
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
        last: way.last(),
        image: image.clone(),
    });
    image.iter_mut().for_each(|image| image.scratch = None);
    Ok(Requests { of_ranks: Request { last: None, image, ..of_ranks }, of_local })
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

#[cfg(test)]
mod tests {
    use super::super::FileCopy;
    use super::*;
    use clap::Parser;
    use rlaunch_copy::control::{ImageCopy, Role};
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
    fn a_request_is_a_line_of_a_pipe() {
        let mut text = String::new();
        pipe_with(b"{}\n".to_vec()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
    }
}
