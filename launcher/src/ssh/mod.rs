//! SSH as people have it set up: their configuration, their keys, their known hosts.
//!
//! One [`Ssh`] serves all hosts of a job, so files are read once and keys are unlocked once.

pub(crate) mod algorithms;
pub(crate) mod auth;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod host_key;
pub(crate) mod known_hosts;
pub(crate) mod password;

use crate::exit::Exit;
use crate::hosts::Host;
use crate::job::Reach;
use crate::report::Failed;
use auth::KeyRing;
use config::{AddressFamily, ConfigError, HostConfig, Proxy, SshConfig};
use error::SshError;
use host_key::{Client, HostKeys};
use russh::client::{self, Handle, Msg};
use russh::{Channel, Disconnect};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// How long a host may take to answer, prove itself and let us in, unless its configuration says
/// otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an idle connection is proved to live.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Handshakes at one time. More would only make each of them slower.
const FANOUT: usize = 128;

/// What all connections share.
pub(crate) struct Ssh {
    home: PathBuf,
    config: SshConfig,
    /// From `--port`.
    port: Option<u16>,
    keys: KeyRing,
    host_keys: HostKeys,
    fanout: Semaphore,
}

/// A host that let us in.
pub(crate) struct Connection {
    handle: Handle<Client>,
    /// Where it was reached, `192.0.2.7:22`.
    address: SocketAddr,
}

impl Ssh {
    /// [`Ssh::load`] by what the command line says.
    pub(crate) fn of(reach: &Reach) -> Result<Ssh, Failed> {
        Ssh::load(reach.ssh_config.as_deref(), reach.port)
            .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))
    }

    /// Reads the configuration: `file`, else the user's and the system's.
    fn load(file: Option<&Path>, port: Option<u16>) -> Result<Ssh, ConfigError> {
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        let paths = file.map_or_else(|| SshConfig::default_paths(&home), |f| vec![f.to_owned()]);
        Ok(Ssh {
            config: SshConfig::load(&paths)?,
            home,
            port,
            keys: KeyRing::default(),
            host_keys: HostKeys::default(),
            fanout: Semaphore::new(FANOUT),
        })
    }

    /// Reaches a host, checks that it is who it was before, and logs in.
    pub(crate) async fn connect(&self, host: &Host) -> Result<Connection, SshError> {
        let config = self.config.resolve_as(&host.name, host.user.as_deref(), None)?;
        if config.proxy != Proxy::Direct {
            return Err(SshError::Proxy);
        }
        let timeout = config.connect_timeout.filter(|t| !t.is_zero()).unwrap_or(CONNECT_TIMEOUT);
        // Closed never happens: the semaphore lives as long as `self`.
        let _turn = self.fanout.acquire().await;
        let deadline = tokio::time::Instant::now() + timeout;
        let within = |what: &'static str| move |_| SshError::Timeout { what, timeout };

        let dialling = self.dial(&config);
        let (stream, address) = tokio::time::timeout_at(deadline, dialling)
            .await
            .map_err(within("no answer to the TCP connection"))??;
        let handshake = self.handshake(&config, stream, address);
        let mut handle = tokio::time::timeout_at(deadline, handshake)
            .await
            .map_err(within("the TCP port answers, but the SSH handshake does not end"))??;
        let user = config.user.clone().unwrap_or_else(|| self.keys.local_user());
        let login = self.keys.log_in(&mut handle, &user, &config, &self.home);
        tokio::time::timeout_at(deadline, login)
            .await
            .map_err(within("the login does not end"))??;
        tracing::debug!(%host, %address, %user, "logged in");
        Ok(Connection { handle, address })
    }

    async fn dial(&self, config: &HostConfig) -> Result<(TcpStream, SocketAddr), SshError> {
        let port = config.port.or(self.port).unwrap_or(22);
        let addresses = look_up(config, port).await?;
        let mut refused = None;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Before the first byte: Nagle's algorithm would hold back parts of the
                    // handshake for 40 ms, twice.
                    stream.set_nodelay(true).map_err(SshError::Socket)?;
                    return Ok((stream, address));
                }
                Err(source) => refused = Some(SshError::Connect { address, source }),
            }
        }
        Err(refused.unwrap_or(SshError::NoAddress { name: config.hostname.clone() }))
    }

    async fn handshake(
        &self,
        config: &HostConfig,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<Handle<Client>, SshError> {
        let (checker, verdict) = self.host_keys.checker(config, address.port())?;
        let mut preferred = algorithms::preferred(config)?;
        preferred.key = checker.preferred_algorithms(&preferred.key).into();
        let client_config = client::Config {
            preferred,
            limits: algorithms::rekey_limits(&config.rekey_limit),
            keepalive_interval: Some(KEEPALIVE),
            nodelay: true,
            ..client::Config::default()
        };
        let connected = client::connect_stream(Arc::new(client_config), stream, checker).await;
        connected.map_err(|source| {
            // The verdict on the host's key says more than "unknown key".
            verdict.take().unwrap_or(SshError::Handshake { address, source: Box::new(source) })
        })
    }
}

/// The addresses of a host, in the system's order of preference.
async fn look_up(config: &HostConfig, port: u16) -> Result<Vec<SocketAddr>, SshError> {
    let name = &config.hostname;
    let wanted = |address: &SocketAddr| match config.address_family {
        AddressFamily::Any => true,
        AddressFamily::Inet => address.is_ipv4(),
        AddressFamily::Inet6 => address.is_ipv6(),
    };
    let addresses: Vec<SocketAddr> = match name.parse::<IpAddr>() {
        Ok(literal) => vec![SocketAddr::new(literal, port)],
        Err(_) => tokio::net::lookup_host((name.as_str(), port))
            .await
            .map_err(|source| SshError::LookUp { name: name.clone(), source })?
            .filter(wanted)
            .collect(),
    };
    if addresses.is_empty() {
        return Err(SshError::NoAddress { name: name.clone() });
    }
    Ok(addresses)
}

impl Connection {
    /// Runs `command` in the user's login shell.
    pub(crate) async fn exec(&self, command: &str) -> Result<Channel<Msg>, SshError> {
        let refused =
            |source| SshError::Channel { address: self.address, source: Box::new(source) };
        let channel = self.handle.channel_open_session().await.map_err(refused)?;
        channel.exec(true, command).await.map_err(refused)?;
        Ok(channel)
    }

    /// Whether the connection still stands, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Says good-bye; a connection that is dropped is closed as well, without a word.
    pub(crate) async fn close(self) {
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "").await;
    }
}
