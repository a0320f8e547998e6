//! The user's keys.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | key files: their formats and their decryption; those of a job, with the passphrases that the user has given |
//! | `certificate` | certificates of users and of hosts |
//! | `short_number` | ECDSA keys that ssh-key does not read |
//! | `identities` | the keys and certificates that a host is offered, in order |
//!
//! The content of a key file decides its format: OpenSSH, PKCS#1, PKCS#8 or SEC1, each plain or encrypted;
//! PuTTY; or a public key alone, whose private half is in an SSH agent.

pub mod certificate;
pub(crate) mod identities;
mod short_number;

use crate::files::{self, Content};
use crate::prompt::Prompter;
use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockModeDecrypt, KeyIvInit};
use aes::{Aes128, Aes192, Aes256};
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use des::TdesEde3;
use nix::unistd::Uid;
use rlaunch_console::deadline::Deadline;
use russh::keys::{self, PrivateKey, PublicKey, decode_secret_key, ssh_key};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Maximum size of a key file, in bytes; RSA keys of 16384 bits take 13 KiB.
const LONGEST: u64 = 64 << 10;

/// Reason why a key file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("no such file")]
    Missing,
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// Other users may read the file and may have copied the key; ssh(1) refuses such a key as well.
    #[error("not used, others may read it: chmod 600 {}", .0.display())]
    Exposed(PathBuf),
    #[error("unreadable: {0}")]
    Broken(String),
    #[error("encrypted with {0}, which rlaunch does not support: `ssh-keygen -p -f` rewrites it")]
    Cipher(String),
    #[error("needs a passphrase: ssh-add it first")]
    Encrypted,
    #[error("wrong passphrase")]
    WrongPassphrase,
    #[error("no passphrase was given")]
    NotUnlocked,
    #[error("a public key, and no agent holds its private half")]
    PublicOnly,
}

/// Content of a key file.
#[derive(Debug)]
pub enum KeyFile {
    /// Private key without a passphrase.
    Plain(Arc<PrivateKey>),
    /// Private key that needs a passphrase.
    Encrypted(EncryptedKey),
    /// Public key alone.
    Public(PublicKey),
}

/// Encrypted private key, which needs a passphrase.
pub struct EncryptedKey {
    text: Zeroizing<String>,
    /// Encryption parameters, if the file has the older PEM format.
    legacy: Option<LegacyPem>,
    /// Public key, if the file contains it unencrypted.
    public: Option<PublicKey>,
}

impl std::fmt::Debug for EncryptedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptedKey").finish_non_exhaustive()
    }
}

impl KeyFile {
    /// Reads a key file. Refuses a file of this user that other users may read, unless it has only a public
    /// key.
    ///
    /// # Errors
    ///
    /// [`KeyError::Missing`] if there is no file, [`KeyError::Exposed`] if it is refused.
    pub fn read(path: &Path) -> Result<KeyFile, KeyError> {
        let (key, metadata) = KeyFile::open(path)?;
        let ours = metadata.uid() == Uid::current().as_raw();
        let exposed = ours && metadata.permissions().mode() & 0o077 != 0;
        if exposed && !matches!(key, KeyFile::Public(_)) {
            return Err(KeyError::Exposed(path.to_owned()));
        }
        Ok(key)
    }

    /// Reads a key file, also one that others may read.
    pub fn read_exposed(path: &Path) -> Result<KeyFile, KeyError> {
        KeyFile::open(path).map(|(key, _)| key)
    }

    fn open(path: &Path) -> Result<(KeyFile, Metadata), KeyError> {
        let Content { metadata, bytes } = files::read(path, LONGEST).map_err(|error| {
            if files::is_missing(&error) {
                KeyError::Missing
            } else {
                KeyError::Unreadable(error.to_string())
            }
        })?;
        let text = std::str::from_utf8(&bytes);
        let key = KeyFile::parse(text.map_err(|error| KeyError::Broken(error.to_string()))?)?;
        Ok((key, metadata))
    }

