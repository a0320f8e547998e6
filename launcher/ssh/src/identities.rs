//! What could prove who we are, in the order in which it is offered.
//!
//! Certificates come first, then keys of the agent that are also configured, its other keys, and
//! the key files that the agent does not hold.

use super::certificate;
use super::config::HostConfig;
use super::key_ring::{KeyRing, Loaded};
use super::keys::{KeyError, KeyFile};
use russh::keys::agent::AgentIdentity;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, PublicKey, load_public_key};
use std::path::{Path, PathBuf};

/// What a host is shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Proof {
    Key(PublicKey),
    Certificate(Box<Certificate>),
    /// A key whose public half its passphrase guards as well.
    Sealed,
}

/// Who signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Agent,
    File(PathBuf),
}

/// One thing to try.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Candidate {
    Offer {
        proof: Proof,
        place: Place,
        name: String,
    },
    /// It is of no use, and this says why.
    Useless(String),
}

/// A configured key file, or one of those that are looked for anyway.
struct KeyEntry {
    path: PathBuf,
    configured: bool,
    loaded: Loaded,
    public: Option<PublicKey>,
}

/// A certificate file.
struct CertificateEntry {
    path: PathBuf,
    /// The key file beside which it was found.
    of: Option<PathBuf>,
    read: Result<Certificate, String>,
}

/// What there is for a host.
pub(crate) struct Identities {
    keys: Vec<KeyEntry>,
    certificates: Vec<CertificateEntry>,
    only: bool,
}

impl Identities {
    /// Reads the files that count for a host.
    pub(crate) fn read(ring: &KeyRing, config: &HostConfig, home: &Path) -> Identities {
        let files = config.identity_files_or_default(home);
        let key = |path: PathBuf| {
            let loaded = ring.load(&path);
            let known = loaded.as_ref().ok().and_then(|key| key.public().cloned());
            let public = known.or_else(|| load_public_key(with_suffix(&path, ".pub")).ok());
            KeyEntry { configured: config.identity_files.contains(&path), path, loaded, public }
        };
        let configured = config.certificate_files.iter().map(|path| {
            let read = certificate::read(path).unwrap_or_else(|| Err("not there".to_owned()));
            CertificateEntry { path: path.clone(), of: None, read }
        });
        let mut certificates: Vec<CertificateEntry> = configured.collect();
        if certificates.is_empty() {
            certificates.extend(files.iter().filter_map(|file| {
                let path = certificate::beside(file);
                let read = certificate::read(&path)?;
                Some(CertificateEntry { path, of: Some(file.clone()), read })
            }));
        }
        let keys = files.into_iter().map(key).collect();
        Identities { keys, certificates, only: config.identities_only }
    }

    /// All candidates, given what the agent holds.
    pub(crate) fn in_order(&self, held: &[AgentIdentity]) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> =
            self.certificates.iter().map(|entry| self.certificate(entry, held)).collect();
        let shown = |candidates: &[Candidate], identity: &AgentIdentity| {
            let proof = proof_of(identity);
            candidates.iter().any(|c| matches!(c, Candidate::Offer { proof: p, .. } if *p == proof))
        };
        let (configured, others): (Vec<_>, Vec<_>) =
            held.iter().partition(|identity| self.is_configured(identity));
        let others = others.into_iter().filter(|_| !self.only);
        for identity in configured.into_iter().chain(others) {
            if !shown(&candidates, identity) {
                let name = agent_name(identity);
                let proof = proof_of(identity);
                candidates.push(Candidate::Offer { proof, place: Place::Agent, name });
            }
        }
        candidates.extend(self.keys.iter().filter_map(|key| key.candidate(held)));
        candidates
    }

    fn certificate(&self, entry: &CertificateEntry, held: &[AgentIdentity]) -> Candidate {
        let name = entry.path.display().to_string();
        let certificate = match &entry.read {
            Ok(certificate) => certificate,
            Err(why) => return Candidate::Useless(format!("{name} ({why})")),
        };
        let subject = certificate.public_key();
        let in_file = || {
            let of = |key: &&KeyEntry| match &key.public {
                Some(public) => public.key_data() == subject,
                None => entry.of.as_ref() == Some(&key.path),
            };
            let usable = |key: &&KeyEntry| match &key.loaded {
                Ok(file) => !matches!(**file, KeyFile::Public(_)),
                Err(_) => false,
            };
            self.keys.iter().filter(usable).find(of).map(|key| Place::File(key.path.clone()))
        };
        let place = if holds(held, subject) { Some(Place::Agent) } else { in_file() };
        match place {
            Some(place) => {
                let proof = Proof::Certificate(Box::new(certificate.clone()));
                Candidate::Offer { proof, place, name }
            }
            None => Candidate::Useless(format!("{name} (its key is in no file and in no agent)")),
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
    /// `None` where the agent holds it, or where nobody has said that it should be there.
    fn candidate(&self, held: &[AgentIdentity]) -> Option<Candidate> {
        let name = self.path.display().to_string();
        if self.public.as_ref().is_some_and(|public| holds(held, public.key_data())) {
            return None;
        }
        let useless = |why: &KeyError| Some(Candidate::Useless(format!("{name} ({why})")));
        match &self.loaded {
            Err(KeyError::Missing) if !self.configured => None,
            Err(why) => useless(why),
            Ok(file) if matches!(**file, KeyFile::Public(_)) => useless(&KeyError::PublicOnly),
            Ok(_) => {
                let proof = self.public.clone().map_or(Proof::Sealed, Proof::Key);
                Some(Candidate::Offer { proof, place: Place::File(self.path.clone()), name })
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

fn proof_of(identity: &AgentIdentity) -> Proof {
    match identity {
        AgentIdentity::PublicKey { key, .. } => Proof::Key(key.clone()),
        AgentIdentity::Certificate { certificate, .. } => {
            Proof::Certificate(Box::new(certificate.clone()))
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
        let loaded = Ok(Arc::new(KeyFile::Open(Arc::new(key))));
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
            Candidate::Useless(why) => format!("not {why}"),
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
            "not /w (not there)",
            "not /p (a public key, and no agent holds its private half)",
        ];
        assert_eq!(said, expected);
    }
}
