//! Key pairs of the user: existing ones are read, and missing ones are created.

use super::container::tilde;
use super::error::SetupError;
use ring::rand::SecureRandom;
use rlaunch_ssh::keys::KeyFile;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::ssh_key::{LineEnding, private::KeypairData};
use russh::keys::{PrivateKey, PublicKey};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Key pair that exists, or will be written.
pub(super) struct KeyPair {
    pub(super) path: PathBuf,
    public: PublicKey,
    state: KeyFileState,
}

/// State of the private key's file.
enum KeyFileState {
    Good,
    /// Other users may read the file, so OpenSSH would not use the key.
    Open,
    /// The file does not exist yet. This key will be written to it.
    Missing(Box<PrivateKey>),
}

impl KeyPair {
    /// Reads the key at `path`, or creates one, which is not written yet.
    pub(super) fn find_or_make(path: PathBuf) -> Result<KeyPair, SetupError> {
        let read = |source| SetupError::Read { path: path.clone(), source };
        let state = match fs::metadata(&path) {
            Ok(found) if found.mode() & 0o077 == 0 => KeyFileState::Good,
            Ok(_) => KeyFileState::Open,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                KeyFileState::Missing(Box::new(make_key()?))
            }
            Err(error) => return Err(read(error)),
        };
        let public = match &state {
            KeyFileState::Missing(key) => key.public_key().clone(),
            KeyFileState::Good | KeyFileState::Open => read_public_key(&path)?,
        };
        Ok(KeyPair { path, public, state })
    }

    /// Describes the change that [`KeyPair::write`] makes, if any; `home` is written as `~`.
    pub(super) fn change(&self, home: &Path) -> Option<String> {
        let path = tilde(&self.path, home);
        match self.state {
            KeyFileState::Good => None,
            KeyFileState::Open => Some(format!("chmod 600 {path}")),
            KeyFileState::Missing(_) => {
                Some(format!("make the key {path} and {path}.pub: Ed25519, without a passphrase"))
            }
        }
    }

    /// Writes a new key, or corrects the mode of an existing private key's file.
    pub(super) fn write(&self) -> Result<(), SetupError> {
        match &self.state {
            KeyFileState::Good => Ok(()),
            KeyFileState::Open => fs::set_permissions(&self.path, Permissions::from_mode(0o600))
                .map_err(write_error(&self.path)),
            KeyFileState::Missing(key) => {
                let text = key.to_openssh(LineEnding::LF).map_err(|_| SetupError::MakeKey)?;
                write_new(&self.path, text.as_bytes(), 0o600)?;
                write_new(&public_path(&self.path), format!("{}\n", self.line()?).as_bytes(), 0o644)
            }
        }
    }

    /// Returns the line for authorized_keys: `ssh-ed25519 AAAA… comment`.
    pub(super) fn line(&self) -> Result<String, SetupError> {
        let line = self.public.to_openssh().map_err(|_| SetupError::MakeKey)?;
        Ok(line.trim_end().replace(['\n', '\r'], " "))
    }

    /// Returns the key itself in base64, the second word of [`KeyPair::line`].
    pub(super) fn blob(&self) -> Result<String, SetupError> {
        let line = self.line()?;
        Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
    }
}

/// Creates an Ed25519 key, which every OpenSSH since 2014 accepts.
fn make_key() -> Result<PrivateKey, SetupError> {
    let mut seed = [0; 32];
    ring::rand::SystemRandom::new().fill(&mut seed).map_err(|_| SetupError::MakeKey)?;
    let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(&seed));
    let host = nix::unistd::gethostname().unwrap_or_default();
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let user = user.map_or_else(String::new, |user| format!("{}@", user.name));
    PrivateKey::new(pair, format!("{user}{}", host.to_string_lossy()))
        .map_err(|_| SetupError::MakeKey)
}

