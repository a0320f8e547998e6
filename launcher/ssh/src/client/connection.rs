//! A connection to a server before and after the login.

use super::jump::Jump;
use crate::error::{HostKeyChange, SshError};
use crate::host_keys::HostKeyChecker;
use crate::transport::proxy::ProxyCommand;
use crate::transport::stream::Stream;
use russh::client::{Handle, Msg};
use russh::{Channel, Disconnect};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the goodbye to a server that is reached through a jump host or a command.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// SSH connection to a server, usually logged in.
pub struct Connection {
    pub(super) handle: Handle<HostKeyChecker>,
    /// Address and port of the server: `192.0.2.7:22`, or `far:22` behind a jump host or a command.
    pub(super) address: String,
    /// IP addresses of this machine and of the server, if TCP connects the two directly.
    pub(super) ip_addresses: Option<(IpAddr, IpAddr)>,
    /// Set if the server has shown another key than the recorded one, and the configuration allows that.
    pub(super) changed: Option<Box<HostKeyChange>>,
    /// Jump host that carries the bytes; its own connection stays open as long as this one.
    pub(super) via: Option<Arc<Jump>>,
    pub(super) proxy: Option<ProxyCommand>,
}

/// Byte stream to a server before the SSH handshake.
pub(super) struct Transport {
    pub(super) stream: Box<dyn Stream>,
    pub(super) address: String,
    pub(super) ip_addresses: Option<(IpAddr, IpAddr)>,
    pub(super) proxy: Option<ProxyCommand>,
}

impl Connection {
    /// Runs `command` in the user's login shell; the channel carries its streams.
    pub async fn exec(&self, command: &str) -> Result<Channel<Msg>, SshError> {
        let refused =
            |source| SshError::Channel { address: self.address.clone(), source: Box::new(source) };
        let channel = self.handle.channel_open_session().await.map_err(refused)?;
        channel.exec(true, command).await.map_err(refused)?;
        Ok(channel)
    }

    /// Returns the IP addresses of this machine and of the host, if TCP connects the two directly.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.ip_addresses
    }

    /// Tells whether the connection is open, as far as is known.
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Closes the connection with an SSH goodbye. Dropping it closes it without one.
    pub async fn close(self) {
        let Connection { handle, via, proxy, .. } = self;
        let _ = handle.disconnect(Disconnect::ByApplication, "", "").await;
        if via.is_none() && proxy.is_none() {
            return;
        }
        // The jump host or the command stays until it has carried the goodbye.
        let closing = async {
            let _ = handle.await;
            if let Some(proxy) = proxy {
                proxy.end().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
        drop(via);
    }
}
