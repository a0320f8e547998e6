//! The library that ranks link and import, on hosts where nothing is installed.

use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::{Account, python};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const ABC: [&str; 3] = ["a", "b", "c"];
/// Time limit for four ranks that share two busy processors and make every call.
const PATIENCE: Duration = Duration::from_secs(90);
/// Python program with every call among several ranks.
const RANKS: &str = include_str!("../../worker/comm/python/tests/ranks.py");

/// Makes a directory with one file, on the launching machine only.
fn project(name: &str, text: &str) -> TempDir {
    let directory = launch_directory();
    fs::write(directory.path().join(name), text).unwrap();
    directory
}

/// Returns the directory of the launcher that has the library.
fn shipped(field: &Field) -> PathBuf {
    field.agent().parent().unwrap().to_owned()
}

/// Returns the paths of libraries in the cache of a host.
fn only_library(field: &Field, host: &str) -> Vec<PathBuf> {
    let cache = field.cache(host, Account::Root);
    let builds = fs::read_dir(cache).unwrap().map(|build| build.unwrap().path());
    let entries = builds.flat_map(|build| fs::read_dir(build).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().contains("library")).collect()
}

#[test]
fn every_call_in_python_holds_on_cold_hosts_and_on_warm_ones() {
    let field = Field::new();
    let project = project("ranks.py", RANKS);
    field.forget_agents(&ABC, Account::Root);
    let run = |by| {
        let run = field.rlaunch("-H a:2,b,c -np 4 --preload ranks.py python3 ranks.py");
        let run = run.in_directory(project.path()).env("RLAUNCH_PYTHON", by);
        run.within(PATIENCE).logging().run()
    };
    let cold = run("");
    assert_eq!(cold.succeeded().out(), "4 ranks: all as it should be\n", "{cold}");
    cold.says(&["agent sent to a, b, c (", "library sent to a, b, c ("]);
    for by in ["", "ctypes"] {
        let warm = run(by);
        assert_eq!(warm.succeeded().out(), "4 ranks: all as it should be\n", "{warm}");
        warm.keeps_quiet_about(&["sent to", "warning"]);
    }
    for host in ABC {
        let kept = only_library(&field, host);
        assert_eq!(kept.len(), 1, "{kept:?}");
        for file in ["librlaunch.so", "python/rlaunch/_rlaunch.abi3.so"] {
            let sent = fs::read(shipped(&field).join(file)).unwrap();
            assert!(fs::read(kept[0].join(file)).unwrap() == sent, "{file} on {host}");
        }
    }
}

#[test]
fn ranks_of_this_machine_have_it_as_well() {
    let field = Field::new();
    let project = project("ranks.py", RANKS);
    for account in Account::ALL {
        for by in ["", "ctypes"] {
            let run = field.rlaunch("-np 3 python3 ranks.py").account(account);
            let run = run.in_directory(project.path()).env("RLAUNCH_PYTHON", by);
            let ran = run.within(PATIENCE).run();
            assert_eq!(ran.succeeded().out(), "3 ranks: all as it should be\n", "{ran}");
            ran.says_nothing();
        }
    }
    let ran = field.rlaunch("-np 1").sh("echo $RLAUNCH_LIB").run();
    assert_eq!(ran.succeeded().out(), format!("{}\n", shipped(&field).display()));
}

/// Compiles a C program in the way that users do.
fn compile(field: &Field, source: &str, program: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-O1", "-o"]).arg(program).arg(workspace.join(source));
    cc.arg("-I").arg(workspace.join("worker/comm/capi/include"));
    cc.arg("-L").arg(shipped(field)).arg("-lrlaunch");
    rlaunch_lab::command::run("compile", &mut cc).unwrap();
}

#[test]
fn a_c_program_finds_its_library_on_hosts_that_have_none() {
    let field = Field::new();
    let directory = launch_directory();
    for (source, program, said) in [
        ("worker/comm/capi/tests/ranks.c", "ranks", "4 ranks: all as it should be\n"),
        ("examples/all_reduce/main.c", "sum", SUM),
    ] {
        compile(&field, source, &directory.path().join(program));
        for hosts in ["-H a:2,b,c", ""] {
            let run = field.rlaunch(&format!("{hosts} -np 4 --preload {program} {program}"));
            let ran = run.in_directory(directory.path()).within(PATIENCE).run();
            assert_eq!(ran.succeeded().out(), said, "{ran}");
        }
    }
}

