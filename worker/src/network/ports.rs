//! TCP ports from the job's range, each bound only to those addresses that need it; and ports that
//! applications wait for before they start.

use nix::errno::Errno;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{AwaitedPort, PortRange, Problem};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Address of ports that are for ranks of this node alone.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Length of a listener's backlog: maximum number of children that connect at the same time.
const BACKLOG: u32 = 1024;

/// Returns all ports of `range`. Job and `salt` determine the first one, so that jobs and nodes
/// that start together on one host rarely collide.
fn candidate_ports(range: PortRange, job: JobId, salt: u32) -> impl Iterator<Item = u16> {
    let count = range.count();
    let start = range.start_offset(job) + salt % count;
    (0..count).map(move |step| range.first + ((start + step) % count) as u16)
}

fn socket(address: IpAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Binds a port even if connections of earlier jobs are in TIME_WAIT at it. Fails if a socket
/// listens at the port.
fn bind_reusing(address: IpAddr, port: u16) -> io::Result<TcpSocket> {
    let socket = socket(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(address, port))?;
    Ok(socket)
}

fn bind(address: IpAddr, port: u16) -> io::Result<TcpSocket> {
    let socket = socket(address)?;
    socket.bind(SocketAddr::new(address, port))?;
    Ok(socket)
}

/// Tells whether this host has the address.
pub(crate) fn has_address(address: IpAddr) -> bool {
    bind(address, 0).is_ok()
}

/// Listens on a port even if connections of earlier jobs are in TIME_WAIT at it. Fails if another
/// socket listens at the port or reserves it.
fn listener(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(address, port))?;
    socket.listen(BACKLOG)
}

/// Creates a socket bound to `local` with any port, to connect from.
pub(super) fn outgoing_socket(local: IpAddr) -> io::Result<TcpSocket> {
    let socket = socket(local)?;
    socket.bind(SocketAddr::new(local, 0))?;
    Ok(socket)
}

/// Listens on each of the addresses, on a port of the range. Leaves out addresses that this host no
/// longer has.
pub(crate) fn listen(
    addresses: &[IpAddr],
    range: PortRange,
    job: JobId,
    salt: u32,
) -> Result<Vec<TcpListener>, Problem> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for &address in addresses {
        let bound = candidate_ports(range, job, salt).map(|port| listener(address, port));
        let mut refused = None;
        let mut taken = false;
        for attempt in bound {
            match attempt {
                Ok(listener) => {
                    listeners.push(listener);
                    refused = None;
                    taken = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = true,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        if taken && refused.is_none() {
            return Err(Problem::NoPort { range });
        }
        if let Some(error) = refused {
            // The address has been removed since it was read; another may do.
            if error.raw_os_error() != Some(Errno::EADDRNOTAVAIL as i32) {
                let operation = format!("listen on {address}");
                return Err(Problem::System { operation, cause: error.to_string() });
            }
        }
    }
    Ok(listeners)
}

/// Free TCP port, bound on the node's addresses without listening, so that no other process takes
/// the port before rank 0 or the Horovod proxy does.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) port: u16,
    held: Vec<TcpSocket>,
}

impl ReservedPort {
    /// Reserves the first port of `range` that is free on all of `addresses`. If there is none,
    /// reserves a port that has connections in TIME_WAIT, because nearly all servers can listen on
    /// such a port as well. Without this, any user could make the ports of the range unusable by
    /// connecting to them.
    pub(crate) fn reserve(
        range: PortRange,
        job: JobId,
        addresses: &[IpAddr],
    ) -> Result<ReservedPort, Problem> {
        for bind in [bind, bind_reusing] {
            for port in candidate_ports(range, job, 0) {
                let held: io::Result<Vec<TcpSocket>> =
                    addresses.iter().map(|&address| bind(address, port)).collect();
                match held {
                    Ok(held) => return Ok(ReservedPort { port, held }),
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                    Err(error) => {
                        let operation = format!("bind port {port}");
                        return Err(Problem::System { operation, cause: error.to_string() });
                    }
                }
            }
        }
        Err(Problem::NoPort { range })
    }

    /// Reserves this port on all of `addresses`, even if connections of an earlier job are in
    /// TIME_WAIT at it.
    pub(crate) fn reserve_port(port: u16, addresses: &[IpAddr]) -> Result<ReservedPort, Problem> {
        let held = addresses.iter().map(|&address| bind_reusing(address, port)).collect();
        match held {
            Ok(held) => Ok(ReservedPort { port, held }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(Problem::PortTaken { port })
            }
            Err(error) => {
                let operation = format!("bind port {port} (--master-port)");
                Err(Problem::System { operation, cause: error.to_string() })
            }
        }
    }

    /// Listens on `address`, one of the reserved addresses, and frees the port on the others.
    pub(crate) fn listen(self, address: IpAddr) -> io::Result<TcpListener> {
        let is_it = |socket: &TcpSocket| socket.local_addr().is_ok_and(|own| own.ip() == address);
        match self.held.into_iter().find(is_it) {
            Some(socket) => socket.listen(BACKLOG),
            None => Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("port {} is not reserved on {address}", self.port),
            )),
        }
    }
}

/// Interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for one attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Ports that do not accept connections yet. Each is tried until it does. There is no time limit,
/// because the port belongs to a program of the user.
pub(crate) struct AwaitedPorts(JoinSet<u32>);

impl AwaitedPorts {
    /// Starts to try all of the ports.
    pub(crate) fn start(ports: &[AwaitedPort]) -> AwaitedPorts {
        AwaitedPorts(ports.iter().cloned().map(until_open).collect())
    }

