//! Everything that a job needs and a host lacks is reported before any rank starts.

use crate::support::{Field, launch_directory};
use std::path::Path;

#[test]
fn a_program_that_is_not_there() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b,c -np 3 no-such-program --flag").run();
    ran.refused(127, &["no-such-program is not on a, b, c"]).hints("PATH").took_less_than(5);
    let ran = field.rlaunch("-H a,b ./no/such/program").run();
    ran.refused(127, &["./no/such/program is not on a, b"]);
    let ran = field.rlaunch("-H a,b topo --gids").run();
    ran.refused(127, &["topo is not on a, b"]).hints("rlaunch topo -H a,b --gids");
}

#[test]
fn hosts_with_spaces_between_them() {
    let field = Field::new();
    let hint = "hosts are joined by commas: rlaunch -H a,b,c hostname";
    field.rlaunch("-H a b c hostname").run().refused(127, &["b is not on a"]).hints(hint);
    field.rlaunch("-H a, b, c hostname").run().ended_with(200).hints(hint);
}

#[test]
fn a_program_that_one_host_lacks_runs_nowhere() {
    let field = Field::new();
    let _program = field.files(&["a", "c"], "/tmp/tool", "#!/bin/sh\ntouch /tmp/ran\n", 0o755);
    let ran = field.rlaunch("-H a,b,c /tmp/tool").run();
    ran.refused(127, &["/tmp/tool is not on b\n"])
        .hints("copy it along: rlaunch -H a,b,c --copy /tmp/tool /tmp/tool");
    for host in ["a", "c"] {
        assert!(!field.lab.path(host, Path::new("/tmp/ran")).unwrap().exists(), "{host}: {ran}");
    }
}

#[test]
fn a_program_that_may_not_be_executed() {
    let field = Field::new();
    let _program = field.files(&["a", "b"], "/tmp/tool", "#!/bin/sh\n", 0o644);
    let ran = field.rlaunch("-H a,b /tmp/tool").run();
    ran.refused(126, &["/tmp/tool is not executable on a, b"]).hints("chmod +x");
}

#[test]
fn a_program_for_other_machines() {
    let field = Field::new();
    let (number, machine) = match std::env::consts::ARCH {
        "aarch64" => ("\\076", "x86_64"),
        _ => ("\\267", "aarch64"),
    };
    // An ELF header up to the machine's number: 64 bits, little endian, an executable.
    let header = format!("\\177ELF\\002\\001\\001\\0\\0\\0\\0\\0\\0\\0\\0\\0\\002\\0{number}\\0");
    let _program = field.scratch(&["b"], "/tmp/foreign");
    let line = format!("mkdir /tmp/foreign && printf '{header}' >/tmp/foreign/tool");
    field.on("b", &format!("{line} && chmod 755 /tmp/foreign/tool"));
    let ran = field.rlaunch("-H b /tmp/foreign/tool").run();
    let said = format!("/tmp/foreign/tool cannot start on b: it is built for {machine}, and the");
    ran.refused(126, &[&said]).hints(": -H OTHERS PROGRAM");
}

#[test]
fn an_agent_for_other_machines() {
    let field = Field::new();
    let machine = if std::env::consts::ARCH == "aarch64" { "x86_64" } else { "aarch64" };
    let directory = launch_directory();
    let agent = directory.path().join("rlaunch-worker");
    let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\0\0";
    header[18] = if machine == "aarch64" { 183 } else { 62 };
    std::fs::write(&agent, header).unwrap();
    let said = format!("is not an agent for {}: it is {machine}", std::env::consts::ARCH);
    for words in ["--agent", "-H a --agent"] {
        let ran = field.rlaunch(words).args([agent.to_str().unwrap(), "true"]).run();
        ran.refused(202, &[&said]).hints("built for the hosts' architecture");
    }
}

/// A script without `#!` is run by a shell, as shells and execvp(3) do.
#[test]
fn a_script_that_does_not_say_what_runs_it() {
    let field = Field::new();
    let _program = field.files(&["b"], "/tmp/tool", "echo run by a shell\n", 0o755);
    let ran = field.rlaunch("-H b /tmp/tool").run();
    assert_eq!(ran.succeeded().out(), "run by a shell\n", "{ran}");
}

