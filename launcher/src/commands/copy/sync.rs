//! `--sync` of jobs: the working tree is on all hosts before the job starts, and ranks run in it.
//!
//! A host has one copy for each directory of each machine that jobs are started on, and a second one only if a job starts while
//! another has the first. Which one a job has is decided here, by a lock that this process holds until the job has ended:
//! so it is the same on all hosts, and they need to know nothing of it.

use super::attempt::{Ahead, Attempt, AttemptEnd, Origin, TreeState};
use super::progress::amount;
use super::{TransferArgs, Way};
use crate::cli::args::EnvironmentArgs;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Uid, gethostname, getuid};
use rlaunch_bootstrap::job::WorkingDir;
use rlaunch_console::messages;
use rlaunch_console::process_env::{ProcessEnv, create_state_directory};
use rlaunch_copy::control::TreeLimit;
use rlaunch_copy::patch::next_list;
use rlaunch_engine::connect::connector::{Logins, Volume};
use rlaunch_engine::run::job_run::{Launch, Pending, TreeSource};
use rlaunch_plan::job::options::DryRun;
use rlaunch_plan::job::{JobSpec, TreeCopy};
use rlaunch_ssh::prompt::Prompter;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Directory of hosts that has the copies.
const COPIES: &str = "~/.cache/rlaunch/sync";
/// What is copied without asking.
const USUAL: TreeLimit = TreeLimit { files: 50_000, bytes: 1 << 30 };
const ANY: TreeLimit = TreeLimit { files: u64::MAX, bytes: u64::MAX };
/// Number of jobs with the same tree at a time.
const MOST: u32 = 64;
/// How files travel: they are few, and most are there.
const TRANSFER: TransferArgs =
    TransferArgs { plain: false, limit: None, streams: 1, verify: false };

/// Directory that is copied to a job's hosts.
#[derive(Clone, Debug)]
pub(crate) struct SyncedTree {
    /// Without links.
    directory: PathBuf,
    limit: TreeLimit,
}

/// Copy of a tree that no other job changes until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldCopy {
    _lock: Flock<File>,
}

impl SyncedTree {
    /// Returns `None` without `--sync`.
    pub(crate) fn from_options(args: &EnvironmentArgs) -> Result<Option<SyncedTree>, Failed> {
        let Some(named) = &args.sync else { return Ok(None) };
        let failed = |why: &dyn std::fmt::Display| {
            let message = format!("--sync cannot copy {}: {why}", named.display());
            Failed::new(Exit::FILES, message).hint(Some("--sync=DIR names the directory to copy"))
        };
        let directory = named.canonicalize().map_err(|error| failed(&error))?;
        if !directory.is_dir() {
            return Err(failed(&"it is not a directory"));
        }
        if directory.to_str().is_none() {
            return Err(failed(&"its name is not UTF-8"));
        }
        let chosen = args.sync_limit.map(|bytes| TreeLimit { bytes, ..ANY });
        Ok(Some(SyncedTree { directory, limit: chosen.unwrap_or(USUAL) }))
    }

    /// Begins to read the tree, so that the job copies it to its hosts, and makes its ranks start there.
    pub(crate) async fn place(
        &self,
        mut launch: Launch,
    ) -> Result<(Launch, Option<HeldCopy>), Failed> {
        if launch.spec.is_local {
            self.start_in(&mut launch.spec, &self.directory);
            return Ok((launch, None));
        }
        let key = self.key(getuid());
        match launch.spec.dry_run {
            None => {}
            Some(DryRun::Offline) => {
                self.enter(&mut launch, &self.in_copy(&copy_dir(&key, 1)));
                return Ok((launch, None));
            }
            // Hosts would lack a directory that only the job itself makes.
            Some(DryRun::Agents) => return Ok((launch, None)),
        }
        let (number, lock) = hold(&key)?;
        let copy = copy_dir(&key, number);
        let root = self.in_copy(&copy);
        let starts_containers = launch.reach.starts_containers();
        let copies = Copies::begin(self.clone(), copy, Ahead::of(&launch))?;
        let shared = OnceLock::new();
        if starts_containers {
            // They mount the copy, so that it is there before agents start.
            let _ = shared.set(copies.bring().await?);
        } else {
            launch.tree = Some(Box::new(copies));
        }
        tracing::info!("ranks run in {root}", root = root.display());
        self.enter(&mut launch, &root);
        let of_ranks = if starts_containers { &self.directory } else { &root };
        launch.spec.tree = Some(TreeCopy { of_ranks: of_ranks.clone(), of_hosts: root, shared });
        Ok((launch, Some(HeldCopy { _lock: lock })))
    }

