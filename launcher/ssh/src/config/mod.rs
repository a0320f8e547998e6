//! OpenSSH's client configuration, ssh_config(5). The files are read and checked once, then resolved for
//! each host.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | resolution: the configuration of one host |
//! | `file` | files as blocks and lines, with `Include`; check of owner and permissions |
//! | `values`, `scope` | parsing of values; expansion of tokens (`%h`), variables and `~` |
//! | `exec` | commands of `Match exec` |
//! | `show` | a host's configuration in the form of `ssh -G` |

mod exec;
mod file;
mod scope;
mod show;
#[cfg(test)]
mod tests;
mod values;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use exec::ExecCache;
use file::{Criterion, Item, Line, PermissionCheck, Sources, Subject};
use scope::{Local, Scope, lower};
use values::{
    parse_count, parse_family, parse_flag, parse_jumps, parse_port, parse_rekey, parse_strict,
    parse_time,
};

use crate::files;
use rlaunch_text::glob::{matches, matches_list};

/// TCP port of SSH servers if none is configured. Entries of known-hosts files leave this port out.
pub(crate) const DEFAULT_PORT: u16 = 22;

/// Error in a configuration file.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("read ssh configuration {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {keyword}: {reason}", path.display())]
    Value { path: PathBuf, line: usize, keyword: String, reason: String },
    #[error("bad owner or permissions on {}: {reason}", path.display())]
    Unsafe { path: PathBuf, reason: String, cure: String },
}

impl ConfigError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { path, source } => files::hint(path, source),
            Self::Value { path, line, keyword, .. } => {
                let file = path.display();
                Some(format!("correct line {line} of {file}; `man ssh_config` explains {keyword}"))
            }
            Self::Unsafe { path, cure, .. } => Some(format!(
                "its commands run as you, so ssh refuses it as well: review {}, then \
                 {cure}",
                path.display()
            )),
        }
    }
}

/// Rule for host keys that are not in the known-hosts files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrictHostKeyChecking {
    /// Refuse an unknown or changed key.
    Yes,
    /// Ask the user about an unknown key; refuse a changed one.
    Ask,
    /// Accept and record an unknown key; refuse a changed one.
    #[default]
    AcceptNew,
    /// Accept and record an unknown key; accept a changed one as well, but send it no password.
    No,
}

/// SSH agent to ask for keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IdentityAgent {
    /// Agent at the socket in the environment variable `SSH_AUTH_SOCK`, if that is set.
    #[default]
    Environment,
    /// No agent.
    None,
    /// Agent at this socket.
    Socket(PathBuf),
}

/// Address families that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// Both IPv4 and IPv6.
    #[default]
    Any,
    /// Only IPv4.
    Inet,
    /// Only IPv6.
    Inet6,
}

/// Route of the byte stream to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// TCP connection from this machine.
    #[default]
    Direct,
    /// Chain of jump hosts, in the order from this machine to the host. Each has its own configuration.
    Jump(Vec<JumpHop>),
    /// Stdin and stdout of this shell command, which connects to the host.
    Command(String),
}

/// Host of a `ProxyJump` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JumpHop {
    /// Login name, if the list has one for this jump host.
    pub user: Option<String>,
    /// Host name, address or alias.
    pub host: String,
    /// TCP port, if the list has one for this jump host.
    pub port: Option<u16>,
}

/// Limits after which session keys are renewed; `None` means the default, which is 1 GiB or one hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RekeyLimit {
    /// Maximum number of bytes sent, and maximum number of bytes received, with the same session keys.
    pub bytes: Option<u64>,
    /// Maximum age of session keys.
    pub after: Option<Duration>,
}

