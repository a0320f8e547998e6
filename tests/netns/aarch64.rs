//! A host of aarch64, as far as this machine can be one: an emulator executes its agent.

use crate::support::{Field, Undo};
use rlaunch_lab::{Account, command};
use std::fs;

/// Where the kernel is told of interpreters.
const REGISTRY: &str = "/proc/sys/fs/binfmt_misc";
/// An ELF executable of aarch64: its first 20 bytes, and which bits of them count.
const MAGIC: &str = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
const MASK: &str =
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// Lets the kernel execute programs of aarch64 by the emulator, until the guard goes.
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

#[test]
fn a_host_of_aarch64_beside_others() {
    let field = Field::new();
    let (_emulator, _machine) = (emulator(&field, "b"), field.machine("b", "aarch64"));
    field.forget_agents(&["a", "b"], Account::Root);
    let _forget = Undo(|| {
        field.forget_agents(&["b"], Account::Root);
        Ok::<(), std::io::Error>(())
    });
    let cold = field.rlaunch("-H a,b hostname").run();
    assert_eq!(cold.succeeded().sorted(), ["a", "b"], "{cold}");
    cold.says(&["agent sent to a, b (", "no library for ranks on aarch64"]);
    let kept = fs::read_dir(field.cache("b", Account::Root)).unwrap();
    let kept: Vec<_> = kept.map(|build| build.unwrap().path().join("rlaunch-worker")).collect();
    let shipped = fs::read(field.shipped("aarch64").join("rlaunch-worker")).unwrap();
    assert!(kept.len() == 1 && fs::read(&kept[0]).unwrap() == shipped, "{kept:?}");
    let warm = field.rlaunch("-H a,b").sh("test $RANK = 0 || exit 7; exec sleep 100").run();
    warm.ended_with(7).says(&["rank 1 on b"]).keeps_quiet_about(&["sent to"]);
}
