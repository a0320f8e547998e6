//! Ports that applications wait for before they start. Each port is tried until it accepts a
//! connection. There is no time limit, because the port belongs to a program of the user.

use rlaunch_bootstrap::job::AwaitedPort;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for one attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Ports that do not accept connections yet.
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
