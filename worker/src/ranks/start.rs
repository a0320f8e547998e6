//! Start of ranks: those that are due, and those of applications that have waited for another one.

use crate::cleanup::{cgroup, processes};
use crate::network::frames::FrameSender;
use crate::node::environment;
use crate::ranks::child::{self, Child, Streams};
use crate::ranks::files::RankFiles;
use crate::ranks::output::{RankStream, pump};
use crate::ranks::prepare::{PreparedRanks, Program};
use crate::ranks::session::Sessions;
use crate::ranks::stdin::Stdin;
use crate::ranks::{Phase, ProcessContext, RankChange, Ranks, mpi_library, pseudoterminal};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::TORCHELASTIC_ERROR_FILE;
use rlaunch_bootstrap::job::{
    AwaitedPort, ExitStatus, Job, MpiInterfaces, RankSetup, RankSpec, SingletonPolicy, below_home,
};
use rlaunch_bootstrap::protocol::control::{CleanupReceipt, FromAgent, Stream};
use std::collections::{HashSet, VecDeque};
use std::env;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time after which the start of further ranks waits for other events to be heard and said.
const START_SLICE: Duration = Duration::from_millis(200);

/// Configuration of the ranks that is known only after every node was prepared.
#[derive(Debug)]
pub(crate) struct StartConfig {
    /// Setup of each rank, by local rank.
    pub(crate) ranks: Vec<RankSetup>,
    /// Port of this node at which its Horovod ranks reach their key-value store.
    pub(crate) horovod: Option<u16>,
    /// Ports that this node has to try, because applications wait for them.
    pub(crate) ports: Vec<AwaitedPort>,
    /// Indices of the applications that were released before the start.
    pub(crate) released: Vec<u32>,
}

impl Ranks {
    /// Starts every rank of the node except those of applications that start only on request. A
    /// rank that cannot be spawned is reported with exit code 126.
    pub(crate) fn start(
        job: &Job,
        mut prepared: PreparedRanks,
        mut setup: StartConfig,
        to_launcher: &FrameSender,
        hello_at: Instant,
        context: ProcessContext,
    ) -> Ranks {
        // Freed as late as possible: the ranks bind these ports next.
        prepared.reserved_ports.clear();
        if !prepared.can_bind {
            // Memory of one node would be no nearer to CPUs of any.
            setup.ranks.iter_mut().for_each(|own| (own.cpus, own.memory_node) = (None, None));
        }
        let checks_for_mpi = job.world_size > 1 && job.singleton != SingletonPolicy::Ignore;
        let mut ranks = Ranks {
            job: job.id,
            tree: job.tree.as_ref().map(|tree| below_home(tree, env::var_os("HOME").as_deref())),
            prepared,
            setup,
            waiting: Vec::new(),
            due: VecDeque::new(),
            held_signals: Vec::new(),
            awaits_input: true,
            local_ranks: job.ranks.iter().map(|spec| (spec.rank, spec.local_rank)).collect(),
            sessions: Sessions::new(to_launcher, context.workspace.clone()),
            files: RankFiles::default(),
            running: Vec::with_capacity(job.ranks.len()),
            terminals: Vec::new(),
            terminal_size: None,
            context,
            pumps: JoinSet::new(),
            stdin: Stdin::new(to_launcher),
            stamped: job.stamp_output,
            merged: job.merge_stderr,
            abandoned: watch::Sender::new(false),
            to_launcher: to_launcher.clone(),
            hello_at,
            started_at: SystemTime::now(),
            oom_kills: cgroup::OomKillCount::now(),
            kill_after: Duration::from_millis(job.kill_after_ms.into()),
            phase: Phase::Running,
            sent_term: HashSet::new(),
            exiting: HashSet::new(),
            receipt: CleanupReceipt::default(),
            checks_for_mpi,
            serves_mpi: job.mpi != MpiInterfaces::None,
            mpi_checks: mpi_library::check_times(checks_for_mpi),
            changes: VecDeque::new(),
        };
        ranks.context.grace.grant(ranks.kill_after);
        for spec in &job.ranks {
            let application = job.applications.get(spec.application as usize);
            match application
                .filter(|a| a.starts_on_request && !ranks.setup.released.contains(&a.index))
            {
                Some(application) => ranks.waiting.push((application.index, spec.clone())),
                None => ranks.due.push_back(spec.clone()),
            }
        }
        ranks.start_due();
        ranks
    }

