//! TCP listener for agents that get no stdin from their shell, and for hosts that download the agent's
//! executable.
//!
//! The listener opens on first use, when the launcher writes the listener's addresses into the command line
//! for an agent. The command line has no secrets: see [`rlaunch_bootstrap::security::callback`].

mod listener;
#[cfg(test)]
mod tests;

use super::host_file::HostFile;
pub use listener::PendingCallback;
use listener::{AUTH_TIMEOUT, CallbackListener};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::{InterfaceAddress, PortRange};
use rlaunch_bootstrap::security::callback::{KeyPair, PublicKey, address_word};
use rlaunch_plan::hosts::addresses::AddressConstraints;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of the listener's addresses in a command line.
const MAX_LISTED: usize = 4;
/// Maximum number of addresses on which the launcher listens.
const MAX_ADDRESSES: usize = 32;
/// Backlog of listen(2): maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Callback listener of a job, opened on first use.
pub struct Callbacks {
    constraints: AddressConstraints,
    ports: PortRange,
    /// Listener, once it was opened; the inner value is `None` if no address can be listened on.
    listener: OnceLock<Option<CallbackListener>>,
}

impl Callbacks {
    /// Prepares a listener on addresses that `constraints` allow and on ports in the range `ports`. It is
    /// not opened yet.
    pub fn new(constraints: AddressConstraints, ports: PortRange) -> Callbacks {
        Callbacks { constraints, ports, listener: OnceLock::new() }
    }

    pub fn ports(&self) -> PortRange {
        self.ports
    }

    /// Returns the agent's arguments `--callback ADDRESS[,ADDRESS…] KEY NODE`; `None` if no listener can be
    /// opened. `local` is this machine's address on the connection to the host.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub(crate) fn callback_args(&self, node: NodeId, local: Option<IpAddr>) -> Option<String> {
        let (addresses, key) = self.target(local)?;
        Some(format!("--callback {addresses} {key} {node}"))
    }

    /// Returns the first two of the agent's arguments, as [`Callbacks::callback_args`] does.
    pub(super) fn target(&self, local: Option<IpAddr>) -> Option<(String, String)> {
        let listener = self.listener()?;
        let addresses = format_addresses(listener.addresses(), local).join(",");
        (!addresses.is_empty()).then(|| (addresses, listener.key().to_string()))
    }

    /// Permits hosts to download `file`, which they request by its SHA-256. Returns the addresses of the
    /// listener; none if no listener can be opened. `local` is this machine's address on the connection to
    /// the host.
    pub fn serve(&self, file: &Arc<HostFile>, local: Option<IpAddr>) -> Vec<String> {
        let Some(listener) = self.listener() else { return Vec::new() };
        listener.serve(file);
        format_addresses(listener.addresses(), local)
    }

    /// Permits the agent of `node`, which announced the public key `key`, to connect. `None` if no listener
    /// can be opened.
    pub fn expect(&self, node: NodeId, key: PublicKey) -> Option<PendingCallback> {
        Some(self.listener()?.expect(node, key))
    }

    fn listener(&self) -> Option<&CallbackListener> {
        self.listener.get_or_init(|| self.open()).as_ref()
    }

    fn open(&self) -> Option<CallbackListener> {
        let own = KeyPair::generate().inspect_err(|error| tracing::warn!("{error}")).ok()?;
        let allowed =
            own_addresses().into_iter().filter(|address| self.constraints.allows(address));
        let mut listeners: Vec<TcpListener> = Vec::new();
        for address in allowed.map(|allowed| allowed.address).take(MAX_ADDRESSES) {
            match listen(address, self.ports) {
                Ok(listener) => listeners.push(listener),
                Err(error) => tracing::info!("cannot listen on {address} for agents: {error}"),
            }
        }
        (!listeners.is_empty()).then(|| CallbackListener::open(own, listeners, AUTH_TIMEOUT))
    }
}

/// Formats the listener's addresses for a command line. The address `local`, from which the host was
/// reached, comes first.
fn format_addresses(listening: &[SocketAddr], local: Option<IpAddr>) -> Vec<String> {
    let local = local.map(|local| local.to_canonical());
    let is_local = |address: &&SocketAddr| Some(address.ip()) == local;
    let first = listening.iter().filter(is_local);
    // On another host, a loopback address leads to that host itself.
    let elsewhere = |address: &&SocketAddr| !address.ip().is_loopback();
    let others = listening.iter().filter(|address| !is_local(address)).filter(elsewhere);
    first.chain(others).take(MAX_LISTED).copied().map(address_word).collect()
}

/// Listens on a free port of the range. The first port to try is random, so that jobs which start at the
/// same time rarely collide.
fn listen(address: IpAddr, range: PortRange) -> std::io::Result<TcpListener> {
    let count = u32::from(range.last.saturating_sub(range.first)) + 1;
    let start = (uuid::Uuid::new_v4().as_u128() % u128::from(count)) as u32;
    let mut refused = std::io::ErrorKind::AddrInUse.into();
    for step in 0..count {
        let port = range.first + ((start + step) % count) as u16;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        let bound = socket.bind(SocketAddr::new(address, port));
        match bound.and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Lists this machine's IP addresses, with loopback addresses and without link-local ones.
fn own_addresses() -> Vec<InterfaceAddress> {
    let mut found = Vec::new();
    for entry in getifaddrs().into_iter().flatten() {
        let address = entry.address.as_ref().and_then(ip).filter(|address| is_usable(*address));
        let Some(address) = address.filter(|_| entry.flags.contains(InterfaceFlags::IFF_UP)) else {
            continue;
        };
        let bits = match entry.netmask.as_ref().and_then(ip) {
            Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
            None => 0,
        };
        let prefix = u8::try_from(bits).unwrap_or(0);
        found.push(InterfaceAddress { interface: entry.interface_name, address, prefix });
    }
    found
}

fn ip(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}
