//! Connections to hosts: the handshake, directly or through jump hosts, and the login.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | [`Ssh`], which serves all hosts of a job |
//! | `connection` | a connection before and after the login; `ProxyJump`: jump hosts, which connections share |
//! | `auth` | the login with keys and certificates |
//! | `password` | the first login on a host, for `rlaunch ssh-setup` |
//! | `testing` | a server in this process |

mod auth;
mod connection;
pub(crate) mod password;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use connection::Connection;

use crate::config::{
    ConfigError, DEFAULT_PORT, HostConfig, Proxy, SshConfig, StrictHostKeyChecking,
};
use crate::error::{LoginRefusal, NoVersion, SshError};
use crate::host_keys::HostKeys;
use crate::keys::KeyRing;
use crate::transport::retry::{Attempts, RetryPolicy};
use crate::transport::stream::{self, BannerReader, Stream};
use crate::transport::{algorithms, dial};
use auth::AwaitedAgent;
use connection::{CLOSE_TIMEOUT, Hop, Jump, Jumps, Transport, jumps_before};
use rlaunch_console::deadline::Deadline;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use russh::client;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Time limit for TCP connection, SSH handshake and login together, unless `ConnectTimeout` sets one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum of the limit for TCP connection, handshake and login if hosts may not be up yet
/// (`retry_until_up`).
const UP_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of keepalives on an idle connection, unless the configuration sets it.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time for which a server may acknowledge nothing that is sent, unless [`SshOptions::longest_silence`] is longer.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Number of keepalives in a row that the server may leave unanswered, unless the configuration or
/// [`SshOptions::longest_silence`] sets it.
const KEEPALIVE_MAX: usize = 3;
/// Maximum number of concurrent handshakes, unless the user sets one. Measured with 64 nearby hosts and two
/// processors: 1.17 s with a limit of 8, and 1.06 to 1.12 s with limits from 16 to 128. Distant hosts
/// benefit from higher limits.
const FANOUT: u16 = 128;
/// Maximum number of hosts for which commands of `Match exec` run concurrently.
const RESOLVED_AT_ONCE: usize = 16;