/// Output of `examples/all_reduce`.
const SUM: &str = "4 ranks: 1048576 elements, sum 10 everywhere\n";

#[test]
fn the_examples_run_in_c_and_in_python() {
    let field = Field::new();
    let directory = launch_directory();
    compile(&field, "examples/hello/main.c", &directory.path().join("hello"));
    let copy = |text: &str| fs::write(directory.path().join("main.py"), text).unwrap();
    let run = |program: &str| {
        let words = format!("-H a:2,b -np 3 --preload {program}");
        field.rlaunch(&words).in_directory(directory.path())
    };
    copy(include_str!("../../examples/hello/main.py"));
    for ran in [run("hello").args(["./hello"]).run(), run("main.py").args(PYTHON).run()] {
        let hello =
            ["rank 0 of 3, 0 of 2 on a", "rank 1 of 3, 1 of 2 on a", "rank 2 of 3, 0 of 1 on b"];
        assert_eq!(ran.succeeded().sorted(), hello, "{ran}");
    }
    copy(include_str!("../../examples/all_reduce/main.py"));
    let ran = field.rlaunch("-H a:2,b,c --preload main.py").in_directory(directory.path());
    assert_eq!(ran.args(PYTHON).run().succeeded().out(), SUM);
}

const PYTHON: [&str; 2] = ["python3", "main.py"];

#[test]
fn what_is_on_a_search_path_already_comes_first() {
    let field = Field::new();
    let _own = field.files(&["a"], "/tmp/own/rlaunch.py", "whose = 'mine'\n", 0o644);
    let run = field.rlaunch("-H a python3 -c").args(["import rlaunch; print(rlaunch.whose)"]);
    let ran = run.env("PYTHONPATH", "/tmp/own").run();
    assert_eq!(ran.succeeded().out(), "mine\n", "{ran}");
    let run = field.rlaunch("-H a -x LD_LIBRARY_PATH=/mine: -x PYTHONPATH=/tmp/own");
    let show = "echo $RLAUNCH_LIB; echo $LD_LIBRARY_PATH; echo $PYTHONPATH";
    let ran = run.sh(show).run();
    let out = ran.succeeded().out();
    let lib = out.lines().next().unwrap();
    assert_eq!(out, format!("{lib}\n/mine::{lib}\n/tmp/own:{lib}/python\n"), "{ran}");
    let ran = field.rlaunch("-H a -x RLAUNCH_LIB=/mine printenv RLAUNCH_LIB").run();
    assert_eq!(ran.succeeded().out(), "/mine\n", "{ran}");
}

#[test]
fn where_it_is_can_be_shown_with_its_reason() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b --show env").sh("test $RANK = 0 || echo $RLAUNCH_LIB");
    let ran = run.run();
    let out = ran.succeeded().out();
    let lib = out.lines().last().unwrap();
    let rows = [
        (format!("RLAUNCH_LIB={lib} "), "where librlaunch.so is"),
        (
            format!("LD_LIBRARY_PATH+=:{lib} "),
            "programs that are linked with librlaunch.so find it",
        ),
        (format!("PYTHONPATH+=:{lib}/python "), "`import rlaunch` finds it"),
        ("PYTHONBREAKPOINT=rlaunch.breakpoint ".into(), "waits for `rlaunch attach`"),
    ];
    for (variable, why) in rows {
        let row = |line: &&str| line.starts_with(&variable) && line.contains(" 0-1 ");
        let row = out.lines().find(row).unwrap_or_else(|| panic!("no {variable} in {ran}"));
        assert!(row.contains(why), "{row}");
    }
}

#[test]
fn a_launcher_without_it_works_and_says_so_when_asked() {
    let field = Field::new();
    let directory = launch_directory();
    let agent = directory.path().join("rlaunch-worker");
    fs::copy(field.agent(), &agent).unwrap();
    for (hosts, count) in [("-H a,b", 2), ("", 1)] {
        let run = |more| {
            let run = field.rlaunch(&format!("{more} {hosts} --agent")).args([&agent]);
            run.sh("echo ${RLAUNCH_LIB-none}").run()
        };
        let quiet = run("");
        assert_eq!(quiet.succeeded().out(), "none\n".repeat(count), "{quiet}");
        quiet.keeps_quiet_about(&["library"]);
        let asked = run("-v");
        assert_eq!(asked.err().matches("no library for ranks").count(), 1, "{asked}");
    }
}

