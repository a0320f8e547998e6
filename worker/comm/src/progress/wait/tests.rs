//! Tests of waits, mostly of several threads of one rank. Each missed wake-up costs up to
//! [`LONGEST_SLEEP`], so tests find missed wake-ups by the time that they take.

use super::*;
use crate::api::communicator::{Communicator, Group};
use crate::progress::idle::EpollIdle;
use crate::transport::tcp::TcpLink;
use crate::transport::{Armed, Header, Limits, Link, PacketKind, SelfLink, Sink, WatchedFd};
use rlaunch_stopwatch::Stopwatch;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

const ROUNDS: u64 = 60;
const TOO_LONG: Duration = LONGEST_SLEEP.saturating_mul(20);

fn communicator(me: usize, links: Vec<Box<dyn Link>>, spin_policy: SpinPolicy) -> Communicator {
    let timeout = Duration::from_secs(60);
    waiting_by(Arc::new(EpollIdle::new().unwrap()), timeout, me, links, spin_policy)
}

fn waiting_by(
    idle: Arc<dyn Idle>,
    timeout: Duration,
    me: usize,
    links: Vec<Box<dyn Link>>,
    spin_policy: SpinPolicy,
) -> Communicator {
    let nodes: Vec<u32> = (0..links.len() as u32).collect();
    let name = |rank: &u32| PeerName { rank: *rank, host: format!("n{rank}").into() };
    let engine = Engine::new(me, links, nodes.iter().map(name).collect());
    let progress = Progress::new(engine, idle, spin_policy, Some(timeout));
    Communicator::new(Arc::new(progress), Group::world(me, nodes.into()))
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialled, listener.accept().unwrap().0)
}

/// Creates two ranks connected by TCP.
fn pair(spin_policy: SpinPolicy) -> (Communicator, Communicator) {
    let (one, other) = sockets();
    let link = |socket| -> Box<dyn Link> { Box::new(TcpLink::new(socket).unwrap()) };
    let own = || -> Box<dyn Link> { Box::new(SelfLink::default()) };
    let first = communicator(0, vec![own(), link(one)], spin_policy);
    (first, communicator(1, vec![link(other), own()], spin_policy))
}

/// Sends messages of various lengths with `tag`, and receives each back with tag `answer`.
fn exchange(comm: &Communicator, peer: usize, (tag, answer): (u32, u32)) {
    for round in 0..ROUNDS {
        let own = vec![round; [1, 300, 40_000][round as usize % 3]];
        comm.send(&own, peer, tag).unwrap();
        assert_eq!(received(comm, own.len(), peer, answer), own);
    }
}

fn answer(comm: &Communicator, peer: usize, (tag, answer): (u32, u32)) {
    for round in 0..ROUNDS {
        let length = [1, 300, 40_000][round as usize % 3];
        let theirs = received(comm, length, peer, tag);
        comm.send(&theirs, peer, answer).unwrap();
    }
}

fn received(comm: &Communicator, length: usize, from: usize, tag: u32) -> Vec<u64> {
    let mut data = vec![0; length];
    comm.recv(&mut data, from, tag).unwrap();
    data
}

#[test]
fn who_waits_for_a_message_of_another_thread_is_woken_by_it() {
    let begin = Stopwatch::start();
    let comm = communicator(0, vec![Box::new(SelfLink::default())], SpinPolicy::none());
    thread::scope(|scope| {
        scope.spawn(|| exchange(&comm, 0, (1, 2)));
        scope.spawn(|| answer(&comm, 0, (1, 2)));
    });
    assert!(begin.elapsed() < TOO_LONG, "{:?}", begin.elapsed());
}

