//! Datagrams of probes, and the addresses and interfaces by which they come and go.

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Length of the short datagram of a probe, and minimum length of one that is answered, in bytes.
pub(super) const SHORT: usize = 64;
/// Length of an answer, in bytes: the token, and four bytes by which the prober knows the datagram.
pub(super) const ECHO: usize = 20;

/// Datagram that has arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) head: [u8; ECHO],
    /// Length of the datagram in bytes, at most [`SHORT`]: the rest of a longer one is not read.
    pub(super) length: usize,
    pub(super) from: SocketAddr,
    /// Own address to which it was sent; `None` if the kernel does not tell.
    pub(super) local: Option<IpAddr>,
    /// Index of the interface by which it came; 0 if the kernel does not tell.
    pub(super) interface: u32,
}

/// Waits for a datagram.
pub(super) async fn receive(socket: &UdpSocket) -> io::Result<Received> {
    socket.async_io(Interest::READABLE, || receive_now(socket)).await
}

fn receive_now(socket: &UdpSocket) -> io::Result<Received> {
    let mut bytes = [0; SHORT];
    // Space for the larger of the two kinds of information.
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (mut local, mut interface) = (None, 0);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let address = u32::from_be(info.ipi_addr.s_addr);
                local = Some(IpAddr::V4(Ipv4Addr::from_bits(address)));
                interface = u32::try_from(info.ipi_ifindex).unwrap_or(0);
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                local = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                interface = info.ipi6_ifindex;
            }
            _ => {}
        }
    }
    let from = message.address.as_ref().and_then(socket_address);
    let from = from.ok_or_else(|| io::Error::other("a datagram without a sender"))?;
    let length = message.bytes;
    let mut head = [0; ECHO];
    head.copy_from_slice(&bytes[..ECHO]);
    Ok(Received { head, length, from, local, interface })
}

fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some(SocketAddrV6::new(v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()).into())
}

/// Sends a datagram from an own address, through the interface of this index; 0 leaves the interface
/// to the kernel's routes. Binding the socket to the interface would need a privilege on old kernels,
/// and it would drop answers that come by another one.
pub(super) fn send(
    socket: &UdpSocket,
    bytes: &[u8],
    local: Option<IpAddr>,
    interface: u32,
    to: SocketAddr,
) -> io::Result<()> {
    let v4 = match local {
        Some(IpAddr::V4(address)) => address,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let v6 = match local {
        Some(IpAddr::V6(address)) => address,
        _ => Ipv6Addr::UNSPECIFIED,
    };
    let of_v4 = libc::in_pktinfo {
        ipi_ifindex: i32::try_from(interface).unwrap_or(0),
        ipi_spec_dst: libc::in_addr { s_addr: v4.to_bits().to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let of_v6 = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr { s6_addr: v6.octets() },
        ipi6_ifindex: interface,
    };
    let control = match to {
        SocketAddr::V4(_) => ControlMessage::Ipv4PacketInfo(&of_v4),
        SocketAddr::V6(_) => ControlMessage::Ipv6PacketInfo(&of_v6),
    };
    let parts = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let to = SockaddrStorage::from(to);
    sendmsg(socket.as_raw_fd(), &parts, &[control], flags, Some(&to))?;
    Ok(())
}
