//! Logging in: one proof after the other, until the host takes one.

use super::algorithms::Accepted;
use super::certificate;
use super::config::{HostConfig, IdentityAgent};
use super::error::{Refused, SshError};
use super::host_key::Client;
use super::identities::{Candidate, Identities, Place, Proof};
use super::key_ring::KeyRing;
use super::keys::KeyError;
use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_encoding::Encode;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::ssh_key::{Signature, public::KeyData};
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey, signature};
use russh::{AgentAuthError, MethodKind, MethodSet, SendError, Signer};
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

type Agent = AgentClient<UnixStream>;

/// Why a key is not offered that could be.
const UNWANTED: &str = "not among PubkeyAcceptedAlgorithms";

/// One login in progress.
struct Attempt<'a> {
    ring: &'a KeyRing,
    handle: &'a mut Handle<Client>,
    accepted: Accepted<'a>,
    refused: Refused,
    /// The strongest hash that the server takes from RSA keys, asked for once; `Some(None)` when
    /// it does not say.
    rsa_hash: Option<Option<Option<HashAlg>>>,
}

impl KeyRing {
    /// Logs in as `user`, or says what was tried.
    pub(crate) async fn log_in(
        &self,
        handle: &mut Handle<Client>,
        user: &str,
        config: &HostConfig,
        home: &Path,
    ) -> Result<(), SshError> {
        let mut agent = connect(&config.identity_agent, handle).await;
        let held = match &mut agent {
            Some(agent) => agent.request_identities().await.unwrap_or_default(),
            None => Vec::new(),
        };
        let candidates = Identities::read(self, config, home).in_order(&held);
        let accepted = Accepted::by(config.pubkey_accepted_algorithms.as_deref());
        let refused = Refused { user: user.to_owned(), ..Refused::default() };
        let mut attempt = Attempt { ring: self, handle, accepted, refused, rsa_hash: None };
        for candidate in candidates {
            match candidate {
                Candidate::Useless(why) => attempt.refused.tried.push(why),
                Candidate::Offer { proof, place, name } => {
                    if attempt.offer(&proof, &place, &name, agent.as_mut()).await? {
                        return Ok(());
                    }
                    if attempt.refused.takes_no_keys() {
                        break;
                    }
                }
            }
        }
        attempt.give_up().await
    }
}

/// The agent, if there is one that answers. It is told whom this is about: it may hold keys that are
/// for some hosts alone.
async fn connect(agent: &IdentityAgent, handle: &Handle<Client>) -> Option<Agent> {
    let socket = match agent {
        IdentityAgent::None => None,
        IdentityAgent::Environment => std::env::var_os("SSH_AUTH_SOCK").map(PathBuf::from),
        IdentityAgent::Socket(path) => Some(path.clone()),
    }?;
    let Ok(mut agent) = AgentClient::<UnixStream>::connect_uds(&socket).await else {
        tracing::debug!(socket = %socket.display(), "no agent answers");
        return None;
    };
    if let Some(binding) = handle.agent_session_binding() {
        // Agents that know nothing of it say so, and hold no such keys.
        let _ = agent.bind_session(binding, false).await;
    }
    Some(agent)
}

