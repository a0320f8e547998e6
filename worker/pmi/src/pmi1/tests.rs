//! Dialogues of PMI-1 clients with the servers of a job.

use super::*;
use crate::node::{ConnectionId, Family, Output};
use crate::testing::Job;
use proptest::prelude::*;

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1";
const INIT_ANSWER: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";

/// Lets a client send a line and returns the lines that it receives.
fn ask(job: &mut Job, connection: ConnectionId, line: &str) -> String {
    let answer = job.send(connection, format!("{line}\n").as_bytes());
    let answer = String::from_utf8(answer).unwrap();
    answer.strip_suffix('\n').unwrap_or(&answer).to_owned()
}

fn received(job: &mut Job, connection: ConnectionId) -> String {
    String::from_utf8(job.received(connection)).unwrap()
}

/// Connects a rank to its node's port.
fn identify(job: &mut Job, node: usize, rank: u32) -> ConnectionId {
    let connection = job.connect(node);
    let answer = ask(job, connection, &format!("cmd=initack pmiid={}", 1000 + rank));
    assert!(answer.starts_with("cmd=initack rc=0\n"), "{answer}");
    connection
}

/// Connects a rank to its node's port and begins with MPI.
fn start(job: &mut Job, node: usize, rank: u32) -> ConnectionId {
    let connection = identify(job, node, rank);
    assert_eq!(ask(job, connection, INIT), INIT_ANSWER);
    connection
}

#[test]
fn a_client_learns_its_place_on_the_port() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let client = job.connect(0);
    assert_eq!(
        ask(&mut job, client, "cmd=initack pmiid=1001"),
        "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0"
    );
    assert_eq!(job.events(), []);
    assert_eq!(ask(&mut job, client, INIT), INIT_ANSWER);
    assert_eq!(job.events(), [Output::Connected(1, Family::Pmi1)]);
    let answers = [
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0"),
        ("cmd=get_appnum", "cmd=appnum appnum=1 rc=0"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=job-1 rc=0"),
        ("cmd=get_universe_size", "cmd=universe_size size=3 rc=0"),
        (
            "cmd=get kvsname=job-1 key=PMI_process_mapping",
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1))",
        ),
        ("cmd=create_kvs", "cmd=create_kvs_result rc=-1 msg=not_supported"),
    ];
    for (question, answer) in answers {
        assert_eq!(ask(&mut job, client, question), answer);
    }
    assert_eq!(ask(&mut job, client, "cmd=finalize"), "cmd=finalize_ack rc=0");
    assert_eq!(job.events(), [Output::Finalized(1)]);
    assert!(!job.is_closed(client));
    // MPICH makes files in shared memory, with names that follow from that of the store.
    assert!(job.segments.iter().any(|(node, name)| *node == 0 && name.starts_with("mpich_shm_")));
}

#[test]
fn a_stranger_is_turned_away_without_a_word() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    for line in ["cmd=initack pmiid=1", "cmd=initack pmiid=1002", INIT, "cmd=abort", "cmd="] {
        let client = job.connect(0);
        assert_eq!(ask(&mut job, client, line), "");
        assert!(job.is_closed(client), "{line}");
    }
    assert_eq!(job.events(), []);
}

#[test]
fn another_version_is_refused() {
    let mut job = Job::new(&[&[0]]);
    let client = identify(&mut job, 0, 0);
    let answer = ask(&mut job, client, "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(answer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1");
    assert_eq!(job.events(), []);
}

