//! Agents' probes of each other, on loopback.

use super::server::{SHORT, Token};
use super::*;
use rlaunch_bootstrap::protocol::diagnosis::{PROBE_TIMEOUT, ProbeRequest, ProbeResult};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TOKEN: Token = *b"a diagnosis' one";
const OTHER: Token = *b"some other token";

fn tcp(port: u16) -> ProbeRequest {
    ProbeRequest::Tcp { to: SocketAddr::new(HERE, port) }
}

fn udp(port: u16, packet: u32) -> ProbeRequest {
    let netdev = "lo".to_owned();
    ProbeRequest::Udp { from: HERE, netdev, to: SocketAddr::new(HERE, port), packet }
}

fn worked(results: &[ProbeResult]) -> bool {
    results.iter().all(|result| matches!(result, ProbeResult::Worked { .. }))
}

#[tokio::test]
async fn two_agents_reach_each_other() {
    let (_first, token) = watch::channel(Some(TOKEN));
    let (one, two) = (server::start(&token).unwrap(), server::start(&token).unwrap());
    assert_ne!(one, two);
    let to_one = probes::probe_all(vec![tcp(one), udp(one, 1500), udp(one, 4156)], TOKEN);
    let to_two = probes::probe_all(vec![udp(two, 9000), tcp(two)], TOKEN);
    let (to_one, to_two) = tokio::join!(to_one, to_two);
    assert_eq!((to_one.len(), to_two.len()), (3, 2));
    assert!(worked(&to_one) && worked(&to_two), "{to_one:?} {to_two:?}");
}

#[tokio::test]
async fn agents_reach_each_other_by_ipv6() {
    let here = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if std::net::UdpSocket::bind((here, 0)).is_err() {
        // Hosts without IPv6 have no such probes.
        return;
    }
    let (_known, token) = watch::channel(Some(TOKEN));
    let to = SocketAddr::new(here, server::start(&token).unwrap());
    let udp = ProbeRequest::Udp { from: here, netdev: "lo".to_owned(), to, packet: 4156 };
    let results = probes::probe_all(vec![ProbeRequest::Tcp { to }, udp], TOKEN).await;
    assert!(worked(&results), "{results:?}");
}

/// The launcher tells each agent the token in a message of its own.
#[tokio::test]
async fn a_probe_may_come_before_the_token_is_known() {
    let (known, token) = watch::channel(None);
    let port = server::start(&token).unwrap();
    let probes = tokio::spawn(probes::probe_all(vec![tcp(port), udp(port, 1500)], TOKEN));
    // The connection is there and has sent the token by the time another has come and gone.
    let mut refused = TcpStream::connect((HERE, port)).await.unwrap();
    refused.write_all(&TOKEN[..4]).await.unwrap();
    refused.shutdown().await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap(), 0);
    assert!(!probes.is_finished());
    known.send(Some(TOKEN)).unwrap();
    let results = probes.await.unwrap();
    assert!(worked(&results), "{results:?}");
}

#[tokio::test]
async fn a_wrong_token_gets_no_answer() {
    let (_known, token) = watch::channel(Some(OTHER));
    let port = server::start(&token).unwrap();
    let started = Instant::now();
    let results = probes::probe_all(vec![tcp(port), udp(port, 1500)], TOKEN).await;
    assert_eq!(results, [ProbeResult::Silent, ProbeResult::Silent]);
    assert!(started.elapsed() < PROBE_TIMEOUT + Duration::from_secs(5));
    // The right one does, and only to datagrams that are longer than the answers.
    let socket = UdpSocket::bind((HERE, 0)).await.unwrap();
    let mut datagram = vec![0; SHORT];
    datagram[..OTHER.len()].copy_from_slice(&OTHER);
    socket.send_to(&datagram[..SHORT - 1], (HERE, port)).await.unwrap();
    socket.send_to(&datagram, (HERE, port)).await.unwrap();
    let mut bytes = [0; 100];
    let length = socket.recv(&mut bytes).await.unwrap() + socket.recv(&mut bytes).await.unwrap();
    assert!(length <= SHORT, "{length}");
    let none = timeout(Duration::from_millis(100), socket.recv(&mut bytes)).await;
    assert!(none.is_err(), "the short one was answered");
}

#[tokio::test]
async fn what_the_kernel_refuses_is_told() {
    let closed = TcpListener::bind((HERE, 0)).await.unwrap().local_addr().unwrap().port();
    let no_netdev = ProbeRequest::Udp {
        from: HERE,
        netdev: "nosuch0".to_owned(),
        to: SocketAddr::new(HERE, closed),
        packet: 1500,
    };
    let elsewhere = ProbeRequest::Udp {
        from: IpAddr::from([192, 0, 2, 1]),
        netdev: "lo".to_owned(),
        to: SocketAddr::new(HERE, closed),
        packet: 1500,
    };
    let results = probes::probe_all(vec![tcp(closed), no_netdev, elsewhere], TOKEN).await;
    let texts: Vec<&str> = results
        .iter()
        .map(|result| match result {
            ProbeResult::Failed(text) => text.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    let begins = ["Connection refused", "No such device", "Cannot assign"];
    assert!(texts.iter().zip(begins).all(|(text, begin)| text.contains(begin)), "{texts:?}");
}

/// Stands in for a path that drops long packets: echoes short datagrams alone.
#[tokio::test]
async fn a_path_that_drops_long_packets_is_told_from_a_silent_one() {
    let path = UdpSocket::bind((HERE, 0)).await.unwrap();
    let port = path.local_addr().unwrap().port();
    let silent = UdpSocket::bind((HERE, 0)).await.unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut bytes = [0; 2000];
        let mut arrived = 0;
        while let Ok((length, from)) = path.recv_from(&mut bytes).await {
            arrived += 1;
            // The first of each kind is lost, which is not a finding.
            if length == SHORT && arrived > 2 {
                path.send_to(&bytes[..20], from).await.unwrap();
            }
        }
    });
    // This is larger than what any interface sends as one packet.
    let requests = vec![udp(port, 1500), udp(silent_port, 1500), udp(port, u32::MAX)];
    let results = probes::probe_all(requests, TOKEN).await;
    let is_short = |result: &ProbeResult| matches!(result, ProbeResult::OnlyShort { .. });
    assert!(is_short(&results[0]) && is_short(&results[2]), "{results:?}");
    assert_eq!(results[1], ProbeResult::Silent);
}

/// Stands in for a path that drops full packets: it takes in the token and nothing else.
#[tokio::test]
async fn full_packets_are_tried_by_tcp_too() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut token = Token::default();
        connection.read_exact(&mut token).await.unwrap();
        connection.write_all(&token).await.unwrap();
        std::future::pending::<()>().await;
    });
    let results = probes::probe_all(vec![tcp(port)], TOKEN).await;
    assert!(matches!(results[..], [ProbeResult::OnlyShort { .. }]), "{results:?}");
}
