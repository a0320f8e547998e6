//! Dialogues of PMI-1 clients with the server of their node.

use crate::pmi::{Act, NAMESPACE, PMI_IDS, Sender, run};
use crate::stream::written;
use Act::{
    Bytes, Close, Connect, Ended, ForgedGather, ForgedValue, Gathered, Message, Stored, Value,
};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1";
const BARRIER: &str = "cmd=barrier_in";
const FINALIZE: &str = "cmd=finalize";

/// Runs the server of a node whose clients send lines.
pub(crate) fn dialogue(data: &[u8]) {
    run(data, |_, line| [line, b"\n"].concat());
}

fn line(from: u8, line: impl Into<String>) -> Act {
    Message(Sender { from, cut: 0 }, line.into().into_bytes())
}

fn lines<const N: usize>(from: u8, lines: [&str; N]) -> [Act; N] {
    lines.map(|text| line(from, text))
}

/// Connects two ranks as connections 0 and 1, and lets them begin with MPI.
fn begin() -> Vec<Act> {
    let begin_one = |(from, id): (u8, u32)| {
        [Connect, line(from, format!("cmd=initack pmiid={id}")), line(from, INIT)]
    };
    (0..).zip(PMI_IDS).flat_map(begin_one).collect()
}

/// Returns what a rank of another node brings to a fence in its first MPI program.
fn brought(key: &str, value: &str) -> Vec<u8> {
    let lengths = (key.len() as u8, (value.len() as u16).to_be_bytes());
    [&[0, 0, 0, 1, lengths.0], key.as_bytes(), &lengths.1, value.as_bytes()].concat()
}

/// Returns a rank's requests for values, after a fence has brought them.
fn exchange() -> Vec<Act> {
    let store = format!("kvsname={NAMESPACE}-1");
    let get = |key: &str| line(0, format!("cmd=get {store} key={key}"));
    let others = || vec![brought("k2", "v 2="), vec![0, 0, 0, 1]];
    let mut acts = begin();
    acts.extend([
        line(0, format!("cmd=put {store} key=k0 value=a b=c")),
        line(1, format!("cmd=put {store} key=k1 value=")),
        line(0, BARRIER),
        line(1, BARRIER),
        Gathered(0, Some(others())),
        get("k0"),
        get("k1"),
        get("k2"),
        get("PMI_process_mapping"),
        line(1, BARRIER),
        line(0, BARRIER),
        Gathered(0, None),
    ]);
    acts
}

/// Returns a rank's questions about its job.
fn questions() -> Vec<Act> {
    let mut acts = begin();
    acts.extend(lines(
        0,
        [
            "cmd=get_maxes", "cmd=get_appnum", "cmd=get_my_kvsname", "cmd=get_universe_size",
            "cmd=getbyidx kvsname=x idx=0", "cmd=barrier_in group=NODE:1", FINALIZE, INIT,
        ],
    ));
    acts.extend([Close(0), line(1, "cmd=init pmi_version=2 pmi_subversion=0")]);
    acts
}

/// Returns requests about services.
fn services() -> Vec<Act> {
    let mut acts = begin();
    let look_up = || line(1, "cmd=lookup_name service=my svc");
    let unpublish = || line(1, "cmd=unpublish_name service=my svc");
    acts.extend([
        line(0, "cmd=publish_name service=my svc port=tag#0$connentry#00$"),
        Stored(0),
        look_up(),
        Stored(0),
        unpublish(),
        Stored(0),
        Stored(0),
        unpublish(),
        Stored(0),
        look_up(),
        Value(0, Some(b"port of another node".to_vec())),
        look_up(),
        ForgedValue(5, Some(b"two\nlines".to_vec())),
        line(0, "cmd=publish_name service=my svc port=p"),
        Value(0, None),
    ]);
    acts
}

/// Returns a request for new processes, and the end of the job.
fn spawn_and_abort() -> Vec<Act> {
    let block = |number| {
        format!(
            "mcmd=spawn\nnprocs=2\nexecname=/bin/true\ntotspawns=2\nspawnssofar={number}\n\
             arg1=cmd=abort\nargcnt=1\npreput_num=0\ninfo_num=0\nendcmd"
        )
    };
    let mut acts = begin();
    acts.extend([
        line(0, block(1)),
        line(0, block(2)),
        line(0, BARRIER),
        line(0, "cmd=abort exitcode=7 message=application called MPI_Abort(comm, 7)\nmore"),
    ]);
    acts
}

/// Returns the life of a rank that runs one MPI program after the other.
fn programs() -> Vec<Act> {
    let mut acts = begin();
    for run in 1..4 {
        let store = format!("kvsname={NAMESPACE}-{run}");
        acts.extend([
            line(0, format!("cmd=put {store} key=k value=v")),
            line(0, BARRIER),
            line(1, BARRIER),
            Gathered(0, Some(vec![vec![0, 0, 0, run], vec![0, 0, 0, run]])),
            line(0, format!("cmd=get {store} key=k")),
            line(0, FINALIZE),
            line(1, FINALIZE),
            line(0, INIT),
            line(1, INIT),
        ]);
    }
    // The last program of rank 0 ends in a barrier, and rank 1 goes on to another.
    acts.extend([
        line(0, BARRIER),
        Close(0),
        line(1, FINALIZE),
        line(1, INIT),
        line(1, BARRIER),
        Gathered(0, Some(vec![vec![0, 0, 0, 5], vec![0, 0, 0, 5]])),
        Ended(0),
    ]);
    acts
}

/// Returns what clients do that are not ranks, or break the rules.
fn wrong() -> Vec<Act> {
    let mut acts = begin();
    acts.extend([
        Connect,
        line(2, "cmd=initack pmiid=1"),
        Connect,
        line(3, INIT),
        line(0, BARRIER),
        line(0, BARRIER),
        line(1, BARRIER),
        Connect,
        line(4, format!("cmd=initack pmiid={}", PMI_IDS[0])),
        line(4, INIT),
        line(4, BARRIER),
        ForgedGather(0, Some(vec![vec![0, 0, 0, 1]; 4])),
    ]);
    acts
}

/// Returns several messages in parts that end anywhere.
fn cut() -> Vec<Act> {
    let id = PMI_IDS[1];
    let text = format!("cmd=initack pmiid={id}\n{INIT}\ncmd=get_maxes\n{BARRIER}\ncmd=get");
    vec![Connect, Bytes(Sender { from: 0, cut: 7 }, text.into_bytes()), Ended(0), Gathered(0, None)]
}

pub(crate) fn dialogue_seeds() -> Vec<Vec<u8>> {
    let dialogues =
        [exchange(), questions(), services(), spawn_and_abort(), programs(), wrong(), cut()];
    dialogues.map(|acts| written(&acts)).to_vec()
}
