//! Tests of links between threads, and between processes that are killed.

use super::*;
use crate::transport::{Armed, Fill};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ROLE: &str = "RLAUNCH_TEST_ROLE";
const NAME: &str = "RLAUNCH_TEST_NAME";
/// Timeout for expected events; generous, since a busy machine may be suspended for seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Sink that keeps all packets.
#[derive(Default)]
struct Kept(Vec<(Header, Vec<u8>)>);

impl Sink for Kept {
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        self.0.push((header, payload.to_vec()));
        Ok(())
    }

    fn part(&mut self, _: Header, _: usize, _: &mut Fill<'_>) -> Result<usize, LinkError> {
        Err(LinkError::Protocol("a packet in parts"))
    }
}

fn header(kind: PacketKind, tag: u32, length: usize) -> Header {
    Header { kind, context: 3, tag, transfer: 4, length: length as u32 }
}

fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("rlaunch-shm-{}-{number}", std::process::id())
}

fn link(node: &Arc<ShmNode>, peer: usize) -> ShmLink {
    let start = Instant::now();
    loop {
        match node.link(peer).unwrap() {
            Some(link) => return link,
            None => assert!(start.elapsed() < DEADLINE, "local rank {peer} has not come"),
        }
        thread::yield_now();
    }
}

fn pair() -> (ShmLink, ShmLink) {
    let name = name();
    let nodes = [0, 1].map(|rank| ShmNode::attach(&name, rank, 2, false, None).unwrap());
    (link(&nodes[0], 1), link(&nodes[1], 0))
}

/// Polls until a packet arrives.
fn receive(link: &mut ShmLink) -> Result<(Header, Vec<u8>), LinkError> {
    let (start, mut kept) = (Instant::now(), Kept::default());
    while !link.receive(&mut kept)? {
        assert!(start.elapsed() < DEADLINE, "nothing came");
        thread::yield_now();
    }
    Ok(kept.0.remove(0))
}

/// Sleeps until something arrives. Returns `false`, without a sleep, if something has arrived
/// already.
fn sleep(link: &mut ShmLink, wants_room: bool) -> bool {
    let slept = match link.arm(wants_room).unwrap() {
        Armed::NoFd | Armed::Ready => false,
        Armed::Watch(watched) => {
            let mut fds = [PollFd::new(watched.fd, PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(DEADLINE).unwrap();
            assert_eq!(poll(&mut fds, timeout).unwrap(), 1, "nobody rang");
            true
        }
    };
    link.disarm();
    slept
}

/// Waits until a local rank has set its sleep word.
fn until_asleep(node: &ShmNode, rank: usize) {
    let (start, word) = (Instant::now(), node.segment.sleep_word(rank));
    while node.segment.memory().word(word).load(Ordering::Relaxed) == 0 {
        assert!(start.elapsed() < DEADLINE, "local rank {rank} does not go to sleep");
        thread::yield_now();
    }
}

/// Counter that one thread increments while another waits for a value.
#[derive(Default)]
struct Count(AtomicU32);

impl Count {
    fn add(&self, is_one: bool) {
        self.0.fetch_add(u32::from(is_one), Ordering::Relaxed);
    }

    /// Returns whether the count is above `few`. Panics if [`DEADLINE`] has passed since `since`.
    fn is_more_than(&self, few: u32, since: Instant) -> bool {
        let count = self.0.load(Ordering::Relaxed);
        assert!(count > few || since.elapsed() < DEADLINE, "only {count}");
        count > few
    }
}

/// Guard that sets a flag on drop, so that a thread that waits for the flag ends even if the test
/// fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_link_is_there_when_the_peer_has_come() {
    let name = name();
    let first = ShmNode::attach(&name, 0, 3, false, None).unwrap();
    assert!(first.link(1).unwrap().is_none());
    let second = ShmNode::attach(&name, 1, 3, false, None).unwrap();
    assert!(first.link(1).unwrap().is_some());
    assert!(second.link(0).unwrap().is_some());
    assert!(second.link(2).unwrap().is_none());
    let third = ShmNode::attach(&name, 2, 3, false, None).unwrap();
    let (mut from, mut to) = (link(&third, 1), link(&second, 2));
    assert!(from.send(header(PacketKind::Eager, 1, 2), b"ab").unwrap());
    assert_eq!(receive(&mut to).unwrap(), (header(PacketKind::Eager, 1, 2), b"ab".to_vec()));
    // A packet from one peer is not visible to the link to another.
    assert!(!link(&second, 0).receive(&mut Kept::default()).unwrap());
}

#[test]
fn packets_cross_in_both_directions() {
    let (mut ours, mut theirs) = pair();
    let long = vec![7; ours.limits().packet];
    for tag in 0..100 {
        assert!(ours.send(header(PacketKind::Data, tag, long.len()), &long).unwrap());
        assert!(theirs.send(header(PacketKind::Eager, tag, 0), b"").unwrap());
        assert_eq!(
            receive(&mut theirs).unwrap(),
            (header(PacketKind::Data, tag, long.len()), long.clone())
        );
        assert_eq!(receive(&mut ours).unwrap(), (header(PacketKind::Eager, tag, 0), Vec::new()));
    }
    assert_eq!(ours.limits().packet % 64, 0);
    assert!(ours.limits().eager <= ours.limits().packet);
}

#[test]
fn bytes_of_an_unknown_kind_are_an_error() {
    let (ours, mut theirs) = pair();
    let ring = theirs.node.segment.ring_from(0);
    ours.outgoing.store(ring.first_line, 15 << 32, Ordering::Release);
    let error = theirs.receive(&mut Kept::default()).unwrap_err();
    assert!(matches!(error, LinkError::UnknownPacket(15)), "{error}");
}

#[test]
fn a_message_is_fetched_from_where_it_is() {
    let (mut ours, mut theirs) = pair();
    let message: Vec<u8> = (0..3_000_001_u32).map(|index| index as u8).collect();
    let address = ours.expose_read(&message).unwrap();
    let mut into = vec![0; message.len()];
    assert!(theirs.fetch(address, &mut into).unwrap());
    assert_eq!(into, message);
}

#[test]
fn both_ends_copy_a_message_that_is_fetched() {
    let (mut ours, mut theirs) = pair();
    let message: Vec<u8> = (0..3_000_001_u32).map(|index| (index % 251) as u8).collect();
    let address = ours.expose_read(&message).unwrap();
    let (over, helped) = (AtomicBool::new(false), Count::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let before = ours.last_handled;
                assert!(!ours.receive(&mut Kept::default()).unwrap());
                helped.add(ours.last_handled != before);
            }
        });
        let (_stop, start) = (StopOnDrop(&over), Instant::now());
        // The helping thread may not get a processor for a while.
        let rounds = (0..).take_while(|&round| round < 300 || !helped.is_more_than(0, start));
        for round in rounds {
            let length = message.len() - round % 300 * 9_000;
            let mut into = vec![0; length + 1];
            assert!(theirs.fetch(address, &mut into[..length]).unwrap());
            assert!(into[..length] == message[..length], "round {round}");
            assert_eq!(into[length], 0);
        }
    });
}

