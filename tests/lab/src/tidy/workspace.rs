//! Crates of the workspace, and its files of Rust and Markdown.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use serde::Deserialize;

use crate::{LabError, dist};

/// Crate of the workspace.
#[derive(Debug)]
pub(super) struct Crate {
    /// Folder, from the workspace.
    pub(super) folder: PathBuf,
    /// Name in the manifest.
    pub(super) name: String,
    /// Root files of its library and its programs, from the workspace.
    pub(super) roots: Vec<PathBuf>,
}

impl Crate {
    /// Returns the crate's folder as tables name it.
    pub(super) fn key(&self) -> &str {
        self.folder.to_str().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<CargoPackage>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct CargoPackage {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<CargoTarget>,
}

#[derive(Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl CargoTarget {
    /// Returns whether the target is a library or a program, rather than a test, an example, a
    /// bench or a build script.
    fn is_built(&self) -> bool {
        let aside = ["test", "example", "bench", "custom-build"];
        !self.kind.iter().any(|kind| aside.contains(&kind.as_str()))
    }
}

/// Lists the crates of the workspace.
pub(super) fn crates() -> Result<Vec<Crate>, LabError> {
    let Metadata { packages, workspace_root } =
        dist::metadata("ask cargo for the workspace's crates")?;
    let inside = |path: &Path| path.strip_prefix(&workspace_root).map(Path::to_path_buf).ok();
    let read = |package: CargoPackage| {
        let folder = inside(package.manifest_path.parent()?)?;
        let built = package.targets.iter().filter(|target| target.is_built());
        let roots = built.filter_map(|target| inside(&target.src_path)).collect();
        Some(Crate { folder, name: package.name, roots })
    };
    let mut crates: Vec<Crate> = packages.into_iter().filter_map(read).collect();
    crates.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(crates)
}

/// Finds the crate that `--crate` names by its name or its folder.
pub(super) fn find_crate<'a>(crates: &'a [Crate], word: &str) -> Result<&'a Crate, LabError> {
    let folder = Path::new(word.trim_end_matches('/'));
    let found = crates.iter().find(|krate| krate.name == word || krate.folder == folder);
    found.ok_or_else(|| {
        let all: Vec<&str> = crates.iter().map(Crate::key).collect();
        LabError::Usage(format!("no crate is called `{word}`; there are {}", all.join(", ")))
    })
}

/// Finds the crate that contains a file.
pub(super) fn owner<'a>(crates: &'a [Crate], file: &Path) -> Option<&'a Crate> {
    let around = crates.iter().filter(|krate| file.starts_with(&krate.folder));
    around.max_by_key(|krate| krate.folder.components().count())
}

/// Parsed Rust file.
pub(super) struct Source {
    pub(super) text: String,
    pub(super) tokens: TokenStream,
    pub(super) syntax: syn::File,
}

/// All Rust files, by their paths from the workspace.
pub(super) type Sources = BTreeMap<PathBuf, Source>;

/// Reads all Markdown files of a workspace, by their paths from there.
pub(super) fn read_pages(workspace: &Path) -> Result<BTreeMap<PathBuf, String>, LabError> {
    let read = |file: PathBuf| {
        let text = fs::read_to_string(workspace.join(&file));
        Ok((file.clone(), text.map_err(LabError::io(format!("read {}", file.display())))?))
    };
    files_with_extension(workspace, "md")?.into_iter().map(read).collect()
}

/// Reads and parses all Rust files of a workspace.
pub(super) fn read_sources(workspace: &Path) -> Result<Sources, LabError> {
    let files = files_with_extension(workspace, "rs")?;
    files.into_iter().map(|file| Ok((file.clone(), read(workspace, &file)?))).collect()
}

fn files_with_extension(workspace: &Path, extension: &str) -> Result<Vec<PathBuf>, LabError> {
    let mut files = Vec::new();
    list(workspace, Path::new(""), &mut files)?;
    files.retain(|file| file.extension().is_some_and(|of_file| of_file == extension));
    Ok(files)
}

fn list(workspace: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), LabError> {
    let here = workspace.join(folder);
    let failed = || LabError::io(format!("list {}", here.display()));
    for entry in fs::read_dir(&here).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let name = entry.file_name();
        let path = folder.join(&name);
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if entry.file_type().map_err(failed())?.is_dir() {
            if !is_hidden && name != "target" {
                list(workspace, &path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn read(workspace: &Path, file: &Path) -> Result<Source, LabError> {
    let text = fs::read_to_string(workspace.join(file))
        .map_err(LabError::io(format!("read {}", file.display())))?;
    let failed = |line: usize, error: &dyn std::fmt::Display| {
        LabError::Unexpected(format!("{}:{line}: is not Rust: {error}", file.display()))
    };
    let tokens: TokenStream =
        text.parse().map_err(|error: proc_macro2::LexError| failed(line(error.span()), &error))?;
    let syntax = syn::parse2(tokens.clone())
        .map_err(|error: syn::Error| failed(line(error.span()), &error))?;
    Ok(Source { text, tokens, syntax })
}

/// Returns the line on which a span begins.
pub(super) fn line(span: proc_macro2::Span) -> usize {
    span.start().line
}
