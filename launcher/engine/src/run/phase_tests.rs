//! Every trouble in every phase, in virtual time: how the attempt ends, when, and with which sentence.

use super::detach::Detaching;
use super::job_run::{JobRun, Pending, Stdio, TreeSource};
use super::nodes::{check_copies, open_sessions};
use super::phases;
use super::signals::{Signals, UserSignal};
use crate::connect::channel::AgentChannel;
use crate::connect::connector::Reach;
use crate::run::events::EventLog;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{ExitStatus, InterfaceAddress, NodeFacts, TerminalSize};
use rlaunch_bootstrap::protocol::control::{
    BEAT, CleanupReceipt, FoundCopy, FrameReader, FromAgent, ToAgent, encode,
};
use rlaunch_bootstrap::rendezvous::oob::EdgeReport;
use rlaunch_plan::testing;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};

/// Time in which any wait of rlaunch must have ended.
const FOREVER: Duration = Duration::from_secs(3600);
/// Hashes of working trees: of the former one, which hosts have, and of the one to copy.
const FORMER: [u8; 32] = [6; 32];
const CONTENT: [u8; 32] = [7; 32];
/// Size that the user gives the terminal.
const WIDE: TerminalSize = TerminalSize { rows: 30, columns: 100 };

/// Message of the launcher at which the trouble begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    CheckCopy,
    PatchCopy,
    Job,
    Join,
    Table,
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// The connection stalls, as behind a link that drops packets.
    Stalls,
    /// The connection ends.
    Closes,
    /// The agent reports that it cannot go on.
    Fails,
    /// The agent sends beats, and nothing else.
    IsSilent,
    /// The user presses Ctrl-C, and the agent is as silent until it is told to end.
    Signal,
    /// The agent is as silent in a job with `--timeout 3`.
    Timeout,
    /// The process that was to print the name of a detached job has been killed; agents make no trouble.
    Untold,
    /// The user changes the size of the terminal, and agents fail once their ranks are told.
    Resized,
    /// The user presses Ctrl-Z, and the agent fails once it is told that the job goes on.
    Suspended,
    /// The copy of the working tree is not what it has to be, and no patch makes it that.
    Differs,
    /// The same, and the user presses Ctrl-Z while it is copied.
    SuspendedCopy,
}

/// Agent of one rank, which makes trouble at a message of the launcher.
struct Agent {
    rank: Rank,
    stream: DuplexStream,
    began: Instant,
    trouble: Option<(At, Trouble)>,
    signals: mpsc::UnboundedSender<UserSignal>,
}

impl Agent {
    async fn run(self) {
        let Agent { rank, stream, began, trouble, signals } = self;
        let (mut reader, mut writer) = split(stream);
        let mut frames = FrameReader::default();
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        let mut bytes = vec![0; 64 << 10];
        let mut is_suspended = false;
        loop {
            while let Some(message) = frames.next_frame::<ToAgent>().unwrap() {
                is_suspended |= message == ToAgent::Suspend;
                let made = trouble.filter(|(at, _)| Some(*at) == at_of(&message));
                let answers = match made.map(|(_, trouble)| trouble) {
                    Some(Trouble::Stalls) => return std::future::pending().await,
                    Some(Trouble::Closes) => return,
                    Some(Trouble::Fails) => {
                        let (operation, cause) = ("read its disk".into(), "no answer".into());
                        vec![FromAgent::Failed { operation, cause }]
                    }
                    Some(Trouble::Signal) => {
                        signals.send(UserSignal::End(Signal::SIGINT)).unwrap();
                        Vec::new()
                    }
                    Some(Trouble::Resized) => {
                        signals.send(UserSignal::Resize(WIDE)).unwrap();
                        answers(rank, &message, began)
                    }
                    Some(Trouble::Differs | Trouble::SuspendedCopy) => match at_of(&message) {
                        Some(At::PatchCopy) => {
                            vec![FromAgent::CopyPatched { failed: Some("no space".into()) }]
                        }
                        _ => vec![FromAgent::CopyChecked(None)],
                    },
                    Some(Trouble::Suspended) => {
                        signals.send(UserSignal::Suspend).unwrap();
                        Vec::new()
                    }
                    Some(Trouble::IsSilent | Trouble::Timeout) => Vec::new(),
                    None if is_suspended && message == ToAgent::Resume => {
                        let (operation, cause) = ("sleep on".into(), "it was woken".into());
                        vec![FromAgent::Failed { operation, cause }]
                    }
                    None if message == (ToAgent::End { now: true }) => return,
                    Some(Trouble::Untold) | None => answers(rank, &message, began),
                };
                for answer in answers {
                    // An error means that the launcher has hung up.
                    let _ = writer.write_all(&encode(&answer).unwrap()).await;
                }
            }
            tokio::select! {
                read = reader.read(&mut bytes) => match read {
                    Ok(count) if count > 0 => frames.push(&bytes[..count]),
                    _ => return,
                },
                _ = beat.tick() => {
                    let _ = writer.write_all(&encode(&FromAgent::Beat).unwrap()).await;
                }
            }
        }
    }
}

