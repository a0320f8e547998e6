//! Keys and certificates that a host is offered, in this order: certificates, keys of the SSH agent that
//! are also configured, other keys of the agent, then key files whose keys are not in the agent.

use crate::config::HostConfig;
use crate::keys::{KeyError, KeyFile, KeyRing, Loaded, certificate};
use russh::keys::agent::AgentIdentity;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, PublicKey};
use std::path::{Path, PathBuf};

/// Public key or certificate that a host is offered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Credential {
    Key(PublicKey),
    Certificate(Box<Certificate>),
    /// Key whose file encrypts the public half as well, so that even offering the key needs the passphrase.
    EncryptedKey,
}

/// Location of the private key, which signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    Agent,
    File(PathBuf),
}

/// Credential to offer, or the reason why it cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Candidate {
    Offer {
        credential: Credential,
        source: KeySource,
        /// Name for errors: a path, or the comment of the agent's key.
        name: String,
    },
    /// Name of a credential that cannot be used, followed by the reason.
    Unusable(String),
}

/// Configured or default key file.
struct KeyEntry {
    path: PathBuf,
    configured: bool,
    loaded: Loaded,
    public: Option<PublicKey>,
}

struct CertificateEntry {
    path: PathBuf,
    /// Key file beside which the certificate was found; `None` if the certificate is configured.
    key_file: Option<PathBuf>,
    read: Result<Certificate, String>,
}

/// Keys and certificates that are configured for a host.
pub(crate) struct Identities {
    keys: Vec<KeyEntry>,
    certificates: Vec<CertificateEntry>,
    only: bool,
}

impl Identities {
    /// Reads the key files and certificates for a host with this configuration.
    pub(crate) fn read(ring: &KeyRing, config: &HostConfig, home: &Path) -> Identities {
        let files = config.identity_files_or_default(home);
        let key = |path: PathBuf| {
            let loaded = ring.load(&path);
            let known = loaded.as_ref().ok().and_then(|key| key.public().cloned());
            let public =
                known.or_else(|| ring.load(&with_suffix(&path, ".pub")).ok()?.public().cloned());
            KeyEntry { configured: config.identity_files.contains(&path), path, loaded, public }
        };
        let configured = config.certificate_files.iter().map(|path| {
            let read = certificate::read(path).unwrap_or_else(|| Err("no such file".to_owned()));
            CertificateEntry { path: path.clone(), key_file: None, read }
        });
        let mut certificates: Vec<CertificateEntry> = configured.collect();
        if certificates.is_empty() {
            certificates.extend(files.iter().filter_map(|file| {
                let path = with_suffix(file, "-cert.pub");
                let read = certificate::read(&path)?;
                Some(CertificateEntry { path, key_file: Some(file.clone()), read })
            }));
        }
        let keys = files.into_iter().map(key).collect();
        Identities { keys, certificates, only: config.identities_only }
    }

    /// Lists all candidates in the order in which they are offered. `held` lists the keys in the SSH agent.
    pub(crate) fn in_order(&self, held: &[AgentIdentity]) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> =
            self.certificates.iter().map(|entry| self.certificate(entry, held)).collect();
        let is_listed = |candidates: &[Candidate], identity: &AgentIdentity| {
            let credential = credential_of(identity);
            candidates.iter().any(
                |c| matches!(c, Candidate::Offer { credential: own, .. } if *own == credential),
            )
        };
        let (configured, others): (Vec<_>, Vec<_>) =
            held.iter().partition(|identity| self.is_configured(identity));
        let others = others.into_iter().filter(|_| !self.only);
        for identity in configured.into_iter().chain(others) {
            if !is_listed(&candidates, identity) {
                let name = agent_name(identity);
                let credential = credential_of(identity);
                candidates.push(Candidate::Offer { credential, source: KeySource::Agent, name });
            }
        }
        candidates.extend(self.keys.iter().filter_map(|key| key.candidate(held)));
        candidates
    }

    fn certificate(&self, entry: &CertificateEntry, held: &[AgentIdentity]) -> Candidate {
        let name = entry.path.display().to_string();
        let certificate = match &entry.read {
            Ok(certificate) => certificate,
            Err(why) => return Candidate::Unusable(format!("{name} ({why})")),
        };
        let subject = certificate.public_key();
        let in_file = || {
            let matches_certificate = |key: &&KeyEntry| match &key.public {
                Some(public) => public.key_data() == subject,
                None => entry.key_file.as_ref() == Some(&key.path),
            };
            let usable = |key: &&KeyEntry| match &key.loaded {
                Ok(file) => !matches!(**file, KeyFile::Public(_)),
                Err(_) => false,
            };
            self.keys
                .iter()
                .filter(usable)
                .find(matches_certificate)
                .map(|key| KeySource::File(key.path.clone()))
        };
        let source = if holds(held, subject) { Some(KeySource::Agent) } else { in_file() };
        match source {
            Some(source) => {
                let credential = Credential::Certificate(Box::new(certificate.clone()));
                Candidate::Offer { credential, source, name }
            }
            None => Candidate::Unusable(format!(
                "{name} (its key is neither in a file nor in an agent)"
            )),
        }
    }

    fn is_configured(&self, identity: &AgentIdentity) -> bool {
        let AgentIdentity::PublicKey { key, .. } = identity else { return false };
        let is_it =
            |k: &KeyEntry| k.public.as_ref().is_some_and(|p| p.key_data() == key.key_data());
        self.keys.iter().any(is_it)
    }
}

