//! From the start of the ranks to the end of the job: the first failure ends the others, the user
//! may end them all, and everybody is waited for.

use crate::job::apps::{Due, Order};
use crate::run::Met;
use crate::run::conclusion::{Conclusion, NodeEnd, Reason};
use crate::run::crew::Crew;
use crate::run::events::Record;
use crate::run::first_failure::{Failure, FirstFailure};
use crate::run::job_run::JobRun;
use crate::run::mesh::{LinkWatch, News};
use crate::run::output;
use crate::run::preflight_report;
use crate::run::rendezvous::Relay;
use crate::run::session::{Event, What};
use crate::run::signals::{self, Asked, Signals};
use rlaunch_bootstrap::client::events;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::SingletonPolicy;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent, UnservedMpi};
use rlaunch_bootstrap::rendezvous::message::{MAX_TEXT, MissingRanks};
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use std::time::{Duration, Instant};

/// What nodes may take beyond the grace to end their ranks and say so.
const END_SLACK: Duration = Duration::from_secs(4);
/// How long after a broken edge there may be news that explain it.
const OTHER_NEWS: Duration = Duration::from_secs(1);
/// How long agents may take to stop their ranks before this process stops itself.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long ranks that end well are gathered before the others are told: most end together with the job.
const LEFT_AFTER: Duration = Duration::from_millis(100);
/// So many characters of a reason are told to ranks.
const MOST_WORDS: usize = MAX_TEXT / 4;

