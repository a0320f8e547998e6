//! Dialogues of PMIx clients with the server of their node.

use crate::pmi::{Act, NAMESPACE, Sender, run};
use crate::stream::written;
use Act::{Bytes, Close, Connect, Due, Ended, ForgedValue, Gathered, Message, Pass, Stored, Value};

/// Number that stands for all ranks of a job.
const ALL_RANKS: u32 = u32::MAX - 1;

/// Commands of clients.
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
    pub(super) const GROUP_CONSTRUCT: u8 = 24;
    pub(super) const GROUP_DESTRUCT: u8 = 28;
}

/// Runs the server of a node whose clients send binary messages.
pub(crate) fn dialogue(data: &[u8]) {
    run(data, framed);
}

/// Returns a message with its header. The length of the first is in the host's order.
fn framed(number: u32, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    let length = if number == 0 { length.to_ne_bytes() } else { length.to_be_bytes() };
    [&[0; 4][..], &(100 + number).to_be_bytes(), &length, &[0; 4], body].concat()
}

/// Encoded message, or a part of one.
#[derive(Clone, Default)]
struct Encoded(Vec<u8>);

impl Encoded {
    /// Begins a request.
    fn request(command: u8) -> Encoded {
        Encoded::default().count(1).raw(&[command])
    }

    fn raw(mut self, bytes: &[u8]) -> Encoded {
        self.0.extend_from_slice(bytes);
        self
    }

    fn count(self, count: usize) -> Encoded {
        self.number(count as u32)
    }

    fn number(self, number: u32) -> Encoded {
        self.raw(&number.to_be_bytes())
    }

    fn string(self, text: &str) -> Encoded {
        self.count(text.len() + 1).raw(text.as_bytes()).raw(&[0])
    }

    /// Writes a `size_t`, which has its type with it.
    fn size(self, size: usize) -> Encoded {
        self.raw(&[0, 15]).raw(&(size as u64).to_be_bytes())
    }

    /// Writes a list of names of ranks.
    fn procs(self, ranks: &[u32]) -> Encoded {
        let list = self.count(1).size(ranks.len()).count(ranks.len());
        ranks.iter().fold(list, |list, &rank| list.string(NAMESPACE).number(rank))
    }

    /// Writes a list of infos: keys and values.
    fn infos(self, infos: &[(&str, Encoded)]) -> Encoded {
        let list = self.count(1).size(infos.len());
        let list = if infos.is_empty() { list } else { list.count(infos.len()) };
        infos.iter().fold(list, |list, (key, value)| list.info(key, value))
    }

    fn info(self, key: &str, value: &Encoded) -> Encoded {
        self.string(key).number(0).raw(&value.0)
    }

    /// Writes a list of keys.
    fn keys(self, keys: &[&str]) -> Encoded {
        let list = self.count(1).size(keys.len());
        keys.iter().fold(list, |list, key| list.count(1).string(key))
    }

    /// Writes an item that is a key and value.
    fn item(self, key: &str, value: &Encoded) -> Encoded {
        self.count(1).string(key).raw(&value.0)
    }

    fn from(self, from: u8) -> Act {
        Message(Sender { from, cut: 0 }, self.0)
    }
}

fn text(text: &str) -> Encoded {
    Encoded::default().raw(&[0, 3]).string(text)
}

fn integer(number: u32) -> Encoded {
    Encoded::default().raw(&[0, 14]).number(number)
}

fn flag(is_set: bool) -> Encoded {
    Encoded::default().raw(&[0, 1, is_set.into()])
}

fn array(infos: &[(&str, Encoded)]) -> Encoded {
    let list = Encoded::default().raw(&[0, 39, 0, 24]).size(infos.len());
    infos.iter().fold(list, |list, (key, value)| list.info(key, value))
}

/// Returns the first message of a rank's client.
fn hello(rank: u32, version: &str, store: &str) -> Encoded {
    let list = Encoded::default().raw(b"native\0").number(2).raw(&[7, 7, 0]);
    let list = list.raw(NAMESPACE.as_bytes()).raw(&[0]).number(rank);
    list.raw(version.as_bytes()).raw(b"\0v3\0\x01").raw(store.as_bytes()).raw(&[0])
}

/// Connects two ranks as connections 0 and 1.
fn begin() -> Vec<Act> {
    vec![Connect, hello(0, "5.0.11", "hash").from(0), Connect, hello(1, "6.1.0rc2", "hash").from(1)]
}