fn at_of(message: &ToAgent) -> Option<At> {
    match message {
        ToAgent::CheckCopy { .. } => Some(At::CheckCopy),
        ToAgent::PatchCopy(_) => Some(At::PatchCopy),
        ToAgent::Job(_) => Some(At::Job),
        ToAgent::Join { .. } => Some(At::Join),
        ToAgent::Table(_) => Some(At::Table),
        ToAgent::Start { .. } => Some(At::Start),
        _ => None,
    }
}

/// Returns the answers of an agent without trouble.
fn answers(rank: Rank, message: &ToAgent, began: Instant) -> Vec<FromAgent> {
    let address = |text: &str| text.parse().unwrap();
    match message {
        ToAgent::CheckCopy { node, .. } => {
            vec![FromAgent::CopyChecked(Some(FoundCopy { content: FORMER, holder: *node }))]
        }
        ToAgent::PatchCopy(_) => vec![FromAgent::CopyPatched { failed: None }],
        ToAgent::Job(_) => vec![FromAgent::Prepared {
            notices: vec![],
            ports: vec![21_000, 21_001],
            listeners: vec![],
            inventory: Box::new(testing::inventory("no-rdma")),
            library: None,
        }],
        ToAgent::Join { parent: Some(_) } => vec![FromAgent::Edge(EdgeReport {
            edge: Some((address("10.0.0.2:4711"), address("10.0.0.1:21007"))),
            failed: vec![],
        })],
        ToAgent::Table(_) => vec![FromAgent::TableEverywhere],
        ToAgent::Start { .. } => vec![FromAgent::Started { rank, pid: 7 }],
        ToAgent::Resize(size) => vec![FromAgent::Failed {
            operation: format!("draw {} columns", size.columns),
            cause: "too wide".into(),
        }],
        ToAgent::End { .. } => vec![
            FromAgent::Exited {
                rank,
                pid: 7,
                status: ExitStatus::Signal(Signal::SIGTERM as i32),
                out_of_memory: false,
                unfinalized: false,
                by_itself: false,
                at_us: u64::try_from(began.elapsed().as_micros()).unwrap(),
            },
            FromAgent::Done(CleanupReceipt::default()),
        ],
        _ => vec![],
    }
}

fn facts(node: NodeId) -> NodeFacts {
    let address = [10, 0, 0, u8::try_from(node.0 + 1).unwrap()].into();
    let address = InterfaceAddress { interface: "eth0".into(), address, prefix: 24 };
    NodeFacts { addresses: vec![address], ..testing::facts() }
}

/// Working tree that cannot be copied, unless the user suspends that.
struct Tree {
    user: Option<mpsc::UnboundedSender<UserSignal>>,
    /// Whether an agent does not patch its copy.
    stays: bool,
}

impl TreeSource for Tree {
    fn copy(&self) -> PathBuf {
        "~/copy".into()
    }