impl KeyEntry {
    /// Returns the candidate for this key file. `None` if the SSH agent has the key, or if a default file
    /// is missing.
    fn candidate(&self, held: &[AgentIdentity]) -> Option<Candidate> {
        let name = self.path.display().to_string();
        if self.public.as_ref().is_some_and(|public| holds(held, public.key_data())) {
            return None;
        }
        let unusable = |why: &KeyError| Some(Candidate::Unusable(format!("{name} ({why})")));
        match &self.loaded {
            Err(KeyError::Missing) if !self.configured => None,
            Err(why) => unusable(why),
            Ok(file) if matches!(**file, KeyFile::Public(_)) => unusable(&KeyError::PublicOnly),
            Ok(_) => {
                let credential =
                    self.public.clone().map_or(Credential::EncryptedKey, Credential::Key);
                Some(Candidate::Offer {
                    credential,
                    source: KeySource::File(self.path.clone()),
                    name,
                })
            }
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn holds(held: &[AgentIdentity], key: &KeyData) -> bool {
    held.iter().any(|identity| identity.public_key().key_data() == key)
}

fn credential_of(identity: &AgentIdentity) -> Credential {
    match identity {
        AgentIdentity::PublicKey { key, .. } => Credential::Key(key.clone()),
        AgentIdentity::Certificate { certificate, .. } => {
            Credential::Certificate(Box::new(certificate.clone()))
        }
    }
}

fn agent_name(identity: &AgentIdentity) -> String {
    match identity {
        AgentIdentity::PublicKey { comment, .. } => format!("{comment} (agent)"),
        AgentIdentity::Certificate { comment, .. } => format!("{comment} (agent's certificate)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use std::sync::Arc;

    fn private(seed: u8) -> PrivateKey {
        PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
    }

    fn file(name: &str, seed: u8) -> KeyEntry {
        let key = private(seed);
        let public = Some(key.public_key().clone());
        let loaded = Ok(Arc::new(KeyFile::Plain(Arc::new(key))));
        KeyEntry { path: name.into(), configured: true, loaded, public }
    }

    fn held(seed: u8) -> AgentIdentity {
        let key = PublicKey::new(private(seed).public_key().key_data().clone(), "");
        AgentIdentity::PublicKey { key, comment: format!("k{seed}") }
    }

    fn names(keys: Vec<KeyEntry>, agent: &[AgentIdentity], only: bool) -> Vec<String> {
        let identities = Identities { keys, certificates: Vec::new(), only };
        let name = |candidate| match candidate {
            Candidate::Offer { name, .. } => name,
            Candidate::Unusable(why) => format!("not {why}"),
        };
        identities.in_order(agent).into_iter().map(name).collect()
    }

    #[test]
    fn configured_keys_come_first_and_nothing_comes_twice() {
        let files = || vec![file("/a", 1), file("/b", 2)];
        let agent = [held(3), held(2)];
        assert_eq!(names(files(), &agent, false), ["k2 (agent)", "k3 (agent)", "/a"]);
        assert_eq!(names(files(), &agent, true), ["k2 (agent)", "/a"]);
        assert_eq!(names(files(), &[], true), ["/a", "/b"]);
    }

    #[test]
    fn files_that_are_of_no_use_say_why() {
        let broken = |path: &str, configured, why| KeyEntry {
            path: path.into(),
            configured,
            loaded: Err(why),
            public: None,
        };
        let exposed = broken("/e", false, KeyError::Exposed("/e".into()));
        let missing = broken("/m", false, KeyError::Missing);
        let wanted = broken("/w", true, KeyError::Missing);
        let public = PublicKey::new(private(5).public_key().key_data().clone(), "");
        let half = KeyEntry {
            path: "/p".into(),
            configured: true,
            loaded: Ok(Arc::new(KeyFile::Public(public.clone()))),
            public: Some(public),
        };
        let said = names(vec![exposed, missing, wanted, half], &[], false);
        let expected = [
            "not /e (not used, others may read it: chmod 600 /e)",
            "not /w (no such file)",
            "not /p (a public key, and no agent holds its private half)",
        ];
        assert_eq!(said, expected);
    }
}