    /// Returns the id of the next port that accepts connections. Waits forever if no port is left.
    pub(crate) async fn next_open(&mut self) -> u32 {
        while let Some(found) = self.0.join_next().await {
            if let Ok(id) = found {
                return id;
            }
        }
        std::future::pending().await
    }
}

async fn until_open(port: AwaitedPort) -> u32 {
    let mut tries = interval(RETRY_INTERVAL);
    tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tries.tick().await;
        for host in &port.hosts {
            if accepts(host, port.port).await {
                return port.id;
            }
        }
    }
}

async fn accepts(host: &str, port: u16) -> bool {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        // On the same machine, a socket may connect to itself when nothing listens at the port.
        Ok(Ok(stream)) => match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) => local != peer,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const RANGE: PortRange = PortRange { first: 21000, last: 21511 };

    #[test]
    fn two_held_ports_differ() {
        let first = ReservedPort::reserve(RANGE, JobId(7), &[HERE]).unwrap();
        let second = ReservedPort::reserve(RANGE, JobId(7), &[HERE]).unwrap();
        assert_ne!(first.port, second.port);
        let one = PortRange { first: first.port, last: first.port };
        let none = ReservedPort::reserve(one, JobId(0), &[HERE]).unwrap_err();
        assert_eq!(none, Problem::NoPort { range: one });
    }

    #[tokio::test]
    async fn a_port_that_the_user_chose_is_taken_unless_somebody_listens() {
        let first = listen(&[HERE], RANGE, JobId(15), 0).unwrap();
        let port = first[0].local_addr().unwrap().port();
        let taken = ReservedPort::reserve_port(port, &[HERE]).unwrap_err();
        assert_eq!(taken, Problem::PortTaken { port });
        // Leaves the connection in TIME_WAIT.
        let caller = tokio::net::TcpStream::connect((HERE, port)).await.unwrap();
        let (called, _) = first[0].accept().await.unwrap();
        drop(called);
        drop((caller, first));
        assert_eq!(ReservedPort::reserve_port(port, &[HERE]).unwrap().port, port);
    }

    #[tokio::test]
    async fn every_address_gets_a_listener_of_its_own() {
        let addresses = [HERE, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];
        let listeners = listen(&addresses, RANGE, JobId(9), 3).unwrap();
        for (listener, address) in listeners.iter().zip(addresses) {
            let local = listener.local_addr().unwrap();
            assert_eq!(local.ip(), address);
            assert!((RANGE.first..=RANGE.last).contains(&local.port()));
        }
        let port = listeners[0].local_addr().unwrap().port();
        let one = PortRange { first: port, last: port };
        assert_eq!(listen(&[HERE], one, JobId(9), 0).unwrap_err(), Problem::NoPort { range: one });
    }

    /// Connections of an earlier job stay in TIME_WAIT for a minute.
    #[tokio::test]
    async fn a_port_is_free_as_soon_as_its_listener_has_gone() {
        let first = listen(&[HERE], RANGE, JobId(11), 0).unwrap();
        let address = first[0].local_addr().unwrap();
        let caller = tokio::net::TcpStream::connect(address).await.unwrap();
        let (called, _) = first[0].accept().await.unwrap();
        drop(called);
        drop((caller, first));
        let one = PortRange { first: address.port(), last: address.port() };
        assert_eq!(listen(&[HERE], one, JobId(12), 0).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_port_where_connections_linger_is_taken_when_no_other_is_free() {
        let first = listen(&[HERE], RANGE, JobId(16), 0).unwrap();
        let address = first[0].local_addr().unwrap();
        let caller = tokio::net::TcpStream::connect(address).await.unwrap();
        let (called, _) = first[0].accept().await.unwrap();
        drop(called);
        drop((caller, first));
        assert!(bind(HERE, address.port()).is_err(), "no connection is in TIME_WAIT");
        let one = PortRange { first: address.port(), last: address.port() };
        assert_eq!(ReservedPort::reserve(one, JobId(16), &[HERE]).unwrap().port, address.port());
    }

    #[tokio::test]
    async fn a_held_port_is_not_listened_on() {
        let held = ReservedPort::reserve(RANGE, JobId(13), &[HERE]).unwrap();
        let one = PortRange { first: held.port, last: held.port };
        assert_eq!(listen(&[HERE], one, JobId(13), 0).unwrap_err(), Problem::NoPort { range: one });
    }

    #[tokio::test]
    async fn a_held_port_can_be_listened_on_by_its_holder() {
        let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
        let held = ReservedPort::reserve(RANGE, JobId(14), &[HERE, other]).unwrap();
        let address = SocketAddr::new(other, held.port);
        let listener = held.listen(other).unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        let held = ReservedPort::reserve(RANGE, JobId(15), &[HERE]).unwrap();
        assert!(held.listen(other).is_err());
    }

    #[tokio::test]
    async fn an_address_that_has_gone_is_passed_over() {
        let gone = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(listen(&[gone, HERE], RANGE, JobId(9), 3).unwrap().len(), 1);
    }

    #[test]
    fn a_port_is_found_when_somebody_listens() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            drop(listener);
            let hosts = vec!["no-such-host.invalid".to_owned(), "127.0.0.1".to_owned()];
            let port = AwaitedPort { id: 7, hosts, port: address.port() };
            let mut ports = AwaitedPorts::start(&[port]);
            let early = timeout(RETRY_INTERVAL * 2, ports.next_open()).await;
            assert!(early.is_err(), "nothing listens at the port yet");
            let _listener = TcpListener::bind(address).unwrap();
            let found = timeout(Duration::from_secs(10), ports.next_open()).await;
            assert_eq!(found, Ok(7));
        });
    }
}
