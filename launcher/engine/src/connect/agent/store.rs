//! Search for the programs that the launcher sends to hosts: the agent (for each architecture), the prover, and those of
//! `rlaunch bench` and `rlaunch push`. Those that rlaunch carries come last.

use super::bundle::{Bundle, DIRECTORY};
use super::host_file::HostFile;
use nix::unistd::Uid;
use rlaunch_console::messages;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Name of the agent's executable on this machine and on hosts.
pub const AGENT: &str = "rlaunch-worker";
/// Name of the prover's executable, which is in the directory of the agent's.
pub const PROVER: &str = "rlaunch-prover";
/// Name of the program that `rlaunch bench` runs, which is in the directory of the agent's executable.
pub const BENCH: &str = "rlaunch-bench";
/// Name of the program that reads stacks, which is in the directory of the agent's executable.
pub const STACK_READER: &str = "rlaunch-stack";
/// Name of the program that copies files, which is in the directory of the agent's executable.
pub const COPIER: &str = "rlaunch-copier";
/// Advice for a machine without /proc.
pub(super) const MOUNT_PROC: &str =
    "sudo mount -t proc proc /proc; below a chroot it has to be mounted as well";
/// Programs that are sent to hosts.
pub(super) const PROGRAMS: [&str; 5] = [AGENT, PROVER, BENCH, STACK_READER, COPIER];

