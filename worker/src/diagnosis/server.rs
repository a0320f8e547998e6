//! Answers to the probes of other agents, over TCP and UDP at one port of all addresses.
//!
//! A connection or datagram must begin with the token of this diagnosis. The launcher tells the
//! token only when all agents have started, so what arrives before is held for a while. All else
//! gets no answer, and no answer is longer than what has arrived.

use super::datagram::{self, ECHO, Received, SHORT};
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo, Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
};
use rlaunch_bootstrap::protocol::diagnosis::PROBE_PORTS;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// Random bytes of a diagnosis.
pub(super) type Token = [u8; 16];
/// Token of this diagnosis, once the launcher has told it.
pub(super) type KnownToken = watch::Receiver<Option<Token>>;

/// Time for which a probe is held that arrives before the token is known.
const HOLD: Duration = Duration::from_secs(3);
/// Maximum number of connections and of held datagrams.
const MAX_OPEN: usize = 256;
const BACKLOG: i32 = 256;
/// Time before another connection is accepted after that has failed, as for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts to answer at a free port of [`PROBE_PORTS`], and returns it. Returns `None` if there is
/// none. Must be called within a Tokio runtime; ends with it.
pub(super) fn start(token: &KnownToken) -> Option<u16> {
    let count = PROBE_PORTS.count();
    // Agents that share a host begin at different ports.
    let start = std::process::id() % count;
    let ports = (0..count).map(|step| PROBE_PORTS.first + ((start + step) % count) as u16);
    for port in ports {
        match Sockets::open(port) {
            Ok(sockets) => {
                sockets.serve(token);
                return Some(port);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(_) => return None,
        }
    }
    None
}

/// Sockets of one port, of each IP version that this host has.
struct Sockets {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Sockets {
    fn open(port: u16) -> io::Result<Sockets> {
        let mut sockets = Sockets { tcp: Vec::new(), udp: Vec::new() };
        let mut refused = None;
        for address in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let address = SocketAddr::new(address, port);
            match open(address, SockType::Stream).and_then(|tcp| {
                let udp = open(address, SockType::Datagram)?;
                Ok((TcpListener::from_std(tcp.into())?, UdpSocket::from_std(udp.into())?))
            }) {
                Ok((tcp, udp)) => {
                    sockets.tcp.push(tcp);
                    sockets.udp.push(udp);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                // Many hosts have no IPv6.
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if sockets.tcp.is_empty() => Err(error),
            _ => Ok(sockets),
        }
    }

    fn serve(self, token: &KnownToken) {
        let open = Arc::new(Semaphore::new(MAX_OPEN));
        for listener in self.tcp {
            tokio::spawn(accept(listener, token.clone(), open.clone()));
        }
        for socket in self.udp {
            tokio::spawn(echo_datagrams(socket, token.clone()));
        }
    }
}

/// Opens a socket at an address; one for TCP listens.
fn open(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, None)?;
    if address.is_ipv6() {
        setsockopt(&socket, Ipv6V6Only, &true)?;
    }
    if kind == SockType::Stream {
        // Connections of earlier diagnoses may be in TIME_WAIT.
        setsockopt(&socket, ReuseAddr, &true)?;
    } else if address.is_ipv4() {
        setsockopt(&socket, Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    if kind == SockType::Stream {
        listen(&socket, Backlog::new(BACKLOG)?)?;
    }
    Ok(socket)
}

async fn accept(listener: TcpListener, token: KnownToken, open: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // One connection too many is closed.
                let Ok(permit) = open.clone().try_acquire_owned() else { continue };
                let token = token.clone();
                tokio::spawn(async move {
                    // Whatever goes wrong, the prober sees the connection end.
                    let _ = timeout(2 * HOLD, echo_token(connection, token)).await;
                    drop(permit);
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Reads the token and sends it back.
async fn echo_token(mut connection: TcpStream, mut token: KnownToken) -> io::Result<()> {
    let mut received = Token::default();
    connection.read_exact(&mut received).await?;
    let known = timeout(HOLD, token.wait_for(Option::is_some)).await;
    let is_it = known.is_ok_and(|known| known.is_ok_and(|known| *known == Some(received)));
    if is_it {
        connection.write_all(&received).await?;
        // The prober closes first, so that the port is not kept in TIME_WAIT.
        let _ = connection.read(&mut [0]).await?;
    }
    Ok(())
}

/// Sends the beginning of each datagram back.
async fn echo_datagrams(socket: UdpSocket, mut token: KnownToken) {
    let mut held: VecDeque<(Instant, Received)> = VecDeque::new();
    let mut is_known = token.borrow_and_update().is_some();
    loop {
        tokio::select! {
            changed = token.changed(), if !is_known => {
                is_known = true;
                if changed.is_err() {
                    continue;
                }
                for (at, received) in held.drain(..) {
                    if at.elapsed() < HOLD {
                        answer(&socket, &received, *token.borrow());
                    }
                }
            }
            received = datagram::receive(&socket) => match received {
                Ok(received) if received.length < SHORT => {}
                Ok(received) if is_known => answer(&socket, &received, *token.borrow()),
                Ok(received) => {
                    held.push_back((Instant::now(), received));
                    if held.len() > MAX_OPEN {
                        held.pop_front();
                    }
                }
                Err(_) => sleep(PAUSE).await,
            },
        }
    }
}

/// Sends the beginning of a datagram back: by the route to its sender, and through the interface by
/// which it came, if that is another one. The two answers together are shorter than the datagram.
fn answer(socket: &UdpSocket, received: &Received, token: Option<Token>) {
    if token.is_none_or(|token| !received.head.starts_with(&token)) {
        return;
    }
    const { assert!(2 * ECHO <= SHORT && ECHO > size_of::<Token>()) };
    for interface in [0, received.interface] {
        // A lost answer is like a lost datagram: the prober sends another.
        let _ = datagram::send(socket, &received.head, received.local, interface, received.from);
    }
}
