//! Requests of clients, decoded.

use super::bfrops::{DecodeError, Info, Proc, Reader, Value};
use std::time::Duration;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// The client wants to know all ranks of its job.
    JobInfo,
    /// The client wants the job to end.
    Abort {
        /// Exit code.
        code: i32,
        /// Text for the user, maybe empty.
        message: &'a [u8],
    },
    /// The client hands over all that it has put.
    Commit(Vec<Section<'a>>),
    /// The client waits until these ranks do the same.
    Fence(Vec<Proc<'a>>),
    /// The client wants what a rank has committed.
    Get(Get<'a>),
    /// The client has called `MPI_Finalize`.
    Finalize,
    /// The client publishes values.
    Publish(Vec<Published<'a>>),
    /// The client looks up published values.
    Lookup {
        /// Keys of the values.
        keys: Vec<&'a [u8]>,
        /// Whether to wait until all of them are published.
        wait: bool,
        /// Time after which the client no longer waits; `None` if it waits for ever.
        timeout: Option<Duration>,
    },
    /// The client withdraws published values; without keys, all that it has published.
    Unpublish(Vec<&'a [u8]>),
    /// The client connects with these ranks, as the last step of `MPI_Comm_connect`: it waits until they
    /// do the same.
    Connect(Vec<Proc<'a>>),
    /// The client disconnects from these ranks: it waits until they do the same.
    Disconnect(Vec<Proc<'a>>),
    /// The client wants to hear of events. There never are any.
    RegisterEvents,
    /// The client no longer wants to hear of events; it awaits no answer.
    DeregisterEvents,
    /// The client and other ranks form a group.
    GroupConstruct {
        /// Name of the group, equal for all its members.
        id: &'a [u8],
        /// Members.
        procs: Vec<Proc<'a>>,
        /// What the client tells the other members.
        infos: Vec<Info<'a>>,
    },
    /// The members of a group dissolve it.
    GroupDestruct {
        /// Name of the group.
        id: &'a [u8],
        /// Members.
        procs: Vec<Proc<'a>>,
    },
    /// The client has a help message of Open MPI 4 for the user, which it does not print itself.
    Help(&'a [u8]),
    /// The server does not know the command.
    Unsupported,
}

/// Values that a rank has put, for one range of readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    pub(super) scope: Scope,
    /// Items that are keys and values.
    pub(super) items: &'a [u8],
}

/// Ranks that may read a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Ranks on the same node.
    Local,
    /// Ranks on other nodes.
    Remote,
    /// All ranks.
    Global,
    /// Only the rank that has put the value.
    Itself,
}

/// Request for what a rank has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Get<'a> {
    /// Rank of interest.
    pub(super) target: Proc<'a>,
    /// Key of interest, which clients before version 4 do not send.
    pub(super) key: Option<&'a [u8]>,
    /// Whether to answer at once, even if the rank has not committed yet.
    pub(super) immediate: bool,
    /// Time after which the client no longer waits; `None` if it waits for ever.
    pub(super) timeout: Option<Duration>,
    /// Group that the key belongs to, by its context number.
    pub(super) context: Option<u64>,
}

impl Get<'_> {
    /// Tells whether the key is one of those that no program puts.
    pub(super) fn is_reserved(&self) -> bool {
        self.key.is_some_and(is_reserved)
    }
}

fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(b"pmix")
}

/// Value to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Published<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Value<'a>,
    /// Whether the value is withdrawn once a rank has looked it up.
    pub(super) once: bool,
}

/// Numbers of the commands.
mod command {
    pub(super) const JOB_INFO: u8 = 0;
    pub(super) const ABORT: u8 = 1;
    pub(super) const COMMIT: u8 = 2;
    pub(super) const FENCE: u8 = 3;
    pub(super) const GET: u8 = 4;
    pub(super) const FINALIZE: u8 = 5;
    pub(super) const PUBLISH: u8 = 6;
    pub(super) const LOOKUP: u8 = 7;
    pub(super) const UNPUBLISH: u8 = 8;
    pub(super) const CONNECT: u8 = 10;
    pub(super) const DISCONNECT: u8 = 11;
    pub(super) const REGISTER_EVENTS: u8 = 13;
    pub(super) const DEREGISTER_EVENTS: u8 = 14;
    pub(super) const LOG: u8 = 16;
    pub(super) const GROUP_CONSTRUCT: u8 = 24;
    pub(super) const GROUP_DESTRUCT: u8 = 28;
}

/// Persistence of a published value that is withdrawn once it has been looked up.
const FIRST_READ: i64 = 1;

impl<'a> Request<'a> {
    /// Decodes the body of a message.
    pub(super) fn decode(body: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        reader.count(1)?;
        Ok(match reader.u8()? {
            command::JOB_INFO => Request::JobInfo,
            command::ABORT => abort(&mut reader)?,
            command::COMMIT => Request::Commit(sections(&mut reader)?),
            // Infos follow, for example whether to collect data; it always is.
            command::FENCE => Request::Fence(reader.procs()?),
            command::GET => Request::Get(get(&mut reader)?),
            command::FINALIZE => Request::Finalize,
            command::PUBLISH => publish(&mut reader)?,
            command::LOOKUP => lookup(&mut reader)?,
            command::UNPUBLISH => {
                user(&mut reader)?;
                Request::Unpublish(keys(&mut reader)?)
            }
            command::CONNECT => Request::Connect(reader.procs()?),
            command::DISCONNECT => Request::Disconnect(reader.procs()?),
            command::REGISTER_EVENTS => Request::RegisterEvents,
            command::DEREGISTER_EVENTS => Request::DeregisterEvents,
            command::LOG => help(&mut reader)?.map_or(Request::Unsupported, Request::Help),
            command::GROUP_CONSTRUCT => {
                let (id, procs) = group(&mut reader)?;
                Request::GroupConstruct { id, procs, infos: shared_infos(&mut reader)? }
            }
            command::GROUP_DESTRUCT => {
                let (id, procs) = group(&mut reader)?;
                Request::GroupDestruct { id, procs }
            }
            _ => Request::Unsupported,
        })
    }
}

fn abort<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    reader.count(1)?;
    let code = reader.i32()?;
    reader.count(1)?;
    let message = reader.optional_string()?.unwrap_or_default();
    // Ranks to end follow. There is no other use for the end of some ranks but the end of the job.
    Ok(Request::Abort { code, message })
}

