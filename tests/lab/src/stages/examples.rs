//! Examples in doc comments, which nextest does not run. Rustdoc compiles a crate to look for them, so crates
//! without any are left out: of twenty crates four have one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::LabError;
use crate::dist::{self, TEST_FEATURES};

/// Lists the packages that have no example and that no feature of [`TEST_FEATURES`] names.
pub(super) fn packages_without() -> Result<Vec<String>, LabError> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let metadata: Metadata = dist::metadata("ask cargo for the packages")?;
    let needed = |name: &str| {
        let mut features = TEST_FEATURES.split(',').filter_map(|feature| feature.split_once('/'));
        features.any(|(package, _)| package == name)
    };
    let mut without = Vec::new();
    for Package { name, manifest_path } in metadata.packages {
        let source = manifest_path.with_file_name("src");
        let has =
            || has_example(&source).map_err(LabError::io(format!("read {}", source.display())));
        if !needed(&name) && !has()? {
            without.push(name);
        }
    }
    Ok(without)
}

/// Tells whether a file in `directory` or below it has an example.
fn has_example(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let found = match path.extension() {
            _ if path.is_dir() => has_example(&path)?,
            Some(extension) if extension == "rs" => is_in(&fs::read_to_string(&path)?),
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tells whether a doc comment of `source` has a block of code that rustdoc compiles: one without a language, or
/// with words that are not another one.
fn is_in(source: &str) -> bool {
    let mut is_inside = false;
    source.lines().any(|line| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(words) = text.and_then(|text| text.trim().strip_prefix("```")) else {
            return false;
        };
        is_inside = !is_inside;
        let foreign = ["text", "ignore", "c", "json", "python", "sh", "toml"];
        is_inside && !words.split(',').any(|word| foreign.contains(&word.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_rustdoc_compiles_are_examples() {
        for code in
            ["/// ```\n/// let a = 1;\n/// ```", "    //! ```rust,no_run\n", "//! ```no_run"]
        {
            assert!(is_in(code), "{code}");
        }
        for other in ["", "/// ```text\n/// a b\n/// ```\n", "// ```\n", "let a = \"```\";"] {
            assert!(!is_in(other), "{other}");
        }
        assert!(is_in("/// ```text\n/// a\n/// ```\n/// ```\n/// let a = 1;\n/// ```"));
    }

    #[test]
    fn this_workspace_has_few_examples_and_some() {
        let without = packages_without().unwrap();
        assert!(without.contains(&"rlaunch-engine".into()), "{without:?}");
        assert!(!without.contains(&"rlaunch-comm".into()), "{without:?}");
        assert!(!without.contains(&"rlaunch-lab".into()), "{without:?}");
    }
}
