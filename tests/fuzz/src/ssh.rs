//! Files of SSH: configurations, known hosts, keys, certificates.

use rlaunch_ssh::config::SshConfig;
use rlaunch_ssh::keys::KeyFile;
use rlaunch_ssh::keys::certificate;
use rlaunch_ssh::known_hosts::{KnownHosts, Verdict};
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{PrivateKey, PublicKey};
use std::path::Path;

fn private() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]))
}

fn public() -> PublicKey {
    PublicKey::new(private().public_key().key_data().clone(), "")
}

/// Parses a configuration. Errors name an existing line; a valid one resolves to the same result twice.
pub(crate) fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // The fuzzer must not read files or run commands, however their keywords are quoted.
    let plain = text.replace(['"', '\'', '\\'], "").to_ascii_lowercase();
    if plain.contains("include") || plain.contains("exec") {
        return;
    }
    let mut config = SshConfig::empty();
    if let Err(error) = config.add(&text, Path::new("/c")) {
        let shown = error.to_string();
        let line = shown.strip_prefix("/c:").and_then(|rest| rest.split(':').next());
        let line: usize = line.and_then(|line| line.parse().ok()).unwrap_or(0);
        assert!((1..=text.lines().count()).contains(&line), "{shown}");
        assert!(error.hint().is_some());
        return;
    }
    for alias in ["a", "node1.cluster", "fe80::1%eth0"] {
        let resolved = config.resolve_as(alias, Some("me"), None).ok();
        assert_eq!(resolved, config.resolve_as(alias, Some("me"), None).ok());
        if let Some(host) = resolved {
            assert!(config.show(alias, &host).iter().all(|(_, value)| !value.contains('\n')));
        }
    }
}

/// Parses a known-hosts file. Its last line, which is valid, counts unless an earlier one revokes the key.
pub(crate) fn known_hosts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let key = public();
    let line = key.to_openssh().unwrap_or_default();
    let mut known = KnownHosts::default();
    known.add(&format!("{text}\nlast.example {line}\n"), Path::new("/k"));
    let verdict = known.check(&["last.example"], 22, &key);
    assert!(matches!(verdict, Verdict::Known | Verdict::Revoked { .. }), "{verdict:?}");
    for name in ["a", "10.0.0.1", "fe80::1"] {
        known.check(&[name], 2222, &key);
        known.algorithms(&[name], 2222);
        let authority = known.check_authority(&[name], 2222, key.key_data());
        assert!(authority != Verdict::Known || known.has_authority(&[name], 2222));
    }
    assert!(known.warnings().len() <= text.lines().count());
}

/// Parses a key file. Only PEM files are decrypted: other formats set the duration of their key derivation.
pub(crate) fn key_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let slow = ["OPENSSH", "ENCRYPTED PRIVATE", "PuTTY"].iter().any(|word| text.contains(word));
    match KeyFile::parse(&text) {
        Ok(KeyFile::Plain(key)) => assert!(!key.is_encrypted()),
        Ok(KeyFile::Encrypted(key)) if !slow => {
            let _ = key.decrypt("sesame");
        }
        Ok(KeyFile::Encrypted(_) | KeyFile::Public(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses and checks a user certificate.
pub(crate) fn certificate(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(certificate) = certificate::parse(text) else { return };
    for now in [0, 1_500_000, u64::MAX] {
        let _ = certificate::refusal_reason(&certificate, "me", now);
        // A user certificate is never valid for a host.
        assert!(certificate::check_host(&certificate, "a", now).is_err());
    }
}

pub(crate) fn config_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "Host *\n User nvidia\n IdentityFile ~/.ssh/id_rsa_host\n StrictHostKeyChecking no\n \
         UserKnownHostsFile=/dev/null\n ServerAliveInterval=30\n",
        "Match host=a,!b final\nProxyJump u@gate:22,[::1]:2\nHost a? !ab \"c d\"\n\
         IdentityFile ${HOME}/%h-%n-%p-%r-%%-%C\nRekeyLimit 1G 1h\nConnectTimeout 1m30\n",
        "HostName %h.x\nKexAlgorithms -curve*\nIdentityAgent $SSH_AUTH_SOCK\nPort 022\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn known_hosts_seeds() -> Vec<Vec<u8>> {
    let key = public().to_openssh().unwrap_or_default();
    let hash = "|1|O33ESRMWPVkMYIwJ1Uw+n877jTo=|nuuC5vEqXlEZ/8BXQR7m619W6Ak=";
    let text = format!(
        "# c\na,10.0.0.1 {key}\n[a]:2222 {key}\n*.ex,!b.ex {key}\n@cert-authority * {key}\n\
         @revoked q {key}\n{hash} {key}\n"
    );
    vec![text.into_bytes()]
}

pub(crate) fn key_file_seeds() -> Vec<Vec<u8>> {
    let open = private().to_openssh(LineEnding::LF).map(|text| text.as_bytes().to_vec());
    let legacy = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
        DEK-Info: AES-128-CBC,000102030405060708090A0B0C0D0E0F\n\n\
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END EC PRIVATE KEY-----\n";
    let half = public().to_openssh().unwrap_or_default();
    vec![open.unwrap_or_default(), legacy.into(), half.into()]
}

pub(crate) fn certificate_seeds() -> Vec<Vec<u8>> {
    let signed = || {
        let mut builder = Builder::new([7; 16].to_vec(), public(), 1_000_000, 2_000_000).ok()?;
        builder.cert_type(CertType::User).ok()?;
        builder.key_id("seed").ok()?;
        builder.valid_principal("me").ok()?;
        builder.sign(&private()).ok()?.to_openssh().ok()
    };
    vec![signed().unwrap_or_default().into_bytes()]
}