#[test]
fn threads_hand_on_what_they_find_of_each_others() {
    let begin = Stopwatch::start();
    for spin_policy in [SpinPolicy::none(), SpinPolicy::new(Duration::from_micros(50), true)] {
        let (first, second) = pair(spin_policy);
        thread::scope(|scope| {
            for tag in 0..3 {
                let (first, second) = (&first, &second);
                scope.spawn(move || exchange(first, 1, (tag, tag)));
                scope.spawn(move || answer(second, 0, (tag, tag)));
            }
        });
    }
    assert!(begin.elapsed() < TOO_LONG, "{:?}", begin.elapsed());
}

#[test]
fn who_looks_for_long_does_not_keep_the_others_from_sending() {
    let begin = Stopwatch::start();
    let (first, second) = pair(SpinPolicy::new(TOO_LONG, false));
    thread::scope(|scope| {
        scope.spawn(|| received(&first, 1, 1, 1));
        scope.spawn(|| (0..ROUNDS).for_each(|_| first.send(&[0_u64], 1, 0).unwrap()));
        (0..ROUNDS).for_each(|_| assert_eq!(received(&second, 1, 0, 0), [0]));
        second.send(&[0_u64], 0, 1).unwrap();
    });
    assert!(begin.elapsed() < TOO_LONG, "{:?}", begin.elapsed());
}

/// [`EpollIdle`] that counts its sleeps.
#[derive(Debug)]
struct Counted {
    kernel: EpollIdle,
    sleeps: AtomicU32,
}

impl Idle for Counted {
    fn now(&self) -> Duration {
        self.kernel.now()
    }

    fn yield_now(&self) {
        self.kernel.yield_now();
    }

    fn sleep(&self, longest: Duration) -> bool {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        self.kernel.sleep(longest)
    }

    fn watch(&self, link: usize, watched: WatchedFd<'_>) -> Result<(), LinkError> {
        self.kernel.watch(link, watched)
    }

    fn unwatch(&self, link: usize, fd: BorrowedFd<'_>) {
        self.kernel.unwatch(link, fd);
    }

    fn watch_agent(&self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        self.kernel.watch_agent(socket)
    }

    fn wake(&self) {
        self.kernel.wake();
    }
}

#[test]
fn a_peer_that_has_left_does_not_end_the_sleeps_that_follow() {
    let [(leaves, theirs), (silent, _held)] = [sockets(), sockets()];
    let link = |socket| -> Box<dyn Link> { Box::new(TcpLink::new(socket).unwrap()) };
    let bye = Header { kind: PacketKind::Bye, context: 0, tag: 0, transfer: 0, length: 0 };
    let mut leaver = TcpLink::new(theirs).unwrap();
    assert!(leaver.send(bye, &[]).unwrap());
    drop(leaver);
    let kernel = EpollIdle::new().unwrap();
    let idle = Arc::new(Counted { kernel, sleeps: AtomicU32::new(0) });
    let links = vec![Box::new(SelfLink::default()) as _, link(leaves), link(silent)];
    let timeout = Duration::from_secs(2);
    let comm = waiting_by(idle.clone(), timeout, 0, links, SpinPolicy::none());
    let failed = comm.recv(&mut [0_u8], 2, 0).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut { .. }), "{failed}");
    let sleeps = idle.sleeps.load(Ordering::Relaxed);
    // A link from which nothing is expected is polled only now and then. Until the goodbye is read,
    // it ends sleeps early.
    assert!(sleeps < 1000, "{sleeps} sleeps in {timeout:?}");
}

/// Clock that counts its readings and does not advance.
#[derive(Debug, Default)]
struct CountedClock {
    readings: AtomicU32,
}

impl Idle for CountedClock {
    fn now(&self) -> Duration {
        self.readings.fetch_add(1, Ordering::Relaxed);
        Duration::ZERO
    }

    fn yield_now(&self) {}

    fn sleep(&self, _: Duration) -> bool {
        false
    }

    fn watch(&self, _: usize, _: WatchedFd<'_>) -> Result<(), LinkError> {
        Ok(())
    }