#[test]
fn values_are_everywhere_after_a_barrier() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let clients = [start(&mut job, 0, 0), start(&mut job, 0, 1), start(&mut job, 1, 2)];
    for round in 0..3 {
        for (rank, &client) in clients.iter().enumerate() {
            let put = format!("cmd=put kvsname=job-1 key=k{rank} value=v {rank} {round}=");
            assert_eq!(ask(&mut job, client, &put), "cmd=put_result rc=0 msg=success");
        }
        for (rank, &client) in clients.iter().enumerate() {
            let released = if rank < 2 { "" } else { "cmd=barrier_out rc=0" };
            assert_eq!(ask(&mut job, client, "cmd=barrier_in"), released);
        }
        for &client in &clients[..2] {
            assert_eq!(received(&mut job, client), "cmd=barrier_out rc=0\n");
        }
        for &client in &clients {
            for rank in 0..3 {
                let answer = ask(&mut job, client, &format!("cmd=get kvsname=job-1 key=k{rank}"));
                let value = format!("value=v {rank} {round}=");
                assert_eq!(answer, format!("cmd=get_result rc=0 msg=success {value}"));
            }
        }
    }
    assert_eq!(job.gathered, ["pmi1:fence:0", "pmi1:fence:1", "pmi1:fence:2"]);
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut job = Job::new(&[&[0]]);
    let client = start(&mut job, 0, 0);
    let not_found = "cmd=get_result rc=-1 msg=key_k_not_found value=unknown";
    assert_eq!(ask(&mut job, client, "cmd=get kvsname=job-1 key=k"), not_found);
    assert_eq!(ask(&mut job, client, "cmd=get kvsname=job-2 key=k"), not_found);
    let put = "cmd=put kvsname=job-1 key=k value=";
    assert_eq!(ask(&mut job, client, put), "cmd=put_result rc=0 msg=success");
    assert_eq!(ask(&mut job, client, "cmd=get kvsname=job-1 key=k"), not_found);
    let put = "cmd=put kvsname=other key=k value=v";
    assert_eq!(ask(&mut job, client, put), "cmd=put_result rc=-1 msg=unknown_kvsname");
    let put = format!("cmd=put kvsname=job-1 key=k value={}", "x".repeat(1025));
    let refused = "cmd=put_result rc=-1 msg=value_must_have_at_most_1024_bytes";
    assert_eq!(ask(&mut job, client, &put), refused);
}

#[test]
fn a_layout_that_has_no_mapping_is_not_mapped() {
    let mut job = Job::new(&[&[0, 2]]);
    let client = start(&mut job, 0, 0);
    let answer = ask(&mut job, client, "cmd=get kvsname=job-1 key=PMI_process_mapping");
    let not_found = "cmd=get_result rc=-1 msg=key_PMI_process_mapping_not_found value=unknown";
    assert_eq!(answer, not_found);
}

#[test]
fn a_barrier_fails_if_a_rank_has_ended_that_had_not_arrived() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let (zero, one, two) = (start(&mut job, 0, 0), start(&mut job, 0, 1), start(&mut job, 1, 2));
    assert_eq!(ask(&mut job, two, "cmd=barrier_in"), "");
    assert_eq!(ask(&mut job, zero, "cmd=barrier_in"), "");
    job.close(one);
    assert_eq!(received(&mut job, zero), "");
    job.end(0, 1);
    assert!(job.is_closed(zero) && job.is_closed(two));
}

/// A shell may go on to the next program after one was killed in a barrier.
#[test]
fn a_program_that_is_killed_in_a_barrier_does_not_disturb_the_next() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let killed = [start(&mut job, 0, 0), start(&mut job, 0, 1), start(&mut job, 1, 2)];
    for client in [killed[0], killed[2]] {
        assert_eq!(ask(&mut job, client, "cmd=barrier_in"), "");
    }
    killed.into_iter().for_each(|client| job.close(client));
    let next = [start(&mut job, 0, 0), start(&mut job, 0, 1), start(&mut job, 1, 2)];
    for round in 0..2 {
        for client in next {
            let put = format!("cmd=put kvsname=job-2 key=k{round} value=v");
            ask(&mut job, client, &put);
            let answer = job.send(client, b"cmd=barrier_in\n");
            let released = if client == next[2] { "cmd=barrier_out rc=0\n" } else { "" };
            assert_eq!(String::from_utf8(answer).unwrap(), released, "{round}");
        }
        for client in &next[..2] {
            assert_eq!(received(&mut job, *client), "cmd=barrier_out rc=0\n", "{round}");
        }
    }
}

