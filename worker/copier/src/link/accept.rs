//! Accepting end of a link.

use super::handshake::{self, HandshakeError, Hello, LinkId, Party, Stream};
use super::socket::Socket;
use super::{CHECK, Link, LinkError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::security::AdmissionQueue;
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

/// Maximum number of connections that have not proved yet that they belong to the copy.
const PENDING: usize = 64;

/// Listener at several addresses of this host, at the same port.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Vec<TcpListener>,
    addresses: Vec<IpAddr>,
    port: u16,
}

impl Acceptor {
    /// Listens at the first port from the range at which all addresses are free. Addresses that this
    /// host does not have are left out.
    pub fn open(addresses: &[IpAddr], ports: PortRange) -> Result<Acceptor, LinkError> {
        // Copies at the same time rarely look at the same ports.
        let offset = std::process::id() % ports.count();
        let mut last: io::Error = io::ErrorKind::AddrInUse.into();
        for step in 0..ports.count() {
            let port = u32::from(ports.first) + (offset + step) % ports.count();
            // The range ends at a port.
            match listen(addresses, port as u16) {
                Ok(acceptor) => return Ok(acceptor),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        Err(LinkError::Listen { first: ports.first, last: ports.last, source: last })
    }

    /// Returns the addresses that neighbours can connect to, in the order in which they were given. Loopback
    /// is for other hosts none, unless this host has no other.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let all = self.addresses.iter().copied();
        let others: Vec<IpAddr> = all.filter(|address| !address.is_loopback()).collect();
        if others.is_empty() { self.addresses.clone() } else { others }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until rank `from`, which is called `host`, has connected with all streams. Others are
    /// turned away.
    pub fn accept(
        &self,
        me: &Party,
        (from, host): (u32, &str),
        within: Duration,
    ) -> Result<Link, LinkError> {
        let mut deadline = Deadline::after(within, Instant::now()).checked_every(CHECK);
        let failed = |source| LinkError::Socket {
            operation: "wait for a connection of",
            host: host.to_owned(),
            source,
        };
        let mut arrivals = Arrivals::new(me, from).map_err(failed)?;
        while !deadline.has_expired(Instant::now()) {
            if let Some(streams) = arrivals.next_whole() {
                return Ok(Link::new(host.to_owned(), me.is_plain, streams));
            }
            self.wait(&mut arrivals, deadline.next_check()).map_err(failed)?;
            for listener in &self.listeners {
                // A connection that its other end has given up already is no error.
                if let Ok((socket, peer)) = listener.accept() {
                    arrivals.begin(socket, peer.ip());
                }
            }
        }
        Err(LinkError::NotConnected { host: host.to_owned(), port: self.port, within })
    }

    /// Waits for a connection, or for the end of a handshake, but not beyond `until`.
    fn wait(&self, arrivals: &mut Arrivals, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let sources = [arrivals.woken.as_fd()].into_iter().chain(listeners);
        let mut sources: Vec<PollFd<'_>> =
            sources.map(|source| PollFd::new(source, PollFlags::POLLIN)).collect();
        match poll(&mut sources, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        if sources[0].any() == Some(true) {
            // However many bytes there are, they say one thing.
            let _ = arrivals.woken.read(&mut [0; PENDING])?;
        }
        Ok(())
    }
}

fn listen(addresses: &[IpAddr], port: u16) -> io::Result<Acceptor> {
    let mut acceptor = Acceptor { listeners: Vec::new(), addresses: Vec::new(), port };
    let mut missing: io::Error = io::ErrorKind::AddrNotAvailable.into();
    for &address in addresses {
        if acceptor.addresses.contains(&address) {
            continue;
        }
        // A port that the kernel chooses, in tests, is that of all addresses.
        match TcpListener::bind((address, acceptor.port)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                acceptor.port = listener.local_addr()?.port();
                acceptor.addresses.push(address);
                acceptor.listeners.push(listener);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            Err(error) => missing = error,
        }
    }
    if acceptor.listeners.is_empty() { Err(missing) } else { Ok(acceptor) }
}

/// Connections whose handshakes are under way, each in a thread of its own, and streams of links
/// that are not whole.
struct Arrivals {
    me: Party,
    from: u32,
    pending: AdmissionQueue<Pending>,
    results: mpsc::Sender<(Hello, Stream)>,
    /// Gets a byte after each result.
    wakes: Arc<PipeWriter>,
    woken: PipeReader,
    arrived: mpsc::Receiver<(Hello, Stream)>,
    links: BTreeMap<LinkId, Vec<Option<Stream>>>,
}

struct Pending {
    socket: TcpStream,
    is_over: Arc<AtomicBool>,
}

impl Arrivals {
    fn new(me: &Party, from: u32) -> io::Result<Arrivals> {
        let (results, arrived) = mpsc::channel();
        let (pending, links) = (AdmissionQueue::new(PENDING), BTreeMap::new());
        let (woken, wakes) = io::pipe()?;
        let (me, wakes) = (me.clone(), Arc::new(wakes));
        Ok(Arrivals { me, from, pending, results, wakes, woken, arrived, links })
    }

    /// Begins the handshake of a new connection. When there are too many, the oldest of those from the network with
    /// the most is closed.
    fn begin(&mut self, socket: TcpStream, peer: IpAddr) {
        let is_over = Arc::new(AtomicBool::new(false));
        let Ok(watched) = socket.try_clone() else { return };
        self.pending.retain(|pending| !pending.is_over.load(Ordering::Acquire));
        let pending = Pending { socket: watched, is_over: is_over.clone() };
        if let Some(evicted) = self.pending.admit(peer, pending) {
            let _ = evicted.socket.shutdown(Shutdown::Both);
        }
        let (me, from, results) = (self.me.clone(), self.from, self.results.clone());
        let wakes = Arc::clone(&self.wakes);
        std::thread::spawn(move || {
            let done = answer(socket, &me, from);
            is_over.store(true, Ordering::Release);
            // Whoever dialled sees the end of the connection, and says why it cannot go on.
            if let Ok(arrived) = done {
                // Fails if nobody waits any more.
                let _ = results.send(arrived).map(|()| (&*wakes).write(&[0]));
            }
        });
    }

    /// Returns the streams of a link once all have come.
    fn next_whole(&mut self) -> Option<Vec<Stream>> {
        loop {
            let (hello, stream) = match self.arrived.try_recv() {
                Ok(arrived) => arrived,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            };
            let all = self.links.entry(hello.link).or_default();
            all.resize_with(hello.streams as usize, || None);
            // Below the number of streams, as the handshake has checked.
            all[hello.stream as usize] = Some(stream);
            if all.iter().all(Option::is_some) {
                return self.links.remove(&hello.link)?.into_iter().collect();
            }
        }
    }
}

fn answer(socket: TcpStream, me: &Party, from: u32) -> Result<(Hello, Stream), HandshakeError> {
    handshake::answer(Socket::tcp(socket)?, me, from)
}
