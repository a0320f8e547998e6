//! The image that all guests boot from. It is built once from Debian's packages and kept in the
//! cache. It is named by a digest of its recipe, so that a changed recipe makes another image and an
//! unchanged one is never built twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::LabError;
use crate::command::background::Background;
use crate::command::{run, with_spinner};
use crate::files::{make_dir, remove_dir};
use crate::netns::state::lock;
use crate::setup::{self, PackageSet, recipe_name};

/// Time limit of one step; the slowest takes a minute.
const STEP: Duration = Duration::from_secs(900);

/// Extension of the directory of an image that is being built, before a pid.
const UNFINISHED: &str = "new";

/// Complete image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    dir: PathBuf,
}

impl Image {
    /// Refers to the image in `dir`, which must exist.
    pub(super) fn at(dir: impl Into<PathBuf>) -> Image {
        Image { dir: dir.into() }
    }

    /// Finds the image of the current recipe, if it has been built.
    pub(super) fn find() -> Result<Option<Image>, LabError> {
        let dir = setup::cache().join(image_name(&suite()?));
        Ok(dir.exists().then_some(Image { dir }))
    }

    /// Returns the image of the current recipe, and builds it if it does not exist. Prints a line
    /// for every step.
    pub(super) fn build() -> Result<Image, LabError> {
        if let Some(image) = Image::find()? {
            return Ok(image);
        }
        setup::require_root()?;
        let cache = setup::cache();
        make_dir(&cache)?;
        let waiting = Instant::now();
        let _lock = lock(&cache.join("vm.lock"))?;
        // The previous holder of the lock may have built it.
        if let Some(image) = Image::find()? {
            let waited = waiting.elapsed().as_secs_f64();
            println!("the guests' image was built meanwhile (waited {waited:.0} s)");
            return Ok(image);
        }
        setup::install(PackageSet::Guests)?;
        let suite = suite()?;
        let dir = cache.join(image_name(&suite));
        println!("building the guests' image {} (once, about a minute)", dir.display());
        let start = Instant::now();
        remove_unfinished(&cache)?;
        // Processes of an interrupted build may run on for a while, in a directory of their own.
        let unfinished = dir.with_extension(format!("{UNFINISHED}{}", std::process::id()));
        make_dir(&unfinished)?;
        with_spinner("building the guests' image", || make(&suite, &unfinished)).inspect_err(
            |_| {
                // The first error is reported; the next build removes what cannot be removed here.
                let _ = remove_dir(&unfinished);
            },
        )?;
        fs::rename(&unfinished, &dir)
            .map_err(LabError::io(format!("rename {}", unfinished.display())))?;
        println!("  the image is built ({:.0} s)", start.elapsed().as_secs_f64());
        Ok(Image { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the root directory. All guests share it, read-only.
    pub(super) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub(super) fn ramdisk(&self) -> PathBuf {
        self.dir.join("initrd.gz")
    }

    /// Returns an empty disk, of which every guest has a copy.
    pub(super) fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Returns the private key that is authorised on every guest.
    pub(super) fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    pub(super) fn known_hosts(&self) -> PathBuf {
        self.dir.join("known_hosts")
    }
}

/// Returns why no image can be built or booted here, if that is known beforehand.
pub(crate) fn obstacle() -> Option<String> {
    if let Err(error) = suite() {
        return Some(error.to_string());
    }
    let missing = setup::missing(PackageSet::Guests);
    if !missing.is_empty() && !setup::has("apt-get") {
        return Some(LabError::Missing(missing.join(" ")).to_string());
    }
    (!Path::new("/dev/net/tun").exists()).then(|| "there is no /dev/net/tun".into())
}

/// Starts building the image in the background. Dropping the handle ends the build.
pub(crate) fn build_beside() -> Result<Background, LabError> {
    let program = std::env::current_exe().map_err(LabError::io("find this program"))?;
    let mut command = Command::new(program);
    command.args(["vm", "build"]);
    Background::start(command)
}

/// Returns this machine's Debian release: what is built here runs in the guests.
fn suite() -> Result<String, LabError> {
    let text =
        fs::read_to_string("/etc/os-release").map_err(LabError::io("read which system this is"))?;
    match (os_release(&text), std::env::consts::ARCH) {
        (Some(suite), "x86_64") => Ok(suite),
        _ => Err(LabError::Unexpected(
            "guests need Debian on x86_64: their image is made of its packages".into(),
        )),
    }
}

/// Returns the code name in an os-release file of Debian.
fn os_release(text: &str) -> Option<String> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    value("VERSION_CODENAME").filter(|_| value("ID").as_deref() == Some("debian"))
}

/// Runs all steps. The root directory is made while the kernel is downloaded and its driver built.
fn make(suite: &str, dir: &Path) -> Result<(), LabError> {
    step("package lists", "read the package lists", || {
        run("read the package lists", Command::new("apt-get").args(["update", "-q"])).map(drop)
    })?;
    let words = [&[suite], PACKAGES].concat();
    let (root, kernel) = thread::scope(|scope| {
        let root = scope.spawn(|| script(ROOT, dir, "root directory", &words));
        let kernel = script(KERNEL, dir, "kernel", &[])
            .and_then(|()| script(SIW, dir, "Soft-iWARP driver", &[]));
        (root.join(), kernel)
    });
    kernel?;
    root.unwrap_or_else(|_| Err(LabError::Unexpected("the root directory was not made".into())))?;
    let inits = [GUEST_INIT.text, RAMDISK_INIT.text];
    script(FINISH, dir, "keys, initial ramdisk and disk", &inits)
}

fn script(script: Script, dir: &Path, label: &str, words: &[&str]) -> Result<(), LabError> {
    let operation = format!("make the {label} of the guests' image ({})", script.name);
    let mut command = Command::new("timeout");
    // In this process group, so that an interrupt ends it as well.
    command.args(["--foreground", &STEP.as_secs().to_string(), "sh", "-c", script.text]);
    command.arg(script.name).args(words).current_dir(dir).env("LC_ALL", "C");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    step(label, &operation, || run(&operation, &mut command).map(drop))
}

/// Runs a step and prints how long it took.
fn step(
    label: &str,
    operation: &str,
    run: impl FnOnce() -> Result<(), LabError>,
) -> Result<(), LabError> {
    let start = Instant::now();
    run().inspect_err(|_| println!("  {operation}: failed"))?;
    println!("  {label} ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Removes directories that interrupted builds left.
fn remove_unfinished(cache: &Path) -> Result<(), LabError> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_unfinished = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        path.is_dir() && extension.starts_with(UNFINISHED)
    };
    entries.filter(is_unfinished).try_for_each(|path| remove_dir(&path))
}

/// Debian packages in the image, beside the essential ones.
const PACKAGES: &[&str] = &[
    "openssh-server", "openssh-client",
    // Verbs: libraries, tools and benchmarks.
    "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest",
    // Memory checker for unsafe code around verbs; `ip`, `tc` and `rdma`; `lspci`; `ping`. Containers inside guests.
    "valgrind", "iproute2", "pciutils", "iputils-ping", "kmod", "procps", "hostname",
    "python3-minimal", "podman", "crun", "netavark", "iptables",
    // Sets addresses at boot, on guests that keep some.
    "ifupdown",
];

/// Script, and its name in error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Script {
    name: &'static str,
    text: &'static str,
}

/// Script that downloads Debian's kernel.
const KERNEL: Script = Script { name: "kernel.sh", text: include_str!("image/kernel.sh") };
/// Builds the Soft-iWARP driver for that kernel.
const SIW: Script = Script { name: "siw.sh", text: include_str!("image/siw.sh") };
/// Makes the root directory.
const ROOT: Script = Script { name: "root.sh", text: include_str!("image/root.sh") };
/// Puts the parts together.
const FINISH: Script = Script { name: "finish.sh", text: include_str!("image/finish.sh") };
/// pid 1 of a guest.
const GUEST_INIT: Script =
    Script { name: "guest-init.sh", text: include_str!("image/guest-init.sh") };
/// Script that runs as process 1 in the initial ramdisk and then executes the guest's own process
/// 1.
const RAMDISK_INIT: Script =
    Script { name: "ramdisk-init.sh", text: include_str!("image/ramdisk-init.sh") };

const SCRIPTS: &[Script] = &[KERNEL, SIW, ROOT, FINISH, GUEST_INIT, RAMDISK_INIT];

/// Returns the name of the image for the release of Debian with the code name `suite`.
fn image_name(suite: &str) -> String {
    let scripts = SCRIPTS.iter().flat_map(|script| [script.name, script.text]);
    recipe_name("vm", [suite].into_iter().chain(PACKAGES.iter().copied()).chain(scripts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_counts() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vm/image");
        assert_eq!(SCRIPTS.len(), std::fs::read_dir(folder).unwrap().count());
    }
}
