//! Session with one agent. It decodes the agent's frames, writes commands and beats, and notices when nothing
//! more is received from the agent or its channel ends.
//!
//! A session reports [`NodeEvent`]s until its channel ends. If the channel ends before [`FromAgent::Done`],
//! the session reports [`NodeEventKind::Lost`], tries over a second channel to end what is left of the job on
//! the host, and reports the result as [`NodeEventKind::CleanedUp`].

use crate::connect::agent::hello::StartedAgent;
use crate::connect::channel::{AgentReader, AgentWriter, Incoming};
use crate::connect::connector::{HostConnection, JobState, STATE_AGE};
use crate::connect::lost_agent::{CleanupOutcome, LostAgent};
use crate::connect::outbox::{Credit, OutboxReceiver, Reserved, UnreadCommands};
use crate::run::output::OutputSender;
use crate::run::stdin::StdinFeed;
use bytes::Bytes;
use rlaunch_bootstrap::id::{JobId, NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{
    self, BEAT, EndCause, FrameError, FrameReader, FromAgent, MAX_FRAME, ToAgent,
};
use rlaunch_console::deadline::Deadline;
use rlaunch_text::printable;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval_at};

/// Maximum number of bytes of an agent's stderr that are quoted when its channel ends.
const STDERR_TAIL: usize = 2 << 10;

/// Maximum size, in bytes, of one agent's frames that wait to be handled. It is enough for the largest frame.
/// At this limit nothing more is read from the agent.
const UNHANDLED: usize = MAX_FRAME;

/// Event that a session reports about its node.
#[derive(Debug)]
pub(crate) struct NodeEvent {
    pub node: NodeId,
    pub kind: NodeEventKind,
    /// Share of [`UNHANDLED`] that the event's frame occupies until the event is handled. Events that the
    /// session makes itself have none.
    pub room: Option<Reserved>,
}

#[derive(Debug)]
pub(crate) enum NodeEventKind {
    Message(FromAgent),
    /// The channel ended without a [`FromAgent::Done`].
    Lost(String),
    /// The batch system ends its job on the host, which the agent does not know. Comes again once that has ended.
    JobOver(String),
    /// Result of ending what is left of the job on the host. Follows [`NodeEventKind::Lost`].
    CleanedUp(CleanupOutcome),
}

/// Parts of a session that are made before its channel exists.
pub(crate) struct SessionSlot {
    pub node: NodeId,
    pub commands: OutboxReceiver,
    pub events: mpsc::UnboundedSender<NodeEvent>,
    pub output: OutputSender,
    pub stdin: StdinFeed,
    /// Node timeout: an agent from which nothing was received for so long is lost.
    pub node_timeout: Duration,
    /// Time between SIGTERM and SIGKILL when ranks are ended.
    pub kill_after: Duration,
    /// Sender that is dropped when the session ends, by which the receiver notices the end of all sessions. If the
    /// receiver is dropped first, the session is cut off.
    pub open: mpsc::Sender<()>,
}

