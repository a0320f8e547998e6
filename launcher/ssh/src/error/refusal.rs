//! Logins that hosts refuse.

use super::{SSHD_LOG, SshError};
use std::path::PathBuf;

/// Login that the host refused.
#[derive(Debug, Default)]
pub struct LoginRefusal {
    /// Login name.
    pub user: String,
    /// Names of the keys and certificates that were tried. The name of one that could not be used is
    /// followed by the reason.
    pub tried: Vec<String>,
    /// Number of keys and certificates that were offered to the host.
    pub offered: usize,
    /// Login methods that the host accepts; empty if the host has not said.
    pub methods: Vec<&'static str>,
    /// Whether the host has accepted a key, but requires one of the methods too.
    pub key_accepted: bool,
    /// First key file that was offered.
    pub key: Option<PathBuf>,
    /// First key file that could not be used without its passphrase.
    pub locked: Option<PathBuf>,
    /// Whether an SSH agent answered.
    pub has_agent: bool,
    /// What the server has sent for the user to read, in one line.
    pub said: Option<String>,
}

impl LoginRefusal {
    /// Tells whether the host has said that it accepts no keys at all.
    pub fn accepts_no_keys(&self) -> bool {
        !self.methods.is_empty() && !self.methods.contains(&"publickey")
    }

    /// Tells whether the host may accept a password, as it does if it has not said.
    fn accepts_passwords(&self) -> bool {
        let is_password = |method: &&str| ["password", "keyboard-interactive"].contains(method);
        self.methods.is_empty() || self.methods.iter().any(is_password)
    }

    /// Tells whether the server refuses the user because no job of a batch system is theirs there.
    pub(super) fn is_outside_of_slurm(&self) -> bool {
        self.said.as_ref().is_some_and(|said| said.contains("pam_slurm"))
    }

    /// Adds what the server has said meanwhile to the error of a login.
    pub(crate) fn quoting(error: SshError, said: Option<String>) -> SshError {
        match error {
            SshError::Refused(refused) => {
                SshError::Refused(Box::new(LoginRefusal { said, ..*refused }))
            }
            SshError::Disconnected(refused) => {
                SshError::Disconnected(Box::new(LoginRefusal { said, ..*refused }))
            }
            other => other,
        }
    }

    /// Returns the methods as text: `password and keyboard-interactive`.
    pub fn method_list(&self) -> String {
        self.methods.join(" and ")
    }

    pub(super) fn list(&self) -> String {
        match (&self.tried[..], self.has_agent) {
            ([], true) => "there is no key to try, no file and none in the SSH agent".to_owned(),
            ([], false) => "there is no key to try, no file and no SSH agent".to_owned(),
            (tried, _) => format!("tried {}", tried.join(", ")),
        }
    }

    /// Returns the server's own words as the end of a sentence; empty if there are none.
    pub(super) fn words(&self) -> String {
        self.said.as_ref().map(|said| format!("; the server says {said:?}")).unwrap_or_default()
    }

    pub(super) fn why(&self) -> String {
        if self.accepts_no_keys() && !self.key_accepted {
            return format!(
                "the host accepts no keys, only {}; {}",
                self.method_list(),
                self.list()
            );
        }
        self.list()
    }

    /// Returns advice for a host that does not let a key alone in.
    fn more_than_keys_hint(&self, host: &str) -> String {
        let (user, methods) = (&self.user, self.method_list());
        let run = format!("rlaunch --rsh ssh -H {user}@{host} …");
        if !self.accepts_passwords() {
            return format!("rlaunch logs in by keys alone, ssh(1) by {methods} as well:\n  {run}");
        }
        let by_ssh = format!(
            "ssh(1) asks for it once, and rlaunch runs over that login, with these lines in \
             ~/.ssh/config:\n  Host {host}\n    ControlMaster auto\n    ControlPath ~/.ssh/%C\n    \
             ControlPersist 8h\nthen, here:\n  ssh {user}@{host} true && {run}"
        );
        if self.key_accepted {
            return format!("rlaunch does not answer {methods}; {by_ssh}");
        }
        format!(
            "rlaunch does not log in by password; let sshd on {host} accept keys as well:\n  \
             echo PubkeyAuthentication yes | sudo tee /etc/ssh/sshd_config.d/10-keys.conf\n  \
             sudo systemctl reload ssh || sudo systemctl reload sshd\n\
             then, here: rlaunch ssh-setup -H {user}@{host}\n\
             or, if a password of the moment is what it wants, {by_ssh}"
        )
    }

    pub(super) fn hint(&self, host: &str) -> String {
        let user = &self.user;
        if self.accepts_no_keys() || self.key_accepted {
            return self.more_than_keys_hint(host);
        }
        let other = format!("another account is named by -H NAME@{host}");
        if let Some(locked) = &self.locked {
            let start = if self.has_agent { "" } else { "eval $(ssh-agent) && " };
            return format!("unlock the key here:\n  {start}ssh-add {}\n{other}", locked.display());
        }
        let Some(key) = &self.key else {
            return if self.accepts_passwords() {
                format!(
                    "make a key and install it there, by the password of {user}:\n  \
                     rlaunch ssh-setup -H {user}@{host}\n{other}"
                )
            } else {
                format!(
                    "the host accepts no passwords: make a key here, and let its administrator add \
                     the .pub file to ~{user}/.ssh/authorized_keys there:\n  \
                     ssh-keygen -t ed25519\n{other}"
                )
            };
        };
        let key = key.display();
        let install = if self.accepts_passwords() {
            format!("by the password of {user}:\n  ssh-copy-id -i {key}.pub {user}@{host}\n")
        } else {
            format!(
                "which its administrator does, since the host accepts no passwords: add {key}.pub to \
                 ~{user}/.ssh/authorized_keys\n"
            )
        };
        format!(
            "install a key there, {install}if it is there already, sshd refuses it while others may \
             write to it; on {host}:\n  chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys\n\
             or while it does not let {user} in, or no keys of this kind (AllowUsers, PermitRootLogin, \
             PubkeyAcceptedAlgorithms), which its log says; on {host}:\n  {SSHD_LOG}\n{other}"
        )
    }
}
