use super::*;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// Archive as an engine saves it: two layers of which the second is a link, and one more.
fn archive(links: bool) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    add("one/layer.tar", b"first");
    add("two/layer.tar", b"second");
    add("conf.json", br#"{"rootfs":{"diff_ids":["sha256:1","sha256:2","sha256:1"]}}"#);
    let last = if links { "three/layer.tar" } else { "one/layer.tar" };
    let described = format!(
        r#"[{{"Config":"conf.json","RepoTags":["x:1"],"Layers":["one/layer.tar","two/layer.tar","{last}"]}}]"#
    );
    add(DESCRIPTION, described.as_bytes());
    if links {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, "three/layer.tar", "../one/layer.tar").unwrap();
    }
    archive.into_inner().unwrap()
}

/// Makes a program that saves an archive and keeps what it loads.
fn engine(saved: &[u8]) -> (TempDir, Engine) {
    let directory = tempfile::tempdir().unwrap();
    let (path, place) = (directory.path().join("engine"), directory.path().display().to_string());
    fs::write(directory.path().join("saved.tar"), saved).unwrap();
    let script = format!(
        "#!/bin/sh\ncase $1 in save) cat {place}/saved.tar;; load) cat >{place}/loaded.tar;; esac\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let engine = Engine::named(path.to_str().unwrap());
    (directory, engine)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_image_arrives_without_the_layers_that_are_left_out() {
    for links in [false, true] {
        for (left_out, expected) in [
            (Vec::new(), vec!["config.json", "manifest.json", "sha2561.tar", "sha2562.tar"]),
            (vec!["sha256:1".to_owned()], vec!["config.json", "manifest.json", "sha2562.tar"]),
        ] {
            let (place, engine) = engine(&archive(links));
            let total = std::cell::Cell::new(0);
            let count = |bytes| total.set(total.get() + bytes);
            let image = save(&engine, "x:1", 100, &left_out, place.path(), &count).unwrap();
            assert_eq!(names(&image), expected);
            assert!(total.get() > 11, "{}", total.get());
            assert_eq!(fs::metadata(&image).unwrap().permissions().mode() & 0o777, 0o700);
            assert!(!place.path().join(SAVED).exists());
            load(&engine, place.path()).unwrap();
            let loaded = fs::read(place.path().join("loaded.tar")).unwrap();
            let mut archive = Archive::new(&loaded[..]);
            let mut found: Vec<(String, Vec<u8>)> = Vec::new();
            for entry in archive.entries().unwrap() {
                let mut entry = entry.unwrap();
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                found.push((entry.path().unwrap().display().to_string(), bytes));
            }
            let of_layers: Vec<&str> = found.iter().skip(2).map(|(name, _)| &**name).collect();
            assert_eq!(of_layers, expected[2..]);
            assert_eq!((&*found[0].0, &*found[1].0), (DESCRIPTION, CONFIGURATION));
            let described: Vec<Described> = serde_json::from_slice(&found[0].1).unwrap();
            // All layers are named, also those that the engine has.
            assert_eq!(described[0].layers, ["sha2561.tar", "sha2562.tar", "sha2561.tar"]);
            assert_eq!(described[0].repo_tags.as_deref(), Some(&["x:1".to_owned()][..]));
        }
    }
}

#[test]
fn what_an_engine_pads_its_archive_with_is_read() {
    // More than a pipe holds.
    let padded = [archive(false), vec![0; 1 << 20]].concat();
    let (place, engine) = engine(&padded);
    save(&engine, "x:1", 100, &[], place.path(), &|_| {}).unwrap();
}

#[test]
fn nothing_is_written_outside_the_directory() {
    let evil = |layer: &str| {
        let mut archive = Builder::new(Vec::new());
        let described =
            format!(r#"[{{"Config":"conf.json","RepoTags":null,"Layers":["{layer}"]}}]"#);
        for (name, bytes) in [
            ("conf.json", &br#"{"rootfs":{"diff_ids":["sha256:1"]}}"#[..]),
            (DESCRIPTION, described.as_bytes()),
        ] {
            let mut header = Header::new_gnu();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes).unwrap();
        }
        let mut header = Header::new_gnu();
        header.set_size(1);
        // `set_path` refuses such a name.
        header.as_mut_bytes()[..4].copy_from_slice(b"../x");
        header.set_cksum();
        archive.append(&header, &b"x"[..]).unwrap();
        archive.into_inner().unwrap()
    };
    for layer in ["../x", "/etc/passwd", "none"] {
        let (place, engine) = engine(&evil(layer));
        let inner = place.path().join("inner");
        fs::create_dir(&inner).unwrap();
        save(&engine, "x", 1, &[], &inner, &|_| ()).unwrap_err();
        assert!(!place.path().join("x").exists() && !inner.join("x").exists());
    }
}

#[test]
fn an_image_that_has_no_room_is_not_begun() {
    let (place, engine) = engine(&archive(false));
    let error = save(&engine, "x:1", u64::MAX, &[], place.path(), &|_| ()).unwrap_err();
    assert!(error.to_string().contains(" has room for "), "{error}");
    assert!(error.hint().unwrap().starts_with("df -h /"));
    assert_eq!(names(place.path()), ["engine", "saved.tar"]);
}

#[test]
fn what_an_engine_says_of_a_load_is_the_error() {
    let (place, engine) = engine(&archive(false));
    save(&engine, "x:1", 1, &[], place.path(), &|_| ()).unwrap();
    fs::write(
        place.path().join("engine"),
        "#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n",
    )
    .unwrap();
    let error = load(&engine, place.path()).unwrap_err().to_string();
    assert!(error.ends_with("engine load: no space left on device"), "{error}");
}