/// Serves an agent that has started, until its channel ends. Then leaves the host.
pub(crate) async fn serve(
    started: StartedAgent,
    mut route: Option<HostConnection>,
    slot: SessionSlot,
    job: JobId,
) {
    let (agent, processes) = (started.agent, [started.facts.pid, started.facts.guardian]);
    let (credit, unread) = (slot.commands.credit.clone(), slot.commands.unread.clone());
    let mut kill_now = slot.commands.kill_now.clone();
    let writer = tokio::spawn(write_commands(started.channel.writer, slot.commands));
    let mut session = Session {
        node: slot.node,
        frames: started.frames,
        events: slot.events,
        output: slot.output,
        credit,
        room: Arc::new(Semaphore::new(UNHANDLED)),
        unread,
        stdin: slot.stdin,
        receive_deadline: receive_deadline(slot.node_timeout),
        stderr_tail: Vec::new(),
        done: false,
        nothing_received: false,
    };
    let mut reader = started.channel.reader;
    let mut how = session.read(&mut reader, route.as_mut()).await;
    while session.nothing_received && session.waits_for(route.as_ref()).await {
        how = session.read(&mut reader, route.as_mut()).await;
    }
    if !session.done {
        if let Some(route) = &route
            && let JobState::Over(why) = route.job_state().await
        {
            how = format!("{how}: {why}");
        }
        session.report_loss(&how);
    }
    writer.abort();
    if !session.done {
        // If nothing is received from an agent, it may hang although its host still answers. So the clean-up
        // is tried in this case too.
        let (grace, nothing_received) = (slot.kill_after, session.nothing_received);
        let lost_agent = LostAgent {
            route: route.as_ref(),
            agent: &agent,
            job,
            processes,
            grace,
            nothing_received,
        };
        // An error means that the outbox is gone, so that nothing will shorten the grace period of the
        // clean-up.
        let kill_now = async { drop(kill_now.wait_for(|now| *now).await) };
        session.report(NodeEventKind::CleanedUp(lost_agent.clean_up(kill_now).await), None);
    }
    if let Some(route) = route {
        // Of a node that is lost, the next job is to find out by itself whether it can be reached.
        if session.done { route.leave().await } else { route.close().await }
    }
    reader.reap().await;
}

/// Frame that an agent of the same build never sends.
#[derive(Debug, thiserror::Error)]
enum ProtocolViolation {
    #[error(transparent)]
    Wire(#[from] FrameError),
    #[error(
        "its agent sent {0} bytes of output that it had no credit for: it is broken or hostile"
    )]
    Overdrawn(usize),
    #[error("its agent spoke for rank {0}, which it does not run: it is broken or hostile")]
    ForeignRank(Rank),
}

/// Returns the rank in whose name a message is.
fn rank_of(message: &FromAgent) -> Option<Rank> {
    match message {
        FromAgent::Output { rank, .. }
        | FromAgent::Started { rank, .. }
        | FromAgent::RankError { rank, .. }
        | FromAgent::Exited { rank, .. }
        | FromAgent::RankEvent { rank, .. } => Some(*rank),
        FromAgent::Aborted { by, .. } => *by,
        _ => None,
    }
}

/// Starts the time limit for something to come from an agent. A launcher that was stopped or got no CPU in that time waits
/// anew, since it may not have read yet what has come.
fn receive_deadline(node_timeout: Duration) -> Deadline {
    Deadline::after(node_timeout).checked_every(BEAT)
}

struct Session {
    node: NodeId,
    frames: FrameReader,
    events: mpsc::UnboundedSender<NodeEvent>,
    output: OutputSender,
    credit: Credit,
    /// Bytes of [`UNHANDLED`] that are free.
    room: Arc<Semaphore>,
    unread: Arc<UnreadCommands>,
    stdin: StdinFeed,
    receive_deadline: Deadline,
    stderr_tail: Vec<u8>,
    done: bool,
    nothing_received: bool,
}

impl Session {
    /// Reads from the agent until the channel ends or the agent counts as lost. Returns the reason as text.
    async fn read(
        &mut self,
        reader: &mut AgentReader,
        mut route: Option<&mut HostConnection>,
    ) -> String {
        loop {
            if let Err(error) = self.take_frames(route.as_deref()).await {
                return error.to_string();
            }
            let incoming = tokio::select! {
                biased;
                () = self.unread.is_full.notified() => {
                    return "its agent does not read its commands".to_owned();
                }
                why = end_of_job(route.as_deref_mut()) => {
                    self.report(NodeEventKind::JobOver(why), None);
                    continue;
                }
                incoming = self.receive_deadline.run(reader.next()) => incoming,
            };
            match incoming {
                Some(None) => return "the connection ended".to_owned(),
                Some(Some(Incoming::Data(bytes))) => {
                    self.receive_deadline.restart();
                    self.frames.push(&bytes);
                }
                Some(Some(Incoming::Diagnostics(words))) => self.diagnose(&words),
                None => {
                    self.nothing_received = true;
                    return format!(
                        "nothing received for {} s",
                        self.receive_deadline.limit().as_secs()
                    );
                }
            }
        }
    }

