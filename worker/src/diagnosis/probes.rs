//! Probes of other hosts, all at once.

use super::server::{self, ECHO, FILL, SHORT, Token};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::IpMtu;
use rlaunch_bootstrap::protocol::diagnosis::{PROBE_TIMEOUT, ProbeRequest, ProbeResult};
use rlaunch_sys::never_fragment;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Maximum number of probes at the same time, each of which has a socket.
const MAX_AT_ONCE: usize = 256;
/// Number of times that a datagram is sent, since any may be lost, and the time between two.
const ATTEMPTS: u8 = 3;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(700);
/// Time for full packets to arrive by TCP, which covers three losses.
const FILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of the headers before a datagram's data, in bytes.
const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

/// Makes the probes and returns their outcomes in the same order, within [`PROBE_TIMEOUT`].
pub(super) async fn probe_all(requests: Vec<ProbeRequest>, token: Token) -> Vec<ProbeResult> {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let places = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let start = |request: ProbeRequest| {
        let places = places.clone();
        tokio::spawn(async move {
            let probe = async {
                let _place = places.acquire().await;
                match request {
                    ProbeRequest::Tcp { to } => probe_tcp(to, token, deadline).await,
                    ProbeRequest::Udp { from, netdev, to, packet } => {
                        Datagrams::open(from, &netdev, to, packet, token)?.probe().await
                    }
                }
            };
            match timeout_at(deadline, probe).await {
                Ok(Ok(result)) => result,
                Ok(Err(error)) => ProbeResult::Failed(error.to_string()),
                Err(_) => ProbeResult::Silent,
            }
        })
    };
    let started: Vec<JoinHandle<ProbeResult>> = requests.into_iter().map(start).collect();
    let mut results = Vec::with_capacity(started.len());
    for probe in started {
        let result = probe.await;
        results.push(result.unwrap_or_else(|error| ProbeResult::Failed(error.to_string())));
    }
    results
}

/// Connects and has the token sent back, then full packets.
async fn probe_tcp(to: SocketAddr, token: Token, deadline: Instant) -> io::Result<ProbeResult> {
    let mut connection = TcpStream::connect(to).await?;
    let started = Instant::now();
    connection.write_all(&token).await?;
    let mut echo = Token::default();
    match connection.read_exact(&mut echo).await {
        Ok(_) if echo == token => {
            let micros = micros(started);
            Ok(fill(connection, deadline).await.unwrap_or(ProbeResult::Worked { micros }))
        }
        // Another program listens there, or the agent does not know the token.
        Ok(_) => Ok(ProbeResult::Silent),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(ProbeResult::Silent),
        Err(error) => Err(error),
    }
}