/// Callback that receives the current stage of a connection, such as `connecting`.
pub type ReportStage<'a> = &'a (dyn Fn(&'static str) + Sync);

/// SSH client with the state that all connections of a job share.
pub struct Ssh {
    home: PathBuf,
    config: SshConfig,
    /// TCP port of hosts for which the configuration has none.
    port: Option<u16>,
    retry_until_up: bool,
    keys: KeyRing,
    host_keys: HostKeys,
    fanout: Semaphore,
    longest_silence: Option<Duration>,
    /// Limits concurrent commands of `Match exec`; `None` if the configuration has none.
    resolving: Option<Semaphore>,
    jumps: Jumps,
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

/// Options that do not come from `ssh_config`.
#[derive(Debug, Default)]
pub struct SshOptions {
    /// File to read in place of ~/.ssh/config and /etc/ssh/ssh_config.
    pub config: Option<PathBuf>,
    /// Whether to refuse the file in `config` if other users may write to it. False if the user has named
    /// the file.
    pub check_config_permissions: bool,
    /// TCP port of hosts for which the configuration has none.
    pub port: Option<u16>,
    /// Rule for unknown host keys; takes precedence over the configuration.
    pub new_hosts: Option<StrictHostKeyChecking>,
    /// Maximum number of concurrent handshakes; 128 if `None`.
    pub fanout: Option<u16>,
    /// Whether to retry unknown names and refused connections until the time limit, for hosts that may
    /// not be up yet.
    pub retry_until_up: bool,
    /// Silence of a host that must not end its connection; 60 s if `None`. The configuration takes precedence.
    pub longest_silence: Option<Duration>,
}

/// Permits for one handshake: one from the jump host, if there is one, and one from this client.
type HandshakePermit<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

impl Ssh {
    /// Reads the configuration. An error has the exit code for usage, and advice for the user.
    pub fn new(options: &SshOptions) -> Result<Ssh, Failed> {
        Ssh::load(options)
            .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))
    }

    fn load(options: &SshOptions) -> Result<Ssh, ConfigError> {
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        let config = match &options.config {
            Some(path) if options.check_config_permissions => SshConfig::load_checked(path)?,
            named => SshConfig::load_for_user(named.as_deref(), &home)?,
        };
        Ok(Ssh {
            resolving: config.runs_commands().then(|| Semaphore::new(RESOLVED_AT_ONCE)),
            config,
            home,
            port: options.port,
            retry_until_up: options.retry_until_up,
            keys: KeyRing::default(),
            host_keys: HostKeys::new(options.new_hosts),
            fanout: Semaphore::new(options.fanout.unwrap_or(FANOUT).into()),
            longest_silence: options.longest_silence,
            jumps: Jumps::default(),
        })
    }

    /// Connects to a host as its configuration says, checks the host key, and logs in.
    pub async fn connect(
        &self,
        to: Destination<'_>,
        report_stage: ReportStage<'_>,
    ) -> Result<Connection, SshError> {
        let (target, jumps) = self.resolve(to).await?;
        if jumps.is_empty() {
            return self.log_in(&target, None, report_stage).await;
        }
        report_stage("waiting for its jump host");
        let via = self.connect_jumps(&jumps).await?;
        report_stage("connecting");
        self.log_in(&target, via, report_stage).await
    }

    /// Prints the hosts with new keys that were accepted since the last call.
    pub fn announce_new_hosts(&self) {
        self.host_keys.new_hosts.announce();
    }

    /// Returns the configuration of a host, and of the jump hosts that lead to it.
    async fn resolve(&self, to: Destination<'_>) -> Result<(Hop, Vec<Hop>), SshError> {
        let resolve = || {
            let config = self.config.resolve_as(to.name, to.user, to.port)?;
            let port = config.port.or(self.port).unwrap_or(DEFAULT_PORT);
            let target = Hop { name: to.name.to_owned(), config, port };
            let jumps = jumps_before(&self.config, &target)?;
            Ok((target, jumps))
        };
        match &self.resolving {
            None => resolve(),
            Some(turns) => {
                // The semaphore is never closed.
                let _permit = turns.acquire().await.ok();
                tokio::task::block_in_place(resolve)
            }
        }
    }

    /// Logs in to each jump host in `jumps` through the one before it, unless a connection to it is open
    /// already. Returns the last jump host; `None` if `jumps` is empty.
    async fn connect_jumps(&self, jumps: &[Hop]) -> Result<Option<Arc<Jump>>, SshError> {
        let mut via = None;
        let ignore_stage = |_: &'static str| ();
        for (index, hop) in jumps.iter().enumerate() {
            let logging_in = self.log_in(hop, via, &ignore_stage);
            via = Some(self.jumps.get_or_connect(&jumps[..=index], logging_in).await?);
        }
        Ok(via)
    }

    /// Connects to a host, with retries until its deadline, and logs in. Time spent waiting for a
    /// handshake permit does not count.
    async fn log_in(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        report_stage: ReportStage<'_>,
    ) -> Result<Connection, SshError> {
        let user = self.user_for(&hop.config)?;
        let mut deadline = Deadline::after(self.timeout_for(&hop.config));
        let mut attempts = Attempts::new(RetryPolicy::new(&hop.config, self.retry_until_up));
        let (mut connection, _permit) = loop {
            let queued = Instant::now();
            let permit = self.handshake_permit(via.as_deref()).await;
            deadline.exclude(queued);
            let attempt = self.attempt(hop, via.clone(), &mut deadline);
            let error = match attempt.await {
                Ok(connection) => break (connection, permit),
                Err(error) => error,
            };
            // Other connections may use the permit during the pause.
            drop(permit);
            let retry = attempts.note_failure(error, deadline.left())?;
            report_stage(retry.stage);
            tracing::debug!(host = %hop.name, pause = ?retry.pause, "{}", retry.stage);
            tokio::time::sleep(retry.pause).await;
        };
        let (handle, awaited) = (&mut connection.handle, AwaitedAgent::default());
        let login = self.keys.log_in(handle, &user, &hop.config, &self.home, &awaited);
        let done = self.keys.run_login(&mut deadline, login).await;
        let done = done.ok_or_else(|| login_timeout(&deadline, &awaited))?;
        done.map_err(|error| LoginRefusal::quoting(error, connection.outcome.said()))?;
        let Connection { address, ip_addresses, .. } = &connection;
        tracing::debug!(host = %hop.name, %address, ?ip_addresses, %user, "logged in");
        Ok(connection)
    }

    fn timeout_for(&self, config: &HostConfig) -> Duration {
        let configured = config.connect_timeout.filter(|timeout| !timeout.is_zero());
        let least = if self.retry_until_up { UP_TIMEOUT } else { Duration::ZERO };
        configured.unwrap_or(CONNECT_TIMEOUT).max(least)
    }

    async fn handshake_permit<'a>(&'a self, via: Option<&'a Jump>) -> HandshakePermit<'a> {
        let through = match via {
            Some(jump) => jump.handshake_permit().await,
            None => None,
        };
        // The semaphore is never closed.
        (through, self.fanout.acquire().await.ok())
    }

    /// Makes one attempt to connect, up to the end of the handshake. If the user has to accept the host key
    /// first, asks the user and then connects again, because a server drops a connection whose handshake
    /// waits for the user.
    async fn attempt(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        deadline: &mut Deadline,
    ) -> Result<Connection, SshError> {
        match self.attempt_once(hop, via.clone(), deadline).await {
            Err(SshError::HostKeyToAsk(new)) => {
                self.host_keys.new_hosts.ask(&new).await?;
                deadline.restart();
                self.attempt_once(hop, via, deadline).await
            }
            done => done,
        }
    }

    async fn attempt_once(
        &self,
        hop: &Hop,
        via: Option<Arc<Jump>>,
        deadline: &mut Deadline,
    ) -> Result<Connection, SshError> {
        let transport = self.open_transport(hop, via.as_deref(), deadline).await?;
        let so_far = match (&via, &hop.config.proxy) {
            (Some(_), _) => "the jump host is connected to it".to_owned(),
            (None, Proxy::Command(_)) => "its ProxyCommand runs".to_owned(),
            _ => format!("{} takes TCP connections", transport.address),
        };
        let handshake = deadline.run(self.handshake(hop, transport)).await;
        let mut connection = handshake.ok_or_else(|| SshError::Timeout {
            what: format!("{so_far}, but the SSH handshake does not complete").into(),
            timeout: deadline.limit(),
        })??;
        connection.via = via;
        Ok(connection)
    }

    /// Opens the byte stream to a host: through a jump host, by `ProxyCommand`, or by TCP.
    async fn open_transport(
        &self,
        hop: &Hop,
        via: Option<&Jump>,
        deadline: &mut Deadline,
    ) -> Result<Transport, SshError> {
        let address = hop.address();
        let (stream, proxy): (Box<dyn Stream>, _) = match (via, &hop.config.proxy) {
            (Some(jump), _) => {
                let opened = deadline.run(jump.stream_to(hop)).await;
                let late = || SshError::Timeout {
                    what: "no answer through its jump host".into(),
                    timeout: deadline.limit(),
                };
                (opened.ok_or_else(late)??, None)
            }
            (None, Proxy::Command(command)) => {
                let (pipes, proxy) = stream::start_proxy(command)?;
                (Box::new(pipes), Some(proxy))
            }
            (None, Proxy::Direct | Proxy::Jump(_)) => {
                let (stream, remote) = dial::dial(&hop.config, hop.port, deadline).await?;
                if let Some(limit) = unacknowledged(&hop.config, self.longest_silence) {
                    stream.end_unacknowledged_after(limit);
                }
                let ip_addresses = stream.local_ip().map(|local| (local, remote.ip()));
                let (stream, address) = (Box::new(stream), remote.to_string());
                return Ok(Transport { stream, address, ip_addresses, proxy: None });
            }
        };
        Ok(Transport { stream, address, ip_addresses: None, proxy })
    }

    async fn handshake(&self, hop: &Hop, transport: Transport) -> Result<Connection, SshError> {
        let Transport { stream, address, ip_addresses, proxy } = transport;
        let (checker, outcome) = self.host_keys.checker(&hop.config, hop.port)?;
        let (keepalive_interval, keepalive_max) = match &ip_addresses {
            Some(_) => keepalive(&hop.config, self.longest_silence),
            None => keepalive_through(&hop.config, self.longest_silence),
        };
        let client_config = client::Config {
            preferred: checker.preferred(&hop.config)?,
            limits: algorithms::rekey_limits(&hop.config.rekey_limit),
            keepalive_interval,
            keepalive_max,
            nodelay: true,
            ..client::Config::default()
        };
        let (stream, banner) = BannerReader::new(stream);
        let connected = client::connect_stream(Arc::new(client_config), stream, checker).await;
        let source = match connected {
            Ok(handle) => {
                let changed = outcome.take_change();
                let via = None;
                return Ok(Connection {
                    handle,
                    address,
                    ip_addresses,
                    outcome,
                    changed,
                    via,
                    proxy,
                });
            }
            Err(source) => source,
        };
        // Otherwise the ProxyCommand would outlive a launcher that ends at once, and keep its connection
        // to the host.
        let failure = async { proxy?.failure().await };
        let failure = tokio::time::timeout(CLOSE_TIMEOUT, failure).await.ok().flatten();
        // The checker's reason is more specific than the library's error "unknown key".
        if let Some(refusal) = outcome.take_refusal() {
            return Err(refusal);
        }
        if banner.has_version() {
            return Err(SshError::of_handshake(address, source));
        }
        let no_version = || SshError::NoVersion { address, what: NoVersion::of(banner.text()) };
        Err(failure.unwrap_or_else(no_version))
    }
}

/// Returns the error of a login that took too long. `awaited` tells which SSH agent it waited for.
fn login_timeout(deadline: &Deadline, awaited: &AwaitedAgent) -> SshError {
    let timeout = deadline.limit();
    match awaited.socket() {
        Some(socket) => SshError::AgentSilent { socket, timeout },
        None => SshError::Timeout { what: "the login does not complete".into(), timeout },
    }
}

/// Returns the interval of keepalives (`None` if none are sent), and the number of keepalives that may go
/// unanswered (zero means any number, as in ssh_config(5)). Unless the configuration sets either, a server that has been
/// silent for `longest_silence` has not left too many unanswered.
fn keepalive(config: &HostConfig, longest_silence: Option<Duration>) -> (Option<Duration>, usize) {
    let interval = config.server_alive_interval.unwrap_or(KEEPALIVE_INTERVAL);
    let count = config.server_alive_count_max.map(|count| usize::try_from(count).ok());
    let is_configured = config.server_alive_interval.is_some() || count.is_some();
    let count = match (count, longest_silence) {
        (Some(count), _) => count.unwrap_or(usize::MAX),
        (None, Some(silence)) if !is_configured => {
            // The connection ends when the one after them is due.
            let count = silence.as_secs().div_ceil(interval.as_secs().max(1));
            usize::try_from(count).unwrap_or(usize::MAX).max(KEEPALIVE_MAX)
        }
        (None, _) => KEEPALIVE_MAX,
    };
    (Some(interval).filter(|interval| !interval.is_zero()), count)
}

/// Returns interval and number of keepalives, as [`keepalive`] does, for a connection through a jump host or a
/// `ProxyCommand`. The kernel here does not see that the server acknowledges nothing, so keepalives end the connection after
/// the same time. Nothing overtakes what is lost for its size.
fn keepalive_through(
    config: &HostConfig,
    longest_silence: Option<Duration>,
) -> (Option<Duration>, usize) {
    match unacknowledged(config, longest_silence) {
        // The connection ends when the one after them is due.
        Some(limit) => {
            let parts = u32::try_from(KEEPALIVE_MAX + 1).unwrap_or(u32::MAX);
            (Some(limit / parts), KEEPALIVE_MAX)
        }
        None => keepalive(config, longest_silence),
    }
}

/// Returns the time for which a server may acknowledge nothing that is sent, as when large packets are lost on the way.
/// `None` if the configuration has keepalives, which decide then.
fn unacknowledged(config: &HostConfig, longest_silence: Option<Duration>) -> Option<Duration> {
    let is_configured =
        config.server_alive_interval.is_some() || config.server_alive_count_max.is_some();
    (!is_configured).then(|| longest_silence.unwrap_or_default().max(UNACKNOWLEDGED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn keepalive_within(silence: Option<u64>, text: &str) -> (Option<u64>, usize) {
        let files = SshConfig::parse(text, Path::new("/config")).unwrap();
        let silence = silence.map(Duration::from_secs);
        let (interval, count) = keepalive(&files.resolve("h").unwrap(), silence);
        (interval.map(|interval| interval.as_secs()), count)
    }

    fn keepalive_of(text: &str) -> (Option<u64>, usize) {
        keepalive_within(None, text)
    }

    #[test]
    fn keepalives_are_those_of_the_configuration() {
        assert_eq!(keepalive_of(""), (Some(15), 3));
        assert_eq!(keepalive_of("ServerAliveInterval 30"), (Some(30), 3));
        assert_eq!(keepalive_of("ServerAliveInterval 1m\nServerAliveCountMax 7"), (Some(60), 7));
        assert_eq!(keepalive_of("ServerAliveInterval 0\nServerAliveCountMax 0"), (None, 0));
    }

    #[test]
    fn a_connection_outlives_a_silence_that_was_allowed() {
        // Times at which keepalives end a connection: the interval times their number and one more.
        for (silence, ends) in [(6, 60), (60, 75), (61, 90), (600, 615)] {
            let (interval, count) = keepalive_within(Some(silence), "");
            assert_eq!(interval.unwrap() * (count as u64 + 1), ends, "{silence} s");
        }
        assert_eq!(keepalive_within(Some(600), "ServerAliveInterval 5"), (Some(5), 3));
        assert_eq!(keepalive_within(Some(600), "ServerAliveCountMax 2"), (Some(15), 2));
    }

    #[test]
    fn a_connection_through_a_jump_host_ends_as_soon_as_a_direct_one() {
        let ends = |silence: Option<u64>, text: &str| {
            let config = SshConfig::parse(text, Path::new("/config")).unwrap();
            let config = config.resolve("h").unwrap();
            let silence = silence.map(Duration::from_secs);
            let (interval, count) = keepalive_through(&config, silence);
            let after = interval.unwrap() * u32::try_from(count + 1).unwrap();
            (after, unacknowledged(&config, silence).unwrap_or(after))
        };
        for (silence, text) in [(None, ""), (Some(6), ""), (Some(600), "")] {
            let (through, direct) = ends(silence, text);
            assert_eq!(through, direct, "{silence:?}");
        }
        assert_eq!(ends(Some(6), "ServerAliveInterval 30").0, Duration::from_secs(120));
    }

    #[test]
    fn what_is_sent_into_a_hole_ends_a_connection_before_keepalives_do() {
        let limit = |silence: Option<u64>, text: &str| {
            let files = SshConfig::parse(text, Path::new("/config")).unwrap();
            let limit =
                unacknowledged(&files.resolve("h").unwrap(), silence.map(Duration::from_secs));
            limit.map(|limit| limit.as_secs())
        };
        assert_eq!(limit(None, ""), Some(10));
        assert_eq!(limit(Some(6), ""), Some(10));
        assert_eq!(limit(Some(600), ""), Some(600));
        assert_eq!(limit(Some(6), "ServerAliveInterval 30"), None);
        assert_eq!(limit(None, "ServerAliveCountMax 2"), None);
    }
}
