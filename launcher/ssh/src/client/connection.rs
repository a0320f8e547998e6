//! Connections to servers, before and after the login.

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

/// Time limit for sending the SSH disconnect message to a server behind a jump host or a ProxyCommand.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// SSH connection to a server, usually logged in.
pub struct Connection {
    pub(super) handle: Handle<HostKeyChecker>,
    /// Address and port of the server, such as `192.0.2.7:22`; behind a jump host or a ProxyCommand, its
    /// host name and port, such as `far:22`.
    pub(super) address: String,
    /// IP addresses of this machine and of the server, if TCP connects the two directly.
    pub(super) ip_addresses: Option<(IpAddr, IpAddr)>,
    /// Set if the server has another key than the recorded one, and the configuration allows that.
    pub(super) changed: Option<Box<HostKeyChange>>,
    /// Jump host through which this connection passes. Holding it here keeps the connection to the jump host
    /// open.
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
    /// Runs `command` on the host, in the user's login shell. The channel carries the command's stdin,
    /// stdout and stderr.
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

    /// Tells whether the connection is open, as far as this client knows.
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Closes the connection with an SSH disconnect message. Dropping the value closes the connection
    /// without that message.
    pub async fn close(self) {
        let Connection { handle, via, proxy, .. } = self;
        // A host that is cut off may take nothing any more.
        let leaving = handle.disconnect(Disconnect::ByApplication, "", "");
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, leaving).await;
        if via.is_none() && proxy.is_none() {
            return;
        }
        // The jump host or the ProxyCommand must stay until it has forwarded the disconnect message.
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
