//! The keys of all hosts: each file is read once, and each passphrase asked for once.

use super::askpass::Prompter;
use super::keys::{KeyError, KeyFile, Locked};
use nix::unistd::{Uid, User};
use rlaunch_console::deadline::Deadline;
use russh::keys::PrivateKey;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a passphrase may be wrong.
const TRIES: usize = 3;

/// A key file as far as it could be read.
pub(crate) type Loaded = Result<Arc<KeyFile>, KeyError>;

/// The keys of all hosts.
#[derive(Default)]
pub(crate) struct KeyRing {
    files: Mutex<HashMap<PathBuf, Loaded>>,
    /// Held while someone is asked, so that one question stands at a time.
    unlocked: tokio::sync::Mutex<HashMap<PathBuf, Result<Arc<PrivateKey>, KeyError>>>,
}

impl KeyRing {
    /// Who we are here, which is who we are there unless something says otherwise.
    pub(crate) fn local_user(&self) -> String {
        let name = User::from_uid(Uid::effective()).ok().flatten().map(|user| user.name);
        name.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned())
    }

    /// What a file holds.
    pub(crate) fn load(&self, file: &Path) -> Loaded {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.entry(file.to_owned()).or_insert_with(|| KeyFile::read(file).map(Arc::new)).clone()
    }

    /// The private key in a file; for an encrypted one, somebody is asked.
    pub(crate) async fn private(&self, file: &Path) -> Result<Arc<PrivateKey>, KeyError> {
        let loaded = self.load(file)?;
        match &*loaded {
            KeyFile::Open(key) => return Ok(key.clone()),
            KeyFile::Public(_) => return Err(KeyError::PublicOnly),
            KeyFile::Locked(_) => {}
        }
        let mut unlocked = self.unlocked.lock().await;
        if let Some(known) = unlocked.get(file) {
            return known.clone();
        }
        let key = ask_for(file, &loaded).await;
        unlocked.insert(file.to_owned(), key.clone());
        key
    }

    /// Runs a login until `deadline`. The time in which someone is asked does not count: after it,
    /// the deadline begins anew.
    pub(crate) async fn within<T>(
        &self,
        deadline: &mut Deadline,
        login: impl Future<Output = T>,
    ) -> Option<T> {
        let mut login = std::pin::pin!(login);
        loop {
            match deadline.run(&mut login).await {
                None if self.unlocked.try_lock().is_err() => {}
                ended => return ended,
            }
            tokio::select! {
                done = &mut login => return Some(done),
                _free = self.unlocked.lock() => deadline.restart(),
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
        // A key derivation is made to take long.
        let unlocking = tokio::task::spawn_blocking(move || match &*loaded {
            KeyFile::Locked(locked) => Locked::unlock(locked, &passphrase),
            KeyFile::Open(_) | KeyFile::Public(_) => Err(KeyError::PublicOnly),
        });
        match unlocking.await {
            Ok(Ok(key)) => return Ok(Arc::new(key)),
            Ok(Err(KeyError::WrongPassphrase)) => {
                prompt = format!("not right; passphrase for {}: ", file.display());
            }
            Ok(Err(error)) => return Err(error),
            Err(error) => return Err(KeyError::Broken(error.to_string())),
        }
    }
    Err(KeyError::WrongPassphrase)
}