    /// Tells whether a silent agent is to be waited for again, because its batch system has suspended the job.
    async fn waits_for(&mut self, route: Option<&HostConnection>) -> bool {
        let Some(route) = route else { return false };
        if !route.is_suspended().await {
            return false;
        }
        while route.is_suspended().await {
            tokio::time::sleep(STATE_AGE).await;
        }
        self.nothing_received = false;
        self.receive_deadline.restart();
        true
    }

    /// Handles all frames that have arrived. Waits while [`UNHANDLED`] is used up. If the agent got a signal, asks the host's
    /// batch system first whether that has ended the job: its own words may come later.
    async fn take_frames(
        &mut self,
        route: Option<&HostConnection>,
    ) -> Result<(), ProtocolViolation> {
        while let Some((message, length)) = self.frames.next_sized()? {
            if let Some(rank) = rank_of(&message).filter(|rank| !self.credit.covers(*rank)) {
                return Err(ProtocolViolation::ForeignRank(rank));
            }
            match message {
                FromAgent::Output { data, .. } if !self.credit.take(data.len()) => {
                    return Err(ProtocolViolation::Overdrawn(data.len()));
                }
                FromAgent::Output { rank, stream, stamp, data } => {
                    // The end of a stream costs no credit, so only [`UNHANDLED`] limits the number of waiting
                    // ends.
                    let room = if data.is_empty() { self.room_for(length).await } else { None };
                    self.output.push((self.node, (rank, stream)), stamp, data, room);
                }
                FromAgent::StdinCredit(bytes) => self.stdin.add_room(self.node, bytes),
                FromAgent::StdinClosed => self.stdin.close(self.node),
                FromAgent::Beat => {}
                other => {
                    if let FromAgent::Started { rank, pid } = other {
                        let room = self.room_for(length).await;
                        self.output.started(rank, pid, room);
                    }
                    if let FromAgent::EndsRanks(EndCause::Signal(_)) = other
                        && let Some(route) = route
                        && let JobState::Over(why) = route.job_state().await
                    {
                        self.report(NodeEventKind::JobOver(why), None);
                    }
                    self.done |= matches!(other, FromAgent::Done(_));
                    let room = self.room_for(length).await;
                    self.report(NodeEventKind::Message(other), room);
                }
            }
        }
        Ok(())
    }

    /// Waits until a frame of `length` bytes fits into [`UNHANDLED`], and reserves its share. The node
    /// timeout does not run meanwhile, since nothing is read from the agent.
    async fn room_for(&mut self, length: usize) -> Option<Reserved> {
        // A decoded frame takes at least the size of its event.
        let cost = (length + size_of::<NodeEvent>()).min(UNHANDLED);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if let Ok(room) = self.room.clone().try_acquire_many_owned(cost) {
            return Some(room);
        }
        let room = self.room.clone().acquire_many_owned(cost).await;
        self.receive_deadline.restart();
        room.ok()
    }

    fn diagnose(&mut self, words: &[u8]) {
        let message = printable::first_line(&String::from_utf8_lossy(words));
        tracing::debug!(node = %self.node, "agent: {message}");
        self.stderr_tail.extend_from_slice(words);
        let excess = self.stderr_tail.len().saturating_sub(STDERR_TAIL);
        self.stderr_tail.drain(..excess);
    }

    /// Reports that the agent is lost, with its last words on stderr.
    fn report_loss(&self, how: &str) {
        let words = String::from_utf8_lossy(&self.stderr_tail);
        let words = words.trim();
        let separator = if words.is_empty() { "" } else { ": " };
        self.report(NodeEventKind::Lost(format!("{how}{separator}{words}")), None);
    }

    fn report(&self, kind: NodeEventKind, room: Option<Reserved>) {
        // An error means that the receiver is gone, because the outcome of the job is decided.
        let _ = self.events.send(NodeEvent { node: self.node, kind, room });
    }
}