/// The job while it runs.
pub(crate) struct Watch<'a> {
    job: &'a JobRun,
    crew: Crew,
    relay: Relay,
    links: LinkWatch,
    order: Order,
    signals: &'a mut Signals,
    writer: output::Writer,
    master_port: u16,
    first_failure: FirstFailure,
    reason: Option<Reason>,
    /// By node: how it ended there, once that is known.
    ends: Vec<Option<NodeEnd>>,
    /// When to end the job (`--timeout`).
    timeout: Option<Instant>,
    /// For how long nodes are waited for that were told to end.
    patience: Option<Deadline>,
    warned_of_mpi: bool,
    /// Ranks that have ended well, and when the others are told.
    left: (RankSet, Option<Instant>),
    /// Edges that broke: said when it turns out that both ends live on.
    broken: Option<(Instant, Vec<String>)>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        job: &'a JobRun,
        crew: Crew,
        Met { writer, relay, links, order, master_port }: Met,
        signals: &'a mut Signals,
    ) -> Watch<'a> {
        let ends = crew.nodes.iter().map(|_| None).collect();
        let timeout = job.timeout.map(|timeout| Instant::now() + timeout);
        Watch {
            job,
            crew,
            relay,
            links,
            order,
            signals,
            writer,
            master_port,
            first_failure: FirstFailure::default(),
            reason: None,
            ends,
            timeout,
            patience: None,
            warned_of_mpi: false,
            left: (RankSet::new(), None),
            broken: None,
        }
    }

    /// Waits for every node, then says how the job went.
    pub(crate) async fn see_out(mut self) -> Result<Exit, Failed> {
        while self.ends.iter().any(Option::is_none) {
            let timeout = until(self.timeout.filter(|_| !self.is_ending()));
            let news = until(self.broken.as_ref().map(|(at, _)| *at));
            let links = until(self.links.deadline().filter(|_| !self.is_ending()));
            let order = until(self.order.deadline().filter(|_| !self.is_ending()));
            let left = until(self.left.1.filter(|_| !self.is_ending()));
            let too_late = too_late(self.patience.as_mut());
            tokio::select! {
                () = news => self.say_what_broke(),
                () = order => {
                    self.order.on_time(Instant::now()).iter().for_each(|line| messages::info(line));
                }
                () = links => self.links.on_time(&self.crew),
                () = left => self.tell_who_left(),
                event = self.crew.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => break,
                },
                asked = self.signals.next() => self.on_signal(asked).await,
                () = self.writer.reader_gone(), if self.reason.is_none() => {
                    self.end(Reason::ReaderGone, ending("nobody reads its output any more"));
                }
                () = timeout => {
                    let after = self.job.timeout.unwrap_or_default();
                    let why = format!("not done within {} s", after.as_secs_f64());
                    self.end(Reason::Timeout(after), ending(why));
                }
                () = too_late => break,
            }
        }
        let Watch { job, crew, writer, master_port, first_failure, reason, ends, .. } = self;
        let conclusion = Conclusion { job, crew, writer, master_port, first_failure, reason, ends };
        conclusion.reach().await
    }

    fn is_ending(&self) -> bool {
        self.reason.is_some()
    }

    fn on_event(&mut self, Event { node, what, room }: Event) {
        match what {
            What::Said(FromAgent::Relay { to, data }) => {
                self.relay.carry(&self.crew, (node, to), data, room);
            }
            What::Said(message) => self.on_message(node, message),
            What::Lost(how) => self.on_loss(node, &how),
            What::Reaped(reaped) => self.ends[node.index()] = Some(NodeEnd::Lost(reaped)),
        }
    }

    fn on_message(&mut self, node: NodeId, message: FromAgent) {
        let host = self.crew.host(node);
        let events = &self.job.events;
        if let FromAgent::Started { rank, .. } | FromAgent::Exited { rank, .. } = &message
            && !self.crew.nodes[node.index()].ranks.contains(rank)
        {
            tracing::debug!(%rank, %host, "the agent speaks of a rank that it does not run");
            return;
        }
        match message {
            FromAgent::Started { rank, pid } => {
                tracing::info!(%rank, %host, pid, "started");
                events.emit(&Record::RankStarted { rank: rank.0, host: &host, pid });
                let due = self.order.rank_seen(rank);
                self.start(due);
            }
            FromAgent::Exited { rank, pid, status, out_of_memory, at_us } => {
                tracing::info!(%rank, %host, pid, ?status, "exited");
                events.emit(&Record::rank_exited(rank, &host, pid, status));
                let at = self.crew.nodes[node.index()].hello_at + Duration::from_micros(at_us);
                // The agent counts from before its hello was heard, but nothing is heard early.
                let at = at.min(Instant::now());
                self.on_exit(&host, Failure { rank, pid, status, out_of_memory, at });
            }
            FromAgent::PortOpen { id } => {
                let due = self.order.port_open(id);
                self.start(due);
            }
            FromAgent::NoLibrary { cause } => self.crew.warn_of_no_library(node, &cause),
            FromAgent::Done(receipt) => {
                let (helpers_ended, segments_removed) =
                    (receipt.leftovers_ended, receipt.segments_removed);
                events.emit(&Record::NodeClean { host: &host, helpers_ended, segments_removed });
                self.ends[node.index()] = Some(NodeEnd::Done(receipt));
            }
            FromAgent::GraceRestarted => self.patience.iter_mut().for_each(Deadline::restart),
            FromAgent::UnservedMpi { pid, what } => self.on_unserved(&host, pid, &what),
            FromAgent::EdgeBroke { peer, how } => self.on_broken_edge(node, peer, &how),
            FromAgent::Waiting { what, waited_ms, missing } => {
                self.on_waiting(&what, waited_ms, &missing);
            }
            FromAgent::WaitingForKey { key, waited_ms } => {
                let seconds = waited_ms / 1000;
                messages::info(&format!(
                    "ranks have waited {seconds} s for key {key}: nobody put it"
                ));
            }
            FromAgent::Aborted { by, text } => self.on_abort(&host, by, &text),
            FromAgent::RankEvent { rank, text } => {
                events.emit(&Record::RankEvent { rank: rank.0, text: &text });
            }
            FromAgent::PathEvent(watched) => {
                let news = self.links.on_watched(watched);
                self.on_link(news);
            }
            FromAgent::PathEndpoints { round, given } => {
                self.links.on_meets(&self.crew, node, round, given);
            }
            FromAgent::RoundDone { round, outcomes, .. } => {
                let news = self.links.on_proved(&self.crew, node, round, outcomes);
                self.on_link(news);
            }
            FromAgent::Failed { operation, cause } => {
                self.on_loss(node, &format!("cannot {operation}: {cause}"));
            }
            FromAgent::LauncherSilent { for_s } => self.on_unheard(node, for_s),
            _ => {}
        }
    }

    /// Draws what follows from the end of a rank, whether it failed or not.
    fn on_exit(&mut self, host: &str, exit: Failure) {
        let (rank, status) = (exit.rank, exit.status);
        self.first_failure.observe(exit);
        if !status.success() && !self.is_ending() {
            let ends = !self.job.continue_on_error;
            let news = events::JobEvent::RankFailed { rank, status, ends };
            match ends {
                true => self.end(Reason::Rank, news),
                false => self.crew.tell_all(&ToAgent::JobEvent(news)),
            }
        }
        if status.success() {
            self.left.0.insert(rank);
            self.left.1.get_or_insert(Instant::now() + LEFT_AFTER);
        }
        if self.job.serve && !self.is_ending() {
            let line = format!("rank {rank} on {host} has ended, and so do the others");
            self.end(Reason::Served(line.clone()), ending(line));
        }
        let due = self.order.rank_seen(rank);
        self.start(due);
    }

    /// Ranks that wait for one that has ended would wait for ever, where the two have never met.
    fn tell_who_left(&mut self) {
        let (ranks, _) = std::mem::take(&mut self.left);
        self.crew.tell_all(&ToAgent::JobEvent(events::JobEvent::RanksFinished { ranks }));
    }

    /// Programs that have waited have what they waited for.
    fn start(&self, due: Vec<Due>) {
        for Due { index, nodes } in due.into_iter().filter(|_| !self.is_ending()) {
            tracing::info!("application {} starts", index + 1);
            let message = ToAgent::StartApplication { index };
            nodes.iter().for_each(|node| self.crew.tell(*node, &message));
        }
    }

    fn on_loss(&mut self, node: NodeId, how: &str) {
        let host = self.crew.host(node);
        self.job.events.emit(&Record::NodeLost { host: &host, cause: how });
        let lost = self.crew.lost(node, how);
        if self.is_ending() {
            messages::warn(&lost.message);
        } else {
            let how = how.chars().take(MOST_WORDS).collect();
            self.end(Reason::Lost(lost), events::JobEvent::NodeLost { node, how });
        }
    }

    /// A node has ended its ranks as it took this process for lost, which stood still or could not be
    /// reached.
    fn on_unheard(&mut self, node: NodeId, for_s: u32) {
        if self.is_ending() {
            return;
        }
        let how = format!("it heard nothing from this rlaunch for {for_s} s and ended its ranks");
        self.job.events.emit(&Record::NodeLost { host: &self.crew.host(node), cause: &how });
        let hint = "an rlaunch that is suspended or cut off looks like one that is gone; \
                    --node-timeout says for how long hosts wait";
        let lost = self.crew.lost(node, &how).hint(Some(hint));
        self.end(Reason::Lost(lost), events::JobEvent::NodeLost { node, how });
    }

    /// The two may have lost each other because one of them is about to be lost to everybody: that
    /// is said instead when it is noticed.
    fn on_broken_edge(&mut self, node: NodeId, peer: NodeId, how: &str) {
        tracing::info!(%node, %peer, how, "edge broke");
        let Some((parent, child)) = self.relay.broke(node, peer) else { return };
        let (parent, child) = (self.crew.host(parent), self.crew.host(child));
        self.job.events.emit(&Record::EdgeRelayed { parent: &parent, child: &child });
        let line = format!(
            "the connection between {child} and {parent} broke ({how}): their messages go \
             through this machine"
        );
        let (_, lines) = self.broken.get_or_insert((Instant::now() + OTHER_NEWS, Vec::new()));
        lines.push(line);
    }

    fn say_what_broke(&mut self) {
        let lines = self.broken.take().map(|(_, lines)| lines).unwrap_or_default();
        if !self.is_ending() {
            lines.iter().for_each(|line| messages::info(line));
        }
    }

    /// `barrier "x": waiting 10 s for rank 2 on c (pid 4711, running, has not arrived)`
    fn on_waiting(&self, what: &str, waited_ms: u64, missing: &MissingRanks) {
        let host = |rank: Rank| {
            let node = self.crew.nodes.iter().find(|node| node.ranks.contains(&rank));
            node.map(|node| node.host.to_string()).unwrap_or_default()
        };
        let mut named: Vec<String> = missing
            .states
            .iter()
            .map(|(rank, seen)| format!("rank {rank} on {} ({seen})", host(*rank)))
            .collect();
        let more = missing.ranks.len() as usize - named.len().min(missing.ranks.len() as usize);
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        let missing = named.join(", ");
        let seconds = waited_ms as f64 / 1e3;
        self.job.events.emit(&Record::Waiting { what, seconds, missing: &missing });
        messages::info(&format!("{what}: waiting {seconds:.0} s for {missing}"));
    }

    /// A path of the mesh went down, or is up again. At the end of a job nobody uses it any more.
    fn on_link(&mut self, news: Option<News>) {
        if self.is_ending() {
            return;
        }
        match news {
            Some(News::Down(line)) => {
                self.job.events.emit(&Record::LinkDown { text: &line });
                if self.job.options.mesh.abort_on_link_down {
                    let why = ending(line.clone());
                    self.end(Reason::Link(Failed::new(Exit::MESH, line)), why);
                } else {
                    messages::warn(&line);
                }
            }
            Some(News::Dead(what, nodes)) => {
                // Whoever waits for what went that way waits in vain.
                let news = ToAgent::JobEvent(events::JobEvent::LinkDown { nodes, what });
                nodes.iter().for_each(|node| self.crew.tell(*node, &news));
            }
            Some(News::Up(line)) => {
                self.job.events.emit(&Record::LinkUp { text: &line });
                messages::info(&line);
            }
            None => {}
        }
    }

    fn on_abort(&mut self, host: &str, by: Option<Rank>, text: &str) {
        if self.is_ending() {
            return;
        }
        let message = match by {
            Some(rank) => format!("rank {rank} on {host} aborted the job: {text}"),
            None => format!("{host} aborted the job: {text}"),
        };
        let why = ending(message.clone());
        self.end(Reason::Aborted(Failed::new(Exit::ABORTED, message)), why);
    }

    fn on_unserved(&mut self, host: &str, pid: u32, what: &UnservedMpi) {
        let who = format!("process {pid} on {host}");
        let (sentence, hint) = preflight_report::singleton(&who, &what.library, &what.needs);
        if self.is_ending() {
            return;
        }
        if what.linked && self.job.singleton == SingletonPolicy::Error {
            let why = ending(sentence.clone());
            let failed = Failed::new(Exit::SINGLETON, sentence).hint(Some(hint));
            self.end(Reason::Singleton(failed), why);
        } else if !std::mem::replace(&mut self.warned_of_mpi, true) {
            messages::warn(&sentence);
        }
    }

    async fn on_signal(&mut self, asked: Asked) {
        match asked {
            Asked::Forward(signal) => self.crew.tell_all(&ToAgent::Signal(signal as i32)),
            Asked::Suspend => self.suspend().await,
            Asked::End(signal) if !self.is_ending() => {
                self.end(Reason::User(signal), ending(format!("ended by {signal}")));
            }
            // The second time: now.
            Asked::End(_) => {
                self.crew.tell_all(&ToAgent::End { now: true });
                self.patience = Some(Deadline::after(END_SLACK).check_often());
            }
        }
    }

    /// Ctrl-Z: the ranks are stopped everywhere before this process stops itself, and go on when
    /// it does.
    async fn suspend(&mut self) {
        self.crew.tell_all(&ToAgent::Suspend);
        let running = self.ends.iter().filter(|end| end.is_none()).count();
        let stopped = async {
            let mut stopped = 0;
            while stopped < running {
                let Some(event) = self.crew.events.recv().await else { return };
                match event.what {
                    What::Said(FromAgent::Suspended) => stopped += 1,
                    _ => self.on_event(event),
                }
            }
        };
        let _ = tokio::time::timeout(SUSPEND_TIMEOUT, stopped).await;
        signals::stop_here();
        self.crew.tell_all(&ToAgent::Resume);
    }

    /// Ranks that wait for others learn why before they are told to end.
    fn end(&mut self, reason: Reason, news: events::JobEvent) {
        let now = Instant::now();
        self.first_failure.ending(now);
        self.crew.tell_all(&ToAgent::JobEvent(news));
        self.crew.tell_all(&ToAgent::End { now: false });
        self.patience = Some(Deadline::after(self.job.kill_after + END_SLACK).check_often());
        self.reason = Some(reason);
    }
}

/// What ranks are told where no rank, node or link is to blame.
fn ending(why: impl Into<String>) -> events::JobEvent {
    let why: String = why.into();
    events::JobEvent::JobEnding { why: why.chars().take(MOST_WORDS).collect() }
}

/// Waits until it is over; for ever without one.
async fn too_late(patience: Option<&mut Deadline>) {
    match patience {
        Some(patience) => patience.expired().await,
        None => std::future::pending().await,
    }
}

/// Sleeps until then; for ever without a time.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
