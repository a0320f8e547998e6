//! Key files for all hosts of a job. Each file is read once, and each passphrase asked for once.

use crate::keys::{EncryptedKey, KeyError, KeyFile};
use crate::prompt::Prompter;
use nix::unistd::{Uid, User};
use rlaunch_console::deadline::Deadline;
use russh::keys::PrivateKey;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of passphrases that are tried for a key.
const TRIES: usize = 3;

/// Key file, or the reason why it cannot be used.
pub(crate) type Loaded = Result<Arc<KeyFile>, KeyError>;

/// Key files for all hosts of a job, and their keys.
#[derive(Default)]
pub(crate) struct KeyRing {
    files: Mutex<HashMap<PathBuf, Loaded>>,
    /// Decrypted keys, by file. The lock is held while the user is asked for a passphrase, so there is only
    /// one question at a time.
    decrypted: tokio::sync::Mutex<HashMap<PathBuf, Result<Arc<PrivateKey>, KeyError>>>,
}

impl KeyRing {
    /// Returns the name of the local user, which is the default login name.
    pub(crate) fn local_user(&self) -> String {
        let name = User::from_uid(Uid::effective()).ok().flatten().map(|user| user.name);
        name.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned())
    }

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
        let key = ask_for(file, &loaded).await;
        decrypted.insert(file.to_owned(), key.clone());
        key
    }

    /// Runs a login until `deadline`; `None` if that expires. The deadline restarts after each question to
    /// the user, so that the time for the answer does not count.
    pub(crate) async fn within<T>(
        &self,
        deadline: &mut Deadline,
        login: impl Future<Output = T>,
    ) -> Option<T> {
        let mut login = std::pin::pin!(login);
        loop {
            match deadline.run(&mut login).await {
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

async fn ask_for(file: &Path, loaded: &Arc<KeyFile>) -> Result<Arc<PrivateKey>, KeyError> {
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
