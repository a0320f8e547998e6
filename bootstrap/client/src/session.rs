//! State of a rank's connection without the socket, for both clients: makes and encodes calls, decodes replies and
//! queues job events.

use crate::machine::{ClientEvent, ClientMachine, ClientViolation};
use crate::{ClientError, Credentials};
use bytes::Bytes;
use rlaunch_bootstrap::protocol::rank::{JobEvent, MAX_JOB_EVENTS, Reply, ToRank, payload_limit};
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key};
use rlaunch_bootstrap::rendezvous::node::Call;
use rlaunch_bootstrap::rendezvous::payload::Gathered;
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Time within which the agent must accept or reject a new connection.
pub(crate) const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the buffer for one read from the socket, in bytes.
pub(crate) const READ: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Session {
    machine: ClientMachine,
    decoder: Decoder<ToRank>,
    world_size: u32,
    pub(crate) timeout: Option<Duration>,
    /// Job events that the caller has not taken yet, except [`JobEvent::RanksFinished`].
    events: VecDeque<JobEvent>,
    finished: RankSet,
}

/// Call that was sent and whose reply is awaited.
#[derive(Debug)]
pub(crate) struct Sent {
    request: u64,
    description: String,
    timeout: Option<Duration>,
}

impl Session {
    /// Starts a session. Returns the encoded hello to send.
    pub(crate) fn start(credentials: &Credentials) -> Result<(Session, Vec<u8>), ClientError> {
        let &Credentials { job, rank, token, timeout, .. } = credentials;
        let (machine, hello) = ClientMachine::hello(job, rank, token);
        let decoder = Decoder::new(0);
        let (events, finished) = (VecDeque::new(), RankSet::new());
        let session = Session { machine, decoder, world_size: 0, timeout, events, finished };
        Ok((session, encode_head(&hello, 0)?))
    }

    /// Handles the reply to the hello if it has arrived. Returns whether the agent has accepted the
    /// rank; fails if it has rejected the rank.
    pub(crate) fn poll_welcome(&mut self) -> Result<bool, ClientError> {
        match self.next_event()? {
            None => Ok(false),
            Some(ClientEvent::Ready(world_size)) => {
                self.world_size = world_size;
                self.decoder.set_payload_limit(payload_limit(world_size));
                Ok(true)
            }
            Some(ClientEvent::Refused(why)) => Err(why.into()),
            Some(ClientEvent::Answered(request, ..)) => {
                Err(ClientViolation::NoSuchCall(request).into())
            }
            Some(ClientEvent::JobEvent(_)) => {
                Err(ClientViolation::OutOfPhase(self.machine.phase()).into())
            }
        }
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Registers and encodes a call. Returns the pending call and the bytes to send.
    pub(crate) fn encode_call(&mut self, request: Request) -> Result<(Sent, Vec<u8>), ClientError> {
        let Request { call, description, timeout } = request;
        let (request, frame) = self.machine.call(call);
        Ok((Sent { request, description, timeout }, encode_head(&frame, 0)?))
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// Returns the reply to `sent` if it has arrived, or an error if the reply reports a failure.
    /// Replies to other calls are dropped: the futures of those calls were dropped before.
    pub(crate) fn reply_to(&mut self, sent: &Sent) -> Result<Option<Answered>, ClientError> {
        while let Some(event) = self.next_event()? {
            match event {
                ClientEvent::Answered(request, reply, payload) if request == sent.request => {
                    return check_reply(reply, sent).map(|reply| Some((reply, payload)));
                }
                ClientEvent::JobEvent(event) => self.enqueue(event),
                // The reply to a call that was dropped; the machine lets nothing else through.
                _ => {}
            }
        }
        Ok(None)
    }

    /// Returns the oldest job event that the caller has not taken, or `None` if there is none.
    pub(crate) fn next_job_event(&mut self) -> Result<Option<JobEvent>, ClientError> {
        while let Some(event) = self.next_event()? {
            if let ClientEvent::JobEvent(event) = event {
                self.enqueue(event);
            }
        }
        let mut left = || {
            let ranks = std::mem::take(&mut self.finished);
            (!ranks.is_empty()).then_some(JobEvent::RanksFinished { ranks })
        };
        Ok(self.events.pop_front().or_else(&mut left))
    }

    fn enqueue(&mut self, event: JobEvent) {
        if let JobEvent::RanksFinished { ranks } = &event {
            return self.finished.extend(ranks);
        }
        if self.events.len() < MAX_JOB_EVENTS {
            self.events.push_back(event);
        }
    }

    fn next_event(&mut self) -> Result<Option<ClientEvent>, ClientError> {
        let Some((message, payload)) = self.decoder.next_frame()? else { return Ok(None) };
        Ok(Some(self.machine.handle(message, payload)?))
    }

    /// Ends the session after the socket was closed, or failed with `error`. Returns the error for
    /// the caller.
    pub(crate) fn closed(&mut self, error: Option<io::Error>) -> ClientError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        self.machine.end();
        match error {
            Some(error) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                ClientError::Socket(error)
            }
            _ => ClientError::AgentGone,
        }
    }
}

