//! Errors in connecting and logging in to a host, with advice for the user.

mod refusal;

pub use refusal::LoginRefusal;

use crate::config::ConfigError;
use crate::known_hosts::{KnownHostsError, NewHostKey};
use rlaunch_console::deadline::Late;
use rlaunch_text::{printable, shell};
use russh::AlgorithmKind;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Failure to connect to a host, to check its key, or to log in. The messages do not name the host, which
/// the caller adds.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: {chain}", chain_fault(*is_loop))]
    JumpChain { chain: String, is_loop: bool },
    #[error("through jump host {jump}")]
    JumpHost { jump: String, source: Arc<SshError> },
    #[error("jump host {jump} cannot connect to {address}")]
    Forward { jump: String, address: String, source: Box<russh::Error> },
    #[error("jump host {jump} does not forward connections")]
    NoForwarding { jump: String },
    #[error("cannot start its ProxyCommand `{command}`")]
    ProxyStart { command: String, source: io::Error },
    #[error("its ProxyCommand `{command}` {how}")]
    ProxyCommand { command: String, how: String },
    #[error("tried {attempts} times in {seconds} s")]
    Repeated {
        attempts: u32,
        seconds: u64,
        #[source]
        last: Box<SshError>,
    },
    #[error("cannot look up `{name}`")]
    LookUp { name: String, source: io::Error },
    #[error("`{name}` has no address of the wanted family")]
    NoAddress { name: String },
    #[error("cannot connect to {}", list(tried, ", nor to "))]
    Connect { tried: Vec<TriedAddress> },
    #[error("no {} within {} s: {}", awaited(tried), timeout.as_secs(), list(tried, ", "))]
    NoAnswer { tried: Vec<TriedAddress>, timeout: Duration },
    #[error("cannot connect from BindAddress {name}")]
    Bind { name: String, source: io::Error },
    #[error("cannot set up the TCP connection")]
    Socket(#[source] io::Error),
    #[error("{what} within {} s", timeout.as_secs())]
    Timeout { what: Cow<'static, str>, timeout: Duration },
    #[error("the server at {address} {what}")]
    NoVersion { address: String, what: NoVersion },
    #[error("the SSH handshake with {address} failed")]
    Handshake { address: String, source: Box<russh::Error> },
    /// The server has no algorithm of a `kind` that this client may use. `keyword` sets them in ssh_config and sshd_config.
    #[error("the server at {address} has no {kind} that rlaunch may use, only {theirs}")]
    NoCommonAlgorithm { address: String, kind: &'static str, keyword: &'static str, theirs: String },
    #[error("no known algorithm among `{list}`")]
    Algorithms { keyword: &'static str, list: String },
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
    #[error("{0}")]
    HostKeyChanged(Box<HostKeyChange>),
    #[error("password authentication is disabled to avoid man-in-the-middle attacks: {0}")]
    NoPassword(Box<HostKeyChange>),
    #[error("its host key is marked as revoked in {}:{line}", file.display())]
    HostKeyRevoked { file: PathBuf, line: usize },
    #[error("its host key {shown} is not known, {why}")]
    HostKeyUnknown { shown: String, why: &'static str },
    #[error("its host key {} is not known, and the user was not asked", .0.fingerprint())]
    HostKeyToAsk(Box<NewHostKey>),
    #[error("its host certificate {why}")]
    HostCertificate { why: String, key_id: String },
    #[error("{} may not log in: {}{}", .0.user, .0.why(), .0.words())]
    Refused(Box<LoginRefusal>),
    #[error("it closed the connection after {} of {}'s keys: {}{}", .0.offered, .0.user, .0.list(), .0.words())]
    Disconnected(Box<LoginRefusal>),
    #[error("no login name: uid {uid}, which runs rlaunch, is not in the user database here")]
    NoUser { uid: u32 },
    #[error("the login as {user} was interrupted")]
    Login { user: String, source: Box<russh::Error> },
    #[error("the SSH agent at {} does not answer within {} s", socket.display(), timeout.as_secs())]
    AgentSilent { socket: PathBuf, timeout: Duration },
    #[error("{address} refused to run a command")]
    Channel { address: String, source: Box<russh::Error> },
    #[error("the connection to {address} was lost: {how}")]
    Lost { address: String, how: String },
    #[error("the connection to {address} stalls: {late}")]
    Stalled { address: String, late: Late },
}

/// Address of a host at which a TCP connection was tried.
#[derive(Debug)]
pub struct TriedAddress {
    pub address: SocketAddr,
    /// Why there is no connection; `None` if no answer has come.
    pub error: Option<io::Error>,
}

impl fmt::Display for TriedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error, self.no_version()) {
            (_, Some(what)) => write!(f, "{} {what}", self.address),
            (Some(error), None) => write!(f, "{}: {error}", self.address),
            (None, None) => write!(f, "{} does not answer", self.address),
        }
    }
}

