//! A host of aarch64, as far as this machine can be one: an emulator executes its agent.

use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::{Account, command, dist};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Directory in which interpreters are registered with the kernel.
const REGISTRY: &str = "/proc/sys/fs/binfmt_misc";
/// Pattern of an ELF executable of aarch64: its first 20 bytes, and a mask for those that count.
const MAGIC: &str = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
const MASK: &str =
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// Lets the kernel execute programs of aarch64 by the emulator, until the guard is dropped.
fn emulator<'a>(field: &'a Field, host: &'a str) -> impl Drop + 'a {
    let own = format!("{REGISTRY}/rlaunch-lab");
    let line = format!(
        "mount -t binfmt_misc none {REGISTRY} && {{ [ ! -e {own} ] || echo -1 >{own}; }} &&
         printf %s ':rlaunch-lab:M::{MAGIC}:{MASK}:/usr/bin/qemu-aarch64:F' >{REGISTRY}/register"
    );
    field.on(host, &line);
    Undo(move || {
        let mut undo = field.lab.on(host, Account::Root)?;
        let line = format!("echo -1 >{own} && umount {REGISTRY}");
        command::run("forget the emulator", undo.args(["sh", "-c", &line])).map(drop)
    })
}

/// Guard that removes what hosts a and b were sent, when it is made and when it is dropped.
struct Forget<'a>(&'a Field);

impl<'a> Forget<'a> {
    fn now(field: &'a Field) -> Forget<'a> {
        field.forget_agents(&["a", "b"], Account::Root);
        Forget(field)
    }
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.forget_agents(&["a", "b"], Account::Root);
    }
}

#[test]
fn a_host_of_aarch64_beside_others() {
    let field = Field::new();
    let (_emulator, _machine) = (emulator(&field, "b"), field.machine("b", "aarch64"));
    let _forget = Forget::now(&field);
    let cold = field.rlaunch("-H a,b hostname").logging().run();
    assert_eq!(cold.succeeded().sorted(), ["a", "b"], "{cold}");
    cold.says(&["agent sent to a, b (", "library sent to a (", "library sent to b ("]);
    let kept = fs::read_dir(field.cache("b", Account::Root)).unwrap();
    let kept: Vec<_> = kept.map(|build| build.unwrap().path().join("rlaunch-worker")).collect();
    let shipped = fs::read(field.shipped("aarch64").join("rlaunch-worker")).unwrap();
    assert!(kept.len() == 1 && fs::read(&kept[0]).unwrap() == shipped, "{kept:?}");
    let warm = field.rlaunch("-H a,b").logging();
    let warm = warm.sh("test $RANK = 0 || exit 7; exec sleep 100").run();
    warm.ended_with(7).says(&["rank 1 on b"]).keeps_quiet_about(&["sent to"]);
}

#[test]
fn where_there_is_no_library_for_them_that_is_said() {
    let mut field = Field::new();
    let own = launch_directory();
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(&field.rlaunch).arg(field.rlaunch.with_file_name("lib")).arg(own.path());
    command::run("copy the launcher", &mut copy).unwrap();
    field.rlaunch = own.path().join("rlaunch");
    let files = field.shipped("aarch64");
    fs::remove_file(files.join("librlaunch.so")).unwrap();
    fs::remove_dir_all(files.join("python")).unwrap();
    let (_emulator, _machine) = (emulator(&field, "b"), field.machine("b", "aarch64"));
    let _forget = Forget::now(&field);
    let ran = field.rlaunch("-H a,b hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.says(&["no library for ranks on aarch64"]);
}

/// Directory of a Python of aarch64 on host b.
const PYTHON: &str = "/root/aarch64";

/// Calls between one rank of this machine's architecture and two of aarch64, of which one goes through the extension
/// module and one through librlaunch.so. (Through either alone: `library.rs`.)
#[test]
fn python_of_both_architectures_talks() {
    let field = Field::new();
    let (_emulator, _machine) = (emulator(&field, "b"), field.machine("b", "aarch64"));
    let _forget = Forget::now(&field);
    let _python = field.scratch(&["b"], PYTHON);
    let there = field.lab.path("b", Path::new(PYTHON)).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(dist::aarch64::python().unwrap()).arg(there);
    command::run("give b a Python of aarch64", &mut copy).unwrap();
    let project = launch_directory();
    let ranks = include_str!("../../worker/comm/python/tests/ranks.py");
    let says = "import platform; print(platform.machine())\n";
    fs::write(project.path().join("ranks.py"), format!("{says}{ranks}")).unwrap();
    let there = format!("-x QEMU_LD_PREFIX={PYTHON} {PYTHON}/usr/bin/python3 ranks.py");
    let words = format!(
        "--preload ranks.py -H a -np 1 python3 ranks.py : -H b -np 1 {there} : \
         -H b -np 1 -x RLAUNCH_PYTHON=ctypes {there}"
    );
    let run = field.rlaunch(&words).in_directory(project.path());
    let ran = run.within(Duration::from_secs(120)).run();
    let expected = ["3 ranks: all as it should be", "aarch64", "aarch64", "x86_64"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    ran.keeps_quiet_about(&["warning", "no library"]);
}