    /// Makes the ranks of a job start in its copy, which containers of an image have at the path of the tree here.
    fn enter(&self, launch: &mut Launch, root: &Path) {
        if !launch.reach.starts_containers() {
            return self.start_in(&mut launch.spec, root);
        }
        let (source, target) = (root.display().to_string(), self.directory.display().to_string());
        match Volume::of_directory(&source, &target) {
            Some(copy) => launch.reach.mount(Some(&copy)),
            None => {
                messages::warn(&format!(
                    "{target} is not in the containers: its name is not plain"
                ));
            }
        }
        self.start_in(&mut launch.spec, &self.directory);
    }

    /// Returns where the tree is in one of its copies: there it has its own name.
    fn in_copy(&self, copy: &str) -> PathBuf {
        Path::new(copy).join(self.directory.file_name().unwrap_or_default()).components().collect()
    }

    /// Returns the name of the copies of this directory of this machine, of which each user has own ones: the locks of others
    /// are elsewhere, but all may log in to hosts as one account.
    fn key(&self, user: Uid) -> String {
        let host = gethostname().unwrap_or_default();
        // Machines of one home directory may also have one name.
        let machine = fs::read("/etc/machine-id").unwrap_or_default();
        let user = user.to_string();
        let directory = self.directory.as_os_str().as_bytes();
        let parts = [host.as_bytes(), machine.as_slice(), user.as_bytes(), directory];
        let digest = Sha256::digest(parts.join(&b'\0'));
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Asks whether a large tree is to be copied. Without a terminal it is not.
    async fn is_agreed(&self, files: u64, bytes: u64, hosts: usize) -> bool {
        let (size, hosts) = (amount(bytes), text::count(hosts, "host"));
        let directory = self.directory.display();
        is_agreed(&format!("copy {files} files, {size} of {directory} to {hosts}?")).await
    }

    /// Makes ranks that would start in the tree, or in no directory that was named, start at the same place of its copy.
    fn start_in(&self, spec: &mut JobSpec, copy: &Path) {
        for app in &mut spec.apps {
            let below = match &app.wdir {
                WorkingDir::SameAsLauncher(here) => {
                    let below = here.physical.strip_prefix(&self.directory);
                    Some(below.unwrap_or(Path::new("")).to_owned())
                }
                WorkingDir::Required(named) => {
                    let physical = named.canonicalize().unwrap_or_else(|_| named.clone());
                    physical.strip_prefix(&self.directory).map(Path::to_owned).ok()
                }
            };
            if let Some(below) = below {
                // Joined to an empty path, a directory would end in a slash.
                app.wdir = WorkingDir::Required(copy.join(below).components().collect());
            }
        }
    }
}

/// Copies of a tree on the hosts of a job, of which the program on this machine reads the tree already.
struct Copies {
    tree: SyncedTree,
    /// Directory of hosts.
    directory: String,
    ahead: Ahead,
    attempt: Attempt,
}

impl Copies {
    fn begin(tree: SyncedTree, directory: String, ahead: Ahead) -> Result<Copies, Failed> {
        let attempt = begin(&tree, &directory, &ahead)?;
        Ok(Copies { tree, directory, ahead, attempt })
    }

    /// Waits until the tree is read as it is now. A large one is read again if the user agrees to copy it.
    async fn content(&mut self) -> Result<[u8; 32], Failed> {
        loop {
            match self.attempt.tree().await? {
                TreeState::Read(content) => return Ok(content),
                TreeState::TooLarge { files, bytes, failed } => {
                    let hosts = self.ahead.hosts();
                    if !self.tree.is_agreed(files, bytes, hosts).await {
                        return Err(failed);
                    }
                    self.tree.limit = ANY;
                    self.attempt = begin(&self.tree, &self.directory, &self.ahead)?;
                }
            }
        }
    }

    /// Copies the tree. Returns the hosts whose copy is that of another host, with the latter.
    async fn bring(mut self) -> Result<Vec<(String, String)>, Failed> {
        self.content().await?;
        match copy(self.attempt).await {
            // The server of a host may take one session a connection.
            Err(failed) if failed.exit == Exit::HOST => {
                self.ahead.reach.logins = Logins::default();
                copy(begin(&self.tree, &self.directory, &self.ahead)?).await
            }
            copied => copied,
        }
    }
}

impl TreeSource for Copies {
    fn copy(&self) -> PathBuf {
        PathBuf::from(&self.directory)
    }