impl TriedAddress {
    /// Returns what came in place of an SSH version, if a TCP connection was made.
    pub(crate) fn no_version(&self) -> Option<&NoVersion> {
        self.error.as_ref()?.get_ref()?.downcast_ref()
    }
}

/// Returns what none of the `tried` addresses has brought in time.
fn awaited(tried: &[TriedAddress]) -> &'static str {
    let accepts = tried.iter().any(|tried| tried.no_version().is_some());
    if accepts { "SSH version" } else { "TCP connection" }
}

/// What a server does in place of sending its SSH version, by which an SSH connection begins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVersion {
    #[error("closes connections before it says anything")]
    Closes,
    #[error("drops connections ({0})")]
    Drops(String),
    #[error("answers, but is no SSH server: {0}")]
    SaysOther(String),
    #[error("takes TCP connections, but says nothing")]
    IsSilent,
}

impl NoVersion {
    /// Classifies the end of a connection on which the server has `said` this line.
    pub(crate) fn of(said: String) -> NoVersion {
        // The reasons that sshd gives. One before 8.3 gives none.
        let reasons = ["Exceeded MaxStartups", SHUT_OUT];
        if said.is_empty() {
            NoVersion::Closes
        } else if reasons.iter().any(|reason| said.starts_with(reason)) {
            NoVersion::Drops(said)
        } else {
            NoVersion::SaysOther(said)
        }
    }

    /// Tells whether a server that does this may serve a later connection.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, NoVersion::Closes | NoVersion::Drops(_))
    }

    fn hint(&self, host: &str) -> String {
        let fewer = "--ssh-fanout 8 makes 8 logins at a time; `MaxStartups 100:30:200` in the \
                     server's sshd_config allows more";
        match self {
            NoVersion::Drops(reason) if reason.starts_with(SHUT_OUT) => format!(
                "its sshd shuts this machine out for a while, as after failed logins \
                 (PerSourcePenalties); the log of sshd on {host} says why"
            ),
            NoVersion::Drops(_) => fewer.to_owned(),
            NoVersion::Closes => format!(
                "perhaps too many connect at once, or a firewall or another program closes them; \
                 the log of sshd on {host} names those that it drops (MaxStartups): {fewer}"
            ),
            NoVersion::SaysOther(_) | NoVersion::IsSilent => format!(
                "another program may have this port, or the name another address; sshd's port is \
                 given by --port or by Port in ~/.ssh/config; `ssh -v {host}` shows what answers"
            ),
        }
    }
}

/// Line of an sshd that serves an address no more for some time.
const SHUT_OUT: &str = "Not allowed at this time";

fn list(tried: &[TriedAddress], separator: &str) -> String {
    tried.iter().map(TriedAddress::to_string).collect::<Vec<_>>().join(separator)
}

/// Host key that differs from the recorded one.
#[derive(Debug, thiserror::Error)]
#[error(
    "its host key has changed: {recorded} is in {}:{line}, the host shows {shown}",
    file.display()
)]
pub struct HostKeyChange {
    /// Name of the host in known-hosts files: `[NAME]:PORT` if the port is not 22.
    pub name: String,
    /// Known-hosts file that has the recorded key.
    pub file: PathBuf,
    /// Line of that file, from 1.
    pub line: usize,
    /// Fingerprint of the recorded key.
    pub recorded: String,
    /// Fingerprint of the key that the host has sent.
    pub shown: String,
}

