//! Calls that return when they are answered.

use super::machine::{self, Event};
use super::wire::{FromRank, Reply, ToRank, payload_limit};
use super::{ClientError, Credentials};
use crate::tree::codec::{Decoder, encode_head};
use crate::tree::gathered::Gathered;
use crate::tree::message::{Key, Kind};
use crate::tree::node::Call;
use bytes::Bytes;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the agent may take to welcome a rank.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);

/// What to add to this machine's `CLOCK_MONOTONIC` to have that of rank 0's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// In nanoseconds.
    pub nanoseconds: i64,
    /// How far that may be off, in nanoseconds.
    pub error: u64,
}

/// A rank's connection to its agent. A process may have several.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    machine: machine::Client,
    decoder: Decoder<ToRank>,
    credentials: Credentials,
    world_size: u32,
}

impl Client {
    /// Connects to the agent that the environment names.
    pub fn from_env() -> Result<Client, ClientError> {
        Client::connect(Credentials::from_env()?)
    }

    /// Connects and says hello.
    pub fn connect(credentials: Credentials) -> Result<Client, ClientError> {
        let path = credentials.socket.clone();
        let socket = UnixStream::connect(&path);
        let socket = socket.map_err(|source| ClientError::Connect { path, source })?;
        let Credentials { job, rank, token, .. } = credentials;
        let (machine, hello) = machine::Client::hello(job, rank, token);
        let decoder = Decoder::new(0);
        let mut client = Client { socket, machine, decoder, credentials, world_size: 0 };
        client.send(&hello)?;
        client.socket.set_read_timeout(Some(WELCOME_TIMEOUT)).map_err(ClientError::Socket)?;
        match client.next_event()? {
            Event::Ready(world_size) => client.world_size = world_size,
            Event::Refused(why) => return Err(why.into()),
            Event::Answered(request, ..) => {
                return Err(machine::Violation::NoSuchCall(request).into());
            }
        }
        client.socket.set_read_timeout(None).map_err(ClientError::Socket)?;
        client.decoder.set_payload_limit(payload_limit(client.world_size));
        Ok(client)
    }

    /// How many ranks the job has.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Waits may take this long from here on, in place of what RLAUNCH_COMM_TIMEOUT says.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.credentials.timeout = timeout;
    }

    /// Waits until every rank has called this as often as this one.
    pub fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.meet(Kind::Barrier, name, &[]).map(drop)
    }

    /// Gives `blob`, at most 64 KiB, and gets what every rank gave, by rank.
    pub fn all_gather(&mut self, name: &str, blob: &[u8]) -> Result<Vec<Bytes>, ClientError> {
        let (_, payload) = self.meet(Kind::Gather, name, blob)?;
        Ok(Gathered(payload.into()).by_rank(self.world_size)?)
    }

    /// Keeps `value`, at most 64 KiB, for every rank to read.
    pub fn put(&mut self, namespace: &str, key: &str, value: &[u8]) -> Result<(), ClientError> {
        let call = Call::Put { key: name(namespace, key), value: value.to_vec() };
        self.call(call, "put").map(drop)
    }

    /// Reads what is kept under a key, if anything is.
    pub fn get(&mut self, namespace: &str, key: &str) -> Result<Option<Bytes>, ClientError> {
        let (reply, value) = self.call(Call::Get(name(namespace, key)), "get")?;
        Ok((reply == Reply::Value).then_some(value))
    }

    /// Reads what is kept under a key, once something is.
    pub fn wait(&mut self, namespace: &str, key: &str) -> Result<Bytes, ClientError> {
        let key = name(namespace, key);
        let what = format!("key {key}");
        let call = Call::Await { key, timeout: self.credentials.timeout };
        self.call(call, &what).map(|(_, value)| value)
    }

    /// Ends the job; every rank's calls end with `text`.
    pub fn abort(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Call::Abort(text.to_owned()), "abort").map(drop)
    }

    /// How this machine's clock stands to that of rank 0's node.
    pub fn clock(&mut self) -> Result<ClockOffset, ClientError> {
        match self.call(Call::Clock, "clock")? {
            (Reply::Clock { offset, error }, _) => Ok(ClockOffset { nanoseconds: offset, error }),
            _ => Err(ClientError::AgentGone),
        }
    }

    /// Puts `text` into the job's events.
    pub fn event(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Call::Event(text.to_owned()), "event").map(drop)
    }

    fn meet(&mut self, kind: Kind, name: &str, blob: &[u8]) -> Result<(Reply, Bytes), ClientError> {
        let timeout = self.credentials.timeout;
        let what = match kind {
            Kind::Barrier => format!("barrier {name:?}"),
            Kind::Gather => format!("all-gather {name:?}"),
        };
        self.call(Call::Meet { kind, name: name.into(), blob: blob.to_vec(), timeout }, &what)
    }

    /// Makes a call and waits for its answer; an answer that says no becomes an error.
    fn call(&mut self, call: Call, what: &str) -> Result<(Reply, Bytes), ClientError> {
        let (request, frame) = self.machine.call(call);
        self.send(&frame)?;
        loop {
            if let Event::Answered(answered, reply, payload) = self.next_event()? {
                if answered != request {
                    continue;
                }
                let what = what.to_owned();
                return match reply {
                    Reply::TimedOut(missing) => {
                        let after = self.credentials.timeout.unwrap_or_default();
                        Err(ClientError::TimedOut { what, after, missing })
                    }
                    Reply::Broke(why) => Err(ClientError::Broke { what, why }),
                    Reply::Aborted { by, text } => Err(ClientError::Aborted { by, text }),
                    Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
                    reply => Ok((reply, payload)),
                };
            }
        }
    }

    fn send(&mut self, frame: &FromRank) -> Result<(), ClientError> {
        let bytes = encode_head(frame, 0)?;
        self.socket.write_all(&bytes).map_err(|error| self.broken(error))
    }

    fn next_event(&mut self) -> Result<Event, ClientError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some((message, payload)) = self.decoder.next_frame()? {
                return Ok(self.machine.handle(message, payload)?);
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => {
                    self.machine.end();
                    return Err(ClientError::AgentGone);
                }
                Ok(length) => self.decoder.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn broken(&mut self, error: std::io::Error) -> ClientError {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        self.machine.end();
        match error.kind() {
            BrokenPipe | ConnectionReset => ClientError::AgentGone,
            _ => ClientError::Socket(error),
        }
    }
}

fn name(namespace: &str, key: &str) -> Key {
    Key { namespace: namespace.into(), name: key.into() }
}
