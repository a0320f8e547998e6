//! Requirements of the lab on this machine: packages, virtual environments for hosts, root directories of
//! packages, and root.

pub mod mpi;
pub mod python;
pub mod roots;
pub mod unpacked;
pub(crate) mod venv;

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use sha2::{Digest, Sha256};

use crate::LabError;
use crate::command::{run, with_spinner};
use venv::Venv;

/// Program that must be installed, and the package of Debian and Ubuntu that has it. For packages
/// without a program, it is the path of one of their files.
type Requirement = (&'static str, &'static str);

/// Script that makes a root directory of Debian's packages. Arguments: directory, kind, packages.
pub(crate) const DEBIAN: &str = include_str!("debian.sh");

const LAB: &[Requirement] = &[
    // Interpreter of the wrapper around rustc: other shells drop variables whose names are not
    // identifiers.
    ("bash", "bash"),
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("ip", "iproute2"),
    ("bridge", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("ps", "procps"),
    ("python3", "python3"),
    ("nft", "nftables"),
];

const PEERS: &[Requirement] = &[
    ("mpiexec.hydra", "mpich"),
    ("mpirun.openmpi", "openmpi-bin"),
    // Used by ranks: arrays for Python programs, and the compiler of C programs.
    ("/usr/share/doc/python3-numpy/copyright", "python3-numpy"),
    ("/usr/share/doc/python3-venv/copyright", "python3-venv"),
    ("cc", "gcc"),
    // Login shells that users have.
    ("fish", "fish"),
    ("zsh", "zsh"),
    // Two shells that may each be called csh.
    ("tcsh", "tcsh"),
    ("bsd-csh", "csh"),
    // Batch system on hosts.
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("munged", "munge"),
    // Container engines on hosts.
    ("podman", "podman"),
    ("dockerd", "docker.io"),
    // Runs programs of aarch64; downloads those of other architectures, and a machine with systemd.
    ("qemu-aarch64", "qemu-user"),
    ("mmdebstrap", "mmdebstrap"),
];

/// Programs that people copy files with, and the one that limits the rate of a link.
const COPYING: &[Requirement] = &[
    ("scp", "openssh-client"),
    ("rsync", "rsync"),
    ("socat", "socat"),
    ("clush", "clustershell"),
    ("tc", "iproute2"),
];

/// Cross compiler for aarch64.
const AARCH64: &[Requirement] = if cfg!(target_arch = "x86_64") {
    &[
        ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        ("/usr/share/doc/libc6-dev-arm64-cross/copyright", "libc6-dev-arm64-cross"),
    ]
} else {
    &[]
};

/// Packages for compiling programs against the MPI libraries.
const HEADERS: &[Requirement] = &[
    ("cc", "gcc"),
    // The compiler wrappers come with the launchers, but find nothing without these.
    ("/usr/share/doc/libmpich-dev/copyright", "libmpich-dev"),
    ("/usr/share/doc/libopenmpi-dev/copyright", "libopenmpi-dev"),
    ("pkg-config", "pkg-config"),
    ("/usr/share/doc/libpmix-dev/copyright", "libpmix-dev"),
];

/// Packages for building the bindings of libibverbs from its C headers.
const VERBS: &[Requirement] = &[
    ("cc", "gcc"),
    ("cmake", "cmake"),
    ("clang", "clang"),
    ("/usr/share/doc/libclang-dev/copyright", "libclang-dev"),
];

/// Programs that make packages.
const PACKERS: &[Requirement] = &[("strip", "binutils"), ("dpkg-deb", "dpkg"), ("rpmbuild", "rpm")];

const FUZZER: &[Requirement] = &[("c++", "g++")];

/// Packages for building the guests' image and running guests.
const GUESTS: &[Requirement] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("cpio", "cpio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("xz", "xz-utils"),
    ("make", "make"),
    ("gcc", "gcc"),
];

/// Set of packages to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageSet {
    /// Packages for hosts.
    Lab,
    /// Packages for hosts, and for building all of rlaunch.
    Verbs,
    /// Packages for hosts, for building all of rlaunch, and the other launchers and MPI libraries
    /// that benches and tests use.
    Peers,
    /// Everything in `Peers`, the headers of those MPI libraries, and programs that make packages: what tests need.
    Headers,
    /// Packages for hosts, for building all of rlaunch, and for packing it.
    Packing,
    /// Packages for hosts, and programs that copy files.
    Copying,
    /// Packages for hosts, and for building a fuzzer.
    Fuzzer,
    /// Packages for hosts, for guests of `cargo lab vm`, and for building their image.
    Guests,
}