fn chain_fault(is_loop: bool) -> &'static str {
    if is_loop { "its jump hosts form a loop" } else { "more than 8 jump hosts" }
}

/// How a connection was lost that the server, or something in front of it, has closed.
pub(crate) const CLOSED: &str = "the other end closed it";
/// Line that shows the end of sshd's log; the unit has one of two names.
const SSHD_LOG: &str = "sudo journalctl -u ssh -u sshd -n 20";
/// Names of the lists in a server's key exchange that announce extensions of the protocol.
const EXTENSIONS: [&str; 2] = ["ext-info-s", "kex-strict-s-v00@openssh.com"];

impl SshError {
    /// Makes the error of a handshake that the server at `address`, or this client, has ended.
    pub(crate) fn of_handshake(address: String, source: russh::Error) -> SshError {
        let (kind, theirs) = match source {
            russh::Error::NoCommonAlgo { kind, theirs, .. } => (kind, theirs),
            source => return SshError::Handshake { address, source: Box::new(source) },
        };
        let (kind, keyword) = match kind {
            AlgorithmKind::Kex => ("key exchange", "KexAlgorithms"),
            AlgorithmKind::Key => ("host key algorithm", "HostKeyAlgorithms"),
            AlgorithmKind::Cipher => ("cipher", "Ciphers"),
            AlgorithmKind::Mac => ("MAC", "MACs"),
            AlgorithmKind::Compression => ("compression", "Compression"),
        };
        let theirs = theirs.iter().map(String::as_str).filter(|name| !EXTENSIONS.contains(name));
        let theirs = printable::first_line(&theirs.collect::<Vec<_>>().join(", "));
        SshError::NoCommonAlgorithm { address, kind, keyword, theirs }
    }

    /// Returns advice for the user; `host` is the host's name in it. `None` if there is no advice.
    pub fn hint(&self, host: &str) -> Option<String> {
        match self {
            SshError::Config(error) => error.hint(),
            SshError::KnownHosts(error) => error.hint(),
            SshError::LookUp { name, source } if is_dns_silent(source) => Some(format!(
                "no DNS server answers, so it is not known whether the name exists: `getent hosts {name}` \
                 asks them, /etc/resolv.conf names them; a line in /etc/hosts or a HostName in \
                 ~/.ssh/config needs none"
            )),
            SshError::LookUp { .. } | SshError::NoAddress { .. } => Some(
                "check the spelling, /etc/hosts, or give it a HostName in ~/.ssh/config".into(),
            ),
            SshError::Connect { tried } => connect_hint(host, tried),
            SshError::JumpHost { jump, source } => source.hint(jump),
            SshError::Repeated { last, .. } => last.hint(host),
            SshError::NoVersion { what, .. } => Some(what.hint(host)),
            SshError::JumpChain { .. }
            | SshError::Forward { .. }
            | SshError::NoForwarding { .. }
            | SshError::ProxyStart { .. }
            | SshError::ProxyCommand { .. }
            | SshError::Bind { .. } => self.route_hint(),
            SshError::Timeout { .. } => Some(format!(
                "the host hangs, a firewall drops the packets, or {}; `ssh -v {host}` shows where it \
                 stops; ConnectTimeout in ~/.ssh/config changes the limit",
                only_large_packets(host)
            )),
            SshError::NoAnswer { .. } => Some(format!(
                "a firewall may drop the packets, or the host may be down; `ssh -v {host}` shows where \
                 it stops; ConnectTimeout in ~/.ssh/config changes the limit"
            )),
            // A network that breaks sends no end.
            SshError::Lost { how, .. } if how == CLOSED => Some(format!(
                "its sshd closed it, as it does for an account that may not run this command \
                 (PermitRootLogin forced-commands-only), or when the host goes down: its log says why; on \
                 {host}:\n  {SSHD_LOG}"
            )),
            SshError::Lost { .. } | SshError::Stalled { .. } => Some(format!(
                "the login worked, so something between here and the host breaks or holds connections, \
                 {}, or the host hangs; `ssh {host} date` shows whether it does so each time",
                only_large_packets(host)
            )),
            SshError::Handshake { .. } | SshError::Socket(_) => {
                Some(format!("`ssh -v {host}` shows what the server says"))
            }
            SshError::NoCommonAlgorithm { keyword, .. } => Some(format!(
                "ssh(1) may have it: rlaunch --rsh ssh -H {host} …\n\
                 or allow others, by {keyword} in {host}'s sshd_config, or here in ~/.ssh/config if it \
                 is set there"
            )),
            SshError::Algorithms { keyword, .. } => {
                Some(format!("correct {keyword} in ~/.ssh/config"))
            }
            SshError::HostKeyChanged(_)
            | SshError::NoPassword(_)
            | SshError::HostKeyRevoked { .. }
            | SshError::HostKeyUnknown { .. }
            | SshError::HostKeyToAsk(_)
            | SshError::HostCertificate { .. } => self.host_key_hint(host),
            SshError::Refused(refused) => Some(refused.hint(host)),
            SshError::NoUser { .. }
            | SshError::Disconnected(_)
            | SshError::AgentSilent { .. }
            | SshError::Login { .. }
            | SshError::Channel { .. } => self.login_hint(host),
        }
    }
}