    fn content(&mut self) -> Pending<'_, [u8; 32]> {
        Box::pin(self.content())
    }

    fn patch(&mut self, former: [u8; 32]) -> Pending<'_, Option<Vec<u8>>> {
        Box::pin(self.attempt.patch(former))
    }

    fn patched(&mut self) {
        // With the list that stays if this fails, more is compared the next time.
        let _ = list_of_copy(&self.directory).map(|list| fs::rename(next_list(&list), list));
    }

    fn bring(self: Box<Self>) -> Pending<'static, Vec<(String, String)>> {
        Box::pin((*self).bring())
    }
}

fn begin(tree: &SyncedTree, copy: &str, ahead: &Ahead) -> Result<Attempt, Failed> {
    let path = tree.directory.display().to_string();
    let last = list_of_copy(copy).and_then(|list| list.to_str().map(str::to_owned));
    let way = Way::Tree { path, destination: copy.to_owned(), limit: tree.limit, last };
    Attempt::begin(&way, &TRANSFER, Origin::Job(ahead).launch_copy(&way, &[])?)
}

async fn copy(attempt: Attempt) -> Result<Vec<(String, String)>, Failed> {
    match attempt.finish().await?.0 {
        AttemptEnd::Complete { shared, .. } => Ok(shared),
        AttemptEnd::Without { lost, .. } => {
            let message = format!("cannot copy the working tree: {}", lost.why);
            Err(Failed::new(lost.exit, message).hint(lost.hint))
        }
    }
}

/// Asks the user. Without a terminal there is no consent.
pub(super) async fn is_agreed(question: &str) -> bool {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return false;
    }
    let Some(prompter) = Prompter::open() else { return false };
    let answer = prompter.ask_visibly(&format!("{question} [y/N] ")).await;
    answer.is_some_and(|answer| {
        let answer = answer.trim();
        answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes")
    })
}

/// Returns the directory of hosts that has the copy of this number, from 1.
fn copy_dir(key: &str, number: u32) -> String {
    match number {
        1 => format!("{COPIES}/{key}"),
        _ => format!("{COPIES}/{key}.{number}"),
    }
}

/// Tells whether a job that was started here has the copy of this directory's name.
pub(super) fn is_held(name: &str) -> bool {
    lock_of(name).is_some_and(|file| {
        let tried = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        tried.is_err_and(|(_, errno)| errno == Errno::EWOULDBLOCK)
    })
}

/// Takes the copy of this directory's name, so that no job that is started here gets it; `None` if a job has it, or if it
/// was made by another machine, whose jobs are not known here.
pub(super) fn hold_named(name: &str) -> Option<Flock<File>> {
    Flock::lock(lock_of(name)?, FlockArg::LockExclusiveNonblock).ok()
}

/// Forgets what the copy of this directory's name contains, because it was removed.
pub(super) fn forget(name: &str) {
    // Hosts that still have it are compared anew; a list that stays is used for those alone that have what it says.
    let _ = list_of(name).map(|list| [next_list(&list), list].map(fs::remove_file));
}

/// Opens the lock of a copy that was made from here. For writing, without which NFS locks nothing.
fn lock_of(name: &str) -> Option<File> {
    OpenOptions::new().write(true).open(file_of(name, "lock")?).ok()
}

/// Returns the file that keeps the list of what was copied last to a directory of hosts.
fn list_of_copy(copy: &str) -> Option<PathBuf> {
    list_of(Path::new(copy).file_name()?.to_str()?)
}

/// Returns the file that keeps the list of what was copied last to a directory of this name.
fn list_of(name: &str) -> Option<PathBuf> {
    file_of(name, "files")
}

fn file_of(name: &str, kind: &str) -> Option<PathBuf> {
    let (key, number) = name.split_once('.').unwrap_or((name, "1"));
    Some(locks()?.join(format!("{key}.{number}.{kind}")))
}

/// Returns the directory of locks and lists. Locks tell the copies that were made from here from those of other machines;
/// `None` if no directory is known.
fn locks() -> Option<PathBuf> {
    Some(ProcessEnv::current().state_directory()?.join("rlaunch/sync"))
}