    fn content(&mut self) -> Pending<'_, [u8; 32]> {
        Box::pin(async { Ok(CONTENT) })
    }

    fn patch(&mut self, former: [u8; 32]) -> Pending<'_, Option<Vec<u8>>> {
        Box::pin(async move { Ok((former == FORMER).then(|| b"patch".to_vec())) })
    }

    fn patched(&mut self) {
        assert!(!self.stays, "no copy is patched");
    }

    fn bring(self: Box<Self>) -> Pending<'static, Vec<(String, String)>> {
        Box::pin(async move {
            let Some(user) = self.user else {
                return Err(Failed::new(Exit::FILES, "no copy"));
            };
            for signal in [UserSignal::Suspend, UserSignal::Forward(Signal::SIGCONT)] {
                user.send(signal).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(Vec::new())
        })
    }
}

/// Makes an attempt at a job on the hosts a and b, with a trouble at one of them. Returns its error, and the seconds until
/// all its sessions were closed.
async fn attempt(at: At, trouble: Trouble) -> (Failed, u64) {
    let options = if trouble == Trouble::Timeout { "--timeout 3 " } else { "" };
    let spec = testing::job(&format!("-H a,b {options}x"));
    let map = spec.map_ranks().unwrap();
    let events = EventLog::open(None, spec.id).unwrap();
    events.status().mapped(&map);
    let (user, mut signals) = Signals::scripted();
    let suspending = (trouble == Trouble::SuspendedCopy).then(|| user.clone());
    let tree = Tree { user: suspending, stays: at == At::PatchCopy };
    let job = JobRun {
        spec,
        reach: Reach::default(),
        stdio: Stdio::Stderr,
        tree: Mutex::new(Some(Box::new(tree))),
        detaching: (trouble == Trouble::Untold).then(Detaching::from_killed_parent),
        events,
        recorder: None,
        facts: None,
        socket: None,
        says_directory: false,
    };
    let began = Instant::now();
    // Only the root of the tree gets the rank table from the launcher.
    let (troubled, ids) = (NodeId(u32::from(at != At::Table)), map.nodes.iter().map(|n| n.id));
    let agents = ids.map(|id| {
        let (own, stream) = duplex(64 << 10);
        let trouble = (id == troubled).then_some((at, trouble));
        let agent = Agent { rank: Rank(id.0), stream, began, trouble, signals: user.clone() };
        tokio::spawn(agent.run());
        (facts(id), AgentChannel::over_stream(own))
    });
    let agents: Vec<(NodeFacts, AgentChannel)> = agents.collect();
    let (connecting, stdio, mut pump) = open_sessions(&job.spec, map, &mut signals);
    check_copies(&job, &pump.agents);
    let reached = connecting.reached_by(&job, agents);
    let ended = timeout(FOREVER, phases(&job, reached, stdio, &mut pump)).await;
    let ended = ended.unwrap_or_else(|_| panic!("{trouble:?} at {at:?}: no end"));
    pump.shutdown().await;
    let took = began.elapsed().as_secs();
    let decided = match ended {
        Ok(ended) => ended.unwrap().conclude(&job, &mut signals).await,
        Err(failed) => Err(failed),
    };
    (decided.unwrap_err(), took)
}