impl SshError {
    /// Returns advice on errors of the host's key.
    fn host_key_hint(&self, host: &str) -> Option<String> {
        match self {
            SshError::HostKeyChanged(change) | SshError::NoPassword(change) => Some(format!(
                "find out why first: another machine may pose as this host; if it was reinstalled:\n  \
                 ssh-keygen -R {} -f {}",
                shell::quoted(change.name.as_ref()),
                shell::quoted(change.file.as_os_str())
            )),
            SshError::HostKeyRevoked { .. } => Some(format!(
                "the key may have been stolen; make new ones on {host}:\n  \
                 sudo rm /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub; sudo ssh-keygen -A"
            )),
            SshError::HostKeyUnknown { .. } | SshError::HostKeyToAsk(_) => Some(format!(
                "connect once by hand and compare the key, which records it: ssh {host}\n\
                 or accept new hosts, by --new-hosts accept or in ~/.ssh/config:\n  Host {host}\n    \
                 StrictHostKeyChecking accept-new"
            )),
            SshError::HostCertificate { key_id, .. } => Some(format!(
                "its authority has to sign a new one (its id is {key_id:?}); on {host}:\n  \
                 ssh-keygen -L -f /etc/ssh/ssh_host_ed25519_key-cert.pub"
            )),
            _ => None,
        }
    }

    /// Returns advice on errors of jump hosts, ProxyCommand and BindAddress.
    fn route_hint(&self) -> Option<String> {
        match self {
            SshError::JumpChain { .. } => Some(
                "`ProxyJump none` in ~/.ssh/config, in the Host block of the jump host that is \
                 reached directly, ends the chain"
                    .into(),
            ),
            SshError::Forward { jump, address, .. } => Some(format!(
                "names are looked up on the jump host: `ssh -W {address} {jump}` shows a line that \
                 begins with SSH- where an sshd listens"
            )),
            SshError::NoForwarding { jump } => Some(format!(
                "`AllowTcpForwarding yes` in {jump}'s sshd_config allows it; no-port-forwarding \
                 in authorized_keys forbids it for one key"
            )),
            SshError::ProxyStart { .. } | SshError::ProxyCommand { .. } => {
                Some("run the command by hand: it must print a line that begins with SSH-".into())
            }
            SshError::Bind { .. } => Some("`ip addr` lists the addresses of this machine".into()),
            _ => None,
        }
    }