/// Configuration of one host, with a field for each supported keyword of ssh_config(5). `None` means that
/// the keyword was not configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// `HostName` in lower case; if not configured, the name that the user gave.
    pub hostname: String,
    /// `User`: login name.
    pub user: Option<String>,
    /// `Port`: TCP port.
    pub port: Option<u16>,
    /// `IdentityFile`: key files in the order in which they are tried; empty if not configured, see
    /// [`Self::identity_files_or_default`].
    pub identity_files: Vec<PathBuf>,
    /// Whether `IdentityFile none` is configured, so that the default key files are not tried either.
    pub no_identity_files: bool,
    /// `IdentitiesOnly`: whether the SSH agent's keys are offered only if they are configured too.
    pub identities_only: bool,
    /// `IdentityAgent`: SSH agent to ask for keys.
    pub identity_agent: IdentityAgent,
    /// `CertificateFile`: certificate files in the order in which they are tried.
    pub certificate_files: Vec<PathBuf>,
    /// `StrictHostKeyChecking`: rule for host keys that are not in the known-hosts files.
    pub strict_host_key_checking: StrictHostKeyChecking,
    /// `UserKnownHostsFile`: the user's known-hosts files; new host keys are added to the first.
    pub user_known_hosts_files: Vec<PathBuf>,
    /// `GlobalKnownHostsFile`: the system's known-hosts files.
    pub global_known_hosts_files: Vec<PathBuf>,
    /// `HostKeyAlias`: name of the host in known-hosts files.
    pub host_key_alias: Option<String>,
    /// `KexAlgorithms` as written, with a leading `+`, `-` or `^` if there is one.
    pub kex_algorithms: Option<String>,
    /// `Ciphers` as written.
    pub ciphers: Option<String>,
    /// `HostKeyAlgorithms` as written.
    pub host_key_algorithms: Option<String>,
    /// `PubkeyAcceptedAlgorithms` as written.
    pub pubkey_accepted_algorithms: Option<String>,
    /// `ConnectTimeout`. Zero, also written `none`, means rlaunch's default limit.
    pub connect_timeout: Option<Duration>,
    /// `ConnectionAttempts`: maximum number of attempts to connect.
    pub connection_attempts: Option<u32>,
    /// `ServerAliveInterval`: time between keepalives; zero means none are sent.
    pub server_alive_interval: Option<Duration>,
    /// `ServerAliveCountMax`: number of keepalives that may go unanswered; zero means any number.
    pub server_alive_count_max: Option<u32>,
    /// `RekeyLimit`: when session keys are renewed.
    pub rekey_limit: RekeyLimit,
    /// `ProxyJump` or `ProxyCommand`, whichever comes first in the files.
    pub proxy: Proxy,
    /// `AddressFamily`: IP versions that may be used.
    pub address_family: AddressFamily,
    /// `BindAddress`: local address to connect from, or a name for it.
    pub bind_address: Option<String>,
}

