//! Images as files: a description, a configuration, and a file for each layer.

use super::engine::{Engine, EngineError, collect};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use tar::{Archive, Builder, EntryType, Header};

/// Directory of an image's files, in the place that is given to them.
const IMAGE: &str = "image";
/// File that says which files an image consists of. Engines find it by this name.
const DESCRIPTION: &str = "manifest.json";
const CONFIGURATION: &str = "config.json";
/// Directory of what the engine has saved.
const SAVED: &str = "saved";

/// Image in an archive, as engines describe it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Described {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Part of an image's configuration.
#[derive(Deserialize)]
struct Configuration {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// Makes files of an image, without the layers that are left out, in a new directory in `place`. Returns that directory.
/// `size` bytes are asked for first. Passes on how many bytes more are saved whenever that changes.
pub fn save(
    engine: &Engine,
    name: &str,
    size: u64,
    left_out: &[String],
    place: &Path,
    progress: &dyn Fn(u64),
) -> Result<PathBuf, EngineError> {
    check_room(place, size)?;
    let (saved, image) = (place.join(SAVED), place.join(IMAGE));
    for directory in [&saved, &image] {
        let made = DirBuilder::new().mode(0o700).create(directory);
        made.map_err(|cause| failed("make", directory, cause))?;
    }
    let links = unpack(engine, name, &saved, progress)?;
    let lacking = |what: &str| EngineError::Lacking {
        engine: engine.name().to_owned(),
        what: what.to_owned(),
    };
    let described = read(&saved.join(DESCRIPTION))?;
    let described = serde_json::from_slice::<Vec<Described>>(&described);
    let described = described.ok().and_then(|described| described.into_iter().next());
    let described = described.ok_or_else(|| lacking(DESCRIPTION))?;
    let inside = |name: &str| relative(Path::new(name)).map(|name| saved.join(name));
    let config = inside(&described.config).ok_or_else(|| lacking(&described.config))?;
    let config = read(&config)?;
    let configuration = serde_json::from_slice::<Configuration>(&config);
    let digests = configuration.map_err(|_| lacking(&described.config))?.rootfs.diff_ids;
    if digests.len() != described.layers.len() {
        return Err(lacking("layer for each digest"));
    }
    for (layer, digest) in described.layers.iter().zip(&digests) {
        let target = image.join(layer_name(digest));
        if left_out.contains(digest) || target.exists() {
            continue;
        }
        let layer = relative(Path::new(layer)).ok_or_else(|| lacking(layer))?;
        let from = saved.join(links.get(&layer).unwrap_or(&layer));
        fs::rename(&from, &target).map_err(|cause| failed("move", &from, cause))?;
    }
    let layers = digests.iter().map(|digest| layer_name(digest)).collect();
    let described =
        Described { config: CONFIGURATION.into(), repo_tags: described.repo_tags, layers };
    // Strings alone.
    let described = serde_json::to_vec(&[described]).unwrap_or_default();
    write(&image.join(CONFIGURATION), &config)?;
    write(&image.join(DESCRIPTION), &described)?;
    fs::remove_dir_all(&saved).map_err(|cause| failed("remove", &saved, cause))?;
    Ok(image)
}

/// Lets an engine load the image whose files are in the directory `image` of `place`.
pub fn load(engine: &Engine, place: &Path) -> Result<(), EngineError> {
    let image = place.join(IMAGE);
    let words = ["load"];
    let mut child = engine.start(&words, Stdio::piped(), Stdio::null())?;
    let said = collect(child.stderr.take());
    let passed = child.stdin.take().map_or(Ok(()), |pipe| pack(&image, pipe));
    let status = child.wait().map_err(|cause| failed("wait for the load of", &image, cause))?;
    let said = said.join().unwrap_or_default();
    if !status.success() {
        return Err(engine.refused(&words, &said, status));
    }
    // An engine that has all it needs may not read to the end.
    match passed {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            Err(failed("read", &image, cause))
        }
        _ => Ok(()),
    }
}

