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
        keys: Vec<&'a [u8]>,
        /// Whether to wait until all of them are published.
        wait: bool,
    },
    /// The client withdraws published values; without keys, all that it has published.
    Unpublish(Vec<&'a [u8]>),
    /// The client connects with these ranks, as the last step of `MPI_Comm_connect`: it waits until they
    /// do the same.
    Connect(Vec<Proc<'a>>),
    /// The client disconnects from these ranks: it waits until they do the same.
    Disconnect(Vec<Proc<'a>>),
    /// The client wants to be notified of events, of which there are none.
    RegisterEvents,
    /// The client no longer wants to be notified of events. It awaits no answer.
    DeregisterEvents,
    /// The client and other ranks form a group.
    GroupConstruct {
        /// Name of the group, equal for all its members.
        id: &'a [u8],
        /// Members.
        procs: Vec<Proc<'a>>,
        /// Infos for the other members.
        infos: Vec<Info<'a>>,
    },
    /// The members of a group dissolve it.
    GroupDestruct {
        /// Name of the group.
        id: &'a [u8],
        /// Members.
        procs: Vec<Proc<'a>>,
    },
    /// The client names files that are to be removed when it has ended.
    Cleanup(Vec<&'a [u8]>),
    /// The client has a help message of Open MPI 4 for the user, which it does not print itself.
    Help(&'a [u8]),
    /// The server does not know the command.
    Unsupported,
}

/// Values that a rank has put for the same readers.
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
    /// Key of interest. Clients before version 4 do not send it.
    pub(super) key: Option<&'a [u8]>,
    /// Whether to answer at once, even if the rank has not committed yet.
    pub(super) immediate: bool,
    /// Number of the group that the key belongs to.
    pub(super) context: Option<u64>,
}

impl Get<'_> {
    /// Tells whether the key is one of PMIx itself, which programs do not put.
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
    pub(super) const CONTROL: u8 = 18;
    pub(super) const GROUP_CONSTRUCT: u8 = 24;
    pub(super) const GROUP_DESTRUCT: u8 = 28;
}

/// Persistence of a published value that is withdrawn once it has been looked up.
const FIRST_READ: i64 = 1;

impl<'a> Request<'a> {
    /// Decodes the body of a message. Returns the request, and the time after which the client no longer
    /// waits for the answer; `None` if it waits for ever.
    pub(super) fn decode(body: &'a [u8]) -> Result<Timed<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let reader = &mut reader;
        reader.count(1)?;
        let request = match reader.u8()? {
            command::JOB_INFO => Request::JobInfo,
            command::ABORT => abort(reader)?,
            command::COMMIT => Request::Commit(sections(reader)?),
            // Data is always collected, whatever the infos say.
            command::FENCE => Request::Fence(reader.procs()?),
            command::GET => return get(reader),
            command::FINALIZE => Request::Finalize,
            command::PUBLISH => return publish(reader),
            command::LOOKUP => return lookup(reader),
            command::UNPUBLISH => {
                user(reader)?;
                Request::Unpublish(keys(reader)?)
            }
            command::CONNECT => Request::Connect(reader.procs()?),
            command::DISCONNECT => Request::Disconnect(reader.procs()?),
            command::REGISTER_EVENTS => Request::RegisterEvents,
            command::DEREGISTER_EVENTS => Request::DeregisterEvents,
            command::LOG => help(reader)?.map_or(Request::Unsupported, Request::Help),
            command::CONTROL => cleanup(reader)?,
            command::GROUP_CONSTRUCT => return construct(reader),
            command::GROUP_DESTRUCT => {
                let (id, procs) = group(reader)?;
                Request::GroupDestruct { id, procs }
            }
            _ => Request::Unsupported,
        };
        let timeout = match request {
            Request::Fence(_)
            | Request::Unpublish(_)
            | Request::Connect(_)
            | Request::Disconnect(_)
            | Request::GroupDestruct { .. } => last_timeout(reader),
            _ => None,
        };
        Ok((request, timeout))
    }
}

fn abort<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    reader.count(1)?;
    let code = reader.i32()?;
    reader.count(1)?;
    let message = reader.optional_string()?.unwrap_or_default();
    // The ranks that are to end follow. The job ends as a whole.
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

/// Request, and the time after which the client no longer waits.
type Timed<'a> = (Request<'a>, Option<Duration>);

fn get<'a>(reader: &mut Reader<'a>) -> Result<Timed<'a>, DecodeError> {
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
    let get = Get {
        target: Proc { namespace, rank },
        key,
        immediate: find(&infos, b"pmix.immediate").is_some_and(Value::is_set)
            || find(&infos, b"pmix.optional").is_some_and(Value::is_set),
        context: context.and_then(|context| u64::try_from(context).ok()),
    };
    Ok((Request::Get(get), timeout(&infos)))
}