async fn end_of_job(route: Option<&mut HostConnection>) -> String {
    match route {
        Some(route) => route.end_of_job().await,
        None => std::future::pending().await,
    }
}

/// Writes commands when they come, and a beat at every interval of [`BEAT`]. Ends the channel's input when
/// the last outbox is dropped.
async fn write_commands(mut writer: AgentWriter, mut commands: OutboxReceiver) {
    let beat = control::encode(&ToAgent::Beat).map(Bytes::from).unwrap_or_default();
    let mut ticks = interval_at(tokio::time::Instant::now() + BEAT, BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            biased;
            frame = commands.high_priority.recv() => frame,
            _ = ticks.tick() => Some((beat.clone(), None)),
            Some(frame) = commands.low_priority.recv() => Some((frame, None)),
        };
        let sent = match frame {
            Some((frame, _room)) => writer.send(frame).await,
            None => {
                let _ = writer.end().await;
                return;
            }
        };
        if sent.is_err() {
            return; // The reading side notices and reports it.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::channel::AgentChannel;
    use crate::connect::outbox::{Outbox, UNREAD};
    use crate::run::output;
    use rlaunch_bootstrap::job::ExitStatus;
    use rlaunch_bootstrap::protocol::control::Stream;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn session() -> (Session, Outbox, output::OutputReceiver) {
        let (commands, orders) = Outbox::new();
        let (output, unread) = output::output_channel();
        let session = Session {
            node: NodeId(3),
            frames: FrameReader::default(),
            events: mpsc::unbounded_channel().0,
            output,
            credit: orders.credit,
            room: Arc::new(Semaphore::new(UNHANDLED)),
            unread: orders.unread,
            stdin: StdinFeed::default(),
            receive_deadline: receive_deadline(3 * BEAT),
            stderr_tail: Vec::new(),
            done: false,
            nothing_received: false,
        };
        (session, commands, unread)
    }

    async fn receive(session: &mut Session, bytes: usize) -> Result<(), ProtocolViolation> {
        let source = (Rank(7), Stream::Stdout);
        let (rank, stream) = source;
        let message = FromAgent::Output { rank, stream, stamp: None, data: vec![b'x'; bytes] };
        session.frames.push(&control::encode(&message).unwrap());
        session.take_frames(None).await
    }

    #[tokio::test]
    async fn output_beyond_what_was_granted_ends_the_node() {
        let (mut session, commands, _unread) = session();
        commands.open_window(&[Rank(7)], 1000);
        // The end of a stream costs nothing.
        assert!(receive(&mut session, 0).await.is_ok());
        assert!(receive(&mut session, 600).await.is_ok());
        assert!(receive(&mut session, 400).await.is_ok());
        commands.grant(50);
        assert!(receive(&mut session, 50).await.is_ok());
        let violation = receive(&mut session, 1).await.unwrap_err();
        let words = "its agent sent 1 bytes of output that it had no credit for";
        assert!(violation.to_string().starts_with(words), "{violation}");
    }

    #[tokio::test]
    async fn output_before_the_job_is_none_of_an_agents() {
        let (mut session, _commands, _unread) = session();
        let received = receive(&mut session, 1).await;
        assert!(matches!(received, Err(ProtocolViolation::ForeignRank(Rank(7)))));
    }

    #[tokio::test]
    async fn an_agent_speaks_for_its_own_ranks_alone() {
        let rank = Rank(7);
        for message in [
            FromAgent::Output { rank, stream: Stream::Stderr, stamp: None, data: vec![b'x'] },
            FromAgent::Output { rank, stream: Stream::Stderr, stamp: None, data: Vec::new() },
            FromAgent::Started { rank, pid: 1 },
            FromAgent::RankEvent { rank, text: "x".into() },
            FromAgent::RankError { rank, content: vec![b'x'] },
            FromAgent::Exited {
                rank,
                pid: 1,
                status: ExitStatus::Code(3),
                out_of_memory: false,
                unfinalized: false,
                by_itself: true,
                at_us: 1,
            },
            FromAgent::Aborted { by: Some(rank), text: "x".into(), code: None },
        ] {
            let taken = async |ranks: &[Rank]| {
                let (mut session, commands, _unread) = session();
                commands.open_window(ranks, 1000);
                session.frames.push(&control::encode(&message).unwrap());
                session.take_frames(None).await
            };
            assert!(taken(&[Rank(9), rank]).await.is_ok(), "{message:?}");
            let violation = taken(&[Rank(6), Rank(8)]).await.unwrap_err();
            let words = "its agent spoke for rank 7, which it does not run";
            assert!(violation.to_string().starts_with(words), "{violation}");
        }
    }

    #[tokio::test]
    async fn what_is_not_handled_keeps_an_agent_from_being_read() {
        let (mut session, commands, _unread) = session();
        commands.open_window(&[Rank(0)], 0);
        let (events, mut handled) = mpsc::unbounded_channel();
        session.events = events;
        let message = FromAgent::RankEvent { rank: Rank(0), text: "x".repeat(1 << 20) };
        for _ in 0..20 {
            session.frames.push(&control::encode(&message).unwrap());
        }
        // Small frames are not free.
        for _ in 0..UNHANDLED / size_of::<NodeEvent>() {
            session.frames.push(&control::encode(&FromAgent::Suspended).unwrap());
        }
        let mut reading = pin!(session.take_frames(None));
        let mut looked = Context::from_waker(Waker::noop());
        let mut count = 0;
        while reading.as_mut().poll(&mut looked).is_pending() {
            let mut bytes = 0;
            while let Ok(event) = handled.try_recv() {
                bytes += size_of::<NodeEvent>();
                if let NodeEventKind::Message(FromAgent::RankEvent { text, .. }) = event.kind {
                    bytes += text.len();
                }
                count += 1;
            }
            assert!(bytes > 0 && bytes <= UNHANDLED, "{bytes} bytes wait");
        }
        assert!(count >= 20, "{count} events");
    }

    #[tokio::test]
    async fn what_is_passed_on_counts_until_it_is_written() {
        let (from, mut orders) = Outbox::new();
        let room = Arc::new(Semaphore::new(10));
        let message = room.clone().acquire_many_owned(10).await.ok();
        from.forward(&ToAgent::Beat, message);
        assert_eq!(room.available_permits(), 0);
        drop(orders.high_priority.recv().await);
        assert_eq!(room.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_launcher_stood_still_does_not_count() {
        let (mut session, _commands, _unread) = session();
        let (own, _agent) = tokio::io::duplex(1);
        let mut reader = AgentChannel::over_stream(own).reader;
        let began = tokio::time::Instant::now();
        let standstill = 3 * BEAT - Duration::from_millis(100);
        let (how, ()) =
            tokio::join!(session.read(&mut reader, None), tokio::time::advance(standstill));
        assert_eq!(how, "nothing received for 6 s");
        let took = began.elapsed();
        assert!(took >= standstill + 3 * BEAT, "{took:?}");
    }

    #[tokio::test]
    async fn an_agent_that_reads_nothing_is_given_up() {
        let (commands, mut orders) = Outbox::new();
        let message = ToAgent::PeerEndpoints(vec![vec![0; 1 << 20]]);
        let mut looked = Context::from_waker(Waker::noop());
        let unread = orders.unread.clone();
        let mut is_full = pin!(unread.is_full.notified());
        for _ in 0..(2 * UNREAD) >> 20 {
            commands.queue_command(&message);
            drop(orders.high_priority.recv().await);
        }
        assert!(is_full.as_mut().poll(&mut looked).is_pending());
        for _ in 0..(2 * UNREAD) >> 20 {
            commands.queue_command(&message);
        }
        assert!(is_full.poll(&mut looked).is_ready());
        assert!(orders.high_priority.len() < (UNREAD >> 20));
    }
}