fn check_reply(reply: Reply, sent: &Sent) -> Result<Reply, ClientError> {
    let description = || sent.description.clone();
    match reply {
        Reply::TimedOut(missing) => {
            let after = sent.timeout.unwrap_or_default();
            Err(ClientError::TimedOut { what: description(), after, missing })
        }
        Reply::Failed(why) => Err(ClientError::CollectiveFailed { what: description(), why }),
        Reply::Aborted { by, text } => Err(ClientError::Aborted { by, text }),
        Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
        reply => Ok(reply),
    }
}

/// Offset to add to this host's `CLOCK_MONOTONIC` to get the `CLOCK_MONOTONIC` of rank 0's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Offset in nanoseconds; negative if this host's clock is ahead.
    pub nanoseconds: i64,
    /// Maximum error of the offset, in nanoseconds.
    pub error: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    /// Description of the operation for error messages.
    pub(crate) description: String,
    pub(crate) timeout: Option<Duration>,
}

pub(crate) type Answered = (Reply, Bytes);

impl Request {
    fn new(call: Call, description: impl Into<String>) -> Request {
        Request { call, description: description.into(), timeout: None }
    }

    fn collective(
        kind: CollectiveKind,
        name: &str,
        blob: &[u8],
        timeout: Option<Duration>,
    ) -> Request {
        let description = match kind {
            CollectiveKind::Barrier => format!("barrier {name:?}"),
            CollectiveKind::Gather => format!("all-gather {name:?}"),
        };
        let call = Call::Collective { kind, name: name.into(), blob: blob.to_vec(), timeout };
        Request { call, description, timeout }
    }

    pub(crate) fn barrier(name: &str, timeout: Option<Duration>) -> Request {
        Request::collective(CollectiveKind::Barrier, name, &[], timeout)
    }

    pub(crate) fn all_gather(name: &str, blob: &[u8], timeout: Option<Duration>) -> Request {
        Request::collective(CollectiveKind::Gather, name, blob, timeout)
    }

    pub(crate) fn put(namespace: &str, key: &str, value: &[u8]) -> Request {
        Request::new(Call::Put { key: self::key(namespace, key), value: value.to_vec() }, "put")
    }

    pub(crate) fn get(namespace: &str, key: &str) -> Request {
        Request::new(Call::Get(self::key(namespace, key)), "get")
    }

    pub(crate) fn wait(namespace: &str, key: &str, timeout: Option<Duration>) -> Request {
        let key = self::key(namespace, key);
        let description = format!("key {key}");
        Request { call: Call::Await { key, timeout }, description, timeout }
    }

    pub(crate) fn abort(text: &str) -> Request {
        Request::new(Call::Abort(text.to_owned()), "abort")
    }

    pub(crate) fn clock() -> Request {
        Request::new(Call::Clock, "clock")
    }

    pub(crate) fn event(text: &str) -> Request {
        Request::new(Call::Event(text.to_owned()), "event")
    }
}

/// Decodes the reply to a gather into the blobs of `world_size` ranks, indexed by rank.
pub(crate) fn gathered(answered: Answered, world_size: u32) -> Result<Vec<Bytes>, ClientError> {
    Ok(Gathered(answered.1.into()).by_rank(world_size)?)
}

/// Decodes the reply to a read. Returns `None` if the key has no value.
pub(crate) fn value((reply, bytes): Answered) -> Option<Bytes> {
    (reply == Reply::Value(())).then_some(bytes)
}

pub(crate) fn offset(answered: &Answered) -> Result<ClockOffset, ClientError> {
    match answered.0 {
        Reply::Clock { offset, error } => Ok(ClockOffset { nanoseconds: offset, error }),
        // No agent that speaks this version of the protocol gives another answer.
        _ => Err(ClientError::AgentGone),
    }
}

fn key(namespace: &str, key: &str) -> Key {
    Key { namespace: namespace.into(), name: key.into() }
}
