use super::super::{How, walk};
use super::*;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const FIRST: &str = "1111111111111111111111111111111111111111";
const SECOND: &str = "2222222222222222222222222222222222222222";

fn put(root: &Path, name: &str, content: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn link(root: &Path, name: &str, target: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// Makes a cache with two commits of a model, which share a blob.
fn hub() -> TempDir {
    let cache = tempfile::tempdir().unwrap();
    let model = cache.path().join("models--org--net");
    for blob in ["config", "first", "second", "unused.incomplete"] {
        put(&model, &format!("blobs/{blob}"), blob);
    }
    for (commit, weights) in [(FIRST, "first"), (SECOND, "second")] {
        let snapshot = format!("snapshots/{commit}");
        link(&model, &format!("{snapshot}/config.json"), "../../blobs/config");
        let weights = format!("../../../blobs/{weights}");
        link(&model, &format!("{snapshot}/w/model.safetensors"), &weights);
    }
    put(&model, "refs/main", SECOND);
    put(&model, "refs/pr/1", FIRST);
    put(&model, &format!(".no_exist/{SECOND}/adapter.json"), "");
    put(cache.path(), "models--org--other/refs/main", FIRST);
    cache
}

fn found(cache: &TempDir, word: &str) -> Result<Vec<String>, WalkError> {
    let model = HubModel::parse(word).unwrap();
    let walk = walk(cache.path(), &How::Hub(model))?;
    let names = walk.entries.iter().map(|found| found.path.to_string());
    // Every name begins so.
    Ok(names.filter_map(|name| Some(name.strip_prefix("models--org--net/")?.to_owned())).collect())
}

#[test]
fn a_model_has_its_names_links_and_blobs() {
    let cache = hub();
    let expected = [
        ".no_exist",
        &format!(".no_exist/{SECOND}"),
        &format!(".no_exist/{SECOND}/adapter.json"),
        "blobs",
        "blobs/config",
        "blobs/second",
        "refs",
        "refs/main",
        "snapshots",
        &format!("snapshots/{SECOND}"),
        &format!("snapshots/{SECOND}/config.json"),
        &format!("snapshots/{SECOND}/w"),
        &format!("snapshots/{SECOND}/w/model.safetensors"),
    ];
    assert_eq!(found(&cache, "hf:org/net").unwrap(), expected);
    assert_eq!(found(&cache, &format!("hf:org/net@{SECOND}")).unwrap(), expected);
}

#[test]
fn a_revision_is_one_of_its_names_or_a_commit() {
    let cache = hub();
    let by_name = found(&cache, "hf:org/net@pr/1").unwrap();
    assert!(by_name.contains(&"refs/pr/1".to_owned()), "{by_name:?}");
    assert!(by_name.contains(&"blobs/first".to_owned()), "{by_name:?}");
    assert!(!by_name.contains(&"blobs/second".to_owned()), "{by_name:?}");
    assert_eq!(found(&cache, &format!("hf:org/net@{FIRST}")).unwrap(), by_name);
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let cache = hub();
    let error = found(&cache, "hf:org/none").unwrap_err().to_string();
    assert!(error.starts_with("no model org/none in /"), "{error}");
    let error = found(&cache, "hf:org/net@v2").unwrap_err().to_string();
    assert!(error.contains("no revision v2 of org/net"), "{error}");
    assert!(error.ends_with(&format!("there: {FIRST}, {SECOND}, main, pr/1")), "{error}");
    let error = found(&cache, "hf:org/other").unwrap_err().to_string();
    assert!(error.ends_with("there: main"), "{error}");
}

#[test]
fn a_model_that_is_not_whole_is_refused() {
    let cache = hub();
    fs::remove_file(cache.path().join("models--org--net/blobs/config")).unwrap();
    let error = found(&cache, "hf:org/net").unwrap_err().to_string();
    assert!(error.contains("config.json leads to nothing"), "{error}");
}

#[test]
fn links_out_of_a_model_are_refused() {
    for target in ["/etc/passwd", "../../../models--org--other/refs/main", "../../../../../x"] {
        let cache = hub();
        let snapshot = cache.path().join("models--org--net/snapshots").join(SECOND);
        symlink(target, snapshot.join("bad")).unwrap();
        let error = found(&cache, "hf:org/net").unwrap_err();
        assert!(matches!(error, WalkError::Hub(HubError::NotWhole { .. })), "{target}: {error}");
    }
}

#[test]
fn words_name_a_model_and_perhaps_a_revision() {
    let parsed = |word: &str| {
        HubModel::parse(word).map(|model| (model.folder(), model.revision.unwrap_or_default()))
    };
    let model = |folder: &str, revision: &str| Some((folder.to_owned(), revision.to_owned()));
    assert_eq!(parsed("hf:org/net"), model("models--org--net", ""));
    assert_eq!(parsed("hf:gpt2@pr/1"), model("models--gpt2", "pr/1"));
    for word in ["org/net", "hf:", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a@", "hf:a@../../x"] {
        assert_eq!(parsed(word), None, "{word}");
    }
}

#[test]
fn the_cache_is_where_the_library_looks_for_it() {
    let at = |set: &[(&str, &str)]| {
        cache(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    };
    let home = ("HOME", "/h");
    let path = |path: &str| Some(PathBuf::from(path));
    assert_eq!(at(&[]), None);
    assert_eq!(at(&[home]), path("/h/.cache/huggingface/hub"));
    assert_eq!(at(&[home, ("XDG_CACHE_HOME", "/c")]), path("/c/huggingface/hub"));
    assert_eq!(at(&[("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/c")]), path("/f/hub"));
    assert_eq!(at(&[("HF_HUB_CACHE", "/u"), ("HF_HOME", "/f")]), path("/u"));
    assert_eq!(at(&[home, ("HF_HUB_CACHE", "~/u")]), path("/h/u"));
    assert_eq!(at(&[home, ("HF_HOME", "")]), path("/h/.cache/huggingface/hub"));
}
