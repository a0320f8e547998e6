//! Beacons: datagrams to the link-local group of all nodes, by which two ends of a cable find each
//! other without addresses.
//!
//! Probes between new addresses: datagrams that the other agent sends back.

use nix::net::if_::if_nameindex;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket,
};
use rlaunch_bootstrap::protocol::control::{FrameReader, encode};
use rlaunch_bootstrap::protocol::network::{
    BEACON_GROUP, Beacon, BeaconReport, HeardBeacon, LinkAnswer, LinkProbe, MAX_HEARD, NETWORK_PORT,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as StdUdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};

/// Time between two beacons of an interface.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size of a beacon, in bytes.
const MAX_BEACON: usize = 256;

/// Sends beacons from these interfaces and collects those of others for this time.
pub(super) async fn exchange_beacons(
    token: [u8; 16],
    host: u32,
    interfaces: Vec<String>,
    window: Duration,
) -> BeaconReport {
    match Station::open(token, host, &interfaces) {
        Ok(station) => station.run(window).await,
        Err(error) => {
            let mute = interfaces.into_iter().map(|name| (name, error.to_string()));
            BeaconReport { mute: mute.collect(), heard: Vec::new() }
        }
    }
}

/// This host's end of the exchange: a socket, and the interfaces that send.
struct Station {
    socket: UdpSocket,
    token: [u8; 16],
    host: u32,
    /// Names of all interfaces by the kernel's indices.
    names: BTreeMap<u32, String>,
    senders: Vec<Sender>,
}

/// Interface that sends.
struct Sender {
    /// The kernel's index.
    index: u32,
    name: String,
    beacon: Vec<u8>,
}

impl Station {
    fn open(token: [u8; 16], host: u32, interfaces: &[String]) -> io::Result<Station> {
        let socket = open_socket(AddressFamily::Inet6)?;
        socket.set_multicast_loop_v6(false)?;
        let known = if_nameindex()?;
        let named = known.into_iter().map(|entry| {
            let name = entry.name().to_string_lossy().into_owned();
            (entry.index(), name)
        });
        let names: BTreeMap<u32, String> = named.collect();
        let sender = |(index, name): (&u32, &String)| {
            let beacon = Beacon { token, host, interface: name.clone() };
            let beacon = encode(&beacon).map_err(io::Error::other)?;
            Ok(Sender { index: *index, name: name.clone(), beacon })
        };
        let wanted = names.iter().filter(|(_, name)| interfaces.contains(name));
        let senders = wanted.map(sender).collect::<io::Result<_>>()?;
        Ok(Station { socket: into_tokio(socket)?, token, host, names, senders })
    }

    async fn run(self, window: Duration) -> BeaconReport {
        let end = Instant::now() + window;
        let mut heard = BTreeSet::new();
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        let mut sent: BTreeSet<&str> = BTreeSet::new();
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = [0; MAX_BEACON];
        loop {
            tokio::select! {
                () = sleep_until(end) => break,
                _ = ticks.tick() => for Sender { index, name, beacon } in &self.senders {
                    let to = SocketAddrV6::new(BEACON_GROUP, NETWORK_PORT, 0, *index);
                    match self.socket.send_to(beacon, to).await {
                        Ok(_) => {
                            sent.insert(name);
                        }
                        Err(error) => {
                            failed.insert(name.clone(), error.to_string());
                        }
                    }
                },
                received = self.socket.recv_from(&mut buffer) => {
                    // An error here is a late report of one in sending.
                    let Ok((length, from)) = received else { continue };
                    let beacon = self.accept(buffer.get(..length).unwrap_or_default(), from);
                    if heard.len() < MAX_HEARD {
                        heard.extend(beacon);
                    }
                }
            }
        }
        let mute = failed.into_iter().filter(|(name, _)| !sent.contains(name.as_str()));
        BeaconReport { heard: heard.into_iter().collect(), mute: mute.collect() }
    }

    /// Decodes a beacon and adds the interface on which it arrived. Returns `None` unless it is one of this run, sent by
    /// another interface.
    fn accept(&self, bytes: &[u8], from: SocketAddr) -> Option<HeardBeacon> {
        let SocketAddr::V6(from) = from else { return None };
        let on = self.names.get(&from.scope_id())?;
        let mut frames = FrameReader::default();
        frames.push(bytes);
        let beacon: Beacon = frames.next_frame().ok()??;
        let is_own = beacon.host == self.host && beacon.interface == *on;
        let is_wanted = beacon.token == self.token && !is_own;
        is_wanted.then(|| HeardBeacon {
            on: on.clone(),
            host: beacon.host,
            interface: beacon.interface,
        })
    }
}

/// Time after which a probe is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Size of the headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;
/// Maximum size of a datagram, in bytes.
const MAX_DATAGRAM: usize = 64 << 10;

/// Sends back all datagrams that begin with the token.
pub(super) async fn serve_echo(token: [u8; 16]) -> io::Result<()> {
    let socket = into_tokio(open_socket(AddressFamily::Inet)?)?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        // An error is a late report of one in sending.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let datagram = buffer.get(..length).unwrap_or_default();
        if datagram.starts_with(&token) {
            let _ = socket.send_to(datagram, from).await;
        }
    }
}