#[tokio::test(start_paused = true)]
async fn each_trouble_ends_each_phase_in_time_and_is_named() {
    use At::{CheckCopy, Job, Join, PatchCopy, Start, Table};
    use Trouble::{Closes, Fails, IsSilent, Signal, Stalls, Timeout};
    let before = "interrupted before any rank was started";
    let interrupted = "interrupted: ";
    let silent = "nothing received for 6 s";
    let table = "rendezvous: the rank table did not reach every host in 8 s";
    let fails = "cannot read its disk: no answer";
    let late = "not done within 3 s (--timeout)";
    for at in [CheckCopy, PatchCopy, Job, Join, Table, Start] {
        // The root of the tree is a, the troubled host is else b.
        let host = if at == Table { "a" } else { "b" };
        let lost = |how: &str| format!("node {host} is lost: {how}");
        for (trouble, exit, seconds, sentence) in [
            (Stalls, 206, 6, lost(silent)),
            (Closes, 206, 0, lost("the connection ended")),
            (Fails, 206, 0, lost(fails)),
            (Signal, 130, 0, if at == Start { interrupted } else { before }.to_owned()),
            (Timeout, 124, 3, late.to_owned()),
        ] {
            let (failed, took) = attempt(at, trouble).await;
            let case = format!("{trouble:?} at {at:?}: {failed:?}");
            assert_eq!((failed.exit.0, took), (exit, seconds), "{case}");
            assert!(failed.message.starts_with(&sentence), "{case}");
        }
    }
    // Ranks may be silent for as long as they want.
    for (at, exit, seconds, sentence) in [
        (CheckCopy, 202, 30, "no answer within 30 s: b (comparing the working tree)"),
        (PatchCopy, 202, 600, "no answer within 600 s: b (changing the copy of the working tree)"),
        (Job, 202, 30, "no answer within 30 s: b (preparing)"),
        (Join, 204, 8, "rendezvous: b did not join within 8 s"),
        (Table, 204, 8, table),
    ] {
        let (failed, took) = attempt(at, IsSilent).await;
        assert_eq!((failed.exit.0, took), (exit, seconds), "{at:?}: {failed:?}");
        assert!(failed.message.starts_with(sentence), "{at:?}: {failed:?}");
        let compares = failed.hints.iter().any(|hint| hint.contains("compares all files"));
        assert_eq!(compares, at == PatchCopy, "{failed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_copied_if_any_host_has_another() {
    // Or if one cannot patch it.
    for at in [At::CheckCopy, At::PatchCopy] {
        let (failed, took) = attempt(at, Trouble::Differs).await;
        let case = format!("{at:?}: {failed:?}");
        assert_eq!((failed.exit.0, took, &*failed.message), (203, 0, "no copy"), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn agents_are_told_of_a_suspension_before_ranks_run() {
    for (at, trouble, seconds) in [
        (At::CheckCopy, Trouble::Suspended, 0),
        (At::CheckCopy, Trouble::SuspendedCopy, 2),
        (At::PatchCopy, Trouble::Suspended, 0),
        (At::PatchCopy, Trouble::SuspendedCopy, 2),
        (At::Job, Trouble::Suspended, 0),
        (At::Join, Trouble::Suspended, 0),
        (At::Table, Trouble::Suspended, 0),
    ] {
        let (failed, took) = attempt(at, trouble).await;
        let case = format!("{trouble:?} at {at:?}: {failed:?}");
        assert_eq!((failed.exit.0, took), (206, seconds), "{case}");
        assert!(failed.message.ends_with("is lost: cannot sleep on: it was woken"), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_name_nobody_is_told_ends() {
    let (failed, took) = attempt(At::Start, Trouble::Untold).await;
    assert_eq!((failed.exit.0, took), (129, 0), "{failed:?}");
    assert!(failed.message.starts_with("ended by SIGHUP"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn ranks_are_told_of_a_size_that_changed_before_they_started() {
    let (failed, took) = attempt(At::Job, Trouble::Resized).await;
    assert_eq!((failed.exit.0, took), (206, 0), "{failed:?}");
    assert!(failed.message.contains("cannot draw 100 columns: too wide"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn hosts_that_are_not_reached_keep_neither_the_user_nor_a_time_limit_waiting() {
    for (options, exit, seconds) in [("--timeout 3 ", 124, 3), ("", 143, 1)] {
        let job = testing::job(&format!("-H a,b {options}x"));
        let (user, mut signals) = Signals::scripted();
        let (_connecting, _stdio, mut pump) =
            open_sessions(&job, job.map_ranks().unwrap(), &mut signals);
        let began = Instant::now();
        if options.is_empty() {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                user.send(UserSignal::Forward(Signal::SIGUSR1)).unwrap();
                user.send(UserSignal::End(Signal::SIGTERM)).unwrap();
            });
        }
        let reaching = std::future::pending::<Result<(), Failed>>();
        let failed = timeout(FOREVER, pump.run_unless_ended(reaching)).await.unwrap().unwrap_err();
        assert_eq!((failed.exit.0, began.elapsed().as_secs()), (exit, seconds), "{failed:?}");
    }
}
