//! Runs the Python tests in a job of one rank, with a package that is laid out as it is shipped.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Lays out the files in `site` as ranks find them: `librlaunch.so` if `shared`, and a directory
/// for PYTHONPATH, which has the extension if `extension`.
fn lay_out(site: &Path, extension: bool, shared: bool) {
    let package = site.join("python/rlaunch");
    fs::create_dir_all(&package).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/rlaunch");
    for file in fs::read_dir(source).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
        }
    }
    if extension {
        fs::copy(built("_rlaunch"), package.join("_rlaunch.abi3.so")).unwrap();
    }
    if shared {
        fs::copy(built("rlaunch"), site.join("librlaunch.so")).unwrap();
    }
}

/// Returns the path of a library, which cargo builds into the folder of the test executable.
fn built(name: &str) -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    deps.join(format!("{}{name}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
}

fn python() -> String {
    env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

fn has_python() -> bool {
    let program = "import sys; sys.exit(sys.version_info < (3, 8))";
    let asked = Command::new(python()).args(["-c", program]).stderr(Stdio::null()).status();
    let has = asked.is_ok_and(|status| status.success());
    if !has {
        eprintln!("SKIPPED: there is no Python 3.8 or later; PYTHON may name one");
    }
    has
}

/// Returns the path of a directory for this test, which does not exist: a directory of an earlier
/// run is removed.
fn site(name: &str) -> PathBuf {
    let site = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if site.exists() {
        fs::remove_dir_all(&site).unwrap();
    }
    site
}

/// Runs Python with these arguments. `by` is the value of RLAUNCH_PYTHON. Returns whether Python
/// succeeded, and its output.
fn in_python(site: &Path, by: &str, arguments: &[&str]) -> (bool, String) {
    let ran = Command::new(python())
        .args(arguments)
        .env("PYTHONPATH", site.join("python"))
        .env("RLAUNCH_PYTHON", by)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Cargo sets this variable for its own libraries.
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("RLAUNCH_SOCKET")
        .env_remove("RLAUNCH_HOST")
        .env_remove("WORLD_SIZE")
        .output()
        .unwrap();
    let output = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8_lossy(&output).into_owned())
}

fn the_tests_pass(by: &str) {
    if !has_python() {
        return;
    }
    let site = site(&format!("site-tests{by}"));
    lay_out(&site, true, true);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let tests = tests.to_str().unwrap();
    let (passed, output) = in_python(&site, by, &["-m", "unittest", "discover", "-v", "-s", tests]);
    eprintln!("{output}");
    assert!(passed);
    assert!(!output.contains("Ran 0 tests"));
}

#[test]
fn the_tests_in_python_pass() {
    the_tests_pass("");
}

#[test]
fn the_tests_in_python_pass_without_the_extension() {
    the_tests_pass("ctypes");
}

#[test]
fn the_examples_say_what_they_should() {
    if !has_python() {
        return;
    }
    let site = site("site-example");
    lay_out(&site, true, false);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    for (example, expected) in [
        ("all_reduce", "1 ranks: 1048576 elements, sum 1 everywhere\n"),
        ("hello", "rank 0 of 1, 0 of 1 on this host\n"),
    ] {
        let example = examples.join(example).join("main.py");
        let (passed, output) = in_python(&site, "", &[example.to_str().unwrap()]);
        assert_eq!((passed, &*output), (true, expected));
    }
}

#[test]
fn without_either_library_one_sentence_says_why() {
    if !has_python() {
        return;
    }
    let program = ["-c", "import rlaunch; print(rlaunch.init().size)"];
    let one = site("site-one");
    lay_out(&one, false, true);
    assert_eq!(in_python(&one, "", &program), (true, "1\n".to_owned()));
    let none = site("site-none");
    lay_out(&none, false, false);
    let (passed, output) = in_python(&none, "", &program);
    assert!(!passed);
    let last = output.lines().last().unwrap();
    assert!(
        last.starts_with("ImportError: rlaunch cannot load either of its libraries: "),
        "{output}"
    );
    assert!(last.contains("cannot import name '_rlaunch'"), "{output}");
    assert!(last.contains("librlaunch.so: cannot open shared object file"), "{output}");
}
