//! The user at the other end of a TCP connection of this host. TCP sockets carry no credentials, unlike
//! Unix sockets, but the kernel knows the owner of the connecting socket. It is asked over netlink
//! (`linux/inet_diag.h`) for that single socket, so the query takes no longer on a host with many
//! sockets. If the kernel does not support the query, its table of all sockets is read.

use crate::node::inventory::netlink::{self, HEADER, REQUEST};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockProtocol, recv};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpStream;

/// The kernel's table of all IPv4 sockets.
const TABLE: &str = "/proc/net/tcp";

/// `SOCK_DIAG_BY_FAMILY`, the message type of request and answer.
const BY_FAMILY: u16 = 20;
const ANY_STATE: u32 = u32::MAX;
const ANY_COOKIE: [u8; 8] = [0xff; 8];
/// Size of `struct inet_diag_msg`, and the offsets of its last two fields, in bytes.
const ANSWER: usize = 72;
const ANSWER_UID: usize = 64;
const ANSWER_INODE: usize = 68;

/// Set once the kernel has answered a query. From then on, an error of a query means that the
/// socket does not exist. The kernel's table of all sockets, which may be long, need not be read
/// any more.
static KERNEL_ANSWERS: AtomicBool = AtomicBool::new(false);

/// Returns the id of the user that owns the client's socket, or `None` if it is unknown.
pub(crate) fn user_of(socket: &TcpStream, from: SocketAddr) -> Option<u32> {
    match (from, socket.local_addr().ok()?) {
        (SocketAddr::V4(caller), SocketAddr::V4(here)) => owner(caller, here),
        _ => None,
    }
}

/// Returns the user that owns the socket bound to `own` and connected to `other`. Returns `None` if
/// the kernel knows no owner, for example because the process has closed the socket.
fn owner(own: SocketAddrV4, other: SocketAddrV4) -> Option<u32> {
    match ask_kernel(own, other) {
        Ok(owner) => {
            KERNEL_ANSWERS.store(true, Ordering::Relaxed);
            owner
        }
        Err(_) if KERNEL_ANSWERS.load(Ordering::Relaxed) => None,
        Err(_) => find_in_table(&std::fs::read_to_string(TABLE).ok()?, own, other),
    }
}

/// Queries the kernel over netlink. The kernel returns ENOENT both for a socket that does not exist
/// and if it does not support the query.
fn ask_kernel(own: SocketAddrV4, other: SocketAddrV4) -> nix::Result<Option<u32>> {
    let socket =
        netlink::send_request(SockProtocol::NetlinkSockDiag, &encode_question(own, other))?;
    let mut buffer = [0; 1 << 10];
    let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    parse_answer(buffer.get(..length).unwrap_or_default())
}

/// Encodes the query: `struct inet_diag_req_v2` behind a header. Addresses and ports are in network
/// byte order, all else in the machine's.
fn encode_question(own: SocketAddrV4, other: SocketAddrV4) -> Vec<u8> {
    let (family, protocol) = (AddressFamily::Inet as u8, libc::IPPROTO_TCP as u8);
    let address = |address: SocketAddrV4| [&address.ip().octets()[..], &[0; 12]].concat();
    let body = [
        &[family, protocol, 0, 0][..],
        &ANY_STATE.to_ne_bytes(),
        &own.port().to_be_bytes(),
        &other.port().to_be_bytes(),
        &address(own),
        &address(other),
        &0_u32.to_ne_bytes(),
        &ANY_COOKIE,
    ]
    .concat();
    netlink::encode_request(BY_FAMILY, REQUEST, &body)
}

/// Parses the kernel's answer. A socket without an inode has no owner any more: its process has closed it.
fn parse_answer(message: &[u8]) -> nix::Result<Option<u32>> {
    let kind = message.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let number = |at: usize| {
        let bytes = message.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        bytes.map(u32::from_ne_bytes).ok_or(Errno::EBADMSG)
    };
    if kind == Some(BY_FAMILY) && message.len() >= HEADER + ANSWER {
        let uid = number(HEADER + ANSWER_UID)?;
        return Ok((number(HEADER + ANSWER_INODE)? != 0).then_some(uid));
    }
    // An error message, see `ask_kernel`.
    Err(Errno::from_raw(number(HEADER)?.cast_signed().saturating_neg()))
}

/// Finds the user of the socket in the kernel's table, which has lines like
/// `0: 0100007F:5208 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000 1000 0 4711 …`
fn find_in_table(table: &str, own: SocketAddrV4, other: SocketAddrV4) -> Option<u32> {
    let ends = [own, other]
        .map(|end| format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port()));
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, remote, _, _, _, _, uid, _, inode, ..] = &words[..] else { return None };
        let is_it = [local, remote] == ends && inode != "0";
        is_it.then(|| uid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::Uid;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    #[test]
    fn a_connection_of_this_process_is_this_users() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (called, _) = listener.accept().unwrap();
        let ends = (v4(caller.local_addr().unwrap()), v4(called.local_addr().unwrap()));
        let me = Some(Uid::effective().as_raw());
        assert_eq!(owner(ends.0, ends.1), me);
        let table = std::fs::read_to_string(TABLE).unwrap();
        assert_eq!(find_in_table(&table, ends.0, ends.1), me, "{table}");
        // A closed socket has no owner.
        drop(caller);
        assert_eq!(owner(ends.0, ends.1), None);
    }

    #[test]
    fn a_row_of_the_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                uid  timeout inode\n   \
                0: 0100007F:5208 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000  1000        \
                0 4711 1 0000000000000000 20 4 30 10 -1\n   \
                1: 0100007F:5209 0100007F:D2F0 04 00000000:00000000 00:00000000 00000000     0        \
                0 0 1 0000000000000000 20 4 30 10 -1\n";
        let end = |port| SocketAddrV4::new([127, 0, 0, 1].into(), port);
        assert_eq!(find_in_table(table, end(0x5208), end(0xd2f0)), Some(1000));
        assert_eq!(find_in_table(table, end(0x5209), end(0xd2f0)), None, "the socket is closed");
        assert_eq!(find_in_table(table, end(0xd2f0), end(0x5208)), None);
        assert_eq!(find_in_table("", end(1), end(2)), None);
    }

    #[test]
    fn an_answer_that_is_cut_or_an_error_is_none() {
        for length in 0..HEADER + ANSWER {
            assert!(parse_answer(&vec![0; length]).is_err(), "{length}");
        }
        let mut whole = vec![0; HEADER + ANSWER];
        whole[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        assert_eq!(parse_answer(&whole), Ok(None), "no inode");
        whole[HEADER + ANSWER_INODE] = 1;
        whole[HEADER + ANSWER_UID] = 7;
        assert_eq!(parse_answer(&whole), Ok(Some(7)));
    }
}