/// Writes the files of an image as an archive.
fn pack(image: &Path, pipe: impl Write) -> io::Result<()> {
    let mut names: Vec<_> =
        fs::read_dir(image)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    // What describes layers first, for readers that do not seek.
    names.sort_unstable_by_key(|name| (name != DESCRIPTION, name != CONFIGURATION, name.clone()));
    let mut archive = Builder::new(BufWriter::with_capacity(1 << 20, pipe));
    for name in names {
        let mut file = File::open(image.join(&name))?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(file.metadata()?.len());
        header.set_mode(0o644);
        archive.append_data(&mut header, &name, &mut file)?;
    }
    archive.into_inner()?.flush()
}

/// Unpacks what an engine saves. Returns where links lead.
fn unpack(
    engine: &Engine,
    name: &str,
    to: &Path,
    progress: &dyn Fn(u64),
) -> Result<HashMap<PathBuf, PathBuf>, EngineError> {
    let words = ["save", "--", name];
    let mut child = engine.start(&words, Stdio::null(), Stdio::piped())?;
    let said = collect(child.stderr.take());
    let unpacked = match child.stdout.take() {
        Some(pipe) => unpack_from(pipe, to, progress),
        None => Ok(HashMap::new()),
    };
    if unpacked.is_err() {
        // It may wait for this end of the pipe.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|cause| failed("wait for the save to", to, cause))?;
    let said = said.join().unwrap_or_default();
    // It is not the reason that a command was killed for another one.
    let links = unpacked?;
    if status.success() { Ok(links) } else { Err(engine.refused(&words[..1], &said, status)) }
}

fn unpack_from(
    pipe: impl Read,
    to: &Path,
    progress: &dyn Fn(u64),
) -> Result<HashMap<PathBuf, PathBuf>, EngineError> {
    let read_failed = |cause| failed("read what was saved for", to, cause);
    let mut links = HashMap::new();
    let mut archive = Archive::new(pipe);
    let mut buffer = vec![0; 1 << 20];
    for entry in archive.entries().map_err(read_failed)? {
        let mut entry = entry.map_err(read_failed)?;
        let Some(path) = relative(&entry.path().map_err(read_failed)?) else { continue };
        let kind = entry.header().entry_type();
        if let Some(target) = entry.link_name().map_err(read_failed)? {
            let directory = path.parent().filter(|_| kind.is_symlink()).unwrap_or(Path::new(""));
            if let Some(target) = led_to(directory, &target) {
                links.insert(path, target);
            }
            continue;
        }
        if !kind.is_file() {
            continue;
        }
        let place = to.join(&path);
        let write_failed = |cause| failed("write", &place, cause);
        if let Some(parent) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(write_failed)?;
        }
        let mut file = create(&place).map_err(write_failed)?;
        loop {
            let length = entry.read(&mut buffer).map_err(read_failed)?;
            if length == 0 {
                break;
            }
            file.write_all(&buffer[..length]).map_err(write_failed)?;
            progress(length as u64);
        }
    }
    // An engine pads its archive, and would end of SIGPIPE.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(read_failed)?;
    Ok(links)
}

/// Returns where a link in a directory of the archive leads; `None` if that is outside.
fn led_to(directory: &Path, target: &Path) -> Option<PathBuf> {
    let mut place = directory.to_owned();
    for part in target.components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !place.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(place)
}

/// Returns a path of the archive that stays below it.
fn relative(path: &Path) -> Option<PathBuf> {
    led_to(Path::new(""), path).filter(|path| !path.as_os_str().is_empty())
}

/// Returns the name of a layer's file, by the digest of its content.
fn layer_name(digest: &str) -> String {
    let name: String = digest.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{name}.tar")
}

fn check_room(place: &Path, needed: u64) -> Result<(), EngineError> {
    let stat =
        rustix::fs::statvfs(place).map_err(|cause| failed("look at", place, cause.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if needed <= free {
        return Ok(());
    }
    Err(EngineError::NoSpace { path: place.to_owned(), needed, free })
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    fs::read(path).map_err(|cause| failed("read", path, cause))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let written = create(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|cause| failed("write", path, cause))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn failed(operation: &'static str, path: &Path, cause: io::Error) -> EngineError {
    EngineError::Io { operation, path: path.to_owned(), cause }
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
