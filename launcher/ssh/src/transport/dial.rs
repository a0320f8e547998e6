//! TCP connections to hosts by their names. A name may have several addresses, some of which lead nowhere: the next one
//! is tried beside those that have not answered yet, and the first that accepts is taken (RFC 8305, "happy eyeballs").

use crate::config::{AddressFamily, HostConfig};
use crate::error::{SshError, TriedAddress};
use rlaunch_console::deadline::Deadline;
use rlaunch_console::open_files;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Time that an address has to itself before the next one is tried as well. The kernel repeats a lost packet after
/// a second, and the answer to that should be waited for.
const HEAD_START: Duration = Duration::from_millis(1200);

/// Address to connect to, with a socket if `BindAddress` says where to connect from.
type Route = (SocketAddr, Option<TcpSocket>);

/// Connects to a host, and returns the connection with the address that has accepted it. An error names the addresses
/// that were tried.
pub(crate) async fn dial(
    config: &HostConfig,
    port: u16,
    deadline: &mut Deadline,
) -> Result<(TcpStream, SocketAddr), SshError> {
    let limit = deadline.limit();
    let Some(found) = deadline.run(routes(config, port)).await else {
        let source = io::Error::other(format!("no answer within {} s", limit.as_secs()));
        return Err(SshError::LookUp { name: config.hostname.clone(), source });
    };
    let routes = found?;
    // Each address gets its turn before the limit.
    let turns = u32::try_from(routes.len() + 1).unwrap_or(u32::MAX);
    let head_start = HEAD_START.min(deadline.left() / turns);
    let attempts = routes.into_iter().map(|(to, from)| (to, connect(to, from))).collect();
    let mut race = Race::new();
    let reached = deadline.run(race.first_of(attempts, head_start)).await;
    match reached {
        Some(Some((stream, address))) => {
            // Otherwise Nagle's algorithm would delay parts of the handshake by 40 ms, twice.
            stream.set_nodelay(true).map_err(SshError::Socket)?;
            Ok((stream, address))
        }
        Some(None) => Err(SshError::Connect { tried: race.tried }),
        None => Err(SshError::NoAnswer { tried: race.tried, timeout: limit }),
    }
}

async fn connect(to: SocketAddr, from: Option<TcpSocket>) -> io::Result<TcpStream> {
    match from {
        Some(bound) => bound.connect(to).await,
        None => TcpStream::connect(to).await,
    }
}

/// Attempts to reach one of several addresses. Those under way end when this is dropped.
struct Race<T> {
    tried: Vec<TriedAddress>,
    /// Attempts under way, by their position in `tried`.
    under_way: JoinSet<(usize, io::Result<T>)>,
}

impl<T: Send + 'static> Race<T> {
    fn new() -> Race<T> {
        Race { tried: Vec::new(), under_way: JoinSet::new() }
    }

    /// Begins the attempts in turn: the next one when the one before has failed, or has had its head start. Returns
    /// what the first success brings; `None` if all have failed.
    async fn first_of<F>(
        &mut self,
        attempts: Vec<(SocketAddr, F)>,
        head_start: Duration,
    ) -> Option<(T, SocketAddr)>
    where
        F: Future<Output = io::Result<T>> + Send + 'static,
    {
        let mut attempts = attempts.into_iter();
        loop {
            if let Some((address, attempt)) = attempts.next() {
                let index = self.tried.len();
                self.tried.push(TriedAddress { address, error: None });
                self.under_way.spawn(async move { (index, attempt.await) });
            }
            tokio::select! {
                ended = self.under_way.join_next() => match ended {
                    Some(Ok((index, Ok(reached)))) => {
                        return Some((reached, self.tried[index].address));
                    }
                    Some(Ok((index, Err(error)))) => self.tried[index].error = Some(error),
                    // Attempts neither panic nor are they aborted while they are waited for.
                    Some(Err(_)) => {}
                    None => return None,
                },
                () = tokio::time::sleep(head_start), if attempts.len() > 0 => {}
            }
        }
    }
}

/// Returns the addresses of a host that can be connected to, in the system's order of preference.
async fn routes(config: &HostConfig, port: u16) -> Result<Vec<Route>, SshError> {
    let addresses = look_up(config, port).await?;
    let Some(name) = &config.bind_address else {
        return Ok(addresses.into_iter().map(|address| (address, None)).collect());
    };
    let own = own_addresses(name).await?;
    let (mut routes, mut unbound) = (Vec::new(), None);
    for address in addresses {
        if let Some(&own) = own.iter().find(|own| own.is_ipv4() == address.is_ipv4()) {
            match bind(own) {
                Ok(bound) => routes.push((address, Some(bound))),
                Err(source) => unbound = Some(cannot_bind(name, source)),
            }
        }
    }
    if routes.is_empty() {
        if let Some(error) = unbound {
            return Err(error);
        }
        return Err(SshError::NoAddress { name: config.hostname.clone() });
    }
    Ok(routes)
}

/// Looks up the addresses of a host, in the system's order of preference.
async fn look_up(config: &HostConfig, port: u16) -> Result<Vec<SocketAddr>, SshError> {
    let name = &config.hostname;
    let wanted = |address: &SocketAddr| match config.address_family {
        AddressFamily::Any => true,
        AddressFamily::Inet => address.is_ipv4(),
        AddressFamily::Inet6 => address.is_ipv6(),
    };
    let addresses: Vec<SocketAddr> = match name.parse::<IpAddr>() {
        Ok(literal) => vec![SocketAddr::new(literal, port)],
        Err(_) => tokio::net::lookup_host((name.as_str(), port))
            .await
            .map_err(open_files::or_open_file_limit)
            .map_err(|source| SshError::LookUp { name: name.clone(), source })?
            .filter(wanted)
            .collect(),
    };
    if addresses.is_empty() {
        return Err(SshError::NoAddress { name: name.clone() });
    }
    Ok(addresses)
}