/// Makes all probes at once. Returns their outcomes in order.
pub(super) async fn probe_all(
    token: [u8; 16],
    probes: Vec<LinkProbe>,
    limit: Duration,
) -> Vec<LinkAnswer> {
    let mut outcomes = vec![LinkAnswer::Silent; probes.len()];
    let deadline = Instant::now() + limit;
    let mut tasks = JoinSet::new();
    for (index, probe) in probes.into_iter().enumerate() {
        tasks.spawn(async move {
            let outcome = exchange_echo(&token, &probe, NETWORK_PORT, deadline).await;
            (index, outcome.unwrap_or_else(|error| LinkAnswer::Refused(error.to_string())))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok((index, outcome)) = ended {
            outcomes[index] = outcome;
        }
    }
    outcomes
}

/// Sends short datagrams until one comes back, then large ones.
async fn exchange_echo(
    token: &[u8],
    probe: &LinkProbe,
    port: u16,
    deadline: Instant,
) -> io::Result<LinkAnswer> {
    let socket = UdpSocket::bind((probe.from, 0)).await?;
    socket.connect((probe.to, port)).await?;
    let large = (probe.packet as usize).saturating_sub(HEADERS).clamp(token.len(), MAX_DATAGRAM);
    let mut size = token.len();
    let mut datagram = token.to_vec();
    datagram.resize(large, 0);
    let mut buffer = vec![0; MAX_DATAGRAM];
    while Instant::now() < deadline {
        // The other agent may not listen yet, and its hardware address may be unknown.
        let _ = socket.send(datagram.get(..size).unwrap_or_default()).await;
        let retry = deadline.min(Instant::now() + RETRY);
        let came_back = loop {
            match timeout_at(retry, socket.recv(&mut buffer)).await {
                Ok(Ok(length)) if buffer.starts_with(token) && length >= size => break true,
                Ok(Ok(_)) => {}
                // A refusal, while the other agent does not listen yet.
                Ok(Err(_)) => {
                    tokio::time::sleep_until(retry).await;
                    break false;
                }
                Err(_) => break false,
            }
        };
        if came_back && size == large {
            return Ok(LinkAnswer::Answered);
        }
        if came_back {
            size = large;
        }
    }
    Ok(if size > token.len() { LinkAnswer::OnlyShort } else { LinkAnswer::Silent })
}

/// Opens a socket at [`NETWORK_PORT`] of all addresses. Several agents of one host share the port;
/// each gets all beacons.
fn open_socket(family: AddressFamily) -> io::Result<StdUdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    let any = match family {
        AddressFamily::Inet6 => {
            setsockopt(&socket, Ipv6V6Only, &true)?;
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, NETWORK_PORT))
        }
        _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, NETWORK_PORT)),
    };
    bind(socket.as_raw_fd(), &SockaddrStorage::from(any))?;
    Ok(socket.into())
}

fn into_tokio(socket: StdUdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_beacons_of_this_run_are_accepted() {
        let socket = into_tokio(StdUdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let names = BTreeMap::from([(7, "eth1".to_owned())]);
        let station = Station { socket, token: [1; 16], host: 0, names, senders: Vec::new() };
        let from = |scope| {
            SocketAddr::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, NETWORK_PORT, 0, scope))
        };
        let beacon = |token, host, interface: &str| {
            encode(&Beacon { token, host, interface: interface.into() }).unwrap()
        };
        let good = beacon([1; 16], 1, "eth5");
        let heard = station.accept(&good, from(7)).unwrap();
        assert_eq!((&*heard.on, heard.host, &*heard.interface), ("eth1", 1, "eth5"));
        assert_eq!(station.accept(&good, from(8)), None, "an unknown interface");
        assert_eq!(station.accept(&beacon([2; 16], 1, "eth5"), from(7)), None, "another run");
        assert_eq!(station.accept(&beacon([1; 16], 0, "eth1"), from(7)), None, "its own");
        assert!(station.accept(&beacon([1; 16], 0, "eth2"), from(7)).is_some(), "a loop");
        assert_eq!(station.accept(&good[..9], from(7)), None, "cut short");
        assert_eq!(station.accept(b"\xff\xff\xff\xff", from(7)), None);
    }

    const TOKEN: [u8; 16] = [7; 16];

    /// Probes a socket on this machine that sends back datagrams up to a size.
    async fn probed(most: usize) -> LinkAnswer {
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = peer.local_addr().unwrap().port();
        let echo = tokio::spawn(async move {
            let mut buffer = vec![0; MAX_DATAGRAM];
            loop {
                let (length, from) = peer.recv_from(&mut buffer).await.unwrap();
                if length <= most {
                    peer.send_to(&buffer[..length], from).await.unwrap();
                }
            }
        });
        let probe = LinkProbe { from: Ipv4Addr::LOCALHOST, to: Ipv4Addr::LOCALHOST, packet: 9000 };
        let deadline = Instant::now() + Duration::from_millis(500);
        let outcome = exchange_echo(&TOKEN, &probe, port, deadline).await.unwrap();
        echo.abort();
        outcome
    }

    #[tokio::test]
    async fn short_and_large_packets_come_back() {
        assert_eq!(probed(9000).await, LinkAnswer::Answered);
        assert_eq!(probed(1500).await, LinkAnswer::OnlyShort);
        assert_eq!(probed(0).await, LinkAnswer::Silent);
    }

    #[tokio::test]
    async fn an_address_of_another_host_is_refused() {
        let (from, to) = ("192.0.2.1".parse().unwrap(), Ipv4Addr::LOCALHOST);
        let probe = LinkProbe { from, to, packet: 1500 };
        let limit = Duration::from_millis(300);
        let outcomes = probe_all(TOKEN, vec![probe], limit).await;
        assert!(matches!(outcomes[..], [LinkAnswer::Refused(_)]), "{outcomes:?}");
    }
}
