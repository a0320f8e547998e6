//! Where a rank is found by those that dial it.

use super::WireUpError;
use super::contact::TcpContact;
use super::hello::RankKey;
use nix::sys::socket::{Backlog, listen};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// A rank's listener, and the key to it.
#[derive(Debug)]
pub(crate) struct RankListener {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) key: RankKey,
}

impl RankListener {
    /// Listens on the node's address, on any free port.
    pub(crate) fn open(address: IpAddr) -> Result<RankListener, WireUpError> {
        let opened = || -> io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            // All ranks of other nodes may knock at once.
            listen(&listener, Backlog::MAXALLOWABLE)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            opened().map_err(|source| WireUpError::Listen { address, source })?;
        let key = RankKey::random();
        let key = key.map_err(|source| WireUpError::System { operation: "make a key", source })?;
        Ok(RankListener { listener, address, key })
    }

    /// What the other ranks of the job, and nobody else, are to know of it.
    pub(crate) fn contact(&self) -> TcpContact {
        TcpContact { port: self.address.port(), key: self.key.clone() }
    }
}