    /// Returns advice on logins that failed for another reason than that no key was accepted.
    fn login_hint(&self, host: &str) -> Option<String> {
        match self {
            SshError::Disconnected(refused) if refused.is_outside_of_slurm() => Some(format!(
                "Slurm lets {} log in to {host} only where a job of theirs runs: salloc -w {host}",
                refused.user
            )),
            SshError::Disconnected(refused) => Some(format!(
                "sshd limits how many keys {} may try (MaxAuthTries); name the right one in \
                 ~/.ssh/config:\n  Host {host}\n    IdentityFile ~/.ssh/id_ed25519\n    \
                 IdentitiesOnly yes",
                refused.user
            )),
            SshError::NoUser { .. } => Some(format!(
                "name the account to log in to, where you name the host, as NAME@{host}, or in \
                 ~/.ssh/config:\n  Host {host}\n    User NAME"
            )),
            SshError::AgentSilent { .. } => Some(format!(
                "`ssh-add -l` here shows whether it hangs; it may also wait for a confirmation or for the \
                 touch of a key; without it, in ~/.ssh/config:\n  Host {host}\n    IdentityAgent none"
            )),
            SshError::Login { .. } | SshError::Channel { .. } => {
                Some("the host's sshd log says why (MaxAuthTries, MaxSessions, the account)".into())
            }
            _ => None,
        }
    }
}

/// Tells whether a name was not found because no DNS server has answered.
pub(crate) fn is_dns_silent(source: &io::Error) -> bool {
    // The standard library reports only the text of gai_strerror(3) and no error code. These are the texts of
    // EAI_AGAIN in glibc and in musl.
    let text = source.to_string();
    source.kind() == ErrorKind::TimedOut
        || ["Temporary failure", "Try again"].iter().any(|words| text.contains(words))
}

/// Returns words about a network on which full packets are lost: a switch or a tunnel carries less than the interface
/// sends.
fn only_large_packets(host: &str) -> String {
    format!(
        "only large packets are lost, as by a tunnel or switch that carries less than the MTU of the \
         interface here (`ping -c 3 {host}` is answered, and `ping -c 3 -M do -s 1472 {host}` is not; \
         -s 8972 for an MTU of 9000)"
    )
}

