//! SSH as people have it set up: their configuration, their keys, their known hosts.
//!
//! One [`Ssh`] serves all hosts of a job, so files are read once, keys are unlocked once and jump
//! hosts are logged in to once.

pub mod algorithms;
pub mod askpass;
mod auth;
pub mod certificate;
pub mod config;
mod dial;
pub mod error;
mod host_key;
mod identities;
mod jump;
mod key_ring;
pub mod keys;
pub mod known_hosts;
pub mod new_hosts;
pub mod passphrase;
pub mod password;
mod proxy;
mod retry;
mod stream;

use config::{ConfigError, HostConfig, Proxy, SshConfig, StrictHostKeyChecking};
use error::{HostKeyChange, SshError};
use host_key::{Client, HostKeys};
use jump::{Hop, Jump, Jumps, SSH_PORT};
use key_ring::KeyRing;
use proxy::ProxyCommand;
use retry::{Attempts, Rules};
use rlaunch_console::deadline::Deadline;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use russh::client::{self, Handle, Msg};
use russh::{Channel, Disconnect};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stream::{Overheard, Stream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// How long a host may take to answer, prove itself and let us in, unless its configuration says
/// otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The least of it for hosts that may not be there yet.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an idle connection is proved to live, and how many proofs may be missing, unless the
/// host's configuration says otherwise.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: usize = 3;
/// Handshakes at one time, unless the user says otherwise. From 16 on more make nothing quicker: 64
/// hosts on two processors took 1.06 to 1.12 s with 16 to 128 of them, and 1.17 s with 8. Hosts
/// that are far away gain by more.
const FANOUT: u16 = 128;
/// Hosts for which commands of the configuration run at one time (`Match exec`).
const RESOLVED: usize = 16;
/// What a connection through others may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Told what a host is being waited for, where that is more than an answer.
pub type Tell<'a> = &'a (dyn Fn(&'static str) + Sync);

/// What all connections share.
pub struct Ssh {
    home: PathBuf,
    config: SshConfig,
    /// From `--port`.
    port: Option<u16>,
    /// Hosts may not be there yet.
    patient: bool,
    keys: KeyRing,
    host_keys: HostKeys,
    fanout: Semaphore,
    /// `None` where the configuration runs no commands.
    resolving: Option<Semaphore>,
    jumps: Jumps,
}

/// A host that let us in.
pub struct Connection {
    handle: Handle<Client>,
    /// Where it was reached, `192.0.2.7:22`.
    place: String,
    /// This machine's address and the host's, where TCP leads straight from one to the other.
    ends: Option<(IpAddr, IpAddr)>,
    /// It shows another key than the one on record, and the user lets that pass.
    changed: Option<Box<HostKeyChange>>,
    /// What its bytes go through is open for as long as it is.
    via: Option<Arc<Jump>>,
    proxy: Option<ProxyCommand>,
}

/// Host to connect to, as the user names it.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Host name, address or alias of the configuration.
    pub name: &'a str,
    /// Login name; takes precedence over the configuration's `User`.
    pub user: Option<&'a str>,
    /// TCP port; takes precedence over the configuration's `Port`.
    pub port: Option<u16>,
}

/// The bytes to a host before anything was said.
struct Transport {
    stream: Box<dyn Stream>,
    place: String,
    ends: Option<(IpAddr, IpAddr)>,
    proxy: Option<ProxyCommand>,
}

/// How hosts are reached by SSH, where that is not left to their configuration.
#[derive(Debug, Default)]
pub struct SshOptions {
    /// File in place of ~/.ssh/config and /etc/ssh/ssh_config.
    pub config: Option<PathBuf>,
    /// Whether an rlaunch.toml names that, and not the user, so that others must not be able to write it.
    pub is_config_of_file: bool,
    /// TCP port of hosts for which the configuration has none.
    pub port: Option<u16>,
    /// Rule for hosts whose keys are not known, where the command line has one.
    pub new_hosts: Option<StrictHostKeyChecking>,
    /// Handshakes at one time, where the user says so.
    pub fanout: Option<u16>,
    /// Hosts may not be there yet: a name that cannot be looked up and a port that refuses are tried
    /// again for a while.
    pub patient: bool,
}

/// One of the handshakes that may go on here, and through the jump host if there is one.
type Turn<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

impl Ssh {
    /// Reads the configuration, by what the command line says.
    pub fn of(options: &SshOptions) -> Result<Ssh, Failed> {
        Ssh::load(options)
            .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))
    }

    fn load(options: &SshOptions) -> Result<Ssh, ConfigError> {
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        let config = match &options.config {
            Some(path) if options.is_config_of_file => SshConfig::of_file(path)?,
            named => SshConfig::of_user(named.as_deref(), &home)?,
        };
        Ok(Ssh {
            resolving: config.runs_commands().then(|| Semaphore::new(RESOLVED)),
            config,
            home,
            port: options.port,
            patient: options.patient,
            keys: KeyRing::default(),
            host_keys: HostKeys::new(options.new_hosts),
            fanout: Semaphore::new(options.fanout.unwrap_or(FANOUT).into()),
            jumps: Jumps::default(),
        })
    }

    /// Reaches a host, directly or as its configuration says, checks that it is who it was before,
    /// and logs in.
    pub async fn connect(
        &self,
        to: Destination<'_>,
        tell: Tell<'_>,
    ) -> Result<Connection, SshError> {
        let (target, jumps) = self.resolve(to).await?;
        if jumps.is_empty() {
            return self.log_in(&target, None, tell).await;
        }
        tell("its jump host is not reached");
        let via = self.through(&jumps).await?;
        tell("connecting");
        self.log_in(&target, via, tell).await
    }

    /// Says which hosts were met for the first time, if that was not said yet.
    pub fn introduce(&self) {
        self.host_keys.new_hosts().announce();
    }

    /// What the configuration says about a host, and about the jump hosts before it.
    async fn resolve(&self, to: Destination<'_>) -> Result<(Hop, Vec<Hop>), SshError> {
        let resolve = || {
            let config = self.config.resolve_as(to.name, to.user, to.port)?;
            let port = config.port.or(self.port).unwrap_or(SSH_PORT);
            let target = Hop { name: to.name.to_owned(), config, port };
            let jumps = jump::jumps_before(&self.config, &target)?;
            Ok((target, jumps))
        };
        match &self.resolving {
            None => resolve(),
            Some(turns) => {
                // It is never closed.
                let _turn = turns.acquire().await.ok();
                tokio::task::block_in_place(resolve)
            }
        }
    }

    /// Logs in to each of `jumps` through the one before it, where nobody has yet; gives the last.
    async fn through(&self, jumps: &[Hop]) -> Result<Option<Arc<Jump>>, SshError> {
        let mut via = None;
        let tell_nobody = |_: &'static str| ();
        for (index, hop) in jumps.iter().enumerate() {
            let logging_in = self.log_in(hop, via, &tell_nobody);
            via = Some(self.jumps.get(&jumps[..=index], logging_in).await?);
        }
        Ok(via)
    }

    /// Logs in to a host, with as many attempts to connect as make sense until its deadline, which
    /// does not run while it waits for its turn.
    async fn log_in(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        tell: Tell<'_>,
    ) -> Result<Connection, SshError> {
        let mut deadline = Deadline::after(self.timeout_of(&hop.config));
        let mut attempts = Attempts::new(Rules::of(&hop.config, self.patient));
        let (mut connection, _turn) = loop {
            let queued = Instant::now();
            let turn = self.turn(via.as_deref()).await;
            deadline.exclude(queued);
            let attempt = self.attempt(hop, via.clone(), &mut deadline);
            let error = match attempt.await {
                Ok(connection) => break (connection, turn),
                Err(error) => error,
            };
            // Others go on meanwhile.
            drop(turn);
            let again = attempts.failed(error, deadline.left())?;
            tell(again.stage);
            tracing::debug!(host = %hop.name, pause = ?again.pause, "{}", again.stage);
            tokio::time::sleep(again.pause).await;
        };
        let user = hop.config.user.clone().unwrap_or_else(|| self.keys.local_user());
        let login = self.keys.log_in(&mut connection.handle, &user, &hop.config, &self.home);
        self.keys.within(&mut deadline, login).await.ok_or_else(|| login_is_late(&deadline))??;
        let Connection { place, ends, .. } = &connection;
        tracing::debug!(host = %hop.name, %place, ?ends, %user, "logged in");
        Ok(connection)
    }

    fn timeout_of(&self, config: &HostConfig) -> Duration {
        let configured = config.connect_timeout.filter(|timeout| !timeout.is_zero());
        let least = if self.patient { PATIENCE } else { Duration::ZERO };
        configured.unwrap_or(CONNECT_TIMEOUT).max(least)
    }

    async fn turn<'a>(&'a self, via: Option<&'a Jump>) -> Turn<'a> {
        let through = match via {
            Some(jump) => jump.turn().await,
            None => None,
        };
        // It is never closed.
        (through, self.fanout.acquire().await.ok())
    }

    /// Connects once, up to the end of the handshake. Where the user has to be asked about the host's
    /// key, it is done again after a yes: no handshake waits for somebody to type.
    async fn attempt(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        deadline: &mut Deadline,
    ) -> Result<Connection, SshError> {
        match self.attempt_unasked(hop, via.clone(), deadline).await {
            Err(SshError::HostKeyToAsk(new)) => {
                self.host_keys.new_hosts().ask(&new).await?;
                deadline.restart();
                self.attempt_unasked(hop, via, deadline).await
            }
            done => done,
        }
    }

    async fn attempt_unasked(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        deadline: &mut Deadline,
    ) -> Result<Connection, SshError> {
        let timeout = deadline.limit();
        let late = |what| move || SshError::Timeout { what, timeout };
        let (no_line, no_handshake) = match (&via, &hop.config.proxy) {
            (Some(_), _) => (
                "no answer through its jump host",
                "the jump host is connected to it, but the SSH handshake does not end",
            ),
            (None, Proxy::Command(_)) => (
                "its ProxyCommand does not start",
                "its ProxyCommand runs, but the SSH handshake does not end",
            ),
            _ => (
                "no answer to the TCP connection",
                "the TCP port answers, but the SSH handshake does not end",
            ),
        };
        let opening = self.open(hop, via.as_deref());
        let line = deadline.run(opening).await.ok_or_else(late(no_line))??;
        let handshake = self.handshake(hop, line);
        let mut connection = deadline.run(handshake).await.ok_or_else(late(no_handshake))??;
        connection.via = via;
        Ok(connection)
    }

    /// The bytes to a host: through a jump host, by a command, or by TCP.
    async fn open(&self, hop: &Hop, via: Option<&Jump>) -> Result<Transport, SshError> {
        let place = hop.place();
        let (stream, proxy): (Box<dyn Stream>, _) = match (via, &hop.config.proxy) {
            (Some(jump), _) => (jump.stream_to(hop).await?, None),
            (None, Proxy::Command(command)) => {
                let (pipes, proxy) = proxy::start(command)?;
                (Box::new(pipes), Some(proxy))
            }
            (None, Proxy::Direct | Proxy::Jump(_)) => {
                let (stream, address) = dial::dial(&hop.config, hop.port).await?;
                let local = stream.local_addr().ok().map(|local| local.ip());
                let ends = local.map(|local| (local, address.ip()));
                let place = address.to_string();
                return Ok(Transport { stream: Box::new(stream), place, ends, proxy: None });
            }
        };
        Ok(Transport { stream, place, ends: None, proxy })
    }

    async fn handshake(&self, hop: &Hop, line: Transport) -> Result<Connection, SshError> {
        let Transport { stream, place, ends, proxy } = line;
        let (checker, judgement) = self.host_keys.checker(&hop.config, hop.port)?;
        let mut preferred = algorithms::preferred(&hop.config)?;
        preferred.key = checker.preferred_algorithms(&preferred.key).into();
        preferred.host_key_certificates = checker.certificates(&hop.config).into();
        let (keepalive_interval, keepalive_max) = keepalive(&hop.config);
        let client_config = client::Config {
            preferred,
            limits: algorithms::rekey_limits(&hop.config.rekey_limit),
            keepalive_interval,
            keepalive_max,
            nodelay: true,
            ..client::Config::default()
        };
        let (stream, greeting) = Overheard::new(stream);
        let connected = client::connect_stream(Arc::new(client_config), stream, checker).await;
        let source = match connected {
            Ok(handle) => {
                let changed = judgement.change();
                return Ok(Connection { handle, place, ends, changed, via: None, proxy });
            }
            Err(source) => source,
        };
        // The verdict on the host's key says more than "unknown key".
        if let Some(refusal) = judgement.refusal() {
            return Err(refusal);
        }
        let hung_up = matches!(source, russh::Error::Disconnect | russh::Error::IO(_));
        if !hung_up || greeting.has_version() {
            return Err(SshError::Handshake { place, source: Box::new(source) });
        }
        if let Some(proxy) = proxy
            && let Some(error) = proxy.failure().await
        {
            return Err(error);
        }
        Err(SshError::Dropped { place, said: greeting.words() })
    }
}

