//! Which files of the Hugging Face hub's cache a model consists of.
//!
//! A model `ORG/NAME` has a folder `models--ORG--NAME` in that cache. In it, `refs/REVISION` names a
//! commit, `snapshots/COMMIT` has a link for each file of the commit, and `blobs` has what the links
//! lead to, once for all commits. `.no_exist/COMMIT` names files that the commit lacks, so that
//! libraries do not ask for them. Copied so, a model is found offline.

use super::{Collected, WalkError, everything, is_gone, joined, read_error};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Revision of a model that is meant if none is named.
const MAIN: &str = "main";
/// Largest number of directories that a name of a revision consists of, such as 3 of `refs/pr/1`.
const MAX_DEPTH: usize = 8;

/// Model, and which revision of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `ORG/NAME`, or the name of an old model alone.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: Option<String>,
}

/// Error of a model that cannot be copied from the cache.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("no model {name} in {}", cache.display())]
    NoModel { name: String, cache: PathBuf },
    #[error("no revision {revision} of {name} in {}; there: {there}", cache.display())]
    NoRevision { name: String, revision: String, cache: PathBuf, there: String },
    #[error("{} leads to nothing that is in the model's folder", link.display())]
    NotWhole { link: PathBuf },
}

impl HubError {
    /// Returns what helps.
    pub fn hint(&self) -> String {
        match self {
            HubError::NoModel { name, .. } | HubError::NoRevision { name, .. } => {
                format!("hf download {name}")
            }
            HubError::NotWhole { .. } => {
                "the download is not complete; run `hf download` again".to_owned()
            }
        }
    }
}

impl HubModel {
    /// Reads `hf:ORG/NAME[@REVISION]`. Returns `None` if it is none, or has a name that would lead
    /// out of the cache.
    pub fn parse(word: &str) -> Option<HubModel> {
        let model = word.strip_prefix("hf:")?;
        let (name, revision) = match model.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (model, None),
        };
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        let is_model = name.split('/').count() <= 2 && name.split('/').all(is_name);
        let is_revision = revision.is_none_or(|revision| revision.split('/').all(is_name));
        (is_model && is_revision)
            .then(|| HubModel { name: name.to_owned(), revision: revision.map(str::to_owned) })
    }

    /// Returns the name of the model's folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

/// Returns the hub's cache, as its own library finds it.
pub fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
    let home = set("HOME");
    let found = named.or_else(|| {
        let above = set("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        Some(set("HF_HOME").or_else(|| Some(above?.join("huggingface")))?.join("hub"))
    })?;
    // The library expands this, since shells do not within quotes.
    let expanded = found.strip_prefix("~").ok().and_then(|rest| Some(home?.join(rest)));
    Some(expanded.unwrap_or(found))
}

/// Adds a model's files; `collected` is of the cache.
pub(super) fn collect(collected: &mut Collected, model: &HubModel) -> Result<(), WalkError> {
    let folder = model.folder().into_bytes();
    if !collected.place(&folder).is_dir() {
        let cache = collected.root().to_owned();
        return Err(HubError::NoModel { name: model.name.clone(), cache }.into());
    }
    let refs = references(&collected.place(&folder).join("refs"))?;
    let commit = commit(collected, model, &folder, &refs)?;
    // Every name of the commit: which of them a job will use is unknown.
    for (name, _) in refs.iter().filter(|(_, named)| *named == commit) {
        collected.add_with_parents(&joined(&joined(&folder, b"refs"), name))?;
    }
    let snapshot = joined(&joined(&folder, b"snapshots"), &commit);
    collected.add_with_parents(&snapshot)?;
    everything(collected, snapshot.clone())?;
    for blob in blobs(collected, &folder, &snapshot)? {
        collected.add_with_parents(&blob)?;
    }
    let missing = joined(&joined(&folder, b".no_exist"), &commit);
    if collected.add_with_parents(&missing)? {
        everything(collected, missing)?;
    }
    Ok(())
}

/// Returns the commit of the revision that is meant, which has a snapshot.
fn commit(
    collected: &Collected,
    model: &HubModel,
    folder: &[u8],
    refs: &[(Vec<u8>, Vec<u8>)],
) -> Result<Vec<u8>, HubError> {
    let revision = model.revision.as_deref().unwrap_or(MAIN);
    let snapshots = collected.place(folder).join("snapshots");
    let named = refs.iter().find(|(name, _)| name == revision.as_bytes());
    let commit = named.map_or_else(|| revision.as_bytes().to_vec(), |(_, commit)| commit.clone());
    if snapshots.join(OsStr::from_bytes(&commit)).is_dir() {
        return Ok(commit);
    }
    let listing = fs::read_dir(&snapshots).into_iter().flatten().flatten();
    let mut there: Vec<Vec<u8>> = listing.map(|entry| entry.file_name().into_vec()).collect();
    there.extend(refs.iter().map(|(name, _)| name.clone()));
    there.sort();
    let there: Vec<_> = there.iter().map(|name| String::from_utf8_lossy(name)).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    let cache = collected.root().to_owned();
    Err(HubError::NoRevision { name: model.name.clone(), revision: revision.into(), cache, there })
}

/// Name of a revision, and its commit.
type Reference = (Vec<u8>, Vec<u8>);

/// Reads which commits revisions are.
fn references(directory: &Path) -> Result<Vec<Reference>, WalkError> {
    let mut found = Vec::new();
    let mut left = vec![(Vec::new(), directory.to_owned(), 0)];
    while let Some((name, place, depth)) = left.pop() {
        let listing = match fs::read_dir(&place) {
            Err(cause) if is_gone(&cause) => continue,
            listing => listing.map_err(|cause| read_error(&place, cause))?,
        };
        for entry in listing.flatten() {
            let name = joined(&name, entry.file_name().as_bytes());
            let is_directory = entry.file_type().is_ok_and(|file_type| file_type.is_dir());
            if is_directory && depth < MAX_DEPTH {
                left.push((name, entry.path(), depth + 1));
            } else if let Ok(commit) = fs::read(entry.path()) {
                let commit = commit.trim_ascii().to_vec();
                // Part of a path below.
                if !commit.is_empty() && commit.iter().all(u8::is_ascii_alphanumeric) {
                    found.push((name, commit));
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns what the links of a snapshot lead to.
fn blobs(collected: &Collected, folder: &[u8], snapshot: &[u8]) -> Result<Vec<Vec<u8>>, HubError> {
    let is_in_folder =
        |path: &[u8]| path.strip_prefix(folder).is_some_and(|rest| rest.first() == Some(&b'/'));
    // A blob that is a link itself leads to another place, where nobody looks for it.
    let is_file = |path: &[u8]| {
        fs::symlink_metadata(collected.place(path)).is_ok_and(|metadata| metadata.is_file())
    };
    let links = collected.links_below(snapshot).into_iter();
    let blobs = links.map(|(link, target)| {
        let directory = link.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let blob = led_to(&link[..directory], &target);
        let blob = blob.filter(|blob| is_in_folder(blob) && is_file(blob));
        blob.ok_or_else(|| HubError::NotWhole { link: collected.place(&link) })
    });
    blobs.collect()
}

/// Returns where a link in a directory leads if one only reads the names. Returns `None` if that is
/// above what paths are relative to.
fn led_to(directory: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    if target.starts_with(b"/") {
        return None;
    }
    let mut parts: Vec<&[u8]> = directory.split(|byte| *byte == b'/').collect();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
