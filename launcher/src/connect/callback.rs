//! TCP listener for agents whose shell gives them no stdin, and for hosts that fetch the agent.
//!
//! It opens when the first command line names its addresses, which precedes the start of an agent. That
//! command line holds no secret: see [`rlaunch_bootstrap::security::callback`].

mod listener;
#[cfg(test)]
mod tests;
mod transfer_slots;

use crate::connect::agent::store::AgentFile;
use crate::hosts::addresses::Choice;
use listener::CallbackListener;
pub(crate) use listener::{AgentCallback, PendingCallback};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::{InterfaceAddress, PortRange};
use rlaunch_bootstrap::security::callback::{KeyPair, PublicKey, address_word};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use tokio::net::{TcpListener, TcpSocket};

/// Upper limit of addresses in a command line.
const MAX_NAMED: usize = 4;
/// Upper limit of addresses to listen on.
const MAX_ADDRESSES: usize = 32;
/// Backlog of listen(2): agents that connect at the same moment.
const BACKLOG: u32 = 1024;

/// Callback listener of a job, opened on first use.
pub(crate) struct Callbacks {
    choice: Choice,
    ports: PortRange,
    /// `None` inside if no address can be listened on.
    listener: OnceLock<Option<CallbackListener>>,
}

impl Callbacks {
    /// Prepares a listener on ports of this range and addresses that `choice` allows.
    pub(crate) fn new(choice: Choice, ports: PortRange) -> Callbacks {
        Callbacks { choice, ports, listener: OnceLock::new() }
    }

    /// Returns the range of ports.
    pub(crate) fn ports(&self) -> PortRange {
        self.ports
    }

    /// Returns the agent's arguments `--callback ADDRESS[,ADDRESS…] KEY NODE`, or `None` if nothing can
    /// listen. `local` is the address from which this machine reached the host.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub(crate) fn words(&self, node: NodeId, local: Option<IpAddr>) -> Option<String> {
        let listener = self.listener()?;
        let addresses = named(listener.addresses(), local).join(",");
        (!addresses.is_empty()).then(|| format!("--callback {addresses} {} {node}", listener.key()))
    }

    /// Serves a file to hosts that request its hash; returns the addresses, none if nothing can listen.
    pub(crate) fn serve(&self, file: &Arc<AgentFile>, local: Option<IpAddr>) -> Vec<String> {
        let Some(listener) = self.listener() else { return Vec::new() };
        listener.serve(file);
        named(listener.addresses(), local)
    }

    /// Accepts a connection from the agent of `node`, which announced this key.
    pub(crate) fn expect(&self, node: NodeId, key: PublicKey) -> Option<PendingCallback> {
        Some(self.listener()?.expect(node, key))
    }

    fn listener(&self) -> Option<&CallbackListener> {
        self.listener.get_or_init(|| self.open()).as_ref()
    }

    fn open(&self) -> Option<CallbackListener> {
        let own = KeyPair::generate().inspect_err(|error| tracing::warn!("{error}")).ok()?;
        let allowed = own_addresses().into_iter().filter(|address| self.choice.allows(address));
        let mut listeners: Vec<TcpListener> = Vec::new();
        for address in allowed.map(|allowed| allowed.address).take(MAX_ADDRESSES) {
            match listen(address, self.ports) {
                Ok(listener) => listeners.push(listener),
                Err(error) => tracing::info!("cannot listen on {address} for agents: {error}"),
            }
        }
        (!listeners.is_empty()).then(|| CallbackListener::open(own, listeners))
    }
}

/// Writes addresses for a command line: first the one by which the host was reached.
fn named(listening: &[SocketAddr], local: Option<IpAddr>) -> Vec<String> {
    let local = local.map(|local| local.to_canonical());
    let is_local = |address: &&SocketAddr| Some(address.ip()) == local;
    let first = listening.iter().filter(is_local);
    // On another host loopback would lead to that host itself.
    let elsewhere = |address: &&SocketAddr| !address.ip().is_loopback();
    let others = listening.iter().filter(|address| !is_local(address)).filter(elsewhere);
    first.chain(others).take(MAX_NAMED).copied().map(address_word).collect()
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

/// Lists this machine's addresses, including loopback, without link-local ones.
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
