//! The TCP connection below the control channel, as the kernel of this host shows it. It is sshd's, or the agent's own if
//! the agent has called back.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpStream;

/// Number of unanswered repetitions of a packet, or of probes of a full window, by which a host is known not to answer: one
/// may have been lost.
const REPEATS: u32 = 2;
const ESTABLISHED: &str = "01";

/// Ends of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    own: SocketAddr,
    peer: SocketAddr,
}

impl Connection {
    pub(crate) fn of(tcp: &TcpStream) -> Option<Connection> {
        Some(Connection { own: tcp.local_addr().ok()?, peer: tcp.peer_addr().ok()? })
    }

    /// Returns the connection of the SSH session in which this process runs. There is none in a container, or where
    /// another program than SSH has started the agent.
    pub(crate) fn of_ssh() -> Option<Connection> {
        Connection::parse(&std::env::var("SSH_CONNECTION").ok()?)
    }

    /// Parses `SSH_CONNECTION`: `client-address client-port server-address server-port`.
    fn parse(value: &str) -> Option<Connection> {
        let words: Vec<&str> = value.split(' ').collect();
        let &[client, client_port, server, server_port] = &words[..] else { return None };
        let end = |address: &str, port: &str| {
            Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
        };
        Some(Connection { own: end(server, server_port)?, peer: end(client, client_port)? })
    }

    /// Tells whether the connection is open, and the machine at its other end acknowledges what it is sent, whether or
    /// not the program there runs. False if that is unknown.
    pub(crate) fn is_answered(self) -> bool {
        // A connection by IPv4 that an IPv6 socket has accepted is in the second table.
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        tables.iter().flatten().any(|table| self.is_answered_in(table))
    }

    /// Looks the connection up in a table of the kernel, which has lines like
    /// `0: 0100007F:5208 0100007F:D2F0 01 00000000:00000000 02:00000A5C 00000000 1000 0 4711 …`: ends, state, queues,
    /// timer, number of times that the first packet was repeated, user, number of unanswered probes.
    fn is_answered_in(self, table: &str) -> bool {
        let forms =
            [false, true].map(|is_mapped| [self.own, self.peer].map(|end| hex(end, is_mapped)));
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let &[_, own, peer, ESTABLISHED, _, _, repeated, _, probes, ..] = &words[..] else {
                return false;
            };
            let is_it = forms.iter().any(|form| *form == [own, peer]);
            let repeated = u32::from_str_radix(repeated, 16).unwrap_or(REPEATS);
            let probes: u32 = probes.parse().unwrap_or(REPEATS);
            is_it && repeated.max(probes) < REPEATS
        })
    }
}

/// Formats an end as the kernel's tables do: each four bytes of the address are a number of this machine. An IPv4 address
/// is mapped to IPv6 if `is_mapped` is true.
fn hex(end: SocketAddr, is_mapped: bool) -> String {
    let octets = match end.ip() {
        IpAddr::V4(v4) if is_mapped => v4.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).filter_map(|part| <[u8; 4]>::try_from(part).ok());
    let words: Vec<String> =
        words.map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    format!("{}:{:04X}", words.concat(), end.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_is_that_of_the_login() {
        let connection = Connection::parse("192.0.2.1 4711 fd00::2 22").unwrap();
        assert_eq!(connection.peer, "192.0.2.1:4711".parse().unwrap());
        assert_eq!(connection.own, "[fd00::2]:22".parse().unwrap());
        for other in ["", "192.0.2.1 4711 192.0.2.7", "fe80::1%eth0 1 fe80::2%eth0 22"] {
            assert_eq!(Connection::parse(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_answers_all_the_same() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            // A machine without IPv6 has only the first.
            let Ok(listener) = tokio::net::TcpListener::bind(address).await else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let tcp = TcpStream::connect(to).await.unwrap();
            let connection = Connection::of(&tcp).unwrap();
            assert!(connection.is_answered(), "{connection:?}");
            let (accepted, _) = listener.accept().await.unwrap();
            // Written with the addresses of IPv4, as sshd does in `SSH_CONNECTION`.
            let of_server = Connection { own: connection.peer, peer: connection.own };
            assert!(of_server.is_answered(), "{of_server:?}");
            accepted.set_zero_linger().unwrap();
            drop(accepted);
            assert!(!of_server.is_answered(), "{of_server:?} is closed");
        }
    }

    #[test]
    fn a_machine_that_answers_neither_data_nor_probes_is_known() {
        let connection = Connection {
            own: "127.0.0.1:22".parse().unwrap(),
            peer: "10.0.0.1:4711".parse().unwrap(),
        };
        let ends = [connection.own, connection.peer].map(|end| hex(end, false)).join(" ");
        for (state, repeated, probes, is_answered) in [
            ("01", "00000000", 0, true),
            // One may have been lost.
            ("01", "00000001", 1, true),
            ("01", "00000002", 0, false),
            ("01", "0000000B", 0, false),
            ("01", "00000000", 2, false),
            ("08", "00000000", 0, false),
        ] {
            let line = format!(
                "  0: {ends} {state} 00000024:00000000 01:00000014 {repeated} 0 {probes} 4711 2 0"
            );
            let table = format!("  sl  local_address rem_address st\n{line}\n");
            assert_eq!(connection.is_answered_in(&table), is_answered, "{line}");
            let other = Connection { own: connection.peer, peer: connection.own };
            assert!(!other.is_answered_in(&table), "{line}");
        }
    }
}