fn commit(scope: u8, items: &Encoded) -> Encoded {
    let section = Encoded::request(command::COMMIT).count(1).raw(&[scope]);
    section.count(1).raw(&[1]).size(items.0.len()).raw(&items.0)
}

fn fence(ranks: &[u32]) -> Encoded {
    fence_of(ranks).infos(&[("pmix.collect", flag(true))])
}

fn fence_of(ranks: &[u32]) -> Encoded {
    Encoded::request(command::FENCE).procs(ranks)
}

/// Ends a request by the number of seconds for which the client waits.
fn timed(request: Encoded, seconds: u32) -> Encoded {
    request.infos(&[("pmix.timeout", integer(seconds))])
}

fn get(rank: u32, key: &str, infos: &[(&str, Encoded)]) -> Encoded {
    let request = Encoded::request(command::GET).count(1).string(NAMESPACE).count(1).number(rank);
    request.infos(infos).count(1).string(key)
}

/// Returns a request that begins with the number of a user.
fn of_user(command: u8) -> Encoded {
    Encoded::request(command).count(1).number(1000)
}

/// Returns what a rank of another node brings to a fence in its first MPI program.
fn brought() -> Vec<u8> {
    Encoded::default().raw(&[0, 0, 0, 1, 1]).item("btl", &text("tcp://b")).0
}

/// Returns the exchange of what ranks need to reach each other.
fn exchange() -> Vec<Act> {
    let both = Encoded::default().item("btl", &text("tcp://a")).item("pml", &text("ob1"));
    let mut acts = begin();
    acts.extend([
        Encoded::request(command::JOB_INFO).from(0),
        Encoded::request(command::REGISTER_EVENTS).from(0),
        commit(3, &both).from(0),
        commit(2, &both).from(1),
        fence(&[ALL_RANKS]).from(0),
        get(2, "btl", &[]).from(0),
        fence(&[0, 1, 2, 3]).from(1),
        Gathered(0, Some(vec![brought(), vec![0, 0, 0, 1, 0]])),
        get(2, "btl", &[]).from(1),
        get(0, "pml", &[("pmix.immediate", flag(true))]).from(1),
        Encoded::request(command::DEREGISTER_EVENTS).from(0),
        fence(&[ALL_RANKS]).from(0),
        fence(&[ALL_RANKS]).from(1),
        Gathered(0, None),
        timed(fence_of(&[ALL_RANKS]), 2).from(0),
        Due,
        timed(fence_of(&[ALL_RANKS]), 2).from(0),
        Encoded::request(command::FINALIZE).from(0),
        Close(0),
    ]);
    acts
}

/// Returns requests for data that no fence brings.
fn waiting() -> Vec<Act> {
    let item = Encoded::default().item("late", &text("v"));
    let value = || Some(Encoded::default().raw(&[1]).item("far", &text("v")).0);
    let mut acts = begin();
    acts.extend([
        get(1, "late", &[("pmix.timeout", integer(3))]).from(0),
        get(1, "never", &[("pmix.timeout", integer(1))]).from(0),
        get(2, "far", &[]).from(0),
        get(3, "far", &[]).from(1),
        commit(1, &item).from(1),
        commit(2, &item).from(1),
        Due,
        Pass(2000),
        Value(0, value()),
        ForgedValue(1, Some(vec![0])),
        get(3, "pmix.hname", &[]).from(0),
        Ended(1),
    ]);
    acts
}

/// Returns requests about published values.
fn names() -> Vec<Act> {
    let publish = |infos: &[(&str, Encoded)]| of_user(command::PUBLISH).infos(infos).from(0);
    let lookup = |keys: &[&str], infos: &[(&str, Encoded)]| {
        of_user(command::LOOKUP).keys(keys).infos(infos).from(1)
    };
    let unpublish = |keys: &[&str]| of_user(command::UNPUBLISH).keys(keys).infos(&[]).from(0);
    let once = ("pmix.persist", Encoded::default().raw(&[0, 30, 1]));
    let mut acts = begin();
    acts.extend([
        publish(&[("svc", text("port")), ("other", integer(7))]),
        Stored(0),
        Stored(0),
        publish(&[("once", text("port")), once]),
        Stored(0),
        lookup(&["svc", "once", "none"], &[]),
        Stored(0),
        Stored(0),
        Stored(0),
        lookup(&["late"], &[("pmix.wait", integer(0)), ("pmix.timeout", integer(1))]),
        Due,
        lookup(&["late", "late"], &[("pmix.wait", integer(0))]),
        unpublish(&["svc"]),
        Stored(0),
        Stored(0),
        Stored(0),
        unpublish(&[]),
        Stored(0),
        Value(0, None),
    ]);
    acts
}

