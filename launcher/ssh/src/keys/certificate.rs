//! OpenSSH certificates of hosts and of the user.

use crate::files;
use rlaunch_text::glob::matches;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum size of a certificate file, in bytes. The limit bounds the depth to which the decoder recurses.
const LONGEST: u64 = 32 << 10;

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Reads a user certificate; `None` if the file cannot be opened. The inner error is a phrase such as
/// `not a certificate`.
pub(crate) fn read(path: &Path) -> Option<Result<Certificate, String>> {
    match files::read(path, LONGEST) {
        Ok(content) => Some(parse(&String::from_utf8_lossy(&content.bytes))),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) if files::is_missing(&error) => None,
        Err(error) => Some(Err(format!("unreadable: {error}"))),
    }
}

/// Parses the content of a user certificate file. The error is a phrase such as `not a certificate`.
pub fn parse(text: &str) -> Result<Certificate, String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let certificate = Certificate::from_openssh(line.unwrap_or_default());
    let certificate = certificate.map_err(|_| "not a certificate".to_owned())?;
    match certificate.cert_type() {
        CertType::User => Ok(certificate),
        CertType::Host => Err("a host certificate".to_owned()),
    }
}

/// Returns why a host refuses a login as `user` with this certificate: the certificate has expired, is not
/// valid yet, or is for other users. `None` if it gives no reason for a refusal. `now` is in seconds since
/// 1970.
pub fn refusal_reason(certificate: &Certificate, user: &str, now: u64) -> Option<String> {
    let for_others = || {
        let principals = certificate.valid_principals();
        let others = !principals.is_empty() && !principals.iter().any(|p| p == user);
        others.then(|| format!("for {}, not for {user}", principals.join(", ")))
    };
    validity_fault(certificate, now).or_else(for_others)
}

/// Checks a host certificate of a trusted authority: kind, validity at `now` (in seconds since 1970), host
/// name, critical options and signature. The error continues the sentence "its host certificate …".
pub fn check_host(certificate: &Certificate, name: &str, now: u64) -> Result<(), String> {
    if certificate.cert_type() != CertType::Host {
        return Err("is a user certificate".to_owned());
    }
    if let Some(why) = validity_fault(certificate, now) {
        return Err(why);
    }
    let principals = certificate.valid_principals();
    let fits = |principal: &String| matches(&principal.to_ascii_lowercase(), name);
    if !principals.is_empty() && !principals.iter().any(fits) {
        return Err(format!("is for {}, not for {name}", principals.join(", ")));
    }
    if let Some((option, _)) = certificate.critical_options().iter().next() {
        return Err(format!("has the option `{option}`, which is not supported"));
    }
    if certificate.signature().algorithm() == (Algorithm::Rsa { hash: None }) {
        return Err("is signed with SHA-1".to_owned());
    }
    let authority = certificate.signature_key().fingerprint(HashAlg::Sha256);
    certificate.validate_at(now, [&authority]).map_err(|_| "has an invalid signature".to_owned())
}

fn validity_fault(certificate: &Certificate, now: u64) -> Option<String> {
    if now >= certificate.valid_before() {
        return Some(format!("expired {} ago", format_duration(now - certificate.valid_before())));
    }
    let early = certificate.valid_after().checked_sub(now).filter(|early| *early > 0)?;
    Some(format!("not valid for another {}", format_duration(early)))
}

/// Formats a time in its largest fitting unit, rounded down: `3 days`, `5 h`, `20 s`.
fn format_duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::certificate::Builder;
    use russh::keys::ssh_key::private::Ed25519Keypair;

    fn certificate(kind: CertType, principals: &[&str], critical: bool) -> Certificate {
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let mut builder =
            Builder::new([7; 16].to_vec(), key.public_key(), 1_000_000, 2_000_000).unwrap();
        builder.cert_type(kind).unwrap();
        builder.key_id("test").unwrap();
        for principal in principals {
            builder.valid_principal(*principal).unwrap();
        }
        if principals.is_empty() {
            builder.all_principals_valid().unwrap();
        }
        if critical {
            builder.critical_option("odd", "1").unwrap();
        }
        builder.sign(&key).unwrap()
    }

    #[test]
    fn host_certificates_are_for_a_host_and_a_time() {
        let good = certificate(CertType::Host, &["a", "*.b"], false);
        for name in ["a", "x.b"] {
            assert_eq!(check_host(&good, name, 1_500_000), Ok(()), "{name}");
        }
        let why =
            |certificate: &Certificate, name, now| check_host(certificate, name, now).unwrap_err();
        assert_eq!(why(&good, "c", 1_500_000), "is for a, *.b, not for c");
        assert_eq!(why(&good, "a", 2_000_000 + 3 * 86_400), "expired 3 days ago");
        assert_eq!(why(&good, "a", 999_990), "not valid for another 10 s");
        assert_eq!(
            why(&certificate(CertType::User, &["a"], false), "a", 1_500_000),
            "is a user certificate"
        );
        assert!(check_host(&certificate(CertType::Host, &[], false), "a", 1_500_000).is_ok());
        let odd = certificate(CertType::Host, &["a"], true);
        assert!(why(&odd, "a", 1_500_000).contains("`odd`"));
    }

    #[test]
    fn user_certificates_say_for_whom_they_are() {
        let good = certificate(CertType::User, &["root", "me"], false);
        assert_eq!(refusal_reason(&good, "me", 1_500_000), None);
        let why = refusal_reason(&good, "you", 1_500_000).unwrap();
        assert_eq!(why, "for root, me, not for you");
        let text = good.to_openssh().unwrap();
        assert_eq!(parse(&format!("# mine\n{text}\n")).unwrap().valid_principals(), ["root", "me"]);
        let host = certificate(CertType::Host, &["a"], false).to_openssh().unwrap();
        assert_eq!(parse(&host).unwrap_err(), "a host certificate");
        assert_eq!(parse("").unwrap_err(), "not a certificate");
    }
}
