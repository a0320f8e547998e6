//! The seal of a working tree's copy, by which agents tell whether it is still what it was.

use super::super::beneath::split;
use super::super::meta::Meta;
use super::{Stage, StageError, failed, lock};
use rlaunch_bootstrap::job::seal::{Seal, SealedDirectory};
use rlaunch_copy::Kind;
use rlaunch_files::sealing;
use std::collections::BTreeMap;
use std::io;

impl Stage {
    /// Breaks the seal, before anything is changed.
    pub(crate) fn unseal(&self) -> Result<(), StageError> {
        sealing::unseal(&self.path)
            .map_err(|cause| failed("change", &Seal::path(&self.path), cause))
    }

    /// Seals the copy, which is whole.
    pub(crate) fn seal(&self) -> io::Result<()> {
        let mut directories = BTreeMap::<&[u8], SealedDirectory<'_>>::new();
        let index = lock(&self.index);
        for entry in &self.manifest.entries {
            let path = entry.path.as_bytes();
            let (parent, name) = if entry.kind == Kind::Directory {
                (path, None)
            } else {
                let (parent, name) = split(path);
                (parent, Some(name))
            };
            let made = || SealedDirectory { path: parent, mode: 0, files: Vec::new() };
            let directory = directories.entry(parent).or_insert_with(made);
            let Some(name) = name else { continue };
            let stamp = match index.stamp(&entry.path) {
                Some(stamp) => *stamp,
                // A link that nobody has had to make.
                None => match self.disk.beneath.look(path)? {
                    Some(seen) => seen.meta.stamp(),
                    None => return Ok(()),
                },
            };
            directory.files.push(stamp.sealed(name, index.knows(path, &stamp)));
        }
        for (path, directory) in &mut directories {
            let opened = self.disk.beneath.directory(path);
            // One below a directory that may not be entered is for the program that copies.
            let Ok(stat) = opened.and_then(rustix::fs::fstat) else { return Ok(()) };
            directory.mode = Meta::of_stat(&stat).mode;
        }
        let seal = Seal { directories: directories.into_values().collect() };
        sealing::seal(&self.path, &seal, &self.manifest.content().0)
    }
}