#[test]
fn a_barrier_that_can_never_complete_closes_its_connections() {
    let mut job = Job::new(&[&[0], &[1]]);
    let (zero, one) = (start(&mut job, 0, 0), start(&mut job, 1, 1));
    assert_eq!(ask(&mut job, zero, "cmd=barrier_in"), "");
    job.fail("pmi1:fence:0");
    assert!(job.is_closed(zero) && !job.is_closed(one));
}

#[test]
fn a_barrier_of_a_group_is_refused() {
    let mut job = Job::new(&[&[0]]);
    let client = start(&mut job, 0, 0);
    let answer = ask(&mut job, client, "cmd=barrier_in group=NODE:1");
    assert_eq!(answer, "cmd=barrier_out rc=-1 msg=barriers_of_groups_need_PMI_1.2");
}

#[test]
fn a_second_request_before_the_answer_closes_the_connection() {
    let mut job = Job::new(&[&[0, 1]]);
    let (zero, one) = (start(&mut job, 0, 0), start(&mut job, 0, 1));
    assert_eq!(ask(&mut job, zero, "cmd=barrier_in"), "");
    assert_eq!(ask(&mut job, zero, "cmd=get_maxes"), "");
    assert!(job.is_closed(zero));
    // Its rank has still arrived.
    assert_eq!(ask(&mut job, one, "cmd=barrier_in"), "cmd=barrier_out rc=0");
    let zero = start(&mut job, 0, 0);
    assert_eq!(ask(&mut job, zero, "cmd=barrier_in"), "");
    assert_eq!(ask(&mut job, one, "cmd=barrier_in"), "");
    // Rank 0 runs its second program, rank 1 its first.
    assert!(job.is_closed(one) && !job.is_closed(zero));
    let one = start(&mut job, 0, 1);
    assert_eq!(ask(&mut job, one, "cmd=barrier_in"), "cmd=barrier_out rc=0");
    assert_eq!(received(&mut job, zero), "cmd=barrier_out rc=0\n");
}

#[test]
fn an_abort_is_heard_at_any_time_and_not_answered() {
    let mut job = Job::new(&[&[0, 1]]);
    let zero = start(&mut job, 0, 0);
    job.events();
    assert_eq!(ask(&mut job, zero, "cmd=barrier_in"), "");
    let abort = "cmd=abort exitcode=7 message=application called MPI_Abort(comm, 7)\nmore\n";
    assert_eq!(ask(&mut job, zero, abort), "");
    let message = "application called MPI_Abort(comm, 7)".to_owned();
    assert_eq!(job.events(), [Output::Abort { rank: 0, code: 7, message }]);
    assert_eq!(ask(&mut job, zero, "cmd=abort exitcode=8"), "");
    assert_eq!(job.events(), []);
    assert!(!job.is_closed(zero));
    let early = identify(&mut job, 0, 1);
    assert_eq!(ask(&mut job, early, "cmd=abort exitcode=3"), "");
    assert_eq!(job.events(), [Output::Abort { rank: 1, code: 3, message: String::new() }]);
}

#[test]
fn services_are_published_looked_up_and_withdrawn() {
    let mut job = Job::new(&[&[0], &[1]]);
    let (zero, one) = (start(&mut job, 0, 0), start(&mut job, 1, 1));
    let look_up = "cmd=lookup_name service=my svc";
    let not_found = "cmd=lookup_result rc=1 msg=service_not_found";
    assert_eq!(ask(&mut job, one, look_up), not_found);
    let publish = "cmd=publish_name service=my svc port=tag#0$connentry#00$";
    let published = "cmd=publish_result info=ok rc=0 msg=success";
    assert_eq!(ask(&mut job, zero, publish), published);
    assert_eq!(job.stored["pmi:pub:my svc"], b"tag#0$connentry#00$");
    let found = "cmd=lookup_result port=tag#0$connentry#00$ info=ok rc=0 msg=success";
    assert_eq!(ask(&mut job, one, look_up), found);
    let unpublish = "cmd=unpublish_name service=my svc";
    let unpublished = "cmd=unpublish_result info=ok rc=0 msg=success";
    assert_eq!(ask(&mut job, one, unpublish), unpublished);
    assert_eq!(ask(&mut job, zero, look_up), not_found);
    let refused = "cmd=unpublish_result rc=1 msg=service_not_found";
    assert_eq!(ask(&mut job, one, unpublish), refused);
    let long = "x".repeat(248);
    let refused = "_result rc=1 msg=service_names_have_1_to_247_bytes_of_UTF-8";
    for command in ["lookup", "unpublish"] {
        let answer = ask(&mut job, one, &format!("cmd={command}_name service={long}"));
        assert_eq!(answer, format!("cmd={command}{refused}"));
    }
    let answer = ask(&mut job, one, &format!("cmd=publish_name service={long} port=p"));
    assert_eq!(answer, format!("cmd=publish{refused}"));
    let answer = ask(&mut job, one, "cmd=publish_name service=s port=");
    assert_eq!(answer, "cmd=publish_result rc=1 msg=bad_port");
    job.stored.insert("pmi:pub:foreign".to_owned(), b"two\nlines".to_vec());
    assert_eq!(ask(&mut job, one, "cmd=lookup_name service=foreign"), not_found);
}