/// Returns the addresses of this machine that `BindAddress` names.
async fn own_addresses(name: &str) -> Result<Vec<IpAddr>, SshError> {
    if let Ok(literal) = name.parse() {
        return Ok(vec![literal]);
    }
    let found = tokio::net::lookup_host((name, 0)).await;
    let found = found.map_err(|source| cannot_bind(name, source))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn cannot_bind(name: &str, source: io::Error) -> SshError {
    SshError::Bind { name: name.to_owned(), source }
}

fn bind(own: IpAddr) -> io::Result<TcpSocket> {
    let socket = if own.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(own, 0))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    const LIMIT: Duration = Duration::from_secs(10);

    fn config(from: &str) -> HostConfig {
        HostConfig {
            hostname: "127.0.0.1".into(),
            bind_address: Some(from.into()),
            ..HostConfig::default()
        }
    }

    #[tokio::test]
    async fn the_connection_comes_from_the_address_that_was_asked_for() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut deadline = Deadline::after(LIMIT);
        let (_stream, address) = dial(&config("127.0.0.7"), port, &mut deadline).await.unwrap();
        assert_eq!(address.port(), port);
        assert_eq!(listener.accept().await.unwrap().1.ip().to_string(), "127.0.0.7");
        // First an address that this machine does not have, then one of the wrong address family.
        let error = dial(&config("192.0.2.1"), port, &mut deadline).await.unwrap_err();
        assert!(matches!(error, SshError::Bind { .. }), "{error}");
        let error = dial(&config("::1"), port, &mut deadline).await.unwrap_err();
        assert!(matches!(error, SshError::NoAddress { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut deadline = Deadline::after(LIMIT);
        let error = dial(&config("127.0.0.1"), port, &mut deadline).await.unwrap_err();
        let expected = format!("cannot connect to 127.0.0.1:{port}: Connection refused");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    /// How an address takes a connection.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Peer {
        Dead,
        Refuses,
        Slow,
        Good,
    }

    async fn answer(peer: Peer) -> io::Result<Peer> {
        match peer {
            Peer::Dead => std::future::pending().await,
            Peer::Refuses => Err(io::ErrorKind::ConnectionRefused.into()),
            Peer::Slow => {
                sleep(Duration::from_secs(5)).await;
                Ok(peer)
            }
            Peer::Good => Ok(peer),
        }
    }

    /// Connects to one address for each of `peers`, with the ports 0, 1, …. Returns the peer that was reached, and the
    /// addresses that were tried.
    async fn race(peers: &[Peer]) -> (Option<Peer>, Vec<TriedAddress>) {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let attempts = (0..).zip(peers).map(|(port, &peer)| (address(port), answer(peer)));
        let attempts = attempts.collect();
        let mut race = Race::new();
        let reached = tokio::time::timeout(LIMIT, race.first_of(attempts, HEAD_START)).await;
        (reached.ok().flatten().map(|(peer, _)| peer), race.tried)
    }

    /// Returns every order of `peers`.
    fn orders(peers: &[Peer]) -> Vec<Vec<Peer>> {
        let Some((&first, rest)) = peers.split_first() else { return vec![Vec::new()] };
        let mut all = Vec::new();
        for order in orders(rest) {
            for at in 0..=order.len() {
                let mut order = order.clone();
                order.insert(at, first);
                all.push(order);
            }
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_good_address_is_reached_in_whatever_order_it_comes() {
        let all = orders(&[Peer::Dead, Peer::Refuses, Peer::Slow, Peer::Good]);
        assert_eq!(all.len(), 24);
        for order in all {
            let began = Instant::now();
            let (reached, _) = race(&order).await;
            assert_eq!(reached, Some(Peer::Good), "{order:?}");
            assert!(began.elapsed() <= HEAD_START * 3, "{order:?}: {:?}", began.elapsed());
        }
        // A slow one that is alone, or behind a dead one, is waited for.
        for order in [&[Peer::Slow][..], &[Peer::Dead, Peer::Slow, Peer::Refuses]] {
            assert_eq!(race(order).await.0, Some(Peer::Slow), "{order:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_costs_no_time() {
        let began = Instant::now();
        let (reached, tried) = race(&[Peer::Refuses, Peer::Refuses, Peer::Good]).await;
        assert_eq!((reached, began.elapsed()), (Some(Peer::Good), Duration::ZERO));
        assert_eq!(tried.len(), 3);
        let (reached, tried) = race(&[Peer::Refuses, Peer::Refuses]).await;
        assert_eq!((reached, began.elapsed()), (None, Duration::ZERO));
        let error = SshError::Connect { tried }.to_string();
        let both = "192.0.2.1:0: connection refused, nor to 192.0.2.1:1: connection refused";
        assert_eq!(error, format!("cannot connect to {both}"));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_do_not_answer_are_named() {
        let (reached, tried) = race(&[Peer::Dead, Peer::Refuses, Peer::Dead]).await;
        assert_eq!(reached, None);
        let error = SshError::NoAnswer { tried, timeout: LIMIT };
        let named = "192.0.2.1:0 does not answer, 192.0.2.1:1: connection refused, \
                     192.0.2.1:2 does not answer";
        assert_eq!(error.to_string(), format!("no TCP connection within 10 s: {named}"));
        assert!(error.hint("b").unwrap().contains("ConnectTimeout"));
    }
}
