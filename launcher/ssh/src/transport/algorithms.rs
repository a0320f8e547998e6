//! Algorithms that are offered to a server, in order of preference.
//!
//! Key exchange: the ML-KEM hybrid if the server supports it, otherwise elliptic curves. The sntrup761
//! hybrid, which OpenSSH preferred before 9.9, is not offered: it costs the client six times the processor
//! time of Curve25519, too much for one client with hundreds of hosts. P-256 precedes Curve25519, although
//! both are equally strong: OpenSSH computes Curve25519 in portable C, which takes 3.2 ms on a server where
//! OpenSSL takes 0.1 ms for P-256.
//!
//! Ciphers: authenticated ones first. AES-GCM precedes the others, because processors have instructions for
//! AES.

use crate::config::{HostConfig, RekeyLimit};
use crate::error::SshError;
use rlaunch_text::glob::matches_list;
use russh::keys::{Algorithm, EcdsaCurve, HashAlg};
use russh::{Limits, Preferred, cipher, kex};
use std::borrow::Cow;
use std::time::Duration;

const KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::ECDH_SHA2_NISTP256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP384,
    kex::ECDH_SHA2_NISTP521,
    kex::DH_GEX_SHA256,
    kex::DH_G16_SHA512,
    kex::DH_G18_SHA512,
    kex::DH_G14_SHA256,
];
/// Pseudo-algorithms that announce protocol extensions; they are always offered.
const KEX_EXTENSIONS: &[kex::Name] =
    &[kex::EXTENSION_SUPPORT_AS_CLIENT, kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT];

const CIPHERS: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_192_CTR,
    cipher::AES_128_CTR,
];

/// Host key algorithms that are offered by default. RSA with SHA-1 is offered only if the configuration
/// names it.
const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];
const RSA_BY_SHA1: Algorithm = Algorithm::Rsa { hash: None };

/// Maximum number of bytes sent, and maximum number of bytes received, with the same session keys, by RFC
/// 4253 section 9. The SSH library has the same limit.
const REKEY_BYTES: u64 = 1 << 30;
const REKEY_AFTER: Duration = Duration::from_secs(3600);

/// Returns the algorithms to offer to a host with this configuration. Returns an error if a configured list
/// has no known algorithm.
pub(crate) fn preferred(config: &HostConfig) -> Result<Preferred, SshError> {
    let kex = match &config.kex_algorithms {
        None => KEX.to_vec(),
        Some(list) => choose("KexAlgorithms", list, KEX)?,
    };
    let cipher = match &config.ciphers {
        None => CIPHERS.to_vec(),
        Some(list) => choose("Ciphers", list, CIPHERS)?,
    };
    let key = match &config.host_key_algorithms {
        None => Cow::Borrowed(HOST_KEYS),
        Some(list) => Cow::Owned(choose_host_keys(list)?),
    };
    Ok(Preferred {
        kex: kex.into_iter().chain(KEX_EXTENSIONS.iter().copied()).collect(),
        cipher: cipher.into(),
        key,
        ..Preferred::DEFAULT
    })
}