    /// Starts ranks that are due, those of the first moments: of many, the others follow when the caller has heard and said
    /// what there is, since a launcher that hears nothing for long counts the host as lost.
    pub(crate) fn start_due(&mut self) {
        let until = Instant::now() + START_SLICE;
        while let Some(spec) = self.due.pop_front() {
            self.start_one(&spec);
            if Instant::now() >= until && self.are_starting() {
                return;
            }
        }
        if std::mem::take(&mut self.awaits_input) {
            self.stdin.grant_first_credit();
        }
        self.pass_held_signals();
        self.mpi_checks = mpi_library::check_times(self.checks_for_mpi);
        self.advance();
    }

    /// Tells whether some ranks have not started yet that are due.
    pub(crate) fn are_starting(&self) -> bool {
        !self.due.is_empty()
    }

    /// Starts the ranks of an application that was waiting, unless the job is ending.
    pub(crate) fn start_application(&mut self, index: u32) {
        if self.phase != Phase::Running {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (due, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(of, _)| *of == index);
        self.waiting = waiting;
        self.due.extend(due.into_iter().map(|(_, spec)| spec));
        self.start_due();
    }

    /// Starts a rank, or reports that it cannot be started.
    fn start_one(&mut self, spec: &RankSpec) {
        let rank = spec.rank;
        let own = self.setup.ranks.get(spec.local_rank.index()).cloned().unwrap_or_default();
        let Some(program) = self.prepared.programs.get(spec.application as usize) else { return };
        let mut env = environment::for_rank(&program.env, spec.env.iter(), &own.defaults);
        if let Some(path) = self.error_file(rank) {
            env.entry(TORCHELASTIC_ERROR_FILE.into()).or_insert(path.into());
        }
        for (name, value) in self.mpi_environment(spec, program) {
            env.entry(name.into()).or_insert_with(|| value.into());
        }
        env.extend(own.rendered_env.iter().cloned());
        if let Some(workspace) = &self.context.workspace {
            environment::add_recorder_pipe(&mut env, workspace);
        }
        let streams = Streams { stdin: spec.stdin, stdout: program.stdout, merged: self.merged };
        let written = self.files.write(&own.files, &program.directory);
        let cgroup = self.context.cgroup.as_mut();
        match written.and_then(|()| child::spawn(program, &own, &env, streams, cgroup)) {
            Ok(child) => self.on_started(spec, child),
            Err(error) => {
                let program = program.path.display();
                let limit = processes::reached_limit(&error);
                let hint = limit.map(|limit| format!("\nhint: {limit}")).unwrap_or_default();
                self.print(rank, &format!("rlaunch: cannot start {program}: {error}{hint}"));
                if spec.stdin {
                    self.stdin.add(None);
                }
                // It has no process, and the exit code that a shell has for a program that cannot be executed.
                self.report_end(rank, Pid::from_raw(0), ExitStatus::Code(126));
            }
        }
    }

    fn on_started(&mut self, spec: &RankSpec, mut child: Child) {
        let (rank, pid) = (spec.rank, child.pid.as_raw().cast_unsigned());
        self.to_launcher.send(&FromAgent::Started { rank, pid });
        self.changes.push_back(RankChange::Started(rank, pid));
        self.running.push((rank, child.pid));
        if spec.stdin {
            self.stdin.add(child.stdin.take());
        }
        if let Some(terminal) = child.terminal() {
            if let Some(size) = self.terminal_size {
                // Fails if the terminal is gone.
                let _ = pseudoterminal::set_size(&terminal, size);
            }
            self.terminals.push((rank, terminal));
        }
        let stderr = child.stderr.map(|stderr| (Stream::Stderr, stderr));
        for (stream, pipe) in [(Stream::Stdout, child.stdout)].into_iter().chain(stderr) {
            let source = RankStream { rank, stream, stamped: self.stamped };
            let abandoned = self.abandoned.subscribe();
            self.context.grace.outputs.hand_over(pipe.as_fd());
            self.pumps.spawn(pump(source, pipe, self.to_launcher.clone(), abandoned));
        }
    }

    /// Returns the variables by which a rank finds its process manager, if the program runs MPI.
    fn mpi_environment(&self, spec: &RankSpec, program: &Program) -> Vec<(String, String)> {
        self.context.mpi.environment(spec, program.mpi)
    }
}
