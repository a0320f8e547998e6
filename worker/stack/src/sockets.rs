//! Other ends of TCP connections, from the tables of the process's network namespace.

use std::cell::OnceCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Sockets of a process. The tables have all connections of the network namespace, and are read once.
pub(crate) struct Sockets {
    pid: u32,
    tables: OnceCell<Vec<String>>,
}

impl Sockets {
    pub(crate) fn new(pid: u32) -> Sockets {
        Sockets { pid, tables: OnceCell::new() }
    }

    /// Returns the id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the other end of the socket with this inode, such as `10.0.0.2:4711`; `None` if it is not a connected
    /// TCP socket.
    pub(crate) fn peer(&self, inode: &str) -> Option<String> {
        let tables = self.tables.get_or_init(|| {
            let read = |table| fs::read_to_string(format!("/proc/{}/net/{table}", self.pid));
            ["tcp", "tcp6"].into_iter().filter_map(|table| read(table).ok()).collect()
        });
        let mut lines = tables.iter().flat_map(|table| table.lines().skip(1));
        lines.find_map(|line| remote_of(line, inode)).map(|end| end.to_string())
    }
}

/// Returns the remote end in a line of the table if the line is about the inode.
fn remote_of(line: &str, inode: &str) -> Option<SocketAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let end = parse_end(fields.get(2)?).filter(|_| fields.get(9) == Some(&inode))?;
    (end.port() != 0).then_some(end)
}

/// Parses `0100007F:1F90`: 32-bit words of the address in the machine's byte order, and the port.
fn parse_end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok();
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].map(u32::to_ne_bytes);
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap();
        let link = link.to_string_lossy().into_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let expected = listener.local_addr().unwrap().to_string();
        let sockets = Sockets::new(std::process::id());
        assert_eq!(sockets.peer(inode), Some(expected));
        assert_eq!(sockets.peer("1"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_read() {
        assert_eq!(parse_end("0200000A:1267"), Some("10.0.0.2:4711".parse().unwrap()));
        let mapped = parse_end("0000000000000000FFFF00000200000A:1267");
        assert_eq!(mapped, Some("10.0.0.2:4711".parse().unwrap()));
        assert_eq!(parse_end("0A:1"), None);
    }
}
