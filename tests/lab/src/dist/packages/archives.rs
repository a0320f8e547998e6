//! `.tar.gz`, `.deb` and `.rpm`, by tar, dpkg-deb and rpmbuild; wheel for pip, by a script in Python.

use std::path::PathBuf;
use std::process::Command;

use super::{PackageSpec, Profile, SUMMARY, write};
use crate::LabError;
use crate::command::run;
use crate::dist::workspace;
use crate::files::remove_dir;

/// Address for questions, which both formats require.
const CONTACT: &str = "rlaunch <rlaunch@localhost>";
/// Longer description, for package managers.
const DESCRIPTION: &str = "rlaunch replaces mpirun: it reaches hosts over SSH, needs nothing installed there, \
tests the network between them, and ends every rank of a job together.";

/// Copies the tree, with the times of all files set. Arguments: tree, directory, seconds since 1970.
const COPY: &str = r#"rm -rf "$2"; mkdir -p "$2"; cp -rT "$1" "$2"
    chmod -R u=rwX,go=rX "$2"
    find "$2" -exec touch -h -d "@$3" {} +"#;

/// Script that makes the wheel, with the modules of Python's standard library.
const SCRIPT: &str = include_str!("wheel.py");

/// Packs the tree as `rlaunch-VERSION-ARCH-linux.tar.gz`, to be unpacked anywhere.
pub(super) fn tar(package: &PackageSpec) -> Result<(), LabError> {
    let name = format!("rlaunch-{}-{}-linux", package.version, package.arch);
    let staged = stage(package, "tar", &name)?;
    let gzip = match package.profile {
        Profile::Lab => "gzip -n1",
        Profile::Release => "gzip -n9",
    };
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    pack.args(["-I", gzip, "-cf"]).arg(package.output.join(format!("{name}.tar.gz")));
    pack.arg("-C").arg(staged.parent().unwrap_or(&staged)).arg(&name);
    run("pack a tar archive", &mut pack).map(drop)
}

/// Packs the tree as a package of Debian and Ubuntu.
pub(super) fn deb(package: &PackageSpec) -> Result<(), LabError> {
    let root = stage(package, "deb", "usr")?;
    let root = root.parent().unwrap_or(&root);
    let arch = if package.arch == "aarch64" { "arm64" } else { "amd64" };
    let version = &package.version;
    let control = format!(
        "Package: rlaunch\nVersion: {version}\nArchitecture: {arch}\nMaintainer: {CONTACT}\n\
         Depends: libc6 (>= 2.28)\nRecommends: openssh-client\nSection: net\nPriority: optional\n\
         Description: {SUMMARY}\n {DESCRIPTION}\n"
    );
    write(&root.join("DEBIAN/control"), control.as_bytes())?;
    let mut pack = Command::new("dpkg-deb");
    let compression = match package.profile {
        Profile::Lab => ["-Zgzip", "-z1"],
        Profile::Release => ["-Zxz", "-z6"],
    };
    pack.arg("--root-owner-group").args(compression).arg("--build").arg(root);
    pack.arg(package.output.join(format!("rlaunch_{version}_{arch}.deb")));
    pack.env("SOURCE_DATE_EPOCH", package.time.to_string());
    // With several threads the result depends on their number.
    pack.env("DPKG_DEB_THREADS_MAX", "1");
    run("pack a deb package", &mut pack).map(drop)
}

/// Packs the tree as a package of Fedora, RHEL and SUSE.
pub(super) fn rpm(package: &PackageSpec) -> Result<(), LabError> {
    let root = stage(package, "rpm", "usr")?;
    let root = root.parent().unwrap_or(&root);
    let (version, arch) = (&package.version, package.arch);
    // Nothing in it is to be stripped, compressed or made to depend on what this machine has. Zsh
    // looks into another directory than on Debian.
    let spec = format!(
        "Name: rlaunch\nVersion: {version}\nRelease: 1\nSummary: {SUMMARY}\n\
         License: MIT OR Apache-2.0\nAutoReqProv: no\nRequires: glibc >= 2.28\n\
         %global __os_install_post %{{nil}}\n%global debug_package %{{nil}}\n\
         %description\n{DESCRIPTION}\n%install\ncp -aT {root}/usr %{{buildroot}}/usr\n\
         mv %{{buildroot}}/usr/share/zsh/vendor-completions %{{buildroot}}/usr/share/zsh/site-functions\n\
         %files\n/usr/bin/rlaunch\n/usr/share/man/man*/rlaunch*\n\
         /usr/share/bash-completion/completions/rlaunch\n\
         /usr/share/zsh/site-functions/_rlaunch\n\
         /usr/share/fish/vendor_completions.d/rlaunch.fish\n/usr/share/doc/rlaunch\n",
        root = root.display()
    );
    let work = root.with_file_name("rpm-work");
    let path = work.join("rlaunch.spec");
    write(&path, spec.as_bytes())?;
    let mut pack = Command::new("rpmbuild");
    pack.args(["-bb", "--target", &format!("{arch}-linux")]);
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    pack.args(define("_topdir", &work.display().to_string()));
    pack.args(define("_rpmdir", &package.output.display().to_string()));
    pack.args(define("_build_name_fmt", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"));
    pack.args(define("_buildhost", "localhost"));
    pack.args(define("use_source_date_epoch_as_buildtime", "1"));
    pack.args(define("clamp_mtime_to_source_date_epoch", "1"));
    let payload = match package.profile {
        Profile::Lab => "w1.gzdio",
        Profile::Release => "w9.gzdio",
    };
    pack.args(define("_binary_payload", payload));
    pack.env("SOURCE_DATE_EPOCH", package.time.to_string());
    run("pack an rpm package", pack.arg(&path)).map(drop)
}

/// Packs launcher and Python package as `rlaunch-VERSION-py3-none-manylinux_2_28_ARCH.whl`.
pub(super) fn wheel(package: &PackageSpec) -> Result<(), LabError> {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(&package.output).args([&package.version, package.arch]);
    python.args([&package.time.to_string(), SUMMARY]).arg(workspace().join("README.md"));
    python.arg(package.tree.join("bin/rlaunch")).arg(package.library.join("python"));
    python.arg(match package.profile {
        Profile::Lab => "1",
        Profile::Release => "9",
    });
    run("pack a wheel", &mut python).map(drop)
}

/// Copies the tree to `name` in a directory for one kind of package; returns the path of the copy.
fn stage(package: &PackageSpec, kind: &str, name: &str) -> Result<PathBuf, LabError> {
    let directory = package.tree.with_extension(kind).join(name);
    let mut copy = Command::new("sh");
    copy.args(["-euc", COPY, "sh"]).arg(&package.tree).arg(&directory);
    run("copy what is packed", copy.arg(package.time.to_string()))?;
    // What an earlier packing left.
    remove_dir(&directory.with_file_name("DEBIAN"))?;
    Ok(directory)
}