fn login_is_late(deadline: &Deadline) -> SshError {
    SshError::Timeout { what: "the login does not end", timeout: deadline.limit() }
}

/// How often an idle connection is proved to live, and how many proofs may be missing; zero of them
/// is no limit, as in ssh_config(5).
fn keepalive(config: &HostConfig) -> (Option<Duration>, usize) {
    let interval = config.server_alive_interval.unwrap_or(KEEPALIVE);
    let count = config.server_alive_count_max.map(|count| usize::try_from(count).ok());
    let count = count.map_or(KEEPALIVES, |count| count.unwrap_or(usize::MAX));
    (Some(interval).filter(|interval| !interval.is_zero()), count)
}

impl Connection {
    /// Runs `command` in the user's login shell.
    pub async fn exec(&self, command: &str) -> Result<Channel<Msg>, SshError> {
        let refused =
            |source| SshError::Channel { place: self.place.clone(), source: Box::new(source) };
        let channel = self.handle.channel_open_session().await.map_err(refused)?;
        channel.exec(true, command).await.map_err(refused)?;
        Ok(channel)
    }

    /// This machine's address and the host's.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.ends
    }

    /// Whether the connection still stands, as far as is known.
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Says good-bye; a connection that is dropped is closed as well, without a word.
    pub async fn close(self) {
        let Connection { handle, via, proxy, .. } = self;
        let _ = handle.disconnect(Disconnect::ByApplication, "", "").await;
        if via.is_none() && proxy.is_none() {
            return;
        }
        // What carries the good-bye stays until it is on its way.
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
    use std::path::Path;

    fn keepalive_of(text: &str) -> (Option<u64>, usize) {
        let files = SshConfig::parse(text, Path::new("/config")).unwrap();
        let (interval, count) = keepalive(&files.resolve("h").unwrap());
        (interval.map(|interval| interval.as_secs()), count)
    }

    #[test]
    fn keepalives_are_those_of_the_configuration() {
        assert_eq!(keepalive_of(""), (Some(15), 3));
        assert_eq!(keepalive_of("ServerAliveInterval 30"), (Some(30), 3));
        assert_eq!(keepalive_of("ServerAliveInterval 1m\nServerAliveCountMax 7"), (Some(60), 7));
        assert_eq!(keepalive_of("ServerAliveInterval 0\nServerAliveCountMax 0"), (None, 0));
    }
}