    fn unwatch(&self, _: usize, _: BorrowedFd<'_>) {}

    fn watch_agent(&self, _: BorrowedFd<'_>) -> Result<(), LinkError> {
        Ok(())
    }

    fn wake(&self) {}
}

/// Link from which an empty message with tag 0 arrives after this many polls.
struct Late(u32);

impl Link for Late {
    fn limits(&self) -> Limits {
        let (fetch, write) = (usize::MAX, usize::MAX);
        Limits { eager: 64, packet: 64, fetch, write, poll_is_syscall: false }
    }

    fn send(&mut self, _: Header, _: &[u8]) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if self.0 > 0 {
            self.0 -= 1;
            return Ok(false);
        }
        let kind = PacketKind::Eager;
        sink.packet(Header { kind, context: 0, tag: 0, transfer: 0, length: 0 }, &[])?;
        Ok(true)
    }

    fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
        Ok(Armed::NoFd)
    }
}

/// Returns how often a wait reads the clock if its message arrives after `polls` polls.
fn readings(polls: u32, spin_policy: SpinPolicy) -> u32 {
    let idle = Arc::new(CountedClock::default());
    let links = vec![Box::new(SelfLink::default()) as _, Box::new(Late(polls)) as _];
    let comm = waiting_by(idle.clone(), Duration::from_secs(60), 0, links, spin_policy);
    comm.recv(&mut [0_u8; 0], 1, 0).unwrap();
    idle.readings.load(Ordering::Relaxed)
}

#[test]
fn a_wait_reads_the_clock_after_its_first_polls_and_then_again_and_again() {
    let spins = SpinPolicy::new(Duration::from_micros(50), false);
    let (first, polls) = (SpinPolicy::FIRST_POLLS, SpinPolicy::POLLS);
    assert_eq!(readings(0, spins), 0);
    assert_eq!(readings(first + polls - 1, spins), 0);
    // Before each reading a wait polls all links, this one once more.
    assert_eq!(readings(first + polls + 1, spins), 1);
    assert_eq!(readings(first + 3 * (polls + 1), spins), 3);
    // Whoever may keep the awaited peer from a processor is not in a hurry.
    let yields = SpinPolicy::new(Duration::from_micros(50), true);
    assert_eq!(readings(polls - 1, yields), 0);
    assert_eq!(readings(polls + 1, yields), 1);
    // The second reading is that after the sleep.
    assert_eq!(readings(polls + 1, SpinPolicy::none()), 2);
}

/// Link to a peer that signals each barrier as soon as it was polled `polls` times for it. Writes
/// what happens to the log.
struct Logged {
    log: Arc<Mutex<Vec<&'static str>>>,
    polls: usize,
    /// Number of polls since the last signal, and number of the next barrier.
    polled: usize,
    barrier: u32,
}

impl Link for Logged {
    fn limits(&self) -> Limits {
        Late(0).limits()
    }

    fn send(&mut self, _: Header, _: &[u8]) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn publish(&mut self, _: Header, _: &[u8]) -> Result<bool, LinkError> {
        self.log.lock().unwrap().push("publish");
        Ok(true)
    }

    fn wake_peer(&mut self) {
        self.log.lock().unwrap().push("wake");
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        self.log.lock().unwrap().push("poll");
        self.polled += 1;
        if self.polled < self.polls {
            return Ok(false);
        }
        let (kind, tag) = (PacketKind::Eager, self.barrier);
        (self.polled, self.barrier) = (0, tag + 1);
        // Messages of collectives have an odd context.
        sink.packet(Header { kind, context: 1, tag, transfer: 0, length: 0 }, &[])?;
        Ok(true)
    }

    fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
        Ok(Armed::NoFd)
    }
}