fn sections<'a>(reader: &mut Reader<'a>) -> Result<Vec<Section<'a>>, DecodeError> {
    let mut sections = Vec::new();
    while !reader.is_at_end() {
        reader.count(1)?;
        let scope = match reader.u8()? {
            1 => Scope::Local,
            2 => Scope::Remote,
            3 => Scope::Global,
            _ => Scope::Itself,
        };
        reader.count(1)?;
        sections.push(Section { scope, items: reader.buffer()? });
    }
    Ok(sections)
}

fn get<'a>(reader: &mut Reader<'a>) -> Result<Get<'a>, DecodeError> {
    reader.count(1)?;
    let namespace = reader.string()?;
    reader.count(1)?;
    let rank = reader.u32()?;
    let infos = reader.infos()?;
    let mut key = None;
    if !reader.is_at_end() {
        reader.count(1)?;
        key = reader.optional_string()?;
    }
    let context = find(&infos, b"pmix.grp.ctxid").and_then(Value::integer);
    Ok(Get {
        target: Proc { namespace, rank },
        key,
        immediate: find(&infos, b"pmix.immediate").is_some_and(Value::is_set)
            || find(&infos, b"pmix.optional").is_some_and(Value::is_set),
        timeout: timeout(&infos),
        context: context.and_then(|context| u64::try_from(context).ok()),
    })
}

/// Reads the number of the user, which is not needed: all clients have the user of the agent.
fn user(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    reader.count(1)?;
    reader.u32().map(|_| ())
}

fn publish<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    user(reader)?;
    let infos = reader.infos()?;
    let persistence = find(&infos, b"pmix.persist").and_then(Value::integer);
    let once = persistence == Some(FIRST_READ);
    // Infos with the keys of PMIx are not values, but say how to publish.
    let values = infos.iter().filter(|info| !is_reserved(info.key));
    let published = |info: &Info<'a>| Published { key: info.key, value: info.value, once };
    Ok(Request::Publish(values.map(published).collect()))
}

fn lookup<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    user(reader)?;
    let keys = keys(reader)?;
    let infos = reader.infos()?;
    let wait = find(&infos, b"pmix.wait").is_some();
    Ok(Request::Lookup { keys, wait, timeout: timeout(&infos) })
}

/// Reads an item that is a `size_t`, and as many items that are strings.
fn keys<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, DecodeError> {
    reader.count(1)?;
    let number = reader.size()?;
    let mut key = || {
        reader.count(1)?;
        reader.string()
    };
    (0..number).map(|_| key()).collect()
}

/// Reads the name and the members of a group.
fn group<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Vec<Proc<'a>>), DecodeError> {
    reader.count(1)?;
    Ok((reader.string()?, reader.procs()?))
}

/// Reads the infos of a request for a group, and returns those for the other members.
fn shared_infos<'a>(reader: &mut Reader<'a>) -> Result<Vec<Info<'a>>, DecodeError> {
    let infos = reader.infos()?;
    Ok(find(&infos, b"pmix.grp.info").and_then(Value::infos).unwrap_or_default())
}

/// Reads a request to log: a time, infos, and directives, which do not matter here. Returns the text if
/// it is a help message of Open MPI 4. Open MPI 5 prints its messages itself if the server does not.
fn help<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, DecodeError> {
    reader.count(1)?;
    reader.u64()?;
    let infos = reader.infos()?;
    let message = find(&infos, b"pmix.log.msg").and_then(Value::bytes);
    Ok(message.and_then(|message| help_text(message).ok()))
}

/// Returns the text of a help message of Open MPI 4: the names of a file and a topic, a flag, and the
/// text. Its encoding is like that of PMIx.
fn help_text(message: &[u8]) -> Result<&[u8], DecodeError> {
    let mut reader = Reader::new(message);
    for _ in 0..2 {
        reader.count(1)?;
        reader.string()?;
    }
    reader.count(1)?;
    reader.u8()?;
    reader.count(1)?;
    reader.string()
}

fn find<'i, 'a>(infos: &'i [Info<'a>], key: &[u8]) -> Option<&'i Value<'a>> {
    infos.iter().find(|info| info.key == key).map(|info| &info.value)
}

/// Returns the time after which a client no longer waits; zero seconds mean for ever.
fn timeout(infos: &[Info<'_>]) -> Option<Duration> {
    let seconds = find(infos, b"pmix.timeout")?.integer()?;
    u32::try_from(seconds).ok().filter(|&seconds| seconds > 0).map(|seconds| {
        Duration::from_secs(seconds.into())
    })
}