#[test]
fn a_rank_that_is_asked_for_help_does_not_sleep() {
    let (mut ours, theirs) = pair();
    let request = CopyRequest::new(0, 0, 1 << 20, 1 << 16);
    split_copy::request(theirs.node.segment.memory(), theirs.own_request, 1, &request);
    assert!(matches!(ours.arm(false).unwrap(), Armed::Ready));
    ours.disarm();
    // The addresses are invalid, so the help fails and reports that.
    assert!(!ours.receive(&mut Kept::default()).unwrap());
    assert_eq!(split_copy::close(theirs.node.segment.memory(), theirs.own_request), 1);
    assert_eq!(split_copy::written(theirs.node.segment.memory(), theirs.own_request, 1), None);
    assert!(matches!(ours.arm(false).unwrap(), Armed::Watch(_)));
}

#[test]
fn an_address_that_is_not_there_is_an_error() {
    let (_ours, mut theirs) = pair();
    let error = theirs.fetch(4096, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, LinkError::System { .. }), "{error}");
}

#[test]
fn nothing_is_fetched_from_another_process_than_the_peer() {
    let (_ours, mut theirs) = pair();
    let probe = theirs.node.segment.identity(0).unwrap().probe;
    theirs.probe([probe[0], probe[1] ^ 1]);
    assert!(!theirs.fetch(probe[0], &mut [0; 8]).unwrap());
}

