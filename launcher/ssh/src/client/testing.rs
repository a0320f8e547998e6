//! For tests: an SSH server in this process.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use super::connection::Connection;
use crate::config::SshConfig;
use crate::host_keys::HostKeys;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::server::{self, Auth, ChannelOpenHandle, Session};
use russh::{Channel, ChannelId, ChannelOpenFailure, Sig, client};
use std::path::Path;

/// Reaction of a server to a client that opens a session.
#[derive(Clone, Copy, PartialEq)]
pub enum Answer {
    Accept,
    Refuse,
    Nothing,
    HangUp,
}

/// Server that lets everybody in, and whose commands never end by themselves.
pub struct Server {
    answer: Answer,
    /// Signal that ends a command.
    ends_by: Option<Sig>,
    channels: Vec<Channel<server::Msg>>,
    /// Sessions that are neither accepted nor refused; dropping one would refuse it.
    unanswered: Vec<ChannelOpenHandle>,
}

impl Server {
    pub fn new(answer: Answer) -> Server {
        Server { answer, ends_by: None, channels: Vec::new(), unanswered: Vec::new() }
    }

    /// Makes a server whose commands end by this signal alone, and by none if it passes on no signals.
    pub fn ending_by(signal: Option<Sig>) -> Server {
        Server { ends_by: signal, ..Server::new(Answer::Accept) }
    }

    /// Starts the server, and returns a connection to it.
    pub async fn connect(self) -> Connection {
        let (near, far) = tokio::io::duplex(64 << 10);
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let serving = server::Config { keys: vec![key], ..server::Config::default() };
        tokio::spawn(async move { server::run_stream(serving.into(), far, self).await?.await });
        let text = "StrictHostKeyChecking no\nUserKnownHostsFile none\nGlobalKnownHostsFile none";
        let files = SshConfig::parse(text, Path::new("/config")).unwrap();
        let config = files.resolve_as("b", None, None).unwrap();
        let (checker, outcome) = HostKeys::new(None).checker(&config, 22).unwrap();
        let client = client::Config::default().into();
        let mut handle = client::connect_stream(client, near, checker).await.unwrap();
        assert!(handle.authenticate_none("me").await.unwrap().success());
        Connection {
            handle,
            address: "192.0.2.7:22".to_owned(),
            ip_addresses: None,
            outcome,
            changed: None,
            via: None,
            proxy: None,
        }
    }
}

impl server::Handler for Server {
    type Error = russh::Error;

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<server::Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        match self.answer {
            Answer::Accept => {
                self.channels.push(channel);
                reply.accept().await;
            }
            Answer::Refuse => reply.reject(ChannelOpenFailure::ResourceShortage).await,
            Answer::Nothing => self.unanswered.push(reply),
            Answer::HangUp => return Err(russh::Error::Disconnect),
        }
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _line: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(channel)
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let ends = |by: &Sig| format!("{by:?}") == format!("{signal:?}");
        if self.ends_by.as_ref().is_some_and(ends) { session.close(channel) } else { Ok(()) }
    }
}