#[test]
fn a_peer_is_woken_after_the_first_poll_and_before_the_call_returns() {
    for (polls, expected) in [(1, "publish poll wake"), (3, "publish poll wake poll poll")] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let logged = Logged { log: log.clone(), polls, polled: 0, barrier: 0 };
        let links = vec![Box::new(SelfLink::default()) as _, Box::new(logged) as _];
        let comm = communicator(0, links, SpinPolicy::none());
        for _ in 0..3 {
            comm.barrier().unwrap();
            assert_eq!(std::mem::take(&mut *log.lock().unwrap()).join(" "), expected);
        }
        comm.send(&[1_u8], 1, 0).unwrap();
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()).join(" "), "publish wake");
    }
}

/// Tests that an interrupted receive loses nothing if only a part of a packet has arrived: the next
/// receive gets the whole message.
#[test]
fn a_receive_that_is_given_up_in_the_midst_of_a_packet_leaves_all_of_it() {
    let (ours, mut peer) = sockets();
    let links =
        vec![Box::new(SelfLink::default()) as _, Box::new(TcpLink::new(ours).unwrap()) as _];
    let comm = communicator(0, links, SpinPolicy::none());
    static QUITS: AtomicBool = AtomicBool::new(true);
    let message: Vec<u8> = (0..300_000).map(|at: usize| at as u8 ^ (at >> 8) as u8).collect();
    let header = |kind, length| Header { kind, context: 0, tag: 5, transfer: 1, length };
    let offer = [message.len() as u64, 0].map(u64::to_le_bytes).concat();
    peer.write_all(&header(PacketKind::Rts, 16).to_bytes()).unwrap();
    peer.write_all(&offer).unwrap();
    thread::scope(|scope| {
        let mut data = vec![0; message.len()];
        scope.spawn(|| {
            let mut grant = [0; Header::SIZE];
            peer.read_exact(&mut grant).unwrap();
            let head = header(PacketKind::Data, message.len() as u32).to_bytes();
            let whole = [&head[..], &message].concat();
            for part in whole.chunks(70_000) {
                peer.write_all(part).unwrap();
                // The rank sleeps between two parts.
                thread::sleep(Duration::from_millis(5));
            }
        });
        comm.set_interrupt_check(|| QUITS.load(Ordering::Relaxed));
        let mut given_up = 0;
        while let Err(error) = comm.recv(&mut data, 1, 5) {
            assert!(matches!(error.cause, Cause::Interrupted), "{error}");
            given_up += 1;
            QUITS.store(given_up < 20, Ordering::Relaxed);
            data.fill(0);
        }
        assert!(given_up > 0);
        assert!(data == message, "after {given_up} receives that were given up");
    });
}

#[test]
fn communicators_that_are_split_at_once_are_not_mistaken_for_each_other() {
    let (first, second) = pair(SpinPolicy::none());
    let split = |comm: &Communicator| comm.split(0, comm.rank() as i64).unwrap();
    let (first_part, second_part) = thread::scope(|scope| {
        let other = scope.spawn(|| split(&second));
        (split(&first), other.join().unwrap())
    });
    for round in 0..100 {
        let (early, late) = (Barrier::new(3), Barrier::new(2));
        let (early, late) = (&early, &late);
        let split_after = |comm, barriers: [Option<&Barrier>; 2]| {
            for barrier in barriers.into_iter().flatten() {
                barrier.wait();
            }
            split(comm).context
        };
        // Rank 0 begins a split of one communicator while rank 1 begins a split of another. Only
        // then does each rank join the split that the other rank has begun.
        let [a, b, c, d] = thread::scope(|scope| {
            let calls = [
                (&first, [Some(early), None]),
                (&second_part, [Some(early), None]),
                (&first_part, [None, Some(late)]),
                (&second, [Some(early), Some(late)]),
            ];
            let split_after = &split_after;
            let calls = calls.map(|(comm, at)| scope.spawn(move || split_after(comm, at)));
            calls.map(|call| call.join().unwrap())
        });
        assert_eq!((a, b), (d, c), "round {round}: the ranks of a communicator agree");
        assert_ne!(a, c, "round {round}: one rank, two communicators");
    }
}
