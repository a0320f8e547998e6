//! Accepting end of a link.

use super::handshake::{self, HandshakeError, Hello, LinkId, Party, Stream};
use super::socket::Socket;
use super::{Link, LinkError};
use nix::poll::{PollFd, PollFlags, poll};
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::security::AdmissionQueue;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

/// Maximum number of connections that have not proved yet that they belong to the copy.
const PENDING: usize = 64;
/// Time in milliseconds after which results of handshakes are looked at.
const LOOK: u16 = 10;

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
        let until = Instant::now() + within;
        let mut arrivals = Arrivals::new(me, from);
        while Instant::now() < until {
            if let Some(streams) = arrivals.next_whole() {
                return Ok(Link::new(host.to_owned(), me.is_plain, streams));
            }
            self.wait().map_err(|source| LinkError::Socket {
                operation: "wait for a connection of",
                host: host.to_owned(),
                source,
            })?;
            for listener in &self.listeners {
                // A connection that its other end has given up already is no error.
                if let Ok((socket, peer)) = listener.accept() {
                    arrivals.begin(socket, peer.ip());
                }
            }
        }
        Err(LinkError::NotConnected { host: host.to_owned(), port: self.port, within })
    }

    /// Waits for a connection, or a moment.
    fn wait(&self) -> io::Result<()> {
        let listeners = self.listeners.iter();
        let mut fds: Vec<PollFd<'_>> =
            listeners.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut fds, LOOK) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
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
    arrived: mpsc::Receiver<(Hello, Stream)>,
    links: BTreeMap<LinkId, Vec<Option<Stream>>>,
}

struct Pending {
    socket: TcpStream,
    is_over: Arc<AtomicBool>,
}

impl Arrivals {
    fn new(me: &Party, from: u32) -> Arrivals {
        let (results, arrived) = mpsc::channel();
        let (pending, links) = (AdmissionQueue::new(PENDING), BTreeMap::new());
        Arrivals { me: me.clone(), from, pending, results, arrived, links }
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
        std::thread::spawn(move || {
            let done = answer(socket, &me, from);
            is_over.store(true, Ordering::Release);
            // Whoever dialled sees the end of the connection, and says why it cannot go on.
            if let Ok(arrived) = done {
                let _ = results.send(arrived);
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