    /// Parses the content of a key file.
    pub fn parse(text: &str) -> Result<KeyFile, KeyError> {
        // Windows line ends and copied spaces are not part of the key.
        let mut clean = Zeroizing::new(String::with_capacity(text.len() + 1));
        for line in text.lines().map(str::trim) {
            clean.push_str(line);
            clean.push('\n');
        }
        let first = clean.trim_start();
        if first.starts_with("PuTTY-User-Key-File-") {
            let plain = clean.lines().any(|line| line == "Encryption: none");
            return if plain { parse_plain(&clean) } else { Ok(encrypted(clean, None, None)) };
        }
        let labels = clean.lines().filter_map(|line| {
            line.strip_prefix("-----BEGIN ").and_then(|line| line.strip_suffix("-----"))
        });
        // OpenSSL writes a block with the parameters of the elliptic curve before the block with the key.
        let Some(label) = labels.into_iter().find(|label| label.ends_with("PRIVATE KEY")) else {
            return parse_public(first);
        };
        match label {
            "OPENSSH PRIVATE KEY" => match decode(&clean, None) {
                Err(keys::Error::KeyIsEncrypted) => {
                    let readable = PrivateKey::from_openssh(clean.trim_start()).ok();
                    let public = readable.map(|key| key.public_key().clone());
                    Ok(encrypted(clean, None, public))
                }
                decoded => key_file_from(decoded),
            },
            "ENCRYPTED PRIVATE KEY" => Ok(encrypted(clean, None, None)),
            "RSA PRIVATE KEY" | "EC PRIVATE KEY" => match LegacyPem::parse(&clean, label)? {
                Some(legacy) => Ok(encrypted(clean, Some(legacy), None)),
                None => parse_plain(&clean),
            },
            "PRIVATE KEY" => parse_plain(&clean),
            "DSA PRIVATE KEY" => Err(KeyError::Broken("DSA keys are no longer supported".into())),
            other => Err(KeyError::Broken(format!("a key of the unknown kind `{other}`"))),
        }
    }

    /// Returns the public half, if it is readable without a passphrase.
    pub fn public(&self) -> Option<&PublicKey> {
        match self {
            KeyFile::Plain(key) => Some(key.public_key()),
            KeyFile::Encrypted(locked) => locked.public.as_ref(),
            KeyFile::Public(key) => Some(key),
        }
    }
}

fn parse_plain(text: &str) -> Result<KeyFile, KeyError> {
    key_file_from(decode(text, None))
}