/// Installs missing packages and prints which. Returns quickly if none is missing.
pub fn install(extent: PackageSet) -> Result<(), LabError> {
    let packages = missing(extent);
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !has("apt-get") {
        return Err(LabError::Missing(format!(
            "{list} (these are Debian's names; install the equivalent with this system's package manager)"
        )));
    }
    println!("installing {list} by apt-get");
    let words = [&["install", "-q", "-y", "--no-install-recommends"][..], &packages].concat();
    with_spinner(format!("installing {list}"), || {
        apt("read the package lists", &["update", "-q"])?;
        apt("install packages", &words)
    })?;
    let still = missing(extent);
    if still.is_empty() { Ok(()) } else { Err(LabError::Missing(still.join(" "))) }
}

/// Fails with the names of missing packages. Installs nothing.
pub fn require(extent: PackageSet) -> Result<(), LabError> {
    match missing(extent).as_slice() {
        [] => Ok(()),
        packages => Err(LabError::Missing(packages.join(", "))),
    }
}

/// Lists the packages of missing programs, each once.
pub(crate) fn missing(extent: PackageSet) -> Vec<&'static str> {
    let beyond: &[&[Requirement]] = match extent {
        PackageSet::Lab => &[],
        PackageSet::Verbs => &[VERBS],
        PackageSet::Guests => &[GUESTS],
        PackageSet::Peers => &[PEERS, VERBS, AARCH64],
        PackageSet::Headers => &[PEERS, VERBS, HEADERS, PACKERS],
        PackageSet::Packing => &[VERBS, AARCH64, PACKERS],
        PackageSet::Copying => &[COPYING],
        PackageSet::Fuzzer => &[FUZZER],
    };
    let mut packages: Vec<_> = LAB
        .iter()
        .chain(beyond.iter().copied().flatten())
        .filter(|(program, _)| !has(program))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

/// Returns whether the bindings of libibverbs can be built here.
pub(crate) fn builds_verbs() -> bool {
    VERBS.iter().all(|(program, _)| has(program))
}

/// Returns whether `program` is installed. Looks in the system directories as well, which the PATH
/// of an ordinary account may lack.
pub fn has(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into);
    env::split_paths(&path).chain(more).any(|directory| directory.join(program).is_file())
}

/// Returns the directory in which the lab keeps images and virtual environments from run to run.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
    env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("rlaunch-lab")
}

/// Returns the name of what is made from a recipe: `name` and a digest of the recipe's parts, so that
/// another recipe makes another thing and an unchanged one is never made twice.
pub(crate) fn recipe_name<'a>(name: &str, parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // The length is included, so that moving a letter from one part to the next changes the digest.
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let digits = digest.finalize();
    digits[..8].iter().fold(format!("{name}-"), |name, byte| format!("{name}{byte:02x}"))
}

/// Returns the free space of a directory's file system in GiB.
pub(crate) fn free_space(directory: &Path) -> Result<u64, LabError> {
    let operation = format!("read the free space of {}", directory.display());
    let disk = statvfs(directory).map_err(LabError::errno(operation))?;
    Ok((disk.blocks_available() * disk.fragment_size()) >> 30)
}

/// Lists the virtual environments that hosts have if they were built.
pub(crate) fn venvs() -> impl Iterator<Item = Venv> {
    python::all().chain(mpi::LIBRARIES)
}

/// Fails unless this process is root.
pub fn require_root() -> Result<(), LabError> {
    if geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

/// Becomes root by starting this program again under `sudo -n`. Returns at once if it is root
/// already. Builds then run as the calling account again, see [`crate::dist`].
pub fn become_root() -> Result<(), LabError> {
    if geteuid().is_root() {
        return Ok(());
    }
    if !has("sudo") || run("ask sudo", Command::new("sudo").args(["-n", "true"])).is_err() {
        return Err(LabError::NotRoot);
    }
    let program = env::current_exe().map_err(LabError::io("find this program"))?;
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "env"]);
    for (name, value) in kept_variables() {
        sudo.arg(format!("{name}={value}"));
    }
    let error = sudo.arg(program).args(env::args_os().skip(1)).exec();
    Err(LabError::io("start sudo")(error))
}

/// Lists the environment variables that sudo would drop, but the toolchain, the cache and the
/// terminal need.
fn kept_variables() -> impl Iterator<Item = (String, String)> {
    let kept = |name: &str| {
        ["PATH", "HOME", "TERM", "NO_COLOR"].contains(&name)
            || ["CARGO", "RUST", "XDG_"].iter().any(|prefix| name.starts_with(prefix))
    };
    env::vars().filter(move |(name, _)| kept(name))
}

fn apt(operation: &str, words: &[&str]) -> Result<(), LabError> {
    let mut apt = if geteuid().is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    };
    run(operation, apt.env("DEBIAN_FRONTEND", "noninteractive").args(words)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_recipe_has_another_name() {
        let one = recipe_name("vm", ["bookworm", "podman"]);
        assert_eq!(one.len(), "vm-0123456789abcdef".len());
        assert_eq!(one, recipe_name("vm", ["bookworm", "podman"]));
        assert_ne!(one, recipe_name("vm", ["trixie", "podman"]));
        assert_ne!(one, recipe_name("vm", ["bookwormp", "odman"]));
    }
}