fn connect_hint(host: &str, tried: &[TriedAddress]) -> Option<String> {
    // An address that takes connections says more than one that does not.
    if let Some(what) = tried.iter().find_map(TriedAddress::no_version) {
        return Some(what.hint(host));
    }
    let failed = |tried: &TriedAddress| Some((tried.address, tried.error.as_ref()?.kind()));
    let failed = tried.iter().filter_map(failed);
    // A host that refuses is up, which is more than is known of the other addresses.
    let refuses = |(_, kind): &(SocketAddr, ErrorKind)| *kind == ErrorKind::ConnectionRefused;
    let (address, kind) = failed.clone().find(refuses).or_else(|| failed.clone().next_back())?;
    Some(match kind {
        ErrorKind::ConnectionRefused => format!(
            "no sshd listens on port {}, or a firewall rejects connections; on {host}:\n  \
             sudo systemctl enable --now ssh || sudo systemctl enable --now sshd\n\
             another port is given by --port or by Port in ~/.ssh/config",
            address.port()
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => format!(
            "the host is down, there is no route to it from here, or a firewall rejects \
             connections to port {}; `ping {}` shows whether it is up",
            address.port(),
            address.ip()
        ),
        _ => format!("check that port {} can be reached from here", address.port()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(methods: &[&'static str]) -> LoginRefusal {
        LoginRefusal { user: "me".into(), methods: methods.to_vec(), ..LoginRefusal::default() }
    }

    #[test]
    fn a_login_without_a_name_asks_for_one() {
        let (error, hint) = (SshError::NoUser { uid: 54321 }, "\n  Host j\n    User NAME");
        assert!(error.to_string().contains("uid 54321"), "{error}");
        assert!(error.hint("j").unwrap().ends_with(hint), "{:?}", error.hint("j"));
        let through = SshError::JumpHost { jump: "j".into(), source: Arc::new(error) };
        assert!(through.hint("a").unwrap().contains("NAME@j"), "{:?}", through.hint("a"));
    }

    #[test]
    fn a_refused_login_ends_with_what_to_type() {
        let with_key = LoginRefusal { key: Some("/k".into()), ..refusal(&["publickey"]) };
        let by_password =
            LoginRefusal { key: Some("/k".into()), ..refusal(&["publickey", "password"]) };
        let locked = LoginRefusal { locked: Some("/k".into()), ..refusal(&["publickey"]) };
        let with_agent = LoginRefusal {
            locked: Some("/k".into()),
            has_agent: true,
            ..refusal(&["publickey", "password"])
        };
        for (refusal, advice) in [
            (refusal(&["publickey", "password"]), "\n  rlaunch ssh-setup -H me@a\n"),
            (refusal(&[]), "\n  rlaunch ssh-setup -H me@a\n"),
            (refusal(&["publickey"]), "\n  ssh-keygen -t ed25519\n"),
            (with_key, "add /k.pub to ~me/.ssh/authorized_keys\n"),
            (refusal(&["password"]), "rlaunch does not log in by password"),
            (refusal(&["keyboard-interactive"]), "\n    ControlPath ~/.ssh/%C\n"),
            (refusal(&["hostbased"]), "\n  rlaunch --rsh ssh -H me@a …"),
            (refusal(&["gssapi-with-mic", "hostbased"]), "ssh(1) by gssapi-with-mic and hostbased"),
            (by_password, "\n  ssh-copy-id -i /k.pub me@a\n"),
            (locked, "\n  eval $(ssh-agent) && ssh-add /k\n"),
            (with_agent, "\n  ssh-add /k\n"),
        ] {
            let hint = refusal.hint("a");
            assert!(hint.contains(advice), "{refusal:?}: {hint}");
            let names_another = hint.contains("-H NAME@a");
            assert_eq!(names_another, !refusal.accepts_no_keys(), "{hint}");
        }
    }

    #[test]
    fn what_the_server_says_of_a_refused_login_is_quoted() {
        let words = "Access denied by pam_slurm_adopt: you have no active jobs on this node";
        let closed = SshError::Disconnected(refusal(&[]).into());
        assert!(!closed.to_string().contains("the server says"), "{closed}");
        let closed = LoginRefusal::quoting(closed, Some(words.to_owned()));
        assert!(closed.to_string().ends_with(&format!("; the server says {words:?}")), "{closed}");
        let hint = closed.hint("n1").unwrap();
        assert!(hint.contains("salloc -w n1") && !hint.contains("MaxAuthTries"), "{hint}");
    }

    #[test]
    fn an_account_that_sshd_does_not_let_in_is_in_its_log() {
        let key = Some("/k".into());
        let refused = LoginRefusal { key, ..refusal(&["publickey"]) }.hint("a");
        assert!(refused.contains("AllowUsers, PermitRootLogin"), "{refused}");
        assert!(refused.contains(SSHD_LOG), "{refused}");
        let lost = |how: &str| SshError::Lost { address: "192.0.2.1:22".into(), how: how.into() };
        let closed = lost(CLOSED).hint("a").unwrap();
        assert!(closed.contains(SSHD_LOG) && !closed.contains("MTU"), "{closed}");
        let broken = lost("Connection reset by peer").hint("a").unwrap();
        assert!(broken.contains("something between here and the host"), "{broken}");
    }

    #[test]
    fn a_second_factor_is_left_to_ssh() {
        let tried = vec!["/k (accepted, but the host requires keyboard-interactive too)".into()];
        let key_accepted = true;
        let refusal = LoginRefusal { tried, key_accepted, ..refusal(&["keyboard-interactive"]) };
        let hint = refusal.hint("a");
        assert!(
            hint.starts_with("rlaunch does not answer keyboard-interactive; ssh(1) "),
            "{hint}"
        );
        assert!(hint.ends_with("\n  ssh me@a true && rlaunch --rsh ssh -H me@a …"), "{hint}");
        assert!(!hint.contains("PubkeyAuthentication"), "{hint}");
        let error = SshError::Refused(Box::new(refusal)).to_string();
        assert!(error.starts_with("me may not log in: tried /k (accepted, "), "{error}");
    }

    #[test]
    fn a_server_without_a_common_algorithm_says_what_it_has() {
        let handshake = |kind, theirs: &[&str]| {
            let theirs = theirs.iter().map(|name| (*name).to_owned()).collect();
            let source = russh::Error::NoCommonAlgo { kind, ours: Vec::new(), theirs };
            SshError::of_handshake("192.0.2.1:22".into(), source)
        };
        let kex = ["sntrup761x25519-sha512@openssh.com", "ext-info-s", EXTENSIONS[1]];
        let error = handshake(AlgorithmKind::Kex, &kex);
        assert_eq!(
            error.to_string(),
            "the server at 192.0.2.1:22 has no key exchange that rlaunch may use, only \
             sntrup761x25519-sha512@openssh.com"
        );
        let hint = error.hint("a").unwrap();
        assert!(
            hint.contains("rlaunch --rsh ssh -H a …\nor allow others, by KexAlgorithms"),
            "{hint}"
        );
        let error = handshake(AlgorithmKind::Cipher, &["3des-cbc", "blowfish-cbc"]);
        let sentence = "the server at 192.0.2.1:22 has no cipher that rlaunch may use, only \
                        3des-cbc, blowfish-cbc";
        assert_eq!(error.to_string(), sentence);
        assert!(error.hint("a").unwrap().contains("by Ciphers in a's sshd_config"));
    }

    #[test]
    fn the_hint_is_about_the_address_of_which_most_is_known() {
        let address = |text: &str| text.parse().unwrap();
        let tried = |text, kind: Option<ErrorKind>| TriedAddress {
            address: address(text),
            error: kind.map(io::Error::from),
        };
        let refused = tried("192.0.2.1:22", Some(ErrorKind::ConnectionRefused));
        let unreachable = tried("[2001:db8::1]:22", Some(ErrorKind::NetworkUnreachable));
        let error = SshError::Connect { tried: vec![refused, unreachable] };
        assert!(error.hint("b").unwrap().starts_with("no sshd listens on port 22"));
        let unreachable = tried("[2001:db8::1]:22", Some(ErrorKind::NetworkUnreachable));
        let error = SshError::Connect { tried: vec![unreachable] };
        assert!(error.hint("b").unwrap().contains("`ping 2001:db8::1`"));
    }

    #[test]
    fn a_silent_dns_server_is_told_from_a_wrong_name() {
        let of = |source| SshError::LookUp { name: "x".into(), source }.hint("x").unwrap();
        assert!(of(io::Error::other("Name or service not known")).contains("spelling"));
        for silent in [ErrorKind::TimedOut.into(), io::Error::other("Temporary failure in name")] {
            let hint = of(silent);
            assert!(hint.contains("getent hosts x") && !hint.contains("spelling"), "{hint}");
        }
    }

    #[test]
    fn what_comes_in_place_of_a_version_is_told_apart() {
        let error = |said: &str| {
            let what = NoVersion::of(said.into());
            let may_pass = what.may_pass();
            (SshError::NoVersion { address: "192.0.2.1:22".into(), what }, may_pass)
        };
        for (said, sentence, may_pass, advice) in [
            ("", "closes connections before it says anything", true, "perhaps too many"),
            ("Exceeded MaxStartups", "drops connections (Exceeded MaxStartups)", true, "fanout 8"),
            ("Not allowed at this time", "drops connections (Not allowed", true, "PerSource"),
            ("HTTP/1.1 400 Bad", "is no SSH server: HTTP/1.1 400 Bad", false, "another program"),
        ] {
            let (error, passes) = error(said);
            assert!(error.to_string().contains(sentence), "{error}");
            let hint = error.hint("b").unwrap();
            assert!(hint.contains(advice) && passes == may_pass, "{hint}");
            assert_eq!(
                hint.contains("MaxStartups"),
                advice.contains("many") || advice.contains("fan")
            );
        }
    }
}
