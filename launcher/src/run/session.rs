//! A node's life, seen from the launcher: its agent's frames come in, commands go out, and silence
//! on either side is noticed.

use crate::connect::agent::greet::Greeted;
use crate::connect::channel::{Incoming, Reader, Writer};
use crate::connect::outbox::{Credit, OutboxReceiver};
use crate::connect::rescue::{Reaped, Rescue};
use crate::connect::route::Route;
use crate::console::deadline::Deadline;
use crate::console::printable;
use crate::run::output::Output;
use crate::run::stdin::Feed;
use bytes::Bytes;
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::wire::{self, BEAT, FrameReader, FromAgent, ToAgent, WireError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval_at};

/// What an agent last said before its channel ended, in bytes.
const LAST_WORDS: usize = 2 << 10;

/// Something that happened on a node.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) node: NodeId,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Said(FromAgent),
    /// The channel ended without a [`FromAgent::Done`].
    Lost(String),
    /// After [`What::Lost`]: what a second channel could do about it.
    Reaped(Reaped),
}

/// A place in the crew, to be taken by a session.
pub(crate) struct Seat {
    pub(crate) node: NodeId,
    pub(crate) commands: OutboxReceiver,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) output: Output,
    pub(crate) stdin: Feed,
    /// How long the agent may be silent.
    pub(crate) silence: Duration,
    /// How long its ranks may take to end.
    pub(crate) kill_after: Duration,
    /// Held until the channel is closed.
    pub(crate) here: mpsc::Sender<()>,
}

/// Serves an agent that has spoken, until its channel ends. Its route is held open for it.
pub(crate) async fn serve(greeted: Greeted, route: Option<Route>, seat: Seat, job: JobId) {
    let _here = seat.here;
    let (agent, pid) = (greeted.agent, greeted.facts.pid);
    let credit = seat.commands.credit.clone();
    let writer = tokio::spawn(write_commands(greeted.channel.writer, seat.commands));
    let mut session = Session {
        node: seat.node,
        frames: greeted.frames,
        events: seat.events,
        output: seat.output,
        credit,
        stdin: seat.stdin,
        silence: Deadline::after(seat.silence),
        last_words: Vec::new(),
        done: false,
        silent: false,
    };
    let mut reader = greeted.channel.reader;
    let how = session.read(&mut reader).await;
    if !session.done {
        let words = String::from_utf8_lossy(&session.last_words);
        let words = words.trim();
        let separator = if words.is_empty() { "" } else { ": " };
        session.report(What::Lost(format!("{how}{separator}{words}")));
    }
    writer.abort();
    if !session.done {
        // An agent may hang on a host that answers.
        let silent = session.silent.then_some((pid, seat.kill_after));
        let rescue = Rescue { route: route.as_ref(), agent: &agent, job, silent };
        session.report(What::Reaped(rescue.attempt().await));
    }
    if let Some(route) = route {
        route.close().await;
    }
    reader.reap().await;
}

/// Words of an agent that no agent of this build would say.
#[derive(Debug, thiserror::Error)]
enum Violation {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(
        "its agent sent {0} bytes of output that it had no credit for: it is broken or hostile"
    )]
    Overdrawn(usize),
}

struct Session {
    node: NodeId,
    frames: FrameReader,
    events: mpsc::UnboundedSender<Event>,
    output: Output,
    credit: Credit,
    stdin: Feed,
    silence: Deadline,
    last_words: Vec<u8>,
    done: bool,
    silent: bool,
}

impl Session {
    /// Reads until the channel ends, and says how it did.
    async fn read(&mut self, reader: &mut Reader) -> String {
        loop {
            if let Err(error) = self.take_frames() {
                return error.to_string();
            }
            match self.silence.keep(reader.next()).await {
                Some(None) => return "the connection ended".to_owned(),
                Some(Some(Incoming::Data(bytes))) => {
                    self.silence.renew();
                    self.frames.push(&bytes);
                }
                Some(Some(Incoming::Diagnostics(words))) => self.diagnose(&words),
                None => {
                    self.silent = true;
                    return format!("nothing heard for {} s", self.silence.limit().as_secs());
                }
            }
        }
    }