/// Reads the number of the user, which is not needed: all clients have the user of the agent.
fn user(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    reader.count(1)?;
    reader.u32().map(|_| ())
}

fn publish<'a>(reader: &mut Reader<'a>) -> Result<Timed<'a>, DecodeError> {
    user(reader)?;
    let infos = reader.infos()?;
    let persistence = find(&infos, b"pmix.persist").and_then(Value::integer);
    let once = persistence == Some(FIRST_READ);
    // Infos with the keys of PMIx are not values, but say how to publish.
    let values = infos.iter().filter(|info| !is_reserved(info.key));
    let published = |info: &Info<'a>| Published { key: info.key, value: info.value, once };
    Ok((Request::Publish(values.map(published).collect()), timeout(&infos)))
}

fn lookup<'a>(reader: &mut Reader<'a>) -> Result<Timed<'a>, DecodeError> {
    user(reader)?;
    let keys = keys(reader)?;
    let infos = reader.infos()?;
    let wait = find(&infos, b"pmix.wait").is_some();
    Ok((Request::Lookup { keys, wait }, timeout(&infos)))
}

/// Reads an item that is a `size_t`, and as many items that are strings.
fn keys<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, DecodeError> {
    reader.count(1)?;
    let number = reader.size()?;
    let mut keys = Vec::new();
    for _ in 0..number {
        reader.count(1)?;
        keys.push(reader.string()?);
    }
    Ok(keys)
}

/// Reads the name and the members of a group.
fn group<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Vec<Proc<'a>>), DecodeError> {
    reader.count(1)?;
    Ok((reader.string()?, reader.procs()?))
}

fn construct<'a>(reader: &mut Reader<'a>) -> Result<Timed<'a>, DecodeError> {
    let (id, procs) = group(reader)?;
    let infos = reader.infos()?;
    let shared = find(&infos, b"pmix.grp.info").and_then(Value::infos).unwrap_or_default();
    Ok((Request::GroupConstruct { id, procs, infos: shared }, timeout(&infos)))
}

/// Reads a request to control the job: the ranks that it is about, and infos. Of those, only the names of
/// files are supported that are to be removed.
fn cleanup<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    reader.procs()?;
    let infos = reader.infos()?;
    let files = infos.iter().filter(|info| info.key == b"pmix.reg.cleanup");
    // Several names are separated by commas.
    let names = files.filter_map(|info| info.value.text()).flat_map(|names| names.split(is_comma));
    let names: Vec<&[u8]> = names.collect();
    let is_all = infos.iter().all(|info| info.key == b"pmix.reg.cleanup");
    Ok(if is_all && !names.is_empty() { Request::Cleanup(names) } else { Request::Unsupported })
}