/// Reason why there is no executable to send to a host.
#[derive(Debug, thiserror::Error)]
pub enum AgentStoreError {
    #[error("no agent for {arch} at {}", list(searched))]
    Missing { arch: String, searched: Vec<PathBuf> },
    /// A program beside the agent, by its name.
    #[error("no {name} for {arch} at {}", list(searched))]
    NoProgram { name: &'static str, arch: String, searched: Vec<PathBuf> },
    #[error("cannot read the agent {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read the files that rlaunch carries")]
    Bundle(#[source] io::Error),
    #[error("/proc is not mounted on this machine, and rlaunch finds its own files through it")]
    NoProc,
    #[error("{} is not an agent for {arch}: it is {found}", path.display())]
    Wrong { path: PathBuf, arch: String, found: String },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

impl AgentStoreError {
    /// Makes the error of an archive in rlaunch's own executable that could not be opened.
    pub fn of_bundle(source: io::Error) -> AgentStoreError {
        let has_proc = Path::new("/proc/self").exists();
        if has_proc { AgentStoreError::Bundle(source) } else { AgentStoreError::NoProc }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            AgentStoreError::Missing { arch, .. } => {
                // The alias `cargo agent-aarch64` cross-compiles on any machine.
                let is_built_elsewhere = arch == "aarch64" && std::env::consts::ARCH != "aarch64";
                let build = if is_built_elsewhere {
                    "`cargo agent-aarch64`".to_owned()
                } else {
                    format!("`cargo agent` on {arch}")
                };
                Some(format!(
                    "this rlaunch carries none: the packages of `cargo lab dist` do; or build it with \
                     {build}, then name it by --agent or put it at \
                     lib/rlaunch/{arch}-unknown-linux-gnu/{AGENT} beside rlaunch"
                ))
            }
            AgentStoreError::NoProgram { name, .. } => {
                let how = match *name {
                    PROVER => {
                        "build it with `cargo prover` and put it beside the agent, or give --mesh off"
                    }
                    STACK_READER => "build it with `cargo stack` and put it beside the agent",
                    COPIER => "build it with `cargo copier` and put it beside the agent",
                    BENCH => {
                        "build it with `cargo build --release -p rlaunch-bench` and put it beside the \
                         agent"
                    }
                    _ => return None,
                };
                Some(how.to_owned())
            }
            AgentStoreError::Read { .. } => None,
            AgentStoreError::Bundle(_) => {
                Some("the executable rlaunch is damaged: install it again".to_owned())
            }
            AgentStoreError::NoProc => Some(MOUNT_PROC.to_owned()),
            AgentStoreError::Wrong { .. } => {
                Some(format!("--agent takes an {AGENT} built for the hosts' architecture"))
            }
        }
    }
}

/// Executables of the agent by architecture, each found on first use.
pub struct AgentStore {
    /// Path from `--agent`, used for every host.
    agent_option: Option<PathBuf>,
    found: Mutex<Vec<(String, Arc<HostFile>)>>,
}

impl AgentStore {
    pub fn new(agent_option: Option<PathBuf>) -> AgentStore {
        AgentStore { agent_option, found: Mutex::default() }
    }

    /// Returns the path from `--agent`.
    pub(crate) fn agent_option(&self) -> Option<&Path> {
        self.agent_option.as_deref()
    }

    /// Returns the agent of `--agent` or, without that option, the agent for this machine's architecture.
    pub fn native(&self) -> Result<Arc<HostFile>, AgentStoreError> {
        match &self.agent_option {
            // The agent's architecture may differ from this machine's; a host that cannot run the agent
            // reports that.
            Some(path) => match architecture_of(path)? {
                Ok(arch) => self.for_arch(arch),
                Err(found) => Err(wrong_architecture(path, std::env::consts::ARCH, &found)),
            },
            None => self.for_arch(std::env::consts::ARCH),
        }
    }

    /// Returns the agent for `arch`, an architecture as in `uname -m`.
    pub fn for_arch(&self, arch: &str) -> Result<Arc<HostFile>, AgentStoreError> {
        let arch = if arch == "arm64" { "aarch64" } else { arch };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = found.iter().find(|(a, _)| a == arch) {
            return Ok(file.clone());
        }
        let file = Arc::new(self.load(arch)?);
        tracing::debug!(path = %file, hash = %file.hash, "agent");
        found.push((arch.to_owned(), file.clone()));
        Ok(file)
    }

    fn load(&self, arch: &str) -> Result<HostFile, AgentStoreError> {
        if let Some(path) = &self.agent_option {
            return match architecture_of(path)? {
                Ok(found) if found == arch => on_disk(path),
                Ok(found) => Err(wrong_architecture(path, arch, found)),
                Err(found) => Err(wrong_architecture(path, arch, &found)),
            };
        }
        let searched = candidates(arch);
        for path in searched.iter().filter(|path| path.is_file()) {
            if is_trusted(path) && architecture_of(path)?.is_ok_and(|found| found == arch) {
                return on_disk(path);
            }
        }
        let carried = in_bundle(arch, AGENT)?;
        carried.ok_or_else(|| AgentStoreError::Missing { arch: arch.to_owned(), searched })
    }
}

/// Lists the directories to search for the library for ranks: those in which the agent may be.
pub(super) fn library_directories(agent_option: Option<&Path>, arch: &str) -> Vec<PathBuf> {
    let agents = agent_option.map_or_else(|| candidates(arch), |path| vec![path.to_owned()]);
    agents.iter().filter_map(|agent| agent.parent()).map(Path::to_owned).collect()
}

/// Finds the program `name`, such as [`PROVER`], for an architecture: in the directory of `agent_option`, the path from
/// `--agent`, or without that option where the agent may be, or among the files that rlaunch carries.
pub fn beside_agent(
    name: &'static str,
    agent_option: Option<&Path>,
    arch: &str,
) -> Result<HostFile, AgentStoreError> {
    match path_beside_agent(name, agent_option, arch)? {
        Some(path) => on_disk(&path),
        None => carried(name, agent_option, arch),
    }
}

/// Finds such a program among the files that rlaunch carries, where none is beside the agent.
pub fn carried(
    name: &'static str,
    agent_option: Option<&Path>,
    arch: &str,
) -> Result<HostFile, AgentStoreError> {
    // They belong to its own agent.
    let carried = if agent_option.is_none() { in_bundle(arch, name)? } else { None };
    carried.ok_or_else(|| {
        let searched = beside(name, agent_option, arch);
        AgentStoreError::NoProgram { name, arch: arch.to_owned(), searched }
    })
}

/// Finds such a program among the files of this machine, without reading it for its digest.
pub fn path_beside_agent(
    name: &str,
    agent_option: Option<&Path>,
    arch: &str,
) -> Result<Option<PathBuf>, AgentStoreError> {
    for path in beside(name, agent_option, arch) {
        let may_use = path.is_file() && (agent_option.is_some() || is_trusted(&path));
        if may_use && architecture_of(&path)?.is_ok_and(|found| found == arch) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Lists the paths where a program may be that comes with the agent.
fn beside(name: &str, agent_option: Option<&Path>, arch: &str) -> Vec<PathBuf> {
    let agents = agent_option.map_or_else(|| candidates(arch), |path| vec![path.to_owned()]);
    agents.iter().map(|agent| agent.with_file_name(name)).collect()
}

fn wrong_architecture(path: &Path, arch: &str, found: &str) -> AgentStoreError {
    let (path, arch, found) = (path.to_owned(), arch.to_owned(), found.to_owned());
    AgentStoreError::Wrong { path, arch, found }
}

/// Lists the paths where the agent may be: beside rlaunch, in `lib/rlaunch/` below rlaunch's directory, and
/// in `lib/rlaunch/` below the parent of that directory.
fn candidates(arch: &str) -> Vec<PathBuf> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let in_lib =
        |root: &Path| root.join(DIRECTORY).join(format!("{arch}-unknown-linux-gnu")).join(AGENT);
    let mut paths = vec![beside.join(AGENT), in_lib(beside)];
    paths.extend(beside.parent().map(in_lib));
    paths
}

/// Tells whether a file that was found near rlaunch may be used: it belongs to this account, to root or to the owner of
/// rlaunch. Where all accounts may create files, as in `/tmp`, another one may have put it there.
pub(super) fn is_trusted(path: &Path) -> bool {
    static OWNER: OnceLock<Option<u32>> = OnceLock::new();
    let owner = || std::fs::metadata("/proc/self/exe").map(|found| found.uid()).ok();
    let owner = *OWNER.get_or_init(owner);
    let Ok(found) = std::fs::metadata(path) else { return false };
    let is_trusted = [Some(0), Some(Uid::effective().as_raw()), owner].contains(&Some(found.uid()));
    if !is_trusted {
        let (path, uid) = (path.display(), found.uid());
        messages::warn(&format!("{path} is not used, since it belongs to user {uid}"));
    }
    is_trusted
}

fn on_disk(path: &Path) -> Result<HostFile, AgentStoreError> {
    HostFile::on_disk(path)
        .map_err(|source| AgentStoreError::Read { path: path.to_owned(), source })
}

/// Finds a program in the archive that rlaunch carries.
fn in_bundle(arch: &str, name: &str) -> Result<Option<HostFile>, AgentStoreError> {
    let bundle = Bundle::own().map_err(AgentStoreError::of_bundle)?;
    Ok(bundle.and_then(|bundle| HostFile::in_bundle(bundle, arch, name)))
}

/// Returns the architecture of an ELF executable. The inner error describes the file if it is not an
/// executable or has an unknown architecture.
pub(super) fn architecture_of(
    path: &Path,
) -> Result<Result<&'static str, String>, AgentStoreError> {
    let failed = |source| AgentStoreError::Read { path: path.to_owned(), source };
    let mut header = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(20).read_to_end(&mut header).map_err(failed)?;
    Ok(elf_machine(&header))
}

/// Reads `e_machine` of an ELF header (System V ABI, chapter 4): two bytes at offset 18.
fn elf_machine(header: &[u8]) -> Result<&'static str, String> {
    match (header.get(..4), header.get(18..20)) {
        (Some(b"\x7fELF"), Some([62, 0])) => Ok("x86_64"),
        (Some(b"\x7fELF"), Some([183, 0])) => Ok("aarch64"),
        (Some(b"\x7fELF"), Some(&[low, high])) => {
            Err(format!("an executable for ELF machine {}", u16::from_le_bytes([low, high])))
        }
        _ => Err("not an executable".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(architecture_of(&exe).unwrap(), Ok(std::env::consts::ARCH));
        assert!(elf_machine(b"#!/bin/sh\necho no agent\n").is_err());
        assert!(elf_machine(b"").is_err());
    }

    #[test]
    fn a_script_is_no_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(matches!(AgentStore::new(Some(path)).native(), Err(AgentStoreError::Wrong { .. })));
    }

    #[test]
    fn who_lacks_an_agent_is_told_how_to_build_it() {
        let hint = |arch: &str| {
            let missing = AgentStoreError::Missing { arch: arch.to_owned(), searched: Vec::new() };
            missing.hint().unwrap()
        };
        assert!(hint("riscv64").contains("`cargo agent` on riscv64, "), "{}", hint("riscv64"));
        let elsewhere =
            if cfg!(target_arch = "aarch64") { "` on aarch64, " } else { "-aarch64`, " };
        let expected = format!("`cargo agent{elsewhere}");
        assert!(hint("aarch64").contains(&expected), "{}", hint("aarch64"));
        assert!(hint("aarch64").contains("lib/rlaunch/aarch64-unknown-linux-gnu/rlaunch-worker"));
    }

    /// Only root can make files of other accounts.
    #[test]
    fn a_file_of_another_account_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(is_trusted(file.path()));
        assert!(!is_trusted(Path::new("/nonexistent")));
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(file.path(), Some(12345), None).unwrap();
            assert!(!is_trusted(file.path()));
        }
    }
}