/// Decodes a private key. Blocks for as long as the derivation from its passphrase takes, and twice as long if its number is
/// short.
fn decode(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, keys::Error> {
    decode_secret_key(text, passphrase).or_else(|error| match error {
        keys::Error::SshKey(ssh_key::Error::Encoding(_)) => {
            short_number::decode(text, passphrase).ok_or(error)
        }
        other => Err(other),
    })
}

fn key_file_from(decoded: Result<PrivateKey, keys::Error>) -> Result<KeyFile, KeyError> {
    let key = decoded.map_err(|error| KeyError::Broken(error.to_string()))?;
    Ok(KeyFile::Plain(Arc::new(key)))
}

fn encrypted(
    text: Zeroizing<String>,
    legacy: Option<LegacyPem>,
    public: Option<PublicKey>,
) -> KeyFile {
    KeyFile::Encrypted(EncryptedKey { text, legacy, public })
}

fn parse_public(text: &str) -> Result<KeyFile, KeyError> {
    let line = text.lines().next().unwrap_or_default();
    let broken = |_| KeyError::Broken("it contains no key".into());
    PublicKey::from_openssh(line).map(KeyFile::Public).map_err(broken)
}

impl EncryptedKey {
    /// Decrypts the key. Blocks for as long as its key derivation takes, which may be seconds.
    pub fn decrypt(&self, passphrase: &str) -> Result<PrivateKey, KeyError> {
        let decoded = match &self.legacy {
            None => decode(&self.text, Some(passphrase)),
            Some(legacy) => {
                let plain = legacy.decrypt(passphrase).ok_or(KeyError::WrongPassphrase)?;
                decode(&plain, None)
            }
        };
        decoded.map_err(|error| match error {
            keys::Error::SshKey(
                error @ (ssh_key::Error::AlgorithmUnknown
                | ssh_key::Error::AlgorithmUnsupported { .. }),
            ) => KeyError::Broken(error.to_string()),
            // A wrong passphrase yields bytes that do not parse.
            _ => KeyError::WrongPassphrase,
        })
    }
}

/// Encrypted PEM block of older OpenSSH, with the headers `Proc-Type: 4,ENCRYPTED` and
/// `DEK-Info: CIPHER,IV`. The key for the cipher is derived from the passphrase with MD5.
struct LegacyPem {
    cipher: Cipher,
    iv: Vec<u8>,
    label: String,
    encrypted: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Cipher {
    Aes128,
    Aes192,
    Aes256,
    TripleDes,
}

impl LegacyPem {
    /// Parses the block with this label; `None` if it is not encrypted.
    fn parse(text: &str, label: &str) -> Result<Option<LegacyPem>, KeyError> {
        let broken = |what: &str| KeyError::Broken(what.to_owned());
        let begin = format!("-----BEGIN {label}-----");
        let block = text.lines().skip_while(|line| *line != begin).skip(1);
        let block = block.take_while(|line| !line.starts_with("-----END "));
        let (mut info, mut body) = (None, String::new());
        for line in block {
            match line.split_once(':') {
                Some(("DEK-Info", value)) => info = Some(value.trim()),
                Some(_) => {}
                None => body.push_str(line),
            }
        }
        let Some(info) = info else { return Ok(None) };
        let (name, iv) = info.split_once(',').ok_or_else(|| broken("DEK-Info without an IV"))?;
        let (cipher, iv_length) = match name {
            "AES-128-CBC" => (Cipher::Aes128, 16),
            "AES-192-CBC" => (Cipher::Aes192, 16),
            "AES-256-CBC" => (Cipher::Aes256, 16),
            "DES-EDE3-CBC" => (Cipher::TripleDes, 8),
            other => return Err(KeyError::Cipher(other.to_owned())),
        };
        let iv = HEXLOWER_PERMISSIVE.decode(iv.trim().as_bytes()).unwrap_or_default();
        if iv.len() != iv_length {
            return Err(broken("DEK-Info with a wrong IV"));
        }
        let encrypted = BASE64.decode(body.as_bytes()).map_err(|_| broken("not base64"))?;
        Ok(Some(LegacyPem { cipher, iv, label: label.to_owned(), encrypted }))
    }

    /// Returns the PEM file without encryption; `None` if the passphrase is wrong.
    fn decrypt(&self, passphrase: &str) -> Option<Zeroizing<String>> {
        let plain = match self.cipher {
            Cipher::Aes128 => self.decrypt_by::<cbc::Decryptor<Aes128>>(passphrase, 16),
            Cipher::Aes192 => self.decrypt_by::<cbc::Decryptor<Aes192>>(passphrase, 24),
            Cipher::Aes256 => self.decrypt_by::<cbc::Decryptor<Aes256>>(passphrase, 32),
            Cipher::TripleDes => self.decrypt_by::<cbc::Decryptor<TdesEde3>>(passphrase, 24),
        }?;
        let mut text = Zeroizing::new(String::new());
        let body = Zeroizing::new(BASE64.encode(&plain));
        let label = &self.label;
        write!(*text, "-----BEGIN {label}-----\n{}\n-----END {label}-----\n", body.as_str())
            .ok()?;
        Some(text)
    }

    /// Decrypts the block with the key that OpenSSL's `EVP_BytesToKey` derives: MD5 in one round, with the
    /// first 8 bytes of the IV as salt. `None` if the padding is wrong.
    fn decrypt_by<C>(&self, passphrase: &str, key_length: usize) -> Option<Zeroizing<Vec<u8>>>
    where
        C: KeyIvInit + BlockModeDecrypt,
    {
        let mut key = Zeroizing::new(Vec::new());
        let mut last = Zeroizing::new(Vec::new());
        while key.len() < key_length {
            let mut hash = md5::Context::new();
            hash.consume(&last[..]);
            hash.consume(passphrase.as_bytes());
            hash.consume(&self.iv[..8]);
            *last = hash.finalize().0.to_vec();
            key.extend_from_slice(&last);
        }
        let cipher = C::new_from_slices(&key[..key_length], &self.iv).ok()?;
        let mut bytes = Zeroizing::new(self.encrypted.clone());
        let length = cipher.decrypt_padded::<Pkcs7>(&mut bytes[..]).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

/// Maximum number of passphrases that are tried for a key.
const TRIES: usize = 3;

/// Key file, or the reason why it cannot be used.
pub(crate) type Loaded = Result<Arc<KeyFile>, KeyError>;

/// Key files for all hosts of a job, and their keys. Each file is read once, and each passphrase asked for once.
#[derive(Default)]
pub(crate) struct KeyRing {
    files: Mutex<HashMap<PathBuf, Loaded>>,
    /// Decrypted keys, by file. The lock is held while the user is asked for a passphrase, so there is only
    /// one question at a time.
    decrypted: tokio::sync::Mutex<HashMap<PathBuf, Result<Arc<PrivateKey>, KeyError>>>,
}

impl KeyRing {
    /// Reads a key file, unless it was read before.
    pub(crate) fn load(&self, file: &Path) -> Loaded {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.entry(file.to_owned()).or_insert_with(|| KeyFile::read(file).map(Arc::new)).clone()
    }

    /// Returns the private key in a file. Asks the user for the passphrase if the key is encrypted.
    pub(crate) async fn private(&self, file: &Path) -> Result<Arc<PrivateKey>, KeyError> {
        let loaded = self.load(file)?;
        match &*loaded {
            KeyFile::Plain(key) => return Ok(key.clone()),
            KeyFile::Public(_) => return Err(KeyError::PublicOnly),
            KeyFile::Encrypted(_) => {}
        }
        let mut decrypted = self.decrypted.lock().await;
        if let Some(known) = decrypted.get(file) {
            return known.clone();
        }
        let key = ask_and_decrypt(file, &loaded).await;
        decrypted.insert(file.to_owned(), key.clone());
        key
    }

    /// Runs a login until `deadline`; `None` if that expires. The deadline restarts after each question to
    /// the user, so that the time for the answer does not count.
    pub(crate) async fn run_login<T>(
        &self,
        deadline: &mut Deadline,
        login: impl Future<Output = T>,
    ) -> Option<T> {
        let mut login = std::pin::pin!(login);
        loop {
            match deadline.run(&mut login).await {
                // The lock is taken while the user is asked for a passphrase.
                None if self.decrypted.try_lock().is_err() => {}
                ended => return ended,
            }
            tokio::select! {
                done = &mut login => return Some(done),
                _free = self.decrypted.lock() => deadline.restart(),
            }
        }
    }
}

/// Asks the user for the passphrase of a key file until one fits, and returns the key.
async fn ask_and_decrypt(file: &Path, loaded: &Arc<KeyFile>) -> Result<Arc<PrivateKey>, KeyError> {
    let Some(prompter) = Prompter::open() else { return Err(KeyError::Encrypted) };
    let mut prompt = format!("passphrase for {}: ", file.display());
    for _ in 0..TRIES {
        let Some(passphrase) = prompter.ask(&prompt).await else {
            return Err(KeyError::NotUnlocked);
        };
        let loaded = loaded.clone();
        // Runs in a separate thread, because key derivation is slow on purpose.
        let decrypting = tokio::task::spawn_blocking(move || match &*loaded {
            KeyFile::Encrypted(key) => EncryptedKey::decrypt(key, &passphrase),
            KeyFile::Plain(_) | KeyFile::Public(_) => Err(KeyError::PublicOnly),
        });
        match decrypting.await {
            Ok(Ok(key)) => return Ok(Arc::new(key)),
            Ok(Err(KeyError::WrongPassphrase)) => {
                prompt = format!("wrong passphrase; passphrase for {}: ", file.display());
            }
            Ok(Err(error)) => return Err(error),
            Err(error) => return Err(KeyError::Broken(error.to_string())),
        }
    }
    Err(KeyError::WrongPassphrase)
}

#[cfg(test)]
mod tests;