impl Attempt<'_> {
    /// Offers one proof; whether it let us in.
    async fn offer(
        &mut self,
        proof: &Proof,
        place: &Place,
        name: &str,
        agent: Option<&mut Agent>,
    ) -> Result<bool, SshError> {
        let key = match (proof, place) {
            (Proof::Key(key), _) => key.clone(),
            (Proof::Certificate(certificate), _) => {
                PublicKey::new(certificate.public_key().clone(), "")
            }
            (Proof::Sealed, Place::Agent) => return Ok(false),
            (Proof::Sealed, Place::File(file)) => match self.ring.private(file).await {
                Ok(key) => key.public_key().clone(),
                Err(why) => return Ok(self.useless(name, &why)),
            },
        };
        let is_certificate = matches!(proof, Proof::Certificate(_));
        let hash = match self.signature_hash(key.key_data(), is_certificate).await? {
            Ok(hash) => hash,
            Err(why) => return Ok(self.useless(name, why)),
        };
        let mut holder = match (place, agent) {
            (Place::Agent, Some(agent)) => Holder::Agent(agent),
            (Place::Agent, None) => return Ok(false),
            (Place::File(file), _) => {
                self.refused.key.get_or_insert_with(|| file.clone());
                Holder::File(self.ring, file)
            }
        };
        self.refused.offered += 1;
        let (handle, user) = (&mut *self.handle, self.refused.user.clone());
        let answer = match proof {
            Proof::Certificate(certificate) => {
                let certificate = Certificate::clone(certificate);
                handle.authenticate_certificate_with(user, certificate, hash, &mut holder).await
            }
            Proof::Key(_) | Proof::Sealed => {
                handle.authenticate_publickey_with(user, key, hash, &mut holder).await
            }
        };
        match answer {
            Ok(AuthResult::Success) => Ok(true),
            Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
                self.failed(proof, name, &remaining_methods, partial_success)
            }
            Err(SignError::Gone(_)) => Err(self.hung_up(name)),
            Err(why) => Ok(self.useless(name, &why)),
        }
    }

    fn useless(&mut self, name: &str, why: impl std::fmt::Display) -> bool {
        self.refused.tried.push(format!("{name} ({why})"));
        false
    }

    fn failed(
        &mut self,
        proof: &Proof,
        name: &str,
        remaining: &MethodSet,
        partly: bool,
    ) -> Result<bool, SshError> {
        // A server always names a way to go on, unless it has gone itself.
        if remaining.is_empty() {
            return Err(self.hung_up(name));
        }
        self.refused.methods = methods(remaining);
        let wanted = || format!("accepted, but the host wants {} too", self.refused.ways());
        let shortcoming = match proof {
            _ if partly => Some(wanted()),
            Proof::Certificate(certificate) => {
                certificate::shortcoming(certificate, &self.refused.user, certificate::now())
            }
            Proof::Key(_) | Proof::Sealed => None,
        };
        match shortcoming {
            Some(why) => Ok(self.useless(name, why)),
            None => {
                self.refused.tried.push(name.to_owned());
                Ok(false)
            }
        }
    }

    fn hung_up(&mut self, name: &str) -> SshError {
        self.refused.tried.push(name.to_owned());
        SshError::HungUp(std::mem::take(&mut self.refused).into())
    }

    /// Nothing is left to offer. What the host would take instead is asked for if it is not known.
    async fn give_up(mut self) -> Result<(), SshError> {
        if self.refused.methods.is_empty() {
            let user = self.refused.user.clone();
            match self.handle.authenticate_none(user).await.map_err(|e| self.broke(e))? {
                AuthResult::Success => return Ok(()),
                AuthResult::Failure { remaining_methods, .. } => {
                    self.refused.methods = methods(&remaining_methods);
                }
            }
        }
        Err(SshError::Refused(self.refused.into()))
    }

    fn broke(&self, source: russh::Error) -> SshError {
        SshError::Login { user: self.refused.user.clone(), source: Box::new(source) }
    }

    /// The hash to sign with, which only RSA keys have a choice of; or why this key cannot be used.
    async fn signature_hash(
        &mut self,
        key: &KeyData,
        is_certificate: bool,
    ) -> Result<Result<Option<HashAlg>, &'static str>, SshError> {
        let accepted = self.accepted;
        let allows = |algorithm: &Algorithm| {
            if is_certificate {
                accepted.allows(&algorithm.to_certificate_type())
            } else {
                accepted.allows(algorithm.as_str())
            }
        };
        if !matches!(key.algorithm(), Algorithm::Rsa { .. }) {
            return Ok(if allows(&key.algorithm()) { Ok(None) } else { Err(UNWANTED) });
        }
        let strongest = match self.rsa_hash {
            Some(known) => known,
            None => {
                let asked = self.handle.best_supported_rsa_hash().await;
                *self.rsa_hash.insert(asked.map_err(|error| self.broke(error))?)
            }
        };
        let strength = |hash| match hash {
            Some(HashAlg::Sha512) => 2,
            Some(_) => 1,
            None => 0,
        };
        let taken = |hash| strongest.is_none_or(|strongest| strength(hash) <= strength(strongest));
        let hashes = [Some(HashAlg::Sha512), Some(HashAlg::Sha256), None];
        let usable =
            |hash: &Option<HashAlg>| taken(*hash) && allows(&Algorithm::Rsa { hash: *hash });
        let why = match strongest {
            Some(None) => {
                "the host takes RSA keys by SHA-1 alone: PubkeyAcceptedAlgorithms +ssh-rsa"
            }
            _ => UNWANTED,
        };
        Ok(hashes.into_iter().find(usable).ok_or(why))
    }
}

fn methods(set: &MethodSet) -> Vec<&'static str> {
    set.iter().map(<&'static str>::from).filter(|m| *m != <&str>::from(&MethodKind::None)).collect()
}

/// Whoever holds the private half of a key; asked only when the host has said that it takes it.
enum Holder<'a> {
    Agent(&'a mut Agent),
    File(&'a KeyRing, &'a Path),
}

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error("the connection is gone")]
    Gone(#[from] SendError),
    #[error("the agent does not sign: {0}")]
    Agent(AgentAuthError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot sign with it: {0}")]
    Sign(String),
}

impl Signer for Holder<'_> {
    type Error = SignError;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        match self {
            Holder::Agent(agent) => {
                agent.auth_sign(key, hash, to_sign).await.map_err(SignError::Agent)
            }
            Holder::File(ring, file) => {
                let private = ring.private(file).await?;
                signed(&private, hash, to_sign).map_err(|error| SignError::Sign(error.to_string()))
            }
        }
    }
}

/// A message with its signature behind it.
fn signed(
    key: &PrivateKey,
    hash: Option<HashAlg>,
    mut message: Vec<u8>,
) -> Result<Vec<u8>, signature::Error> {
    use signature::Signer as _;
    let signature: Signature = match key.key_data() {
        KeypairData::Rsa(pair) => (pair, hash).try_sign(&message)?,
        pair => pair.try_sign(&message)?,
    };
    let encoded = signature.encode_vec().and_then(|bytes| bytes.encode(&mut message));
    encoded.map_err(|_| signature::Error::new())?;
    Ok(message)
}
