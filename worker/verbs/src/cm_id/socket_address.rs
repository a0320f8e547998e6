//! Conversion of socket addresses to `sockaddr`.

use std::mem::MaybeUninit;
use std::net::SocketAddr;

/// Socket address as a `sockaddr_in` or `sockaddr_in6`.
pub(crate) struct SocketAddress(libc::sockaddr_storage);

impl SocketAddress {
    pub(crate) fn new(address: SocketAddr) -> SocketAddress {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let pointer = storage.as_mut_ptr();
        match address {
            SocketAddr::V4(v4) => {
                let octets = v4.ip().octets();
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(octets) },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_storage` is large enough and aligned for every kind of address.
                unsafe { pointer.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: `sockaddr_storage` is large enough and aligned for every kind of address.
                unsafe { pointer.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        // SAFETY: the storage consists of integers, and was zeroed before the address was written.
        SocketAddress(unsafe { storage.assume_init() })
    }

    pub(crate) fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_c_has_them() {
        let mut v4 = SocketAddress::new("10.1.2.3:4711".parse().unwrap());
        // SAFETY: an IPv4 address was written there.
        let raw = unsafe { v4.as_ptr().cast::<libc::sockaddr_in>().read() };
        assert_eq!(i32::from(raw.sin_family), libc::AF_INET);
        assert_eq!(raw.sin_port.to_ne_bytes(), 4711_u16.to_be_bytes());
        assert_eq!(raw.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
        let mut v6 = SocketAddress::new("[fd00::1]:80".parse().unwrap());
        // SAFETY: an IPv6 address was written there.
        let raw = unsafe { v6.as_ptr().cast::<libc::sockaddr_in6>().read() };
        assert_eq!((raw.sin6_addr.s6_addr[0], raw.sin6_addr.s6_addr[15]), (0xfd, 1));
    }
}
