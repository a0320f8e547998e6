//! Which algorithms are offered to a server, and in which order.
//!
//! Key exchange: the ML-KEM hybrid where the server has it, else elliptic curves. OpenSSH's own
//! default before 9.9, the sntrup761 hybrid, costs the client six times the processor time of
//! Curve25519, which counts when one client talks to hundreds of hosts. Of the curves P-256 comes
//! first, of the same strength: OpenSSH computes Curve25519 in portable C, 3.2 ms for a server where
//! P-256 takes OpenSSL 0.1 ms. Ciphers: authenticated ones, AES-GCM first, because processors have
//! instructions for it.

use super::config::{HostConfig, RekeyLimit};
use super::error::SshError;
use russh::keys::Algorithm;
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
/// Not algorithms but signs of what this client can do; always offered.
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

/// The most data a key may protect, by RFC 4253 section 9; also what the library allows.
const REKEY_BYTES: u64 = 1 << 30;
const REKEY_AFTER: Duration = Duration::from_secs(3600);

/// What is offered to a host with this configuration.
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
        None => Preferred::DEFAULT.key,
        Some(list) => Cow::Owned(choose_host_keys(list)?),
    };
    Ok(Preferred {
        kex: kex.into_iter().chain(KEX_EXTENSIONS.iter().copied()).collect(),
        cipher: cipher.into(),
        key,
        ..Preferred::DEFAULT
    })
}

/// Applies a list of ssh_config(5): names replace the default, `+` appends, `-` removes, `^` puts
/// first. Names that only OpenSSH knows are passed over.
fn choose<N>(keyword: &'static str, list: &str, default: &[N]) -> Result<Vec<N>, SshError>
where
    N: Copy + PartialEq + AsRef<str> + for<'a> TryFrom<&'a str>,
{
    let (how, names) = match list.split_at_checked(1) {
        Some((how @ ("+" | "-" | "^"), names)) => (how, names),
        _ => ("", list),
    };
    let matched = |name: &N| super::config::matches_list(names, name.as_ref());
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

fn choose_host_keys(list: &str) -> Result<Vec<Algorithm>, SshError> {
    let names = list.trim_start_matches(['+', '^']);
    let named = |a: &Algorithm| super::config::matches_list(names, a.as_str());
    let default = Preferred::DEFAULT.key;
    let chosen: Vec<Algorithm> = if let Some(removed) = list.strip_prefix('-') {
        let kept = |a: &&Algorithm| !super::config::matches_list(removed, a.as_str());
        default.iter().filter(kept).cloned().collect()
    } else if names.len() < list.len() {
        let (first, rest): (Vec<_>, Vec<_>) = default.iter().cloned().partition(named);
        first.into_iter().chain(rest).collect()
    } else {
        default.iter().filter(|a| named(a)).cloned().collect()
    };
    if chosen.is_empty() {
        let keyword = "HostKeyAlgorithms";
        return Err(SshError::Algorithms { keyword, list: list.to_owned() });
    }
    Ok(chosen)
}

/// When keys are exchanged anew.
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
}