impl HostConfig {
    fn new(alias: &str, home: &Path) -> Self {
        let ssh = home.join(".ssh");
        Self {
            hostname: lower(alias),
            user_known_hosts_files: vec![ssh.join("known_hosts"), ssh.join("known_hosts2")],
            global_known_hosts_files: ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]
                .map(PathBuf::from)
                .to_vec(),
            ..Self::default()
        }
    }

    /// Returns the configured key files or, if there are none, the default ones in `~/.ssh`. They need not
    /// exist.
    pub fn identity_files_or_default(&self, home: &Path) -> Vec<PathBuf> {
        if self.no_identity_files || !self.identity_files.is_empty() {
            return self.identity_files.clone();
        }
        ["id_ed25519", "id_ecdsa", "id_rsa"].map(|name| home.join(".ssh").join(name)).to_vec()
    }

    /// Applies one line to this configuration. Handles keywords about the connection itself, and leaves all
    /// others to [`Self::set_trust`].
    fn set(&mut self, line: &Line, scope: &Scope<'_>) -> Result<(), String> {
        match line.key.as_str() {
            "hostname" => self.hostname = scope.hostname(&line.one()?)?,
            "user" => self.user = Some(line.one()?),
            "port" => self.port = Some(parse_port(&line.one()?)?),
            "bindaddress" => self.bind_address = Some(line.one()?),
            "addressfamily" => self.address_family = parse_family(&line.one()?)?,
            "connecttimeout" => self.connect_timeout = Some(parse_time(&line.one()?)?),
            "connectionattempts" => self.connection_attempts = Some(parse_count(&line.one()?, 1)?),
            "serveraliveinterval" => {
                self.server_alive_interval = Some(parse_time(&line.one()?)?);
            }
            "serveralivecountmax" => {
                self.server_alive_count_max = Some(parse_count(&line.one()?, 0)?);
            }
            "rekeylimit" => self.rekey_limit = parse_rekey(&line.args()?)?,
            "proxyjump" => self.proxy = parse_jumps(&scope.expand(&line.one()?, "hnpr")?)?,
            "proxycommand" if line.rest.is_empty() => return Err("no command".into()),
            "proxycommand" if line.rest.eq_ignore_ascii_case("none") => {
                self.proxy = Proxy::Direct;
            }
            "proxycommand" => self.proxy = Proxy::Command(scope.expand(&line.rest, "hnpr")?),
            _ => return self.set_trust(line, scope),
        }
        Ok(())
    }

    /// Applies one line about keys, host keys or algorithms. Ignores other keywords.
    fn set_trust(&mut self, line: &Line, scope: &Scope<'_>) -> Result<(), String> {
        match line.key.as_str() {
            "identityfile" => match line.one()? {
                none if none.eq_ignore_ascii_case("none") => self.no_identity_files = true,
                file => push_new(&mut self.identity_files, scope.path(&file)?),
            },
            "certificatefile" => push_new(&mut self.certificate_files, scope.path(&line.one()?)?),
            "identitiesonly" => self.identities_only = parse_flag(&line.one()?)?,
            "identityagent" => self.identity_agent = scope.agent(&line.one()?)?,
            "stricthostkeychecking" => self.strict_host_key_checking = parse_strict(&line.one()?)?,
            "userknownhostsfile" => self.user_known_hosts_files = scope.paths(&line.args()?)?,
            "globalknownhostsfile" => self.global_known_hosts_files = scope.paths(&line.args()?)?,
            "hostkeyalias" => self.host_key_alias = Some(lower(&line.one()?)),
            "kexalgorithms" => self.kex_algorithms = Some(line.one()?),
            "ciphers" => self.ciphers = Some(line.one()?),
            "hostkeyalgorithms" => self.host_key_algorithms = Some(line.one()?),
            "pubkeyacceptedalgorithms" | "pubkeyacceptedkeytypes" => {
                self.pubkey_accepted_algorithms = Some(line.one()?);
            }
            // As in ssh(1) with `IgnoreUnknown *`: keywords of other features must not stop a job.
            _ => {}
        }
        Ok(())
    }
}

fn push_new(files: &mut Vec<PathBuf>, file: PathBuf) {
    if !files.contains(&file) {
        files.push(file);
    }
}

/// Configuration files, read and checked.
#[derive(Debug)]
pub struct SshConfig {
    files: Vec<Vec<Item>>,
    local: Local,
    sources: Sources,
    /// Whether any block has `Match final`, which needs a second pass over the files.
    wants_final: bool,
    commands: ExecCache,
}

impl SshConfig {
    /// Returns the paths of the user's configuration file and of the system's.
    pub fn default_paths(home: &Path) -> Vec<PathBuf> {
        vec![home.join(".ssh/config"), PathBuf::from("/etc/ssh/ssh_config")]
    }

    /// Reads the file that the user has named, otherwise the default files. As in ssh(1), the user's
    /// default file and included files are refused if other users may write to them.
    pub fn load_for_user(named: Option<&Path>, home: &Path) -> Result<Self, ConfigError> {
        match named {
            Some(path) => Self::read(&[path.to_owned()], PermissionCheck::None),
            None => Self::read(&Self::default_paths(home), PermissionCheck::Strict),
        }
    }

    /// Reads a file that the user did not name, and refuses the file if other users may write to it.
    pub fn load_checked(path: &Path) -> Result<Self, ConfigError> {
        Self::read(&[path.to_owned()], PermissionCheck::Strict)
    }

    /// Reads the files in `paths` without a check of permissions; the first one takes precedence.
    #[cfg(test)]
    pub fn load(paths: &[PathBuf]) -> Result<Self, ConfigError> {
        Self::read(paths, PermissionCheck::None)
    }

    /// Reads the files in `paths`; the first one takes precedence. Missing files are skipped. `first` is
    /// the check of the first file's permissions; the other files are not checked.
    fn read(paths: &[PathBuf], first: PermissionCheck) -> Result<Self, ConfigError> {
        let mut config = Self::empty();
        let checks = std::iter::once(first).chain(std::iter::repeat(PermissionCheck::None));
        for (path, check) in paths.iter().zip(checks) {
            if let Some(text) = file::read(path, check)? {
                config.add(&text, path)?;
            }
        }
        Ok(config)
    }

