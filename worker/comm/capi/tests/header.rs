//! Tests that the committed header matches the functions, and that the library exports exactly the
//! functions of the header.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Source files, in the order in which the header has their items.
const SOURCES: [&str; 5] = ["types", "errors", "handles", "messages", "collectives"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let sources = SOURCES.map(|name| here().join(format!("src/{name}.rs")));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.iter().fold(builder, |builder, source| builder.with_src(source));
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_committed_header_is_that_of_the_functions() {
    let path = here().join("include/rlaunch.h");
    let generated = generated();
    if env::var_os("RLAUNCH_HEADER").is_some_and(|what| what == "write") {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = generated.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        generated == committed,
        "{} is out of date, first at {differs:?}; write it with\n    \
         RLAUNCH_HEADER=write cargo test -p rlaunch-capi --test header",
        path.display()
    );
}

#[test]
fn the_library_exports_what_the_header_has_and_nothing_else() {
    let header = fs::read_to_string(here().join("include/rlaunch.h")).unwrap();
    // A name followed by a parenthesis is a declaration, or rl_error() in a comment.
    let names = header.match_indices("rl_").filter_map(|(at, _)| {
        let rest = &header[at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| rest[..end].to_owned())
    });
    let declared: BTreeSet<String> = names.collect();
    let library = env::current_exe().unwrap().with_file_name("librlaunch.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let exported = listed.lines().filter_map(|line| line.split_whitespace().last());
    let exported: BTreeSet<String> = exported.map(str::to_owned).collect();
    assert_eq!(exported, declared);
    assert!(declared.contains("rl_iall_reduce") && declared.len() > 30, "{declared:?}");
}

#[test]
fn the_package_file_has_the_version_of_the_library() {
    let file = fs::read_to_string(here().join("rlaunch.pc")).unwrap();
    assert!(file.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")), "{file}");
}
