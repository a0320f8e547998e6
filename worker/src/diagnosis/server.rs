//! Answers to the probes of other agents, over TCP and UDP at one port of all addresses.
//!
//! A connection or datagram must begin with the token of this diagnosis. The launcher tells the
//! token only when all agents have started, so what arrives before is held for a while. All else
//! gets no answer, and no answer is longer than what has arrived.
//!
//! Datagrams of probes, and the addresses and interfaces by which they come and go.

use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo, Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    SockaddrStorage, bind, listen, recvmsg, sendmsg, setsockopt, socket,
};
use rlaunch_bootstrap::protocol::diagnosis::PROBE_PORTS;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// Random bytes of a diagnosis.
pub(super) type Token = [u8; 16];
/// Token of this diagnosis, once the launcher has told it.
pub(super) type KnownToken = watch::Receiver<Option<Token>>;

/// Time for which a probe is held that arrives before the token is known.
const HOLD: Duration = Duration::from_secs(3);
/// Number of bytes that a prober sends after the token, at most.
pub(super) const FILL: usize = 64 << 10;
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
            match open_socket(address, SockType::Stream).and_then(|tcp| {
                let udp = open_socket(address, SockType::Datagram)?;
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
            tokio::spawn(accept_all(listener, token.clone(), open.clone()));
        }
        for socket in self.udp {
            tokio::spawn(echo_datagrams(socket, token.clone()));
        }
    }
}

/// Opens a socket at an address; one for TCP listens.
fn open_socket(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
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

async fn accept_all(listener: TcpListener, token: KnownToken, open: Arc<Semaphore>) {
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

/// Reads the token and sends it back, and sends one more byte when it has read all that follows.
async fn echo_token(mut connection: TcpStream, mut token: KnownToken) -> io::Result<()> {
    let mut received = Token::default();
    connection.read_exact(&mut received).await?;
    let known = timeout(HOLD, token.wait_for(Option::is_some)).await;
    let is_it = known.is_ok_and(|known| known.is_ok_and(|known| *known == Some(received)));
    if is_it {
        connection.write_all(&received).await?;
        // The prober closes first, so that the port is not kept in TIME_WAIT.
        let mut fill = (&mut connection).take(FILL as u64);
        if tokio::io::copy(&mut fill, &mut tokio::io::sink()).await? == FILL as u64 {
            connection.write_all(&[0]).await?;
            let _ = connection.read(&mut [0]).await?;
        }
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
                        send_echo(&socket, &received, *token.borrow());
                    }
                }
            }
            received = receive_datagram(&socket) => match received {
                // Answers must not be longer than what has arrived.
                Ok(received) if received.length < SHORT => {}
                Ok(received) if is_known => send_echo(&socket, &received, *token.borrow()),
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
fn send_echo(socket: &UdpSocket, received: &Received, token: Option<Token>) {
    if token.is_none_or(|token| !received.head.starts_with(&token)) {
        return;
    }
    const { assert!(2 * ECHO <= SHORT && ECHO > size_of::<Token>()) };
    for interface in [0, received.interface] {
        // A lost answer is like a lost datagram: the prober sends another.
        let _ = send_datagram(socket, &received.head, received.local, interface, received.from);
    }
}

/// Length of the short datagram of a probe, and minimum length of one that is answered, in bytes.
pub(super) const SHORT: usize = 64;
/// Length of an answer, in bytes: the token, and four bytes by which the prober knows the datagram.
pub(super) const ECHO: usize = 20;

/// Datagram that has arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) head: [u8; ECHO],
    /// Length of the datagram in bytes, at most [`SHORT`]: the rest of a longer one is not read.
    pub(super) length: usize,
    pub(super) from: SocketAddr,
    /// Own address to which it was sent; `None` if the kernel does not tell.
    pub(super) local: Option<IpAddr>,
    /// Index of the interface by which it came; 0 if the kernel does not tell.
    pub(super) interface: u32,
}

/// Waits for a datagram.
pub(super) async fn receive_datagram(socket: &UdpSocket) -> io::Result<Received> {
    socket.async_io(Interest::READABLE, || receive_now(socket)).await
}

fn receive_now(socket: &UdpSocket) -> io::Result<Received> {
    let mut bytes = [0; SHORT];
    // Space for the larger of the two kinds of information.
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (mut local, mut interface) = (None, 0);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let address = u32::from_be(info.ipi_addr.s_addr);
                local = Some(IpAddr::V4(Ipv4Addr::from_bits(address)));
                interface = u32::try_from(info.ipi_ifindex).unwrap_or(0);
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                local = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                interface = info.ipi6_ifindex;
            }
            // Nothing else was asked for.
            _ => {}
        }
    }
    let from = message.address.as_ref().and_then(socket_address);
    let from = from.ok_or_else(|| io::Error::other("a datagram without a sender"))?;
    let length = message.bytes;
    let mut head = [0; ECHO];
    head.copy_from_slice(&bytes[..ECHO]);
    Ok(Received { head, length, from, local, interface })
}

fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some(SocketAddrV6::new(v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()).into())
}

/// Sends a datagram from an own address, through the interface of this index; 0 leaves the interface
/// to the kernel's routes. Binding the socket to the interface would need a privilege on old kernels,
/// and it would drop answers that come by another one.
pub(super) fn send_datagram(
    socket: &UdpSocket,
    bytes: &[u8],
    local: Option<IpAddr>,
    interface: u32,
    to: SocketAddr,
) -> io::Result<()> {
    let v4 = match local {
        Some(IpAddr::V4(address)) => address,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let v6 = match local {
        Some(IpAddr::V6(address)) => address,
        _ => Ipv6Addr::UNSPECIFIED,
    };
    let of_v4 = libc::in_pktinfo {
        ipi_ifindex: i32::try_from(interface).unwrap_or(0),
        ipi_spec_dst: libc::in_addr { s_addr: v4.to_bits().to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let of_v6 = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr { s6_addr: v6.octets() },
        ipi6_ifindex: interface,
    };
    let control = match to {
        SocketAddr::V4(_) => ControlMessage::Ipv4PacketInfo(&of_v4),
        SocketAddr::V6(_) => ControlMessage::Ipv6PacketInfo(&of_v6),
    };
    let parts = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let to = SockaddrStorage::from(to);
    sendmsg(socket.as_raw_fd(), &parts, &[control], flags, Some(&to))?;
    Ok(())
}
