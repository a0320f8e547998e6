use super::*;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

const PASSPHRASE: &str = "näher, mein Schlüssel";

/// Runs a tool; returns false if this machine does not have the tool.
fn ran(program: &str, args: &[&str]) -> bool {
    let Ok(output) = Command::new(program).args(args).output() else {
        println!("skipped: no {program}");
        return false;
    };
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    true
}

fn fingerprint(public: &PublicKey) -> String {
    public.fingerprint(russh::keys::HashAlg::Sha256).to_string()
}

/// Returns the fingerprint of the public key in the `.pub` file beside a key.
fn beside(path: &Path) -> String {
    let text = fs::read_to_string(path.with_extension("pub")).unwrap();
    fingerprint(&PublicKey::from_openssh(text.trim()).unwrap())
}

/// Opens a key file as a login would, with the passphrase if it needs one.
fn opened_with(path: &Path, locked: bool) -> PublicKey {
    match KeyFile::read(path).unwrap() {
        KeyFile::Plain(key) => {
            assert!(!locked, "{}", path.display());
            key.public_key().clone()
        }
        KeyFile::Encrypted(key) => {
            assert!(locked, "{}", path.display());
            assert_eq!(key.decrypt("wrong").unwrap_err(), KeyError::WrongPassphrase);
            let open = key.decrypt(PASSPHRASE).unwrap();
            if let Some(public) = &key.public {
                assert_eq!(public.key_data(), open.public_key().key_data());
            }
            open.public_key().clone()
        }
        KeyFile::Public(_) => panic!("no private key in {}", path.display()),
    }
}