#[test]
fn a_host_that_cannot_keep_it_runs_the_program_without() {
    let field = Field::new();
    field.forget_agents(&["a", "b"], Account::Root);
    let room = fs::metadata(field.agent()).unwrap().len() + (256 << 10);
    let mount = format!("mkdir -p ~/.cache && mount -t tmpfs -o size={room} none ~/.cache");
    field.on("b", &mount);
    let _mount = Undo(|| {
        let mut umount = field.lab.on("b", Account::Root)?;
        let line = ["sh", "-c", "umount ~/.cache"];
        rlaunch_lab::command::run("unmount", umount.args(line)).map(drop)
    });
    let ran = field.rlaunch("-H a,b").sh("echo ${RLAUNCH_LIB:+has}").run();
    assert_eq!(ran.succeeded().sorted(), ["", "has"], "{ran}");
    ran.says(&["warning: b: ranks have no library to link or import: cannot keep "]);
    ran.says(&["No space left"]);
    assert_eq!(field.on("b", "find ~/.cache -name 'library*'"), "", "half a library is left");
}

const NUMPY: &str = "
import numpy, rlaunch
comm = rlaunch.init()
for dtype in ('f2', 'f4', 'f8', 'i4', 'i8', 'u1', 'u8'):
    x = numpy.full((3, 5), comm.rank + 1, dtype=dtype)
    address = x.ctypes.data
    comm.all_reduce(x)
    assert x.ctypes.data == address and (x == 6).all(), x
x = numpy.arange(12.0).reshape(3, 4) if comm.rank == 0 else numpy.empty((3, 4))
comm.broadcast(x)
assert (x == numpy.arange(12.0).reshape(3, 4)).all(), x
all_ = numpy.empty((comm.size, 12))
comm.all_gather(x, out=all_)
assert (all_ == x.reshape(12)).all(), all_
print('as it should be')
";

// `cargo lab test` skips this test on machines without numpy, and reports that.
#[test]
fn numpy_arrays_are_reduced_in_place() {
    let field = Field::new();
    for by in ["", "ctypes"] {
        let run = field.rlaunch("-H a:2,b python3 -c").args([NUMPY]).env("RLAUNCH_PYTHON", by);
        let ran = run.run();
        assert_eq!(ran.succeeded().out(), "as it should be\n".repeat(3), "{ran}");
    }
}

/// Example in the communicator's README, which shows its output as well.
const NOTEBOOK: &str = include_str!("../../examples/notebook/main.py");

#[test]
fn numpy_arrays_are_reduced_in_place_as_the_readme_shows() {
    let field = Field::new();
    let readme = include_str!("../../worker/comm/README.md");
    let indented = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("    {line}\n"),
    };
    let example: String = NOTEBOOK.lines().map(indented).collect();
    assert!(readme.contains(&example), "the README has another example");
    let project = project("main.py", NOTEBOOK);
    let line = "-H a:2,b -np 3 --copy main.py python3 main.py";
    let ran = field.rlaunch(line).in_directory(project.path()).run();
    let shown = readme.split_once(&format!("    $ rlaunch {line}\n")).unwrap().1;
    let shown = shown.lines().map_while(|line| line.strip_prefix("    "));
    let mut shown: Vec<&str> = shown.collect();
    shown.sort_unstable();
    assert_eq!(ran.succeeded().sorted(), shown, "{ran}");
}

const TORCH: &str = "
import rlaunch, torch
comm = rlaunch.init()
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
    x = torch.full((3, 5), comm.rank + 1).to(dtype)
    address = x.data_ptr()
    comm.all_reduce(x)
    assert x.data_ptr() == address and (x == 3).all(), x
print('as it should be')
";

// Like numpy's test, but with a Python of the lab.
#[test]
fn torch_tensors_are_reduced_in_place() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b").args([python::PROGRAM, "-c", TORCH]);
    let ran = run.within(Duration::from_secs(180)).run();
    assert_eq!(ran.succeeded().out(), "as it should be\n".repeat(2), "{ran}");
}
