//! TCP listener of a rank.

use super::ConnectError;
use super::contact::TcpContact;
use super::hello::RankKey;
use nix::sys::socket::{Backlog, listen};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// TCP listener of a rank, and the key that dialling ranks must have.
#[derive(Debug)]
pub(crate) struct RankListener {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) key: RankKey,
}

impl RankListener {
    /// Listens on `address`, the node's address, at a port that the kernel chooses.
    pub(crate) fn open(address: IpAddr) -> Result<RankListener, ConnectError> {
        let opened = || -> io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            // All ranks of other nodes may connect at the same time.
            listen(&listener, Backlog::MAXALLOWABLE)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            opened().map_err(|source| ConnectError::Listen { address, source })?;
        let key = RankKey::random();
        let key =
            key.map_err(|source| ConnectError::System { operation: "generate a key", source })?;
        Ok(RankListener { listener, address, key })
    }

    /// Returns the listener's port and key. The key must be sent to ranks of this job only.
    pub(crate) fn contact(&self) -> TcpContact {
        TcpContact { port: self.address.port(), key: self.key.clone() }
    }
}