    /// Parses `text` as the content of the file `path`, and reads the files that it includes.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config = Self::empty();
        config.add(text, path)?;
        Ok(config)
    }

    /// Makes a configuration without any files.
    pub fn empty() -> Self {
        Self {
            files: Vec::new(),
            local: Local::current(),
            sources: Sources::default(),
            wants_final: false,
            commands: ExecCache::default(),
        }
    }

    /// Adds `text`, the content of the file `path`, and the files that it includes. Files that were added
    /// before take precedence.
    pub fn add(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        let items = file::parse(text, path, &self.local.home, &mut self.sources)?;
        self.check(&items)?;
        // `Match final` needs a second pass over the files, whatever file it is in.
        self.wants_final |= file::mentions(&items, Subject::Final);
        self.files.push(items);
        Ok(())
    }

    /// Tells whether [`Self::resolve_as`] may run commands of `Match exec`, which may block for seconds.
    pub fn runs_commands(&self) -> bool {
        // `Match exec` runs a command to find out whether its block applies; no other criterion does.
        self.files.iter().any(|items| file::mentions(items, Subject::Exec))
    }

    /// Returns the paths of all files that were read, including those of `Include`.
    pub fn files(&self) -> &[PathBuf] {
        &self.sources.files
    }

    /// Returns messages about blocks that are ignored because rlaunch does not support their criteria.
    pub fn notes(&self) -> &[String] {
        &self.sources.notes
    }

    /// Returns an error if any value is invalid, even in a block that matches no host of this job.
    fn check(&self, items: &[Item]) -> Result<(), ConfigError> {
        let scope = Scope { local: &self.local, alias: "", target: None };
        items.iter().try_for_each(|item| match item {
            Item::Set(line) => HostConfig::default().set(line, &scope).map_err(|e| line.error(e)),
            Item::Include(items) => self.check(items),
            Item::Host(_) | Item::Match(..) => Ok(()),
        })
    }

    /// Returns the configuration of the host that the user calls `alias`.
    #[cfg(test)]
    pub fn resolve(&self, alias: &str) -> Result<HostConfig, ConfigError> {
        self.resolve_as(alias, None, None)
    }

    /// Returns the configuration of the host that the user calls `alias`. `user` and `port`, from the
    /// command line, take precedence over the files.
    pub fn resolve_as(
        &self,
        alias: &str,
        user: Option<&str>,
        port: Option<u16>,
    ) -> Result<HostConfig, ConfigError> {
        // Tokens such as `%h` expand to the final host name, port and user, which a first pass finds.
        let target = self.run_pass(alias, user, port, None)?;
        self.run_pass(alias, user, port, Some(&target))
    }

    /// Returns the login name for a host with this configuration: its own, or else the name of the local user. `None` if
    /// there is neither.
    pub fn user_for<'a>(&'a self, host: &'a HostConfig) -> Option<&'a str> {
        host.user.as_deref().or(self.local.user.as_deref())
    }

    fn run_pass(
        &self,
        alias: &str,
        user: Option<&str>,
        port: Option<u16>,
        target: Option<&HostConfig>,
    ) -> Result<HostConfig, ConfigError> {
        let mut config = HostConfig::new(alias, &self.local.home);
        (config.user, config.port) = (user.map(str::to_owned), port);
        let given = [user.map(|_| "user"), port.map(|_| "port")];
        let mut pass = Pass {
            scope: Scope { local: &self.local, alias, target },
            commands: &self.commands,
            name: alias.to_owned(),
            is_final: false,
            obtained: given.into_iter().flatten().collect(),
            config,
        };
        self.files.iter().try_for_each(|items| pass.walk(items))?;
        if self.wants_final {
            pass.begin_final();
            self.files.iter().try_for_each(|items| pass.walk(items))?;
        }
        Ok(pass.config)
    }
}