#[test]
fn a_spawn_is_refused_after_its_last_block() {
    let mut job = Job::new(&[&[0]]);
    let client = start(&mut job, 0, 0);
    let block = |number| {
        format!(
            "mcmd=spawn\nnprocs=2\nexecname=/bin/true\ntotspawns=2\nspawnssofar={number}\narg1=cmd=abort\n\
             argcnt=1\npreput_num=0\ninfo_num=0\nendcmd"
        )
    };
    assert_eq!(ask(&mut job, client, &block(1)), "");
    let refused = "cmd=spawn_result rc=-1 msg=rlaunch_does_not_start_processes_for_MPI_Comm_spawn";
    assert_eq!(ask(&mut job, client, &block(2)), refused);
    assert_eq!(ask(&mut job, client, "cmd=finalize"), "cmd=finalize_ack rc=0");
}

#[test]
fn a_rank_may_run_one_program_after_the_other() {
    let mut job = Job::new(&[&[0], &[1]]);
    for run in 1..=3 {
        let clients = [start(&mut job, 0, 0), start(&mut job, 1, 1)];
        let store = format!("job-{run}");
        let key = format!("cmd=get kvsname={store} key=k");
        for &client in &clients {
            assert!(ask(&mut job, client, &key).contains("rc=-1"));
        }
        ask(&mut job, clients[0], &format!("cmd=put kvsname={store} key=k value={run}"));
        ask(&mut job, clients[0], "cmd=barrier_in");
        ask(&mut job, clients[1], "cmd=barrier_in");
        received(&mut job, clients[0]);
        for client in clients {
            assert!(ask(&mut job, client, &key).ends_with(&format!("value={run}")));
            // The first program crashes, and its connection is still open when the next begins.
            if run > 1 {
                ask(&mut job, client, "cmd=finalize");
                job.close(client);
            }
        }
        if run == 2 {
            assert!(job.is_closed(ConnectionId(0)) && job.is_closed(ConnectionId(1)));
        }
    }
    // A program may also begin with MPI again.
    let client = identify(&mut job, 0, 0);
    for run in 4..6 {
        assert_eq!(ask(&mut job, client, INIT), INIT_ANSWER);
        let name = ask(&mut job, client, "cmd=get_my_kvsname");
        assert_eq!(name, format!("cmd=my_kvsname kvsname=job-{run} rc=0"));
        ask(&mut job, client, "cmd=finalize");
    }
}

#[test]
fn what_is_out_of_place_closes_the_connection() {
    for line in ["cmd=get_maxes", "cmd=finalize", "cmd=barrier_in", "cmd=initack pmiid=1000", ""] {
        let mut job = Job::new(&[&[0]]);
        let client = identify(&mut job, 0, 0);
        assert_eq!(ask(&mut job, client, line), "");
        assert!(job.is_closed(client), "{line}");
    }
    let mut job = Job::new(&[&[0]]);
    let client = start(&mut job, 0, 0);
    assert_eq!(ask(&mut job, client, "cmd=initack pmiid=1000"), "");
    assert!(job.is_closed(client));
    let client = start(&mut job, 0, 0);
    assert_eq!(job.send(client, &[b'x'; 17 * 1024]), b"");
    assert!(job.is_closed(client));
}