    fn take_frames(&mut self) -> Result<(), Violation> {
        while let Some(message) = self.frames.next_frame()? {
            match message {
                FromAgent::Output { data, .. } if !self.credit.take(data.len()) => {
                    return Err(Violation::Overdrawn(data.len()));
                }
                FromAgent::Output { rank, stream, stamp, data } => {
                    self.output.push(self.node, (rank, stream), stamp, data);
                }
                FromAgent::StdinCredit(bytes) => self.stdin.add_room(self.node, bytes),
                FromAgent::StdinClosed => self.stdin.close(self.node),
                FromAgent::Beat => {}
                other => {
                    if let FromAgent::Started { rank, pid } = other {
                        self.output.started(rank, pid);
                    }
                    self.done |= matches!(other, FromAgent::Done(_));
                    self.report(What::Said(other));
                }
            }
        }
        Ok(())
    }

    fn diagnose(&mut self, words: &[u8]) {
        let said = printable::line(&String::from_utf8_lossy(words));
        tracing::debug!(node = %self.node, "agent: {said}");
        self.last_words.extend_from_slice(words);
        let excess = self.last_words.len().saturating_sub(LAST_WORDS);
        self.last_words.drain(..excess);
    }

    fn report(&self, what: What) {
        // Nobody listens once the job is decided.
        let _ = self.events.send(Event { node: self.node, what });
    }
}

/// Writes commands as they come and a beat every so often; ends the channel's input when nobody
/// can command any more.
async fn write_commands(mut writer: Writer, mut orders: OutboxReceiver) {
    let beat = wire::encode(&ToAgent::Beat).map(Bytes::from).unwrap_or_default();
    let mut ticks = interval_at(tokio::time::Instant::now() + BEAT, BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            biased;
            frame = orders.first.recv() => frame,
            _ = ticks.tick() => Some(beat.clone()),
            Some(frame) = orders.last.recv() => Some(frame),
        };
        let sent = match frame {
            Some(frame) => writer.send(frame).await,
            None => {
                let _ = writer.end().await;
                return;
            }
        };
        if sent.is_err() {
            return; // The reading side notices and says so.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::outbox::Outbox;
    use crate::run::output;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::wire::Stream;

    fn session() -> (Session, Outbox, output::Unread) {
        let (commands, orders) = Outbox::new();
        let (output, unread) = output::pipe();
        let session = Session {
            node: NodeId(3),
            frames: FrameReader::default(),
            events: mpsc::unbounded_channel().0,
            output,
            credit: orders.credit,
            stdin: Feed::default(),
            silence: Deadline::after(BEAT),
            last_words: Vec::new(),
            done: false,
            silent: false,
        };
        (session, commands, unread)
    }

    fn hear(session: &mut Session, bytes: usize) -> Result<(), Violation> {
        let source = (Rank(7), Stream::Stdout);
        let (rank, stream) = source;
        let said = FromAgent::Output { rank, stream, stamp: None, data: vec![b'x'; bytes] };
        session.frames.push(&wire::encode(&said).unwrap());
        session.take_frames()
    }

    #[tokio::test]
    async fn output_beyond_what_was_granted_ends_the_node() {
        let (mut session, commands, _unread) = session();
        // Before the job nothing is granted; the end of a stream costs nothing.
        assert!(hear(&mut session, 0).is_ok());
        commands.open_window(1000);
        assert!(hear(&mut session, 600).is_ok());
        assert!(hear(&mut session, 400).is_ok());
        commands.grant(50);
        assert!(hear(&mut session, 50).is_ok());
        let violation = hear(&mut session, 1).unwrap_err();
        let words = "its agent sent 1 bytes of output that it had no credit for";
        assert!(violation.to_string().starts_with(words), "{violation}");
    }

    #[tokio::test]
    async fn output_before_the_job_is_none_of_an_agents() {
        let (mut session, _commands, _unread) = session();
        assert!(matches!(hear(&mut session, 1), Err(Violation::Overdrawn(1))));
    }
}
