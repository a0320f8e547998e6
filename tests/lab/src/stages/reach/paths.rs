//! Paths in tables: `a/b/` for everything below a folder, `a/b.rs` for one file.

use std::path::Path;

/// Returns whether `file` has this path, or is below this folder.
pub(super) fn names(name: &str, file: &Path) -> bool {
    match name.strip_suffix('/') {
        Some(folder) => file.starts_with(folder) && file != Path::new(folder),
        None => file == Path::new(name),
    }
}

/// Returns whether any of these paths matches `file`.
pub(super) fn any_names(all: &[&str], file: &Path) -> bool {
    all.iter().any(|name| names(name, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_all_below_it_and_a_file_is_itself() {
        for (name, file, expected) in [
            ("a/b/", "a/b/c.rs", true),
            ("a/b/", "a/b/c/d.rs", true),
            ("a/b/", "a/b.rs", false),
            ("a/b/", "a/bc/d.rs", false),
            ("a/b.rs", "a/b.rs", true),
            ("a/b", "a/b/c", false),
        ] {
            assert_eq!(names(name, Path::new(file)), expected, "{name} {file}");
        }
    }
}
