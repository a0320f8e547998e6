//! Queries over netlink for information that is in no file: routes, which network interface belongs
//! to which port of an RDMA device, and priority flow control. Other modules make their own by
//! [`send_request`] and [`encode_request`], such as the one for the owner of a connection.
//!
//! Most queries are a dump: one request, and messages until the kernel ends the dump
//! (`linux/netlink.h`). Numbers are in the machine's byte order.

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use rlaunch_bootstrap::inventory::net::Route;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Time limit for the kernel's answer, in milliseconds, for kernels that ignore the query.
const ANSWER_TIMEOUT_MS: i64 = 200;
/// Maximum size of a datagram of a dump, in bytes.
const MAX_DATAGRAM: usize = 64 << 10;
/// Maximum number of messages of a dump that are read. Only a router has more routes, and a job
/// does not need them.
const MAX_MESSAGES: usize = 16 << 10;

/// Size of `struct nlmsghdr`, in bytes.
pub(crate) const HEADER: usize = 16;
pub(crate) const REQUEST: u16 = 0x1;
const REQUEST_DUMP: u16 = REQUEST | 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Mask for an attribute's type; the upper bits tell its encoding.
const TYPE_MASK: u16 = 0x3fff;

const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const ROUTE_MESSAGE: usize = 12;
const UNICAST: u8 = 1;
const LOCAL_TABLE: u8 = 255;
/// Flag of routes that are not configured, but cached results of route lookups.
const CLONED: u32 = 0x200;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;

/// Value of `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op)` (`rdma/rdma_netlink.h`) for op 0.
const NLDEV: u16 = 5 << 10;
const DEVICE_GET: u16 = NLDEV + 1;
const PORT_GET: u16 = NLDEV + 5;
const DEVICE_INDEX: u16 = 1;
const DEVICE_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const NETDEV_NAME: u16 = 51;

/// Data centre bridging (`linux/dcbnl.h`): the type of the request, a command, and attributes.
const GET_DCB: u16 = 78;
const DCB_IEEE_GET: u8 = 21;
const DCB_NETDEV: u16 = 1;
const DCB_IEEE: u16 = 13;
const DCB_IEEE_PFC: u16 = 2;
const DCB_MESSAGE: usize = 4;

/// Returns the unicast routes of all tables except the local one. Leaves out routes over an
/// interface that `name_of` does not know by its index.
pub(super) fn list_routes(name_of: impl Fn(u32) -> Option<String>) -> Vec<Route> {
    // The request is a `struct rtmsg` of zeros, which means all families and tables.
    let messages = dump(SockProtocol::NetlinkRoute, GET_ROUTE, &[0; ROUTE_MESSAGE]);
    let routes = messages.iter().filter(|(kind, _)| *kind == NEW_ROUTE);
    routes.filter_map(|(_, message)| parse_route(message, &name_of)).collect()
}

fn parse_route(message: &[u8], name_of: impl Fn(u32) -> Option<String>) -> Option<Route> {
    let (header, attributes) = message.split_at_checked(ROUTE_MESSAGE)?;
    let (family, prefix, table, kind) = (header[0], header[1], header[4], header[7]);
    let flags = parse_number(&header[8..])?;
    if kind != UNICAST || table == LOCAL_TABLE || flags & CLONED != 0 {
        return None;
    }
    let any = match i32::from(family) {
        family if family == AddressFamily::Inet as i32 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        family if family == AddressFamily::Inet6 as i32 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let (mut destination, mut netdev, mut gateway) = (any, None, None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            ROUTE_DESTINATION => destination = parse_address(value)?,
            ROUTE_INTERFACE => netdev = name_of(parse_number(value)?),
            ROUTE_GATEWAY => gateway = parse_address(value),
            _ => {}
        }
    }
    Some(Route { netdev: netdev?, destination, prefix, gateway })
}

/// Returns the network interfaces of RDMA ports: device name, port number, interface name.
pub(super) fn rdma_netdevs() -> Vec<(String, u8, String)> {
    let devices = dump(SockProtocol::NetlinkRDMA, DEVICE_GET, &[]);
    let mut found = Vec::new();
    for (_, device) in &devices {
        let Some(index) = Attributes(device).find(|(kind, _)| *kind == DEVICE_INDEX) else {
            continue;
        };
        let request = encode_attribute(DEVICE_INDEX, index.1);
        let ports = dump(SockProtocol::NetlinkRDMA, PORT_GET, &request);
        found.extend(ports.iter().filter_map(|(_, port)| {
            let value = |wanted| Attributes(port).find(|(kind, _)| *kind == wanted);
            let (device, netdev) =
                (parse_text(value(DEVICE_NAME)?.1)?, parse_text(value(NETDEV_NAME)?.1)?);
            Some((device, u8::try_from(parse_number(value(PORT_INDEX)?.1)?).ok()?, netdev))
        }));
    }
    found
}

/// Returns the messages of a dump with their types; empty if the kernel does not support the query.
fn dump(protocol: SockProtocol, kind: u16, payload: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let ask = || -> nix::Result<Vec<(u16, Vec<u8>)>> {
        let socket = send_request(protocol, &encode_request(kind, REQUEST_DUMP, payload))?;
        let mut messages = Vec::new();
        let mut buffer = vec![0; MAX_DATAGRAM];
        while messages.len() < MAX_MESSAGES {
            let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            if !append_messages(buffer.get(..length).unwrap_or_default(), &mut messages) {
                break;
            }
        }
        Ok(messages)
    };
    ask().unwrap_or_default()
}

