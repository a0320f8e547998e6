//! Connections to servers, before and after the login.

use super::jump::Jump;
use crate::error::{HostKeyChange, SshError};
use crate::host_keys::{CheckOutcome, HostKeyChecker};
use crate::transport::proxy::ProxyCommand;
use crate::transport::stream::Stream;
use rlaunch_console::deadline::Deadline;
use russh::client::{Handle, Msg};
use russh::{Channel, Disconnect};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for a server to open a session and take a command. It is long because a login may have to wait for
/// services of the host: pam_systemd gives up after 25 s.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
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
    /// Has the reason why the connection ended.
    pub(super) end: CheckOutcome,
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
        let opening = async {
            let channel = self.handle.channel_open_session().await?;
            channel.exec(true, command).await?;
            Ok(channel)
        };
        let opened = Deadline::after(SESSION_TIMEOUT).wait("answer to a command", opening).await;
        let stalled = |late| SshError::Stalled { address: self.address.clone(), late };
        opened.map_err(stalled)?.map_err(|error| self.channel_error(error))
    }

    fn channel_error(&self, error: russh::Error) -> SshError {
        match (self.loss(), error) {
            (Some(lost), _) => lost,
            (None, source) => {
                SshError::Channel { address: self.address.clone(), source: Box::new(source) }
            }
        }
    }

    /// Returns the error of a connection that has ended although it was not closed here; `None` while it is open.
    pub fn loss(&self) -> Option<SshError> {
        let how = || self.end.how().unwrap_or_else(|| "it was closed".to_owned());
        (!self.is_open()).then(|| SshError::Lost { address: self.address.clone(), how: how() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SshConfig;
    use crate::host_keys::HostKeys;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use russh::server::{self, Auth, ChannelOpenHandle, Session};
    use russh::{ChannelOpenFailure, client};
    use std::path::Path;
    use tokio::time::Instant;

    /// What a server does when a client opens a session.
    #[derive(Clone, Copy, PartialEq)]
    enum Answer {
        Accept,
        Refuse,
        Nothing,
        HangUp,
    }

    struct Server {
        answer: Answer,
        /// Sessions that are neither accepted nor refused; dropping one would refuse it.
        unanswered: Vec<ChannelOpenHandle>,
    }

    impl server::Handler for Server {
        type Error = russh::Error;

        async fn auth_none(&mut self, _user: &str) -> Result<Auth, russh::Error> {
            Ok(Auth::Accept)
        }

        async fn channel_open_session(
            &mut self,
            _channel: Channel<server::Msg>,
            reply: ChannelOpenHandle,
            _session: &mut Session,
        ) -> Result<(), russh::Error> {
            match self.answer {
                Answer::Accept => reply.accept().await,
                Answer::Refuse => reply.reject(ChannelOpenFailure::ResourceShortage).await,
                Answer::Nothing => self.unanswered.push(reply),
                Answer::HangUp => return Err(russh::Error::Disconnect),
            }
            Ok(())
        }
    }

    /// Returns a connection to a server in this process.
    async fn connect(answer: Answer) -> Connection {
        let (near, far) = tokio::io::duplex(64 << 10);
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let serving = server::Config { keys: vec![key], ..server::Config::default() };
        let server = Server { answer, unanswered: Vec::new() };
        tokio::spawn(async move { server::run_stream(serving.into(), far, server).await?.await });
        let text = "StrictHostKeyChecking no\nUserKnownHostsFile none\nGlobalKnownHostsFile none";
        let config = SshConfig::parse(text, Path::new("/config")).unwrap().resolve("b").unwrap();
        let (checker, end) = HostKeys::new(None).checker(&config, 22).unwrap();
        let client = client::Config::default().into();
        let mut handle = client::connect_stream(client, near, checker).await.unwrap();
        assert!(handle.authenticate_none("me").await.unwrap().success());
        Connection {
            handle,
            address: "192.0.2.7:22".to_owned(),
            ip_addresses: None,
            end,
            changed: None,
            via: None,
            proxy: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_not_run_says_whether_it_was_refused_stalls_or_lost_its_connection() {
        let stalls = "the connection to 192.0.2.7:22 stalls: no answer to a command within 30 s";
        let lost = "the connection to 192.0.2.7:22 was lost: ";
        let refused = "192.0.2.7:22 refused to run a command";
        for (answer, sentence) in
            [(Answer::Nothing, stalls), (Answer::HangUp, lost), (Answer::Refuse, refused)]
        {
            let connection = connect(answer).await;
            let began = Instant::now();
            let error = connection.exec("true").await.map(drop).unwrap_err();
            assert!(error.to_string().starts_with(sentence), "{error}");
            let is_about_limits = error.hint("b").unwrap().contains("MaxSessions");
            assert_eq!(is_about_limits, answer == Answer::Refuse, "{error}");
            let limit = if answer == Answer::Nothing { SESSION_TIMEOUT } else { Duration::ZERO };
            assert_eq!(began.elapsed().as_secs(), limit.as_secs(), "{error}");
        }
        assert!(connect(Answer::Accept).await.exec("true").await.is_ok());
    }
}