#[test]
fn python_where_only_python3_is() {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    let _directory = field.scratch(&hosts, "/tmp/only3");
    for host in hosts {
        field.on(host, "mkdir /tmp/only3 && ln -s $(command -v python3) /tmp/only3");
    }
    let path = "PATH=/tmp/only3";
    let ran = field.rlaunch("-H a,b,c -np 3 -x").args([path, "python", "-c", "pass"]).run();
    ran.refused(127, &["python is not on a, b, c"]).hints("python3 is there: rlaunch ");
    let ran = field.rlaunch("-H a,b,c -np 3 -x").args([path, "python3", "-c", "pass"]).run();
    ran.succeeded();
}

#[test]
fn a_script_that_only_some_have() {
    let field = Field::new();
    let directory = launch_directory();
    let script = directory.path().join("train.py");
    std::fs::write(&script, "print('trained')\n").unwrap();
    let _copy = field.files(&["a"], script.to_str().unwrap(), "print('trained')\n", 0o644);
    let words = ["python3", "train.py"];

    let run = field.rlaunch("-H a,b,c -np 3").args(words).in_directory(directory.path());
    run.run().refused(203, &["train.py is not on b, c"]).hints("--copy train.py python3 train.py");

    let run = field.rlaunch("-H a,b,c train.py").in_directory(directory.path());
    let line = "rlaunch -H a,b,c --copy train.py train.py";
    run.run().refused(203, &["train.py is not on b, c"]).hints(line);

    let run = field.rlaunch("-H b,c --copy train.py train.py").in_directory(directory.path());
    assert_eq!(run.run().succeeded().out(), "trained\ntrained\n");

    let run = field.rlaunch("-H a,b,c -np 3 --preload train.py").args(words);
    let ran = run.in_directory(directory.path()).run();
    assert_eq!(ran.succeeded().out(), "trained\ntrained\ntrained\n", "{ran}");
}

#[test]
fn a_script_that_differs_is_mentioned() {
    let field = Field::new();
    let directory = launch_directory();
    let script = directory.path().join("train.py");
    std::fs::write(&script, "print('new')\n").unwrap();
    let path = script.to_str().unwrap();
    let _new = field.files(&["a"], path, "print('new')\n", 0o644);
    let _old = field.files(&["b"], path, "print('old')\n", 0o644);
    let run = field.rlaunch("-H a,b python3 train.py").in_directory(directory.path());
    let ran = run.run();
    assert_eq!(ran.succeeded().sorted(), ["new", "old"], "{ran}");
    ran.says(&["warning[files.differ]: train.py on b differs"]);
}

#[test]
fn a_directory_that_hosts_lack() {
    let field = Field::new();
    let _file = field.files(&["a"], "/tmp/data/here", "", 0o644);
    let ran = field.rlaunch("-H a,b,c --wdir /tmp/data hostname").run();
    let hint = "make it there: rlaunch -H b,c mkdir -p /tmp/data";
    ran.refused(203, &["/tmp/data is not on b, c"]).hints(hint).hints("--wdir");
    let ran = field.rlaunch("-H a,b --wdir /no/such/place hostname").run();
    ran.refused(203, &["/no/such/place is not on a, b"]);
}

#[test]
fn a_file_to_preload_that_is_not_here() {
    let field = Field::new();
    let ran = field.rlaunch("-H a --preload /no/such/file hostname").run();
    ran.refused(203, &["/no/such/file"]);
}

#[test]
fn too_few_slots() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b,c -np 4 hostname").run();
    ran.refused(200, &["4 ranks need 4 slots; there are 3 (a 1, b 1, c 1): use -H a:2,b,c\n"]);
    ran.hints("ranks can share slots: rlaunch -H a,b,c -np 4 --oversubscribe hostname");
    field.rlaunch("-H a,b,c -np 4 --oversubscribe hostname").run().succeeded();
}

#[test]
fn a_command_line_that_cannot_be_meant() {
    let field = Field::new();
    for words in ["-H a --no-such-option hostname", "-H a", "-H a -np 0 hostname", "-H a,,b true"] {
        let ran = field.rlaunch(words).run();
        ran.ended_with(200).says(&["error: "]).took_less_than(5);
    }
    let ran = field.rlaunch("-H a -x NOT_SET_HERE hostname").run();
    ran.refused(200, &["NOT_SET_HERE is not set"]).hints("-x NOT_SET_HERE=VALUE");
}