/// Reads the public key from the `.pub` file, since the private key may have a passphrase, or else from the
/// private key.
fn read_public_key(path: &Path) -> Result<PublicKey, SetupError> {
    if let Ok(public) = PublicKey::read_openssh_file(public_path(path)) {
        return Ok(public);
    }
    match KeyFile::read_exposed(path) {
        Ok(KeyFile::Public(_)) => Err(SetupError::PublicKey(path.to_owned())),
        // OpenSSH's own format has the public half in clear even if the key has a passphrase.
        Ok(key) => key.public().cloned().ok_or_else(|| SetupError::NoPublicKey(path.to_owned())),
        Err(source) => Err(SetupError::Key { path: path.to_owned(), source }),
    }
}

fn public_path(path: &Path) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(".pub");
    PathBuf::from(path)
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> SetupError {
    move |source| SetupError::Write { path: path.to_owned(), source }
}

/// Writes a file that must not exist yet, and its directory.
fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SetupError> {
    make_parent(path)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(write_error(path))
}

/// Replaces the content of a file atomically. The file then has mode 600.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), SetupError> {
    make_parent(path)?;
    let directory = path.parent().unwrap_or(path);
    let write = || -> io::Result<()> {
        // Temporary files have mode 600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(write_error(path))
}

fn make_parent(path: &Path) -> Result<(), SetupError> {
    let Some(directory) = path.parent().filter(|directory| !directory.exists()) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(write_error(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_new_key_is_one_that_ssh_takes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".ssh/id_ed25519");
        let pair = KeyPair::find_or_make(path.clone()).unwrap();
        assert!(!path.exists());
        assert!(pair.change(home.path()).unwrap().starts_with("make the key ~/.ssh/id_ed25519 "));
        pair.write().unwrap();
        assert_eq!((mode(&path), mode(&public_path(&path))), (0o600, 0o644));
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let again = KeyPair::find_or_make(path.clone()).unwrap();
        assert_eq!(again.change(home.path()), None);
        assert_eq!(again.line().unwrap(), pair.line().unwrap());
        let derived = Command::new("ssh-keygen").arg("-yf").arg(&path).output().unwrap();
        let derived = String::from_utf8(derived.stdout).unwrap();
        assert_eq!(derived.split(' ').nth(1).unwrap().trim_end(), pair.blob().unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let open = KeyPair::find_or_make(path.clone()).unwrap();
        assert_eq!(open.change(home.path()).unwrap(), "chmod 600 ~/.ssh/id_ed25519");
        open.write().unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn the_public_half_of_a_locked_key() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("locked");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "secret", "-C", "me", "-f"]).arg(&path);
        assert!(keygen.status().unwrap().success());
        let line = fs::read_to_string(public_path(&path)).unwrap();
        fs::remove_file(public_path(&path)).unwrap();
        let blob = KeyPair::find_or_make(path).unwrap().blob().unwrap();
        assert_eq!(line.split(' ').nth(1), Some(&*blob));
        // Other formats have nothing in clear.
        let path = home.path().join("pem");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "secret", "-f"]);
        assert!(keygen.arg(&path).status().unwrap().success());
        fs::remove_file(public_path(&path)).unwrap();
        let error = KeyPair::find_or_make(path.clone()).err().unwrap();
        let line = format!("write it: ssh-keygen -y -f {0} >{0}.pub", path.display());
        assert_eq!(error.hint("a"), Some(line), "{error}");
        let public = home.path().join("public");
        fs::write(
            &public,
            KeyPair::find_or_make(home.path().join("locked")).unwrap().line().unwrap(),
        )
        .unwrap();
        let error = KeyPair::find_or_make(public).err().unwrap();
        assert!(error.to_string().ends_with("public is a public key"), "{error}");
    }

    #[test]
    fn what_is_no_key_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("id_rsa");
        fs::write(&path, "hello").unwrap();
        let error = KeyPair::find_or_make(path).err().unwrap();
        assert!(error.to_string().contains("id_rsa"), "{error}");
    }
}
