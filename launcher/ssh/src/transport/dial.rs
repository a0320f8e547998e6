//! TCP connections to hosts by their names. A name may have several addresses, some of which lead nowhere, or to
//! something else: the next one is tried beside those that have not answered yet, and the first that sends an SSH version
//! is taken (RFC 8305, "happy eyeballs").

use crate::config::{AddressFamily, HostConfig};
use crate::error::{NoVersion, SshError, TriedAddress};
use crate::transport::stream::{BANNER_KEPT, has_version, one_line};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpUserTimeout;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::limits;
use russh::{SshId, client};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Time that an address has to itself before the next one is tried as well. The kernel repeats a lost packet after
/// a second, and the answer to that should be waited for.
const HEAD_START: Duration = Duration::from_millis(1200);

/// Address to connect to, with a socket if `BindAddress` says where to connect from.
type Route = (SocketAddr, Option<TcpSocket>);

/// Connects to a host, and returns the connection with the address that has accepted it. If the host has several
/// addresses, that is one at which an SSH server answers. An error names the addresses that were tried.
pub(crate) async fn dial(
    config: &HostConfig,
    port: u16,
    deadline: &mut Deadline,
) -> Result<(Greeted, SocketAddr), SshError> {
    let limit = deadline.limit();
    let Some(found) = deadline.run(routes(config, port)).await else {
        let text = format!("no answer within {} s", limit.as_secs());
        let source = io::Error::new(io::ErrorKind::TimedOut, text);
        return Err(SshError::LookUp { name: config.hostname.clone(), source });
    };
    let routes = found?;
    // Each address gets its turn before the limit.
    let turns = u32::try_from(routes.len() + 1).unwrap_or(u32::MAX);
    let head_start = HEAD_START.min(deadline.left() / turns);
    let accepted: Vec<Arc<AtomicBool>> = routes.iter().map(|_| Arc::default()).collect();
    let is_alone = routes.len() == 1;
    let attempt = |((to, from), accepted): (Route, &Arc<AtomicBool>)| {
        (to, connect(to, from, is_alone, accepted.clone()))
    };
    let attempts = routes.into_iter().zip(&accepted).map(attempt).collect();
    let mut race = Race::new();
    let reached = deadline.run(race.first_of(attempts, head_start)).await;
    match reached {
        Some(Some((stream, address))) => {
            // Otherwise Nagle's algorithm would delay parts of the handshake by 40 ms, twice.
            stream.tcp.set_nodelay(true).map_err(SshError::Socket)?;
            Ok((stream, address))
        }
        Some(None) => Err(SshError::Connect { tried: race.tried }),
        None => {
            let mut tried = race.tried;
            for (tried, accepted) in tried.iter_mut().zip(&accepted) {
                if accepted.load(Ordering::Relaxed) {
                    let silent = || io::Error::other(NoVersion::IsSilent);
                    tried.error.get_or_insert_with(silent);
                }
            }
            Err(SshError::NoAnswer { tried, timeout: limit })
        }
    }
}

/// Makes a TCP connection, which `accepted` tells. Unless the address `is_alone`, waits for the server's SSH version too.
async fn connect(
    to: SocketAddr,
    from: Option<TcpSocket>,
    is_alone: bool,
    accepted: Arc<AtomicBool>,
) -> io::Result<Greeted> {
    let tcp = match from {
        Some(bound) => bound.connect(to).await?,
        None => TcpStream::connect(to).await?,
    };
    accepted.store(true, Ordering::Relaxed);
    if is_alone { Ok(Greeted { tcp, received: Vec::new(), sent: 0 }) } else { greet(tcp).await }
}

/// TCP connection on which client and server may have sent their SSH versions already.
#[derive(Debug)]
pub(crate) struct Greeted {
    tcp: TcpStream,
    /// Bytes from the server that were not returned yet.
    received: Vec<u8>,
    /// Number of bytes that were sent in advance. The SSH library begins with the same bytes, which are left out.
    sent: usize,
}

impl Greeted {
    /// Returns the address of this machine from which the connection was made.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.tcp.local_addr().ok().map(|local| local.ip())
    }

    /// Makes the kernel end the connection when the server's has acknowledged nothing of what was sent for this time.
    pub(crate) fn end_unacknowledged_after(&self, limit: Duration) {
        let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        // A kernel without it keeps trying, and keepalives end the connection later.
        let _ = setsockopt(&self.tcp, TcpUserTimeout, &millis);
    }
}

/// Sends this client's SSH version, for which some programs in front of a server wait, and reads until the server's has
/// begun.
async fn greet(mut tcp: TcpStream) -> io::Result<Greeted> {
    let ours = version_line();
    // A server that has closed the connection may have said why.
    let _ = tcp.write_all(ours.as_bytes()).await;
    let mut received = Vec::new();
    while !has_version(&received) {
        let ended = matches!(tcp.read_buf(&mut received).await, Ok(0) | Err(_));
        if ended || received.len() > BANNER_KEPT {
            return Err(io::Error::other(NoVersion::of(one_line(&received))));
        }
    }
    Ok(Greeted { tcp, received, sent: ours.len() })
}