#[test]
fn every_kind_in_every_format_that_ssh_keygen_writes() {
    let directory = tempfile::tempdir().unwrap();
    let kinds = ["ed25519", "ecdsa 256", "ecdsa 384", "ecdsa 521", "rsa 1024"];
    let mut seen = 0;
    for kind in kinds {
        let (kind, bits) = kind.split_once(' ').unwrap_or((kind, "0"));
        for format in ["RFC4716", "PEM", "PKCS8"] {
            // Ed25519 keys have no PEM or PKCS8 format in ssh-keygen.
            if kind == "ed25519" && format != "RFC4716" {
                continue;
            }
            for passphrase in ["", PASSPHRASE] {
                // The file name has no influence on the format.
                let path = directory.path().join(format!("id_rsa_{seen}"));
                let name = path.to_str().unwrap();
                let mut args = vec!["-q", "-t", kind, "-m", format, "-a", "1"];
                args.extend(["-N", passphrase, "-f", name]);
                if bits != "0" {
                    args.extend(["-b", bits]);
                }
                if !ran("ssh-keygen", &args) {
                    return;
                }
                let public = opened_with(&path, !passphrase.is_empty());
                assert_eq!(fingerprint(&public), beside(&path), "{kind} {bits} {format}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 26);
}

/// Key for tests whose private number has 31 bytes, as OpenSSL writes it.
const SHORT: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIABq/UTm6dobTD15YgOaLf9NplRWWyDjf04TSDy1nh9BoAoGCCqGSM49
AwEHoUQDQgAEJvYQ713750lj1NPCfjnkqDoHqRWeyWiRokb5DFhm/5GYKQHezyfh
VNArZxL2chvqMFyfwuUbjTYV7N4tGnQnGg==
-----END EC PRIVATE KEY-----
";

#[test]
fn a_key_whose_private_number_is_short() {
    let directory = tempfile::tempdir().unwrap();
    let original = KeyFile::parse(SHORT).unwrap();
    let ciphers = ["none", "aes256-ctr", "aes256-gcm@openssh.com", "aes128-cbc"];
    for (number, cipher) in ciphers.into_iter().enumerate() {
        let path = directory.path().join(number.to_string());
        fs::write(&path, SHORT).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let mut args = vec!["-q", "-p", "-P", "", "-a", "1", "-f", path.to_str().unwrap()];
        if cipher == "none" {
            args.extend(["-N", ""]);
        } else {
            args.extend(["-N", PASSPHRASE, "-Z", cipher]);
        }
        if !ran("ssh-keygen", &args) {
            return;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----"), "{text}");
        let public = opened_with(&path, cipher != "none");
        assert_eq!(Some(public.key_data()), original.public().map(PublicKey::key_data), "{cipher}");
    }
    let KeyFile::Plain(key) = KeyFile::read(&directory.path().join("0")).unwrap() else {
        panic!("it has no passphrase");
    };
    let KeyFile::Plain(original) = original else { panic!("it has no passphrase") };
    assert!(key.key_data() == original.key_data());
    let signature = key.sign("test", russh::keys::HashAlg::Sha256, b"text").unwrap();
    key.public_key().verify("test", b"text", &signature).unwrap();
}

#[test]
fn what_openssl_writes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let curve = ["ecparam", "-name", "prime256v1", "-genkey", "-out"];
    if !ran("openssl", &[&curve[..], &[&text("plain")]].concat()) {
        return;
    }
    let protect =
        |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    protect(&at("plain"));
    // A block with the parameters of the curve precedes the block with the key.
    assert!(fs::read_to_string(at("plain")).unwrap().starts_with("-----BEGIN EC PARAMETERS-----"));
    let public = fingerprint(&opened_with(&at("plain"), false));
    let pass = format!("pass:{PASSPHRASE}");
    for cipher in ["-aes128", "-aes192", "-aes256", "-des3"] {
        let (from, to) = (text("plain"), text(cipher));
        let args = ["ec", "-in", &from, cipher, "-passout", &pass, "-out", &to];
        assert!(ran("openssl", &args));
        protect(&at(cipher));
        assert_eq!(fingerprint(&opened_with(&at(cipher), true)), public, "{cipher}");
    }
    let (from, to) = (text("plain"), text("camellia"));
    let args = ["ec", "-in", &from, "-camellia128", "-passout", &pass, "-out", &to];
    assert!(ran("openssl", &args));
    let error = KeyFile::parse(&fs::read_to_string(at("camellia")).unwrap()).unwrap_err();
    assert_eq!(error, KeyError::Cipher("CAMELLIA-128-CBC".into()));
    assert!(ran("openssl", &["genpkey", "-algorithm", "ed25519", "-out", &text("ed25519")]));
    protect(&at("ed25519"));
    opened_with(&at("ed25519"), false);
}

#[test]
fn a_key_that_others_may_read_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    if !ran("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", path.to_str().unwrap()]) {
        return;
    }
    let with_mode = |mode| {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        KeyFile::read(&path).map(|_| ())
    };
    assert_eq!(with_mode(0o640), Err(KeyError::Exposed(path.clone())));
    assert_eq!(with_mode(0o400), Ok(()));
    // Other users may read a file with only a public key.
    assert!(matches!(KeyFile::read(&path.with_extension("pub")), Ok(KeyFile::Public(_))));
    if Uid::current().is_root() {
        chown(&path, Some(1000), None).unwrap();
        assert_eq!(with_mode(0o644), Ok(()));
    }
}

#[test]
fn what_is_no_key_says_so() {
    let broken = |text: &str| KeyFile::parse(text).unwrap_err().to_string();
    assert_eq!(broken(""), "unreadable: it contains no key");
    assert_eq!(broken("hello"), "unreadable: it contains no key");
    assert!(broken("-----BEGIN DSA PRIVATE KEY-----\n").contains("DSA"));
    assert!(broken("-----BEGIN ODD PRIVATE KEY-----\n").contains("`ODD PRIVATE KEY`"));
    assert!(broken("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n").starts_with("unreadable: "));
    let head = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: ";
    assert!(broken(&format!("{head}AES-128-CBC,00\n\nAAAA\n")).contains("IV"));
    assert!(broken(&format!("{head}AES-128-CBC,{}\n\nä\n", "0".repeat(32))).contains("base64"));
    assert_eq!(KeyFile::read(Path::new("/nowhere/k")).unwrap_err(), KeyError::Missing);
    assert_eq!(KeyFile::read(Path::new("/dev/null")).unwrap_err().to_string(), broken(""));
    assert!(KeyFile::read(Path::new("/dev/zero")).unwrap_err().to_string().contains("a device"));
    let long = tempfile::NamedTempFile::new().unwrap();
    long.as_file().set_len(8 << 20).unwrap();
    assert!(KeyFile::read(long.path()).unwrap_err().to_string().contains("KiB"));
}