fn is_comma(byte: &u8) -> bool {
    *byte == b','
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

/// Reads the infos at the end of a request, of which only the time after which the client no longer waits
/// is needed. It waits for ever if they are malformed.
fn last_timeout(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.infos().ok().and_then(|infos| timeout(&infos))
}

/// Returns the time after which a client no longer waits; zero seconds mean for ever.
fn timeout(infos: &[Info<'_>]) -> Option<Duration> {
    let seconds = find(infos, b"pmix.timeout")?.integer()?;
    u32::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds > 0)
        .map(|seconds| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::bfrops::{Item, Writer};

    /// Returns a request; `write` writes what follows the command.
    fn request(number: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.count(1).u8(number);
        write(&mut writer);
        writer.into_bytes()
    }

    fn infos(writer: &mut Writer, infos: &[(&str, Item<'_>)]) {
        writer.count(1).size(infos.len() as u64);
        if !infos.is_empty() {
            writer.count(infos.len());
            for (key, value) in infos {
                writer.info(key, 0, *value);
            }
        }
    }

    #[test]
    fn a_get_has_a_target_a_key_and_directives() {
        let directives = [
            ("pmix.timeout", Item::U32(3)),
            ("pmix.immediate", Item::U16(1)),
            ("pmix.grp.ctxid", Item::Size(7)),
        ];
        let bytes = request(4, |writer| {
            writer.count(1).string(b"job").count(1).u32(5);
            infos(writer, &directives);
            writer.count(1).string(b"btl.tcp");
        });
        let expected = Get {
            target: Proc { namespace: b"job", rank: 5 },
            key: Some(b"btl.tcp"),
            immediate: true,
            context: Some(7),
        };
        let seconds = Some(Duration::from_secs(3));
        assert_eq!(Request::decode(&bytes), Ok((Request::Get(expected), seconds)));
        assert!(!expected.is_reserved());
        assert!(Get { key: Some(b"pmix.hname"), ..expected }.is_reserved());
        assert!(!Get { key: None, ..expected }.is_reserved());
    }

    #[test]
    fn a_get_needs_no_key_and_no_directives() {
        let bytes = request(4, |writer| {
            writer.count(1).string(b"job").count(1).u32(5);
            infos(writer, &[("pmix.timeout", Item::U32(0))]);
        });
        let target = Proc { namespace: b"job", rank: 5 };
        let expected = Get { target, key: None, immediate: false, context: None };
        assert_eq!(Request::decode(&bytes), Ok((Request::Get(expected), None)));
    }

    #[test]
    fn a_commit_has_sections() {
        let bytes = request(2, |writer| {
            for scope in 1..=4 {
                writer.count(1).u8(scope).count(1).u8(1).byte_object(&[scope]);
            }
        });
        let section = |scope, items| Section { scope, items };
        let expected = vec![
            section(Scope::Local, &[1][..]),
            section(Scope::Remote, &[2]),
            section(Scope::Global, &[3]),
            section(Scope::Itself, &[4]),
        ];
        assert_eq!(Request::decode(&bytes), Ok((Request::Commit(expected), None)));
        assert_eq!(Request::decode(&request(2, |_| ())), Ok((Request::Commit(Vec::new()), None)));
    }

    #[test]
    fn infos_with_keys_of_pmix_are_not_published() {
        let bytes = request(6, |writer| {
            writer.count(1).u32(1000);
            let values = [
                ("service", Item::Text("port")),
                ("pmix.range", Item::U16(3)),
                ("pmix.persist", Item::U16(1)),
            ];
            infos(writer, &values);
        });
        let Ok((Request::Publish(values), None)) = Request::decode(&bytes) else { panic!() };
        assert_eq!(values.len(), 1);
        assert!(values[0].key == b"service" && values[0].once);
    }

    #[test]
    fn a_fence_may_be_followed_by_anything() {
        let bytes = request(3, |writer| {
            writer.count(1).size(1).count(1).proc("job", 2).raw(b"anything");
        });
        let procs = vec![Proc { namespace: b"job", rank: 2 }];
        assert_eq!(Request::decode(&bytes), Ok((Request::Fence(procs), None)));
    }

    #[test]
    fn a_client_may_say_for_how_long_it_waits() {
        let procs = |writer: &mut Writer| {
            writer.count(1).size(1).count(1).proc("job", 2);
        };
        let keys = |writer: &mut Writer| {
            writer.count(1).u32(0).count(1).size(1).count(1).string(b"k");
        };
        let group = |writer: &mut Writer| {
            writer.count(1).string(b"g").count(1).size(1).count(1).proc("job", 2);
        };
        let before = |number, writer: &mut Writer| match number {
            6 => {
                writer.count(1).u32(0);
            }
            7 | 8 => keys(writer),
            24 | 28 => group(writer),
            _ => procs(writer),
        };
        for number in [3, 6, 7, 8, 10, 11, 24, 28] {
            for (value, expected) in [(0, None), (7, Some(Duration::from_secs(7)))] {
                let bytes = request(number, |writer| {
                    before(number, writer);
                    infos(writer, &[("pmix.timeout", Item::U32(value))]);
                });
                let (_, timeout) = Request::decode(&bytes).unwrap();
                assert_eq!(timeout, expected, "command {number}");
            }
        }
    }

    #[test]
    fn requests_that_end_early_are_malformed() {
        let requests = [
            request(1, |writer| {
                writer.count(1).i32(7).count(1).string(b"why");
            }),
            request(2, |writer| {
                writer.count(1).u8(1).count(1).u8(1).byte_object(b"x");
            }),
            request(3, |writer| {
                writer.count(1).size(1).count(1).proc("job", 0);
            }),
            request(4, |writer| {
                writer.count(1).string(b"job").count(1).u32(0);
                infos(writer, &[("k", Item::U32(0))]);
            }),
            request(6, |writer| {
                writer.count(1).u32(0);
                infos(writer, &[("k", Item::U32(0))]);
            }),
            request(7, |writer| {
                writer.count(1).u32(0).count(1).size(1).count(1).string(b"k");
                infos(writer, &[]);
            }),
            request(24, |writer| {
                writer.count(1).string(b"g").count(1).size(1).count(1).proc("job", 0);
                infos(writer, &[]);
            }),
        ];
        for bytes in &requests {
            assert!(Request::decode(bytes).is_ok(), "{bytes:?}");
            // A request to commit may have no sections.
            let shortest = if bytes[4] == 2 { 6 } else { 5 };
            for length in (0..5).chain(shortest..bytes.len()) {
                let error = Request::decode(&bytes[..length]);
                assert_eq!(error, Err(DecodeError::End), "{:?}", &bytes[..length]);
            }
        }
    }
}