/// Returns the priorities with priority flow control, a bit for each; `None` if the driver does not
/// tell.
pub(crate) fn flow_control(netdev: &str) -> Option<u8> {
    let name = encode_attribute(DCB_NETDEV, &[netdev.as_bytes(), &[0]].concat());
    let payload = [&[0, DCB_IEEE_GET, 0, 0][..], &name].concat();
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut ask = || -> nix::Result<usize> {
        let socket =
            send_request(SockProtocol::NetlinkRoute, &encode_request(GET_DCB, REQUEST, &payload))?;
        recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())
    };
    let length = ask().ok()?;
    let mut messages = Vec::new();
    append_messages(buffer.get(..length)?, &mut messages);
    enabled_priorities(&messages.first()?.1)
}

/// Reads the second byte of `struct ieee_pfc` from an answer.
fn enabled_priorities(message: &[u8]) -> Option<u8> {
    let find = |bytes, wanted| Attributes(bytes).find(|(kind, _)| *kind == wanted);
    let (_, ieee) = find(message.get(DCB_MESSAGE..)?, DCB_IEEE)?;
    find(ieee, DCB_IEEE_PFC)?.1.get(1).copied()
}

/// Sends a request, and returns the socket on which the kernel answers.
pub(crate) fn send_request(protocol: SockProtocol, request: &[u8]) -> nix::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(ANSWER_TIMEOUT_MS))?;
    send(socket.as_raw_fd(), request, MsgFlags::empty())?;
    Ok(socket)
}

/// Encodes a request, whose payload comes behind a header.
pub(crate) fn encode_request(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence number and port id are unused, since the socket is used for one query only.
    message.extend([0; 8]);
    message.extend(payload);
    message
}

/// Encodes an attribute: its length, its type and its value.
fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut attribute = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    attribute.resize(aligned(attribute.len()), 0);
    attribute
}

/// Appends the messages of a datagram. Returns false when the dump has ended.
fn append_messages(mut datagram: &[u8], messages: &mut Vec<(u16, Vec<u8>)>) -> bool {
    while let Some((header, _)) = datagram.split_at_checked(HEADER) {
        let length = parse_number(header).unwrap_or(0) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(message) = datagram.get(HEADER..length) else { return false };
        if matches!(kind, ERROR | DONE) {
            return false;
        }
        messages.push((kind, message.to_vec()));
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
    }
    true
}

/// Iterator over a message's attributes: type and value.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn parse_number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn parse_text(bytes: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(bytes).ok()?.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_read() {
        let header = [2, 16, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        let message = [
            &header[..],
            &encode_attribute(ROUTE_DESTINATION, &[10, 3, 0, 0]),
            &encode_attribute(ROUTE_GATEWAY, &[10, 3, 7, 0]),
            &encode_attribute(ROUTE_INTERFACE, &5_u32.to_ne_bytes()),
        ]
        .concat();
        let name_of = |index| (index == 5).then(|| "eth3".to_owned());
        let found = parse_route(&message, name_of).unwrap();
        assert_eq!(found.to_string(), "eth3 10.3.0.0/16 via 10.3.7.0");
        assert_eq!(parse_route(&message, |_| None), None, "an interface without a name");
        let mut local = message.clone();
        local[4] = LOCAL_TABLE;
        assert_eq!(parse_route(&local, name_of), None);
        assert_eq!(parse_route(&message[..6], name_of), None);
    }

    #[test]
    fn priorities_with_flow_control_are_read() {
        let pfc = [8, 0b1001, 0, 0, 0, 0];
        let ieee = [encode_attribute(1, &[0; 12]), encode_attribute(DCB_IEEE_PFC, &pfc)].concat();
        let answer = |ieee: &[u8]| {
            let name = encode_attribute(DCB_NETDEV, b"eth0\0");
            [&[0, DCB_IEEE_GET, 0, 0][..], &name, &encode_attribute(DCB_IEEE, ieee)].concat()
        };
        assert_eq!(enabled_priorities(&answer(&ieee)), Some(0b1001));
        assert_eq!(enabled_priorities(&answer(&[])), None);
        assert_eq!(enabled_priorities(&[0, 21]), None);
        // Loopback has no data centre bridging.
        assert_eq!(flow_control("lo"), None);
    }

    #[test]
    fn whatever_comes_ends() {
        let mut messages = Vec::new();
        let one = encode_request(NEW_ROUTE, REQUEST, &[1, 2, 3, 4]);
        assert!(append_messages(&[one.clone(), one.clone()].concat(), &mut messages));
        assert_eq!(messages, vec![(NEW_ROUTE, vec![1, 2, 3, 4]); 2]);
        let done = encode_request(DONE, REQUEST, &[0; 4]);
        assert!(!append_messages(&[one, done].concat(), &mut messages));
        assert_eq!(messages.len(), 3);
        // A message of length zero must not be read forever.
        assert!(!append_messages(&[0; 32], &mut messages));
        assert_eq!(Attributes(&[0; 32]).count(), 0);
    }

    #[test]
    fn this_machine_has_routes_and_says_so() {
        // A machine without a network has no routes, so only their form is checked.
        let named = |index: u32| Some(format!("if{index}"));
        for route in list_routes(named) {
            assert!(route.netdev.starts_with("if") && route.prefix <= 128, "{route}");
        }
    }
}