/// Applies a list in the syntax of ssh_config(5) to the default list: names without a sign replace the
/// default; `+` appends them, `-` removes them, `^` puts them first. Names of algorithms that the SSH
/// library does not implement are skipped.
fn choose<N>(keyword: &'static str, list: &str, default: &[N]) -> Result<Vec<N>, SshError>
where
    N: Copy + PartialEq + AsRef<str> + for<'a> TryFrom<&'a str>,
{
    let (how, names) = split(list);
    let matched = |name: &N| matches_list(names, name.as_ref());
    let named: Vec<N> = names.split(',').filter_map(|name| N::try_from(name.trim()).ok()).collect();
    let is_rest = |name: &N| !matched(name) && !named.contains(name);
    let rest: Vec<N> = default.iter().copied().filter(is_rest).collect();
    let chosen: Vec<N> = match how {
        "+" => [rest, named].concat(),
        "^" => [named, rest].concat(),
        "-" => rest,
        _ => named,
    };
    if chosen.is_empty() {
        return Err(SshError::Algorithms { keyword, list: list.to_owned() });
    }
    Ok(chosen)
}

/// Splits a list into its sign, `+`, `-`, `^` or none, and its names.
fn split(list: &str) -> (&str, &str) {
    match list.split_at_checked(1) {
        Some((how @ ("+" | "-" | "^"), names)) => (how, names),
        _ => ("", list),
    }
}

fn choose_host_keys(list: &str) -> Result<Vec<Algorithm>, SshError> {
    let (how, names) = split(list);
    let all = || HOST_KEYS.iter().cloned().chain([RSA_BY_SHA1]);
    let fits = |pattern: &str, a: &Algorithm| matches_list(pattern, a.as_str());
    // Algorithms in the order in which the list names them.
    let mut named: Vec<Algorithm> = Vec::new();
    for pattern in names.split(',') {
        let new = all().filter(|a| fits(pattern.trim(), a) && !named.contains(a));
        let new: Vec<Algorithm> = new.collect();
        named.extend(new);
    }
    let rest: Vec<Algorithm> = HOST_KEYS.iter().filter(|a| !named.contains(a)).cloned().collect();
    let chosen: Vec<Algorithm> = match how {
        "+" => [rest, named].concat(),
        "^" => [named, rest].concat(),
        "-" => rest,
        _ => named,
    };
    if chosen.is_empty() && certificates(Some(list)).is_empty() {
        let keyword = "HostKeyAlgorithms";
        return Err(SshError::Algorithms { keyword, list: list.to_owned() });
    }
    Ok(chosen)
}

/// Returns the algorithms that are accepted in host certificates.
pub(crate) fn host_certificates(config: &HostConfig) -> Vec<Algorithm> {
    certificates(config.host_key_algorithms.as_deref())
}

fn certificates(list: Option<&str>) -> Vec<Algorithm> {
    let accepted = Accepted::new(list);
    let allowed = HOST_KEYS.iter().filter(|a| accepted.allows(&a.to_certificate_type()));
    allowed.cloned().collect()
}

/// Filter on names of key and signature algorithms, from a list in the configuration: `PubkeyAcceptedAlgorithms`
/// for the user's keys, `HostKeyAlgorithms` for host certificates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted<'a>(Option<&'a str>);

impl<'a> Accepted<'a> {
    /// Makes a filter from the configured list. Without a list it allows all algorithms but SHA-1 and DSA.
    pub(crate) fn new(list: Option<&'a str>) -> Accepted<'a> {
        Accepted(list)
    }

    /// Tells whether the algorithm `name`, such as `ssh-ed25519-cert-v01@openssh.com`, may be used.
    pub(crate) fn allows(self, name: &str) -> bool {
        let is_default = !matches!(
            name,
            "ssh-rsa" | "ssh-rsa-cert-v01@openssh.com" | "ssh-dss" | "ssh-dss-cert-v01@openssh.com"
        );
        let Some(list) = self.0 else { return is_default };
        let (how, names) = split(list);
        let named = matches_list(names, name);
        match how {
            "+" | "^" => is_default || named,
            "-" => is_default && !named,
            _ => named,
        }
    }
}

/// Algorithms that a host is offered, as comma-separated lists.
pub struct AlgorithmNames {
    /// Key exchanges.
    pub kex: String,
    /// Ciphers, the same in both directions.
    pub ciphers: String,
    /// Host key algorithms.
    pub host_keys: String,
    /// Signature algorithms of the user's keys.
    pub public_keys: String,
}

impl AlgorithmNames {
    /// Lists the algorithms for a host with this configuration.
    pub fn for_host(config: &HostConfig) -> Result<AlgorithmNames, SshError> {
        let preferred = preferred(config)?;
        let kex = preferred.kex.iter().filter(|name| !KEX_EXTENSIONS.contains(name));
        let certificates = host_certificates(config);
        let certificates = certificates.iter().map(Algorithm::to_certificate_type);
        let plain = preferred.key.iter().map(|a| a.as_str().to_owned());
        let accepted = Accepted::new(config.pubkey_accepted_algorithms.as_deref());
        let known = || HOST_KEYS.iter().cloned().chain([RSA_BY_SHA1]);
        let for_users = known().map(|a| a.to_certificate_type());
        let for_users = for_users.chain(known().map(|a| a.as_str().to_owned()));
        Ok(AlgorithmNames {
            kex: kex.map(AsRef::as_ref).collect::<Vec<&str>>().join(","),
            ciphers: preferred.cipher.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(","),
            host_keys: certificates.chain(plain).collect::<Vec<_>>().join(","),
            public_keys: for_users.filter(|n| accepted.allows(n)).collect::<Vec<_>>().join(","),
        })
    }
}

/// Returns the limits after which session keys are renewed.
pub(crate) fn rekey_limits(limit: &RekeyLimit) -> Limits {
    let bytes = limit.bytes.unwrap_or(REKEY_BYTES).min(REKEY_BYTES);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Limits {
        rekey_write_limit: bytes,
        rekey_read_limit: bytes,
        rekey_time_limit: limit.after.unwrap_or(REKEY_AFTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kex_of(list: &str) -> Option<Vec<String>> {
        let config = HostConfig { kex_algorithms: Some(list.into()), ..HostConfig::default() };
        let names = preferred(&config).ok()?.kex.into_owned();
        let names = names.into_iter().filter(|n| !KEX_EXTENSIONS.contains(n));
        Some(names.map(|n| n.as_ref().to_owned()).collect())
    }

    #[test]
    fn the_hybrid_comes_first_and_the_quickest_curve_next() {
        let kex = preferred(&HostConfig::default()).unwrap().kex;
        assert_eq!(kex[..2], [kex::MLKEM768X25519_SHA256, kex::ECDH_SHA2_NISTP256]);
    }

    #[test]
    fn lists_follow_ssh_config() {
        let only = kex_of("sntrup761x25519-sha512@openssh.com,curve25519-sha256").unwrap();
        assert_eq!(only, ["curve25519-sha256"]);
        assert_eq!(kex_of("^ecdh-sha2-nistp521").unwrap()[0], "ecdh-sha2-nistp521");
        assert!(!kex_of("-mlkem*").unwrap().contains(&"mlkem768x25519-sha256".to_owned()));
        assert_eq!(kex_of("+diffie-hellman-group14-sha1").unwrap().len(), KEX.len() + 1);
        assert_eq!(kex_of("nonsense"), None);
    }

    fn host_keys_of(list: &str) -> Vec<String> {
        let chosen = choose_host_keys(list).unwrap();
        chosen.iter().map(|a| a.as_str().to_owned()).collect()
    }

    #[test]
    fn host_keys_by_sha1_are_for_those_who_ask() {
        let default = preferred(&HostConfig::default()).unwrap().key;
        assert!(!default.contains(&RSA_BY_SHA1));
        assert_eq!(host_keys_of("+ssh-rsa").last().unwrap(), "ssh-rsa");
        assert_eq!(host_keys_of("^ssh-rsa")[0], "ssh-rsa");
        assert_eq!(host_keys_of("rsa-sha2-256,ssh-ed25519"), ["rsa-sha2-256", "ssh-ed25519"]);
        assert!(!host_keys_of("-ecdsa*").iter().any(|name| name.starts_with("ecdsa")));
        assert!(host_keys_of("ssh-ed25519-cert-v01@openssh.com").is_empty());
        assert!(choose_host_keys("nonsense").is_err());
        let only = Some("ssh-ed25519-cert-v01@openssh.com");
        assert_eq!(certificates(only), [Algorithm::Ed25519]);
        assert_eq!(certificates(Some("ssh-ed25519")), []);
        assert_eq!(certificates(None).len(), HOST_KEYS.len());
    }

    #[test]
    fn accepted_signatures() {
        let table = [
            (None, "ssh-ed25519", true),
            (None, "rsa-sha2-512-cert-v01@openssh.com", true),
            (None, "ssh-rsa", false),
            (Some("+ssh-rsa"), "ssh-rsa", true),
            (Some("+ssh-rsa"), "ssh-ed25519", true),
            (Some("-rsa-*"), "rsa-sha2-256", false),
            (Some("-rsa-*"), "ssh-rsa", false),
            (Some("^ssh-rsa"), "ssh-ed25519", true),
            (Some("ecdsa-*,ssh-rsa"), "ssh-ed25519", false),
            (Some("ecdsa-*,ssh-rsa"), "ecdsa-sha2-nistp521", true),
        ];
        for (list, name, allowed) in table {
            assert_eq!(Accepted::new(list).allows(name), allowed, "{list:?} {name}");
        }
    }
}