#[test]
fn a_sleeper_is_woken_for_every_packet() {
    let (mut ours, mut theirs) = pair();
    const PACKETS: u32 = 3_000;
    let slept = Count::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 0.. {
                let mut kept = Kept::default();
                while !theirs.receive(&mut kept).unwrap() {
                    slept.add(sleep(&mut theirs, false));
                }
                let header = kept.0[0].0;
                assert_eq!(header.tag, tag);
                assert!(theirs.send(header, b"").unwrap());
                if header.kind == PacketKind::Bye {
                    return;
                }
            }
        });
        let start = Instant::now();
        let is_enough = |tag| tag >= PACKETS && slept.is_more_than(100, start);
        for tag in 0.. {
            // Sends at varying moments while the receiver falls asleep.
            for _ in 0..tag * 7 % 4_000 {
                std::hint::spin_loop();
            }
            let kind = if is_enough(tag) { PacketKind::Bye } else { PacketKind::Eager };
            assert!(ours.send(header(kind, tag, 0), b"").unwrap());
            assert_eq!(receive(&mut ours).unwrap().0.tag, tag);
            if kind == PacketKind::Bye {
                break;
            }
        }
    });
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    let (mut ours, mut theirs) = pair();
    let long = vec![1; ours.limits().packet];
    const PACKETS: u32 = 2_000;
    let (length, node) = (long.len(), Arc::clone(&ours.node));
    let (slept, over) = (Count::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for tag in (0..).take_while(|_| !over.load(Ordering::Acquire)) {
                while !ours.send(header(PacketKind::Data, tag, length), &long).unwrap() {
                    slept.add(sleep(&mut ours, true));
                }
            }
        });
        let (stop, start) = (StopOnDrop(&over), Instant::now());
        for tag in (0..).take_while(|&tag| tag < PACKETS || !slept.is_more_than(10, start)) {
            if tag % 50 == 0 {
                // The ring is full.
                until_asleep(&node, 0);
            }
            assert_eq!(receive(&mut theirs).unwrap().0.tag, tag);
        }
        drop(stop);
        // A receive that frees lines makes room for the sender.
        while theirs.receive(&mut Kept::default()).unwrap() {}
    });
}