#[test]
fn strangers_cannot_hold_all_connections() {
    let mut job = Job::new(&[&[0]]);
    let named = start(&mut job, 0, 0);
    let strangers: Vec<ConnectionId> = (0..100).map(|_| job.connect(0)).collect();
    let closed = strangers.iter().filter(|&&stranger| job.is_closed(stranger)).count();
    assert_eq!(closed, 100 - crate::node::STRANGERS_MAX - 1);
    assert!(!job.is_closed(named) && !job.is_closed(strangers[99]));
}

/// Requests that a client may send at any time.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::sample::select(vec![
        INIT,
        "cmd=initack pmiid=1000",
        "cmd=get_maxes",
        "cmd=get_my_kvsname",
        "cmd=put kvsname=job-1 key=k value=v w",
        "cmd=get kvsname=job-1 key=k",
        "cmd=get kvsname=job-1 key=PMI_process_mapping",
        "cmd=barrier_in",
        "cmd=publish_name service=a b port=c d",
        "cmd=lookup_name service=a b",
        "cmd=unpublish_name service=a b",
        "mcmd=spawn",
        "totspawns=1",
        "endcmd",
        "cmd=abort exitcode=1",
        "cmd=finalize",
    ]);
    let line = prop_oneof![
        20 => lines.prop_map(|line| format!("{line}\n").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop::collection::vec(line, 0..20).prop_map(|lines| lines.concat())
}

/// Returns what a client receives that sends these parts, whether its connection is closed, and what
/// the agent hears.
fn dialogue<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, bool, Vec<Output>) {
    let mut job = Job::new(&[&[0]]);
    let client = job.connect(0);
    job.send(client, b"cmd=initack pmiid=1000\n");
    let answers = parts.into_iter().flat_map(|part| job.send(client, part)).collect();
    (answers, job.is_closed(client), job.events())
}

proptest! {
    #[test]
    fn any_bytes_are_survived_in_any_split(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..400), requests()],
        length in 1_usize..100,
    ) {
        let by_line = dialogue(bytes.split_inclusive(|&byte| byte == b'\n'));
        prop_assert_eq!(by_line, dialogue(bytes.chunks(1)));
        // Further requests that come with one whose answer takes time close the connection.
        dialogue(bytes.chunks(length));
    }
}

#[test]
fn lines_come_in_any_split() {
    let mut client = Pmi1Client::new(Stage::Stranger);
    let mut bytes = &b"one\n\ntw"[..];
    assert_eq!(client.next_line(&mut bytes), Ok(Some(b"one".to_vec())));
    assert_eq!(client.next_line(&mut bytes), Ok(Some(Vec::new())));
    assert_eq!(client.next_line(&mut bytes), Ok(None));
    assert_eq!(bytes, b"");
    let mut bytes = &b"o\n"[..];
    assert_eq!(client.next_line(&mut bytes), Ok(Some(b"two".to_vec())));
}

#[test]
fn a_line_has_a_limit() {
    let mut client = Pmi1Client::new(Stage::Stranger);
    assert_eq!(client.next_line(&mut &[b'x'; LINE_MAX][..]), Ok(None));
    assert_eq!(client.next_line(&mut &b"x"[..]), Err(Violation));
}

#[test]
fn only_the_last_of_several_spawn_blocks_is_answered() {
    let mut first = SpawnBlock::default();
    for line in [&b"nprocs=2"[..], b"totspawns=2", b"spawnssofar=1", b"arg1=endcmd"] {
        assert_eq!(first.add_line(line), None);
    }
    assert_eq!(first.add_line(b"endcmd"), Some(false));
    let mut second = SpawnBlock::default();
    assert_eq!(second.add_line(b"totspawns=2"), None);
    assert_eq!(second.add_line(b"spawnssofar=2"), None);
    assert_eq!(second.add_line(b"endcmd"), Some(true));
    assert_eq!(SpawnBlock::default().add_line(b"endcmd"), Some(true));
}