/// Returns collectives of some ranks.
fn groups() -> Vec<Act> {
    let construct = |from, ranks: &[u32]| {
        let told = [("pmix.grp.lclid", integer(3))];
        let request = Encoded::request(command::GROUP_CONSTRUCT).count(1).string("mpi-1");
        request.procs(ranks).infos(&[("pmix.grp.info", array(&told))]).from(from)
    };
    let destruct = |from, ranks: &[u32]| {
        let request = Encoded::request(command::GROUP_DESTRUCT).count(1).string("mpi-1");
        request.procs(ranks).infos(&[]).from(from)
    };
    let part = || {
        let told = Encoded::default().info("pmix.grp.lclid", &integer(4)).0;
        let whole = Encoded::default().raw(&[1; 1]).raw(&[0; 8]);
        Some(whole.number(2).size(told.len()).raw(&told).0)
    };
    let of_group = ("pmix.grp.ctxid", Encoded::default().raw(&[0, 4]).size((1 << 32) + 1));
    let with = |command, from, ranks| Encoded::request(command).procs(ranks).infos(&[]).from(from);
    let mut acts = begin();
    acts.extend([
        construct(0, &[0, 2]),
        Value(0, part()),
        get(2, "pmix.grp.lclid", &[of_group]).from(0),
        destruct(0, &[0, 2]),
        Value(0, Some(vec![1, 0, 0, 0, 0, 0, 0, 0, 0])),
        construct(0, &[0, 1]),
        construct(1, &[0, 1]),
        fence(&[0, 1]).from(0),
        fence(&[0, 1]).from(1),
        with(command::CONNECT, 0, &[0, 1, 3]),
        with(command::CONNECT, 1, &[0, 1, 3]),
        Value(0, Some(vec![0, 255, 255, 255, 249])),
        timed(Encoded::request(command::CONNECT).procs(&[0, 3]), 1).from(0),
        Due,
        timed(Encoded::request(command::CONNECT).procs(&[0, 3]), 1).from(0),
        with(command::DISCONNECT, 0, &[0, 1]),
        Ended(1),
    ]);
    acts
}

/// Returns what clients do that are not ranks, or that this server cannot serve, and the end of the job.
fn wrong() -> Vec<Act> {
    let abort = Encoded::request(command::ABORT).count(1).number(7).count(1).string("enough");
    let mut acts = begin();
    acts.extend([
        Connect,
        hello(2, "5.0.11", "hash").from(2),
        Connect,
        hello(0, "4.0.0", "shmem2").from(3),
        Connect,
        Encoded::default().raw(b"munge\0").from(4),
        get(9, "btl", &[]).from(0),
        get(0, "btl", &[("x", Encoded::default().raw(&[0, 39, 0, 39, 0, 15]))]).from(0),
        fence(&[]).from(0),
        Encoded::request(99).from(0),
        Encoded::request(command::JOB_INFO).from(1),
        Encoded::request(command::JOB_INFO).from(1),
        abort.procs(&[ALL_RANKS]).from(0),
    ]);
    acts
}

/// Returns several programs of a rank, with messages in parts that end anywhere.
fn programs() -> Vec<Act> {
    let body = hello(1, "3.2.5", "hash").0;
    let requests = [
        commit(3, &Encoded::default().item("k", &text("v"))),
        fence(&[ALL_RANKS]),
        get(0, "k", &[]),
        Encoded::request(command::FINALIZE),
    ];
    let requests = requests.into_iter().flat_map(|request| framed(1, &request.0));
    let bytes: Vec<u8> = framed(0, &body).into_iter().chain(requests).collect();
    let send = |from| Bytes(Sender { from, cut: 5 }, bytes.clone());
    vec![Connect, send(0), Ended(0), Gathered(0, None), Connect, send(1), Connect, send(2), Due]
}

pub(crate) fn dialogue_seeds() -> Vec<Vec<u8>> {
    let dialogues = [exchange(), waiting(), names(), groups(), wrong(), programs()];
    dialogues.map(|acts| written(&acts)).to_vec()
}
