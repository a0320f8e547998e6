//! Key pairs of the user: found, or made.

use super::container::tilde;
use super::error::SetupError;
use ring::rand::SecureRandom;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::ssh_key::{LineEnding, private::KeypairData};
use russh::keys::{PrivateKey, PublicKey};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A key pair, as it is or as it is to be.
pub(super) struct KeyPair {
    pub(super) path: PathBuf,
    public: PublicKey,
    state: State,
}

enum State {
    Good,
    /// Others may read it, so that OpenSSH would not use it.
    Open,
    /// It exists in memory only.
    Missing(Box<PrivateKey>),
}

impl KeyPair {
    /// The one at `path`, or a new one that is not written yet.
    pub(super) fn find_or_make(path: PathBuf) -> Result<KeyPair, SetupError> {
        let read = |source| SetupError::Read { path: path.clone(), source };
        let state = match fs::metadata(&path) {
            Ok(found) if found.mode() & 0o077 == 0 => State::Good,
            Ok(_) => State::Open,
            Err(error) if error.kind() == ErrorKind::NotFound => State::Missing(Box::new(new()?)),
            Err(error) => return Err(read(error)),
        };
        let public = match &state {
            State::Missing(key) => key.public_key().clone(),
            State::Good | State::Open => public_half(&path)?,
        };
        Ok(KeyPair { path, public, state })
    }

    /// What is to be done, in words; `home` is written as `~`.
    pub(super) fn to_do(&self, home: &Path) -> Option<String> {
        let path = tilde(&self.path, home);
        match self.state {
            State::Good => None,
            State::Open => Some(format!("chmod 600 {path}")),
            State::Missing(_) => {
                Some(format!("make the key {path} and {path}.pub: Ed25519, without a passphrase"))
            }
        }
    }

    /// Does it.
    pub(super) fn write(&self) -> Result<(), SetupError> {
        match &self.state {
            State::Good => Ok(()),
            State::Open => fs::set_permissions(&self.path, Permissions::from_mode(0o600))
                .map_err(failed(&self.path)),
            State::Missing(key) => {
                let text = key.to_openssh(LineEnding::LF).map_err(|_| SetupError::Make)?;
                write_new(&self.path, text.as_bytes(), 0o600)?;
                write_new(&public_path(&self.path), format!("{}\n", self.line()?).as_bytes(), 0o644)
            }
        }
    }

    /// `ssh-ed25519 AAAA… comment`, as authorized_keys has it.
    pub(super) fn line(&self) -> Result<String, SetupError> {
        let line = self.public.to_openssh().map_err(|_| SetupError::Make)?;
        Ok(line.trim_end().replace(['\n', '\r'], " "))
    }

    /// What of the line is the key itself.
    pub(super) fn blob(&self) -> Result<String, SetupError> {
        let line = self.line()?;
        Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
    }
}

/// Ed25519: short, quick, and known to every OpenSSH since 2014.
fn new() -> Result<PrivateKey, SetupError> {
    let mut seed = [0; 32];
    ring::rand::SystemRandom::new().fill(&mut seed).map_err(|_| SetupError::Make)?;
    let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(&seed));
    let host = nix::unistd::gethostname().unwrap_or_default();
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let user = user.map_or_else(String::new, |user| format!("{}@", user.name));
    PrivateKey::new(pair, format!("{user}{}", host.to_string_lossy())).map_err(|_| SetupError::Make)
}

/// From the file beside it where there is one: the key itself may want a passphrase.
fn public_half(path: &Path) -> Result<PublicKey, SetupError> {
    if let Ok(public) = PublicKey::read_openssh_file(public_path(path)) {
        return Ok(public);
    }
    match russh::keys::load_secret_key(path, None) {
        Ok(key) => Ok(key.public_key().clone()),
        Err(source) => {
            // OpenSSH's own form tells the public half also of a locked key.
            let text = fs::read(path)
                .map_err(|source| SetupError::Read { path: path.to_owned(), source })?;
            let key = PrivateKey::from_openssh(&text);
            let public = key.map(|key| key.public_key().clone());
            public.map_err(|_| SetupError::Key { path: path.to_owned(), source })
        }
    }
}

fn public_path(path: &Path) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(".pub");
    PathBuf::from(path)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> SetupError {
    move |source| SetupError::Write { path: path.to_owned(), source }
}

/// Writes a file that is not there yet, and its directory.
fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SetupError> {
    make_parent(path)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(failed(path))
}

/// Puts `text` in place of a file of the user's, mode 600, in one step.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), SetupError> {
    make_parent(path)?;
    let directory = path.parent().unwrap_or(path);
    let write = || -> io::Result<()> {
        // Such files have mode 600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(failed(path))
}

fn make_parent(path: &Path) -> Result<(), SetupError> {
    let Some(directory) = path.parent().filter(|directory| !directory.exists()) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))
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
        assert!(pair.to_do(home.path()).unwrap().starts_with("make the key ~/.ssh/id_ed25519 "));
        pair.write().unwrap();
        assert_eq!((mode(&path), mode(&public_path(&path))), (0o600, 0o644));
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let again = KeyPair::find_or_make(path.clone()).unwrap();
        assert_eq!(again.to_do(home.path()), None);
        assert_eq!(again.line().unwrap(), pair.line().unwrap());
        let derived = Command::new("ssh-keygen").arg("-yf").arg(&path).output().unwrap();
        let derived = String::from_utf8(derived.stdout).unwrap();
        assert_eq!(derived.split(' ').nth(1).unwrap().trim_end(), pair.blob().unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let open = KeyPair::find_or_make(path.clone()).unwrap();
        assert_eq!(open.to_do(home.path()).unwrap(), "chmod 600 ~/.ssh/id_ed25519");
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