#[test]
fn a_peer_that_sleeps_is_woken_only_when_that_is_due() {
    let (mut ours, mut theirs) = pair();
    let is_rung = |link: &ShmLink| {
        let mut fds = [PollFd::new(link.node.doorbell.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    };
    assert!(matches!(theirs.arm(false).unwrap(), Armed::Watch(_)));
    assert!(ours.publish(header(PacketKind::Eager, 1, 2), b"ab").unwrap());
    assert!(!is_rung(&theirs));
    ours.wake_peer();
    assert!(is_rung(&theirs));
    theirs.disarm();
    assert_eq!(receive(&mut theirs).unwrap(), (header(PacketKind::Eager, 1, 2), b"ab".to_vec()));
    // A rank that goes to sleep in between sees the packet, and whoever is awake is not rung for.
    assert!(ours.publish(header(PacketKind::Eager, 2, 0), b"").unwrap());
    assert!(matches!(theirs.arm(false).unwrap(), Armed::Ready));
    theirs.disarm();
    ours.wake_peer();
    assert!(!is_rung(&theirs));
}

#[test]
fn one_bell_serves_all_links() {
    let name = name();
    let nodes = [0, 1, 2].map(|rank| ShmNode::attach(&name, rank, 3, false, None).unwrap());
    let mut links = [link(&nodes[0], 1), link(&nodes[0], 2)];
    for from in [1, 2] {
        assert!(matches!(links[0].arm(false).unwrap(), Armed::Watch(_)));
        assert!(matches!(links[1].arm(false).unwrap(), Armed::Watch(_)));
        assert!(link(&nodes[from], 0).send(header(PacketKind::Eager, 0, 0), b"").unwrap());
        let Armed::Watch(watched) = links[2 - from].arm(false).unwrap() else { panic!() };
        let mut fds = [PollFd::new(watched.fd, PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(1_000_u16)).unwrap(), 1);
        links.iter_mut().for_each(Link::disarm);
        assert!(links[from - 1].receive(&mut Kept::default()).unwrap());
        // The doorbell's datagram has been drained.
        assert_eq!(
            poll(&mut [PollFd::new(nodes[0].doorbell.fd(), PollFlags::POLLIN)], PollTimeout::ZERO),
            Ok(0)
        );
    }
}

#[test]
fn nobody_rings_for_a_rank_that_is_awake() {
    let (mut ours, mut theirs) = pair();
    assert!(matches!(theirs.arm(false).unwrap(), Armed::Watch(_)));
    theirs.disarm();
    assert!(ours.send(header(PacketKind::Eager, 0, 0), b"").unwrap());
    let mut fds = [PollFd::new(theirs.node.doorbell.fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 0);
    // A rank that goes to sleep afterwards sees the packet.
    assert!(matches!(theirs.arm(false).unwrap(), Armed::Ready));
}

/// Plays the role of another rank. The tests below run this test in a child process; in the test
/// run itself it does nothing.
#[test]
fn another_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let node = ShmNode::attach(&std::env::var(NAME).unwrap(), 1, 2, false, None).unwrap();
    let mut link = link(&node, 0);
    if role == "bye" || role == "killed" {
        for tag in 0..10 {
            assert!(link.send(header(PacketKind::Eager, tag, 3), b"abc").unwrap());
        }
    }
    if role == "bye" {
        assert!(link.send(header(PacketKind::Bye, 0, 0), b"").unwrap());
        std::process::exit(0);
    }
    println!("\nready");
    let message: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
    loop {
        let mut kept = Kept::default();
        while !link.receive(&mut kept).unwrap() {
            sleep(&mut link, false);
        }
        let (header, payload) = kept.0.remove(0);
        match header.kind {
            PacketKind::Rts => {
                let address = link.expose_read(&message).unwrap().to_le_bytes();
                assert!(link.send(Header { length: 8, ..header }, &address).unwrap());
            }
            _ => assert!(link.send(header, &payload).unwrap()),
        }
    }
}

/// Child process and the link to it. The process is killed on drop.
struct Other(Child, ShmLink);

impl Other {
    fn plays(role: &str) -> Other {
        let name = name();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "transport::shm::tests::another_process_plays_its_role",
                "--nocapture",
            ])
            .env(ROLE, role)
            .env(NAME, &name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let node = ShmNode::attach(&name, 0, 2, false, None).unwrap();
        let link = link(&node, 1);
        if role != "bye" {
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            lines.map(Result::unwrap).find(|line| line == "ready").unwrap();
        }
        Other(child, link)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_talk() {
    let mut other = Other::plays("echo");
    for tag in 0..2_000 {
        let payload = vec![tag as u8; tag as usize * 3];
        let header = header(PacketKind::Eager, tag, payload.len());
        assert!(other.1.send(header, &payload).unwrap());
        assert_eq!(receive(&mut other.1).unwrap(), (header, payload));
    }
}

#[test]
fn a_message_is_fetched_from_another_process() {
    let mut other = Other::plays("echo");
    assert!(other.1.send(header(PacketKind::Rts, 0, 0), b"").unwrap());
    let (_, address) = receive(&mut other.1).unwrap();
    let mut into = vec![0; 100_000];
    let address = u64::from_le_bytes(address.try_into().unwrap());
    assert!(other.1.fetch(address, &mut into).unwrap());
    assert!(into.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8));
    other.kill();
    let error = other.1.fetch(address, &mut into).unwrap_err();
    assert!(matches!(error, LinkError::Gone), "{error}");
}

#[test]
fn what_a_killed_process_sent_comes_before_its_end() {
    let mut other = Other::plays("killed");
    other.kill();
    // The end of the process is detected before its packets are polled.
    assert!(matches!(other.1.arm(false).unwrap(), Armed::Ready));
    other.1.disarm();
    assert!(other.1.node.doorbell.has_ended(1));
    for tag in 0..10 {
        assert_eq!(
            receive(&mut other.1).unwrap(),
            (header(PacketKind::Eager, tag, 3), b"abc".to_vec())
        );
    }
    let error = receive(&mut other.1).unwrap_err();
    assert!(matches!(error, LinkError::Gone), "{error}");
    assert!(matches!(other.1.arm(false).unwrap(), Armed::Ready));
}

#[test]
fn a_killed_process_wakes_a_sleeper() {
    let mut other = Other::plays("echo");
    let pid = other.0.id();
    let node = Arc::clone(&other.1.node);
    let killer = thread::spawn(move || {
        until_asleep(&node, 0);
        nix::sys::signal::kill(Pid::from_raw(pid as i32), nix::sys::signal::SIGKILL).unwrap();
    });
    sleep(&mut other.1, false);
    killer.join().unwrap();
    let error = receive(&mut other.1).unwrap_err();
    assert!(matches!(error, LinkError::Gone), "{error}");
}

#[test]
fn a_process_that_said_bye_may_end() {
    let mut other = Other::plays("bye");
    for _ in 0..10 {
        assert_eq!(receive(&mut other.1).unwrap().0.kind, PacketKind::Eager);
    }
    assert_eq!(receive(&mut other.1).unwrap().0.kind, PacketKind::Bye);
    other.0.wait().unwrap();
    other.1.node.doorbell.poll();
    assert!(other.1.node.doorbell.has_ended(1));
    assert!(!other.1.receive(&mut Kept::default()).unwrap());
    // The ended peer does not keep the rank from sleeping on links to other peers.
    let Armed::Watch(watched) = other.1.arm(false).unwrap() else { panic!() };
    let mut fds = [PollFd::new(watched.fd, PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 0);
}