/// Sends so much that packets as large as the MTU are among it, which are lost where something on the way carries
/// less. Returns a result only if the path drops them, and the rest of the time is long enough to tell.
async fn fill(mut connection: TcpStream, deadline: Instant) -> Option<ProbeResult> {
    let until = Instant::now() + FILL_TIMEOUT;
    let sent = async {
        connection.write_all(&[0; FILL]).await?;
        connection.read_exact(&mut [0]).await
    };
    if until >= deadline || timeout_at(until, sent).await.is_ok() {
        return None;
    }
    let known_mtu = getsockopt(&connection, IpMtu).ok().and_then(|mtu| u32::try_from(mtu).ok());
    Some(ProbeResult::OnlyShort { known_mtu })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Probe by a short and a long datagram.
struct Datagrams {
    socket: UdpSocket,
    from: IpAddr,
    /// Index of the interface through which the datagrams leave.
    interface: u32,
    to: SocketAddr,
    token: Token,
    datagrams: [Datagram; 2],
}

/// Datagram that is sent until its echo arrives.
struct Datagram {
    length: usize,
    /// Time at which it was sent first.
    sent: Option<Instant>,
    /// Round-trip time in microseconds, once the echo has arrived.
    micros: Option<u64>,
    /// Whether it is larger than the interface's MTU.
    is_too_long: bool,
}

impl Datagrams {
    fn open(
        from: IpAddr,
        netdev: &str,
        to: SocketAddr,
        packet: u32,
        token: Token,
    ) -> io::Result<Datagrams> {
        let interface = if_nametoindex(netdev)?;
        let socket = std::net::UdpSocket::bind(SocketAddr::new(from, 0))?;
        socket.set_nonblocking(true)?;
        never_fragment(socket.as_fd(), to.is_ipv6())?;
        let header = UDP_HEADER + if to.is_ipv6() { IPV6_HEADER } else { IPV4_HEADER };
        let long = (packet as usize).saturating_sub(header).clamp(SHORT, usize::from(u16::MAX));
        let datagrams = [SHORT, long].map(|length| Datagram {
            length,
            sent: None,
            micros: None,
            is_too_long: false,
        });
        let socket = UdpSocket::from_std(socket)?;
        Ok(Datagrams { socket, from, interface, to, token, datagrams })
    }

    async fn probe(mut self) -> io::Result<ProbeResult> {
        let mut refused = None;
        for attempt in 0..ATTEMPTS {
            let until = Instant::now() + ATTEMPT_INTERVAL;
            for kind in 0..self.datagrams.len() {
                refused = self.send(kind, attempt).err().or(refused);
            }
            while !self.is_done() {
                match timeout_at(until, server::receive_datagram(&self.socket)).await {
                    Ok(received) => self.on_echo(&received?),
                    Err(_) => break,
                }
            }
            if self.is_done() {
                break;
            }
        }
        let [short, long] = &self.datagrams;
        match (short.micros.or(long.micros), long.micros, refused) {
            (Some(micros), Some(_), _) => Ok(ProbeResult::Worked { micros }),
            (Some(_), None, _) => Ok(ProbeResult::OnlyShort { known_mtu: self.known_mtu() }),
            (None, _, Some(error)) => Err(error),
            (None, _, None) => Ok(ProbeResult::Silent),
        }
    }

    fn is_done(&self) -> bool {
        self.datagrams.iter().all(|datagram| datagram.micros.is_some() || datagram.is_too_long)
    }

    /// Sends a datagram unless its echo has arrived.
    fn send(&mut self, kind: usize, attempt: u8) -> io::Result<()> {
        let Datagrams { socket, from, interface, to, token, datagrams } = self;
        let datagram = &mut datagrams[kind];
        if datagram.micros.is_some() || datagram.is_too_long {
            return Ok(());
        }
        let mut bytes = vec![0; datagram.length];
        bytes[..token.len()].copy_from_slice(token);
        bytes[token.len()] = kind as u8;
        bytes[token.len() + 1] = attempt;
        datagram.sent.get_or_insert_with(Instant::now);
        match server::send_datagram(socket, &bytes, Some(*from), *interface, *to) {
            Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => {
                datagram.is_too_long = true;
                Ok(())
            }
            sent => sent,
        }
    }

    /// Takes note of a datagram, if it is an echo of ours.
    fn on_echo(&mut self, received: &server::Received) {
        let is_echo = received.length == ECHO
            && received.from.ip() == self.to.ip()
            && received.head.starts_with(&self.token);
        let kind = usize::from(received.head[self.token.len()]);
        if let Some(datagram) = self.datagrams.get_mut(kind).filter(|_| is_echo) {
            let sent = datagram.sent;
            datagram.micros = datagram.micros.or_else(|| sent.map(micros));
        }
    }

    /// Returns the path MTU that the kernel knows, for example from a router's report.
    fn known_mtu(&self) -> Option<u32> {
        let socket = std::net::UdpSocket::bind(SocketAddr::new(self.from, 0)).ok()?;
        socket.connect(self.to).ok()?;
        u32::try_from(getsockopt(&socket, IpMtu).ok()?).ok()
    }
}