/// Returns the first line that the SSH library sends.
fn version_line() -> String {
    match client::Config::default().client_id {
        SshId::Standard(version) => format!("{version}\r\n"),
        SshId::Raw(line) => line.into_owned(),
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Greeted { tcp, received, .. } = self.get_mut();
        if received.is_empty() {
            return Pin::new(tcp).poll_read(context, buffer);
        }
        let count = received.len().min(buffer.remaining());
        buffer.put_slice(&received[..count]);
        received.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Greeted { tcp, sent, .. } = self.get_mut();
        if *sent == 0 {
            return Pin::new(tcp).poll_write(context, bytes);
        }
        let count = bytes.len().min(*sent);
        *sent -= count;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
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
            .map_err(limits::or_open_file_limit)
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
        let (stream, address) = dial(&config("127.0.0.7"), port, &mut deadline).await.unwrap();
        stream.end_unacknowledged_after(LIMIT);
        let limit = nix::sys::socket::getsockopt(&stream.tcp, TcpUserTimeout).unwrap();
        assert_eq!(u128::from(limit), LIMIT.as_millis());
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

    /// Program that listens at an address.
    #[derive(Clone, Copy)]
    enum Listens {
        Silent,
        Closes,
        Other,
        Sshd,
    }

    /// Listens at an address of this machine, and answers each connection.
    async fn listen(how: Listens) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut peer, _)) = listener.accept().await {
                let answer: &[u8] = match how {
                    Listens::Silent => b"",
                    Listens::Closes => continue,
                    Listens::Other => b"HTTP/1.1 400 Bad Request\r\n",
                    Listens::Sshd => b"welcome\r\nSSH-2.0-x\r\n",
                };
                peer.write_all(answer).await.unwrap();
                let mut line = vec![0; version_line().len()];
                peer.read_exact(&mut line).await.unwrap();
                if !matches!(how, Listens::Other) {
                    open.push(peer);
                }
            }
        });
        address
    }

    async fn greeting(how: Listens) -> io::Result<Greeted> {
        let to = listen(how).await;
        let greeted = connect(to, None, false, Arc::default());
        let silent = |_| Err(io::Error::other(NoVersion::IsSilent));
        let limit = if matches!(how, Listens::Silent) { LIMIT / 50 } else { LIMIT };
        tokio::time::timeout(limit, greeted).await.unwrap_or_else(silent)
    }

    #[tokio::test]
    async fn a_connection_counts_once_a_version_has_come() {
        let said = |result: io::Result<Greeted>| result.unwrap_err().to_string();
        let closes = greeting(Listens::Closes).await;
        assert_eq!(said(closes), NoVersion::Closes.to_string());
        let other = greeting(Listens::Other).await;
        assert_eq!(said(other), "answers, but is no SSH server: HTTP/1.1 400 Bad Request");
        let silent = greeting(Listens::Silent).await;
        assert_eq!(said(silent), NoVersion::IsSilent.to_string());
        // All that was read is returned, and what was sent in advance is not sent again.
        let mut greeted = greeting(Listens::Sshd).await.unwrap();
        greeted.write_all(version_line().as_bytes()).await.unwrap();
        assert_eq!(greeted.sent, 0);
        let mut received = [0; 20];
        greeted.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"welcome\r\nSSH-2.0-x\r\n");
    }

    #[tokio::test]
    async fn the_version_that_is_sent_in_advance_is_that_of_the_library() {
        struct Refuses;
        impl client::Handler for Refuses {
            type Error = russh::Error;
        }
        let (near, mut far) = tokio::io::duplex(4096);
        let connecting = client::connect_stream(client::Config::default().into(), near, Refuses);
        let reading = async {
            let mut line = vec![0; version_line().len()];
            far.read_exact(&mut line).await.unwrap();
            drop(far);
            String::from_utf8(line).unwrap()
        };
        let (connected, line) = tokio::join!(connecting, reading);
        assert!(connected.is_err());
        assert_eq!(line, version_line());
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
        let mut error = SshError::NoAnswer { tried, timeout: LIMIT };
        let named = "192.0.2.1:0 does not answer, 192.0.2.1:1: connection refused, \
                     192.0.2.1:2 does not answer";
        assert_eq!(error.to_string(), format!("no TCP connection within 10 s: {named}"));
        assert!(error.hint("b").unwrap().contains("ConnectTimeout"));
        let SshError::NoAnswer { tried, .. } = &mut error else { unreachable!() };
        tried[0].error = Some(io::Error::other(NoVersion::IsSilent));
        let named =
            "no SSH version within 10 s: 192.0.2.1:0 takes TCP connections, but says nothing, ";
        assert!(error.to_string().starts_with(named), "{error}");
    }
}