/// Takes the first copy that no other job has.
fn hold(key: &str) -> Result<(u32, Flock<File>), Failed> {
    let locks = locks().ok_or_else(|| {
        let message =
            "no directory for the locks of --sync: neither XDG_STATE_HOME nor HOME names one";
        Failed::new(Exit::FILES, message)
    })?;
    hold_in(&locks, key)
}

fn hold_in(directory: &Path, key: &str) -> Result<(u32, Flock<File>), Failed> {
    let failed = |error: io::Error| {
        let message = format!("cannot lock a file of --sync in {}: {error}", directory.display());
        Failed::new(Exit::FILES, message).hint(Some("XDG_STATE_HOME=DIR keeps them elsewhere"))
    };
    create_state_directory(directory).map_err(failed)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    for number in 1..=MOST {
        let path = directory.join(format!("{key}.{number}.lock"));
        let file = options.open(path).map_err(failed)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok((number, lock)),
            Err((_, Errno::EAGAIN)) => {}
            Err((_, errno)) => return Err(failed(errno.into())),
        }
    }
    let message = format!("{MOST} jobs run in copies of this directory");
    Err(Failed::new(Exit::FILES, message).hint(Some("rlaunch jobs lists them")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lower;

    fn tree(directory: &Path) -> SyncedTree {
        SyncedTree { directory: directory.canonicalize().unwrap(), limit: USUAL }
    }

    fn wdir(tree: &SyncedTree, line: &str) -> PathBuf {
        let mut spec = lower::parse(line).unwrap();
        tree.start_in(&mut spec, Path::new("~/copy/x"));
        match &spec.first().wdir {
            WorkingDir::Required(path) => path.clone(),
            WorkingDir::SameAsLauncher(here) => panic!("{}", here.path.display()),
        }
    }

    #[test]
    fn ranks_start_at_the_same_place_of_the_copy() {
        let here = std::env::current_dir().unwrap();
        let copy = |below: &str| Path::new("~/copy/x").join(below);
        let own = tree(&here);
        assert_eq!(wdir(&own, "-H a x").as_os_str(), "~/copy/x");
        assert_eq!(wdir(&own, "-H a --wdir src x"), copy("src"));
        assert_eq!(wdir(&own, "-H a --wdir /elsewhere x"), Path::new("/elsewhere"));
        assert_eq!(wdir(&own, "-H a --wdir ~/runs x"), Path::new("~/runs"));
        let above = tree(here.parent().unwrap());
        assert_eq!(wdir(&above, "-H a x"), copy(here.file_name().unwrap().to_str().unwrap()));
        // A directory that this one is not below.
        let other = tempfile::tempdir().unwrap();
        assert_eq!(wdir(&tree(other.path()), "-H a x").as_os_str(), "~/copy/x");
    }

    #[test]
    fn each_directory_has_copies_of_its_own() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, two) = (tree(one.path()), tree(two.path()));
        let key = |tree: &SyncedTree, user| tree.key(Uid::from_raw(user));
        assert_eq!(key(&one, 1).len(), 16);
        assert_ne!(key(&one, 1), key(&two, 1));
        assert_ne!(key(&one, 1), key(&one, 2));
        assert_eq!(copy_dir("k", 1), "~/.cache/rlaunch/sync/k");
        assert_eq!(copy_dir("k", 2), "~/.cache/rlaunch/sync/k.2");
        let name = one.directory.file_name().unwrap();
        assert_eq!(one.in_copy("~/c"), Path::new("~/c").join(name));
        assert_eq!(tree(Path::new("/")).in_copy("~/c").as_os_str(), "~/c");
    }

    #[test]
    fn each_copy_has_a_lock_and_a_list() {
        let name = |name: &str, kind: &str| {
            let path = file_of(name, kind).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name("k", "lock"), "k.1.lock");
        assert_eq!(name("k.2", "files"), "k.2.files");
        assert_eq!(list_of_copy(&copy_dir("k", 1)), file_of("k", "files"));
    }

    #[test]
    fn a_copy_that_a_job_has_is_left_to_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("sync");
        let number = |held: &(u32, Flock<File>)| held.0;
        let first = hold_in(&directory, "k").unwrap();
        let second = hold_in(&directory, "k").unwrap();
        let other = hold_in(&directory, "l").unwrap();
        assert_eq!([&first, &second, &other].map(number), [1, 2, 1]);
        drop(first);
        assert_eq!(number(&hold_in(&directory, "k").unwrap()), 1);
    }
}
