//! Expansion of `%` tokens, `${VARIABLES}` and `~` in values.

use std::env;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, gethostname};
use ring::digest;

use super::{HostConfig, IdentityAgent, Proxy};

/// Data about the local user and this machine to which `~` and tokens expand.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) home: PathBuf,
    /// Name of the account; `None` if it has none.
    pub(super) user: Option<String>,
    pub(super) uid: String,
    pub(super) hostname: String,
}

impl Local {
    pub(super) fn current() -> Self {
        let uid = Uid::current();
        Self {
            home: env::home_dir().unwrap_or_else(|| PathBuf::from("/")),
            user: user_name(uid),
            uid: uid.to_string(),
            hostname: gethostname().map_or_else(|_| String::new(), |n| n.to_string_lossy().into()),
        }
    }

    /// Returns the name of the account for tokens; its uid if it has none.
    fn name(&self) -> String {
        self.user.as_ref().unwrap_or(&self.uid).clone()
    }
}

/// Returns the name of an account. `None` if the user database has none, as in a container that runs under any uid. USER
/// and HOME are then those of the image, often root's, so that ssh(1) goes by neither.
fn user_name(uid: Uid) -> Option<String> {
    match User::from_uid(uid) {
        Ok(user) => user.map(|user| user.name),
        // The database does not answer.
        Err(_) => env::var("USER").ok().filter(|name| name != "root"),
    }
}

/// Context in which the values of a host's configuration are expanded.
pub(super) struct Scope<'a> {
    pub(super) local: &'a Local,
    pub(super) alias: &'a str,
    /// Configuration with the host name, port, user and key alias to which tokens expand. `None` while
    /// files are only checked for mistakes.
    pub(super) target: Option<&'a HostConfig>,
}

impl Scope<'_> {
    fn token(&self, token: char, target: &HostConfig) -> Option<String> {
        Some(match token {
            '%' => "%".to_owned(),
            'h' => target.hostname.clone(),
            'n' => self.alias.to_owned(),
            'k' => target.host_key_alias.clone().unwrap_or_else(|| self.alias.to_owned()),
            'p' => target.port.unwrap_or(super::DEFAULT_PORT).to_string(),
            'r' => target.user.clone().unwrap_or_else(|| self.local.name()),
            'u' => self.local.name(),
            'd' => self.local.home.to_string_lossy().into_owned(),
            'i' => self.local.uid.clone(),
            'l' => self.local.hostname.clone(),
            'L' => self.local.hostname.split('.').next().unwrap_or_default().to_owned(),
            'j' => match &target.proxy {
                Proxy::Jump(hops) => hops.last().map_or_else(String::new, |hop| hop.host.clone()),
                Proxy::Direct | Proxy::Command(_) => String::new(),
            },
            'C' => self.connection_hash(target)?,
            _ => return None,
        })
    }

    /// Expands `%C`: the SHA-1 of `%l%h%p%r%j` in hexadecimal, a short name of the connection.
    fn connection_hash(&self, target: &HostConfig) -> Option<String> {
        let parts: Option<String> =
            ['l', 'h', 'p', 'r', 'j'].into_iter().map(|token| self.token(token, target)).collect();
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, parts?.as_bytes());
        Some(hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Expands the tokens, such as `%h`, whose letters are in `allowed`, and environment variables, such as
    /// `${HOME}`, if `allowed` has a `$`. Returns an error for other tokens and for unset variables.
    pub(super) fn expand(&self, text: &str, allowed: &str) -> Result<String, String> {
        let Some(target) = self.target else {
            // While files are only checked for mistakes, any value will do; "1" is valid for all keywords,
            // even as a port.
            let known = !text.contains(['%', '$']);
            return Ok(if known { text.to_owned() } else { "1".into() });
        };
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['%', '$']) {
            out.push_str(&rest[..at]);
            let sign = &rest[at..=at];
            rest = &rest[at + 1..];
            if sign == "$" {
                let Some(named) = rest.strip_prefix('{').filter(|_| allowed.contains('$')) else {
                    out.push('$');
                    continue;
                };
                let (name, after) = named.split_once('}').ok_or("`${` is not closed")?;
                out += &env::var(name).map_err(|_| format!("${{{name}}} is not set"))?;
                rest = after;
            } else {
                let token = rest.chars().next().ok_or("`%` at the end: write %%")?;
                let known = token == '%' || allowed.contains(token);
                let value = known.then(|| self.token(token, target)).flatten();
                out += &value.ok_or_else(|| format!("%{token} cannot be used here"))?;
                rest = &rest[token.len_utf8()..];
            }
        }
        Ok(out + rest)
    }

    /// Expands a value of `HostName`, in which `%h` is the name that the user gave.
    pub(super) fn hostname(&self, text: &str) -> Result<String, String> {
        let given = HostConfig { hostname: self.alias.to_owned(), ..HostConfig::default() };
        let scope = Scope { target: Some(&given), ..*self };
        scope.expand(text, "h").map(|name| lower(&name))
    }

    pub(super) fn path(&self, text: &str) -> Result<PathBuf, String> {
        let expanded = self.expand(text, "ChijkLlnprud$")?;
        tilde(&expanded, &self.local.home)
    }

    /// Expands a list of paths; the list may also be the single word `none`.
    pub(super) fn paths(&self, args: &[String]) -> Result<Vec<PathBuf>, String> {
        match args {
            [none] if none.eq_ignore_ascii_case("none") => Ok(Vec::new()),
            _ if args.iter().any(|arg| arg.eq_ignore_ascii_case("none")) => {
                Err("`none` cannot be combined with other files".into())
            }
            _ => args.iter().map(|arg| self.path(arg)).collect(),
        }
    }

    /// Parses a value of `IdentityAgent`: `none`, a variable such as `$SOCKET`, or a path.
    pub(super) fn agent(&self, text: &str) -> Result<IdentityAgent, String> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(IdentityAgent::None);
        }
        if matches!(text, "SSH_AUTH_SOCK" | "$SSH_AUTH_SOCK") {
            return Ok(IdentityAgent::Environment);
        }
        Ok(match text.strip_prefix('$') {
            Some(name) if !name.starts_with('{') => {
                env::var_os(name).map_or(IdentityAgent::None, |p| IdentityAgent::Socket(p.into()))
            }
            _ => IdentityAgent::Socket(self.path(text)?),
        })
    }
}

/// Returns a host name in lower case; an address with a zone (`fe80::1%Eth0`) stays as it is.
pub(super) fn lower(name: &str) -> String {
    if name.contains('%') { name.to_owned() } else { name.to_ascii_lowercase() }
}

/// Replaces a leading `~` by `home`, and a leading `~user` by the home directory of that user.
pub(super) fn tilde(path: &str, home: &Path) -> Result<PathBuf, String> {
    let Some(rest) = path.strip_prefix('~') else { return Ok(PathBuf::from(path)) };
    let (user, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let home = match user {
        "" => home.to_owned(),
        name => match User::from_name(name) {
            Ok(Some(user)) => user.dir,
            _ => return Err(format!("there is no user `{name}` here")),
        },
    };
    Ok(home.join(rest.trim_start_matches('/')))
}
