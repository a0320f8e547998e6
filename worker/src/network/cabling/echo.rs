//! Probes between new addresses: datagrams that the other agent sends back.

use super::{into_tokio, open};
use nix::sys::socket::AddressFamily;
use rlaunch_bootstrap::protocol::network::{LinkAnswer, LinkProbe, NETWORK_PORT};
use std::io;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Time after which a probe is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Size of the headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;
/// Maximum size of a datagram, in bytes.
const MAX_DATAGRAM: usize = 64 << 10;

/// Sends back all datagrams that begin with the token.
pub(super) async fn serve(token: [u8; 16]) -> io::Result<()> {
    let socket = into_tokio(open(AddressFamily::Inet)?)?;
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
            let outcome = exchange(&token, &probe, NETWORK_PORT, deadline).await;
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
async fn exchange(
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
        let came = loop {
            match timeout_at(retry, socket.recv(&mut buffer)).await {
                Ok(Ok(length)) if buffer.starts_with(token) && length >= size => break true,
                Ok(Ok(_)) => {}
                Ok(Err(_)) => {
                    tokio::time::sleep_until(retry).await;
                    break false;
                }
                Err(_) => break false,
            }
        };
        match came {
            true if size == large => return Ok(LinkAnswer::Answered),
            true => size = large,
            false => {}
        }
    }
    Ok(if size > token.len() { LinkAnswer::OnlyShort } else { LinkAnswer::Silent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

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
        let outcome = exchange(&TOKEN, &probe, port, deadline).await.unwrap();
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