/// State of a pass over the files for one host.
struct Pass<'a> {
    scope: Scope<'a>,
    commands: &'a ExecCache,
    /// Name with which the patterns of `Host` lines are compared.
    name: String,
    is_final: bool,
    /// Keywords that have a value already; later lines with these keywords are ignored.
    obtained: HashSet<&'a str>,
    config: HostConfig,
}

impl<'a> Pass<'a> {
    fn walk(&mut self, items: &'a [Item]) -> Result<(), ConfigError> {
        let mut active = true;
        for item in items {
            match item {
                Item::Host(patterns) => active = self.matches_host(patterns),
                Item::Match(line, criteria) => {
                    active = self.meets_all(criteria).map_err(|reason| line.error(reason))?;
                }
                Item::Set(line) if active => self.apply_line(line)?,
                Item::Include(items) if active => self.walk(items)?,
                Item::Set(_) | Item::Include(_) => {}
            }
        }
        Ok(())
    }

    fn apply_line(&mut self, line: &'a Line) -> Result<(), ConfigError> {
        let slot = match line.key.as_str() {
            // For these keywords every line counts, not only the first.
            "identityfile" | "certificatefile" => None,
            "proxyjump" | "proxycommand" => Some("proxy"),
            "pubkeyacceptedkeytypes" => Some("pubkeyacceptedalgorithms"),
            key => Some(key),
        };
        if slot.is_some_and(|slot| !self.obtained.insert(slot)) {
            return Ok(());
        }
        self.config.set(line, &self.scope).map_err(|reason| line.error(reason))
    }

    fn matches_host(&self, patterns: &[String]) -> bool {
        // A `Host` line separates patterns by spaces and distinguishes upper and lower case.
        let name = self.name.as_str();
        // A match after a `!` vetoes the whole line.
        let vetoed = |p: &String| p.strip_prefix('!').is_some_and(|p| matches(p, name));
        !patterns.iter().any(vetoed) && patterns.iter().any(|p| matches(p, name))
    }

    /// Starts the second pass, with the host name that the first pass has found. Values of the first pass
    /// are kept.
    fn begin_final(&mut self) {
        self.name = self.config.hostname.clone();
        self.is_final = true;
        self.obtained.insert("hostname");
    }

    /// Tells whether all criteria of a `Match` block are met. Stops at the first that is not met, so that
    /// the commands of later criteria do not run.
    fn meets_all(&self, criteria: &[Criterion]) -> Result<bool, String> {
        if criteria.iter().any(|criterion| criterion.subject == Subject::Unsupported) {
            return Ok(false);
        }
        for criterion in criteria {
            if !self.meets(criterion)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn meets(&self, criterion: &Criterion) -> Result<bool, String> {
        let Scope { local, alias, .. } = self.scope;
        let pattern = criterion.patterns.to_ascii_lowercase();
        let local_user = local.user.as_deref();
        let met = match criterion.subject {
            Subject::Unsupported => false,
            Subject::All => true,
            Subject::Canonical | Subject::Final => self.is_final,
            Subject::Exec => self.commands.succeeds(&self.command(&criterion.patterns)?)?,
            Subject::Host => matches_list(&pattern, &self.config.hostname.to_ascii_lowercase()),
            Subject::OriginalHost => matches_list(&pattern, &alias.to_ascii_lowercase()),
            Subject::User => {
                let user = self.config.user.as_deref().or(local_user);
                matches_list(&criterion.patterns, user.unwrap_or_default())
            }
            Subject::LocalUser => matches_list(&criterion.patterns, local_user.unwrap_or_default()),
        };
        Ok(met != criterion.negated)
    }

    /// Expands the tokens in a command of `Match exec` with the values that were found so far.
    fn command(&self, text: &str) -> Result<String, String> {
        let HostConfig { hostname, user, port, host_key_alias, proxy, .. } = &self.config;
        let is_named = self.obtained.contains("hostname");
        let hostname = if is_named { hostname.clone() } else { self.scope.alias.to_owned() };
        let so_far = HostConfig {
            host_key_alias: host_key_alias.clone().or_else(|| Some(hostname.clone())),
            hostname,
            user: user.clone(),
            port: *port,
            proxy: proxy.clone(),
            ..HostConfig::default()
        };
        Scope { target: Some(&so_far), ..self.scope }.expand(text, "CdhijkLlnpru")
    }
}
