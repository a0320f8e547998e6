//! Words that mean something else elsewhere: directories, ports, lines for a shell and placeholders; variables that
//! belong to one machine, and accounts without a name.

use crate::running::Running;
use crate::support::{BOUND, Field, PATH, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::Stdio;

/// mpirun and hydra: `--wdir .` is the launcher's directory, not the home directory of the host.
#[test]
fn a_relative_directory_is_below_the_launchers() {
    let field = Field::new();
    let run = |words: &str| field.rlaunch(words).in_directory(Path::new("/usr/lib")).run();
    let ran = run("-H a,b -np 1 --wdir . pwd : -np 1 --wdir ../share pwd");
    assert_eq!(ran.succeeded().sorted(), ["/usr/lib", "/usr/share"], "{ran}");
    // No shell puts a home directory there, and the host's may be another.
    let home = format!("{}\n", Account::Root.home().display());
    assert_eq!(run("-H a --wdir=~ printenv PWD").succeeded().out(), home);
    run("-H a --wdir no/such pwd").refused(203, &["/usr/lib/no/such is not on a"]).hints("--wdir");
}

/// mpich#1872, apptainer#2754: each machine has a link of its own to the directory that they share.
#[test]
fn a_directory_is_known_by_the_path_that_the_user_went() {
    let field = Field::new();
    let directory = launch_directory();
    let here = directory.path().to_str().unwrap();
    fs::create_dir(directory.path().join("export92")).unwrap();
    symlink("export92", directory.path().join("data92")).unwrap();
    let _scratch = field.scratch(&["a", "b"], here);
    field.on("a", &format!("mkdir -p {here}/data92"));
    // Where the link is on the launching machine only, the directory is known by its own path.
    field.on("b", &format!("mkdir -p {here}/export92"));
    let run = field.rlaunch("-H a,b").in_directory(&directory.path().join("data92"));
    let ran = run.sh("test $(pwd -P) = $PWD && printenv PWD").run();
    let expected = [format!("{here}/data92"), format!("{here}/export92")];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    ran.keeps_quiet_about(&["this directory is not on"]);
}

/// mpich#1872: the launcher's directory was deleted, which matters only to those who want it.
#[test]
fn a_deleted_directory_matters_only_where_it_is_needed() {
    let field = Field::new();
    let directory = launch_directory();
    let run = |words: &str| {
        let rlaunch = field.rlaunch.display();
        let delete = "mkdir gone && cd gone && rmdir ../gone";
        field.shell(&format!("{delete} && {rlaunch} {words} 2>&1; echo $?"), directory.path())
    };
    let said = run("--wdir /usr -H a printenv PWD");
    assert!(said.ends_with("/usr\n0\n"), "{said}");
    let said = run("-H a pwd");
    assert!(said.contains("cannot determine the working directory"), "{said}");
    assert!(said.contains("name one by --wdir") && said.ends_with("\n203\n"), "{said}");
}

/// cbio-cluster#128: variables of the launching machine reach ranks on others, where they are false.
#[test]
fn variables_of_one_machine_stay_there() {
    let field = Field::new();
    let run = |words: &str| {
        let run = field.rlaunch(words).in_directory(Path::new("/usr/lib"));
        let run = run.env("HOST", "launch").env("KRB5CCNAME", "FILE:/tmp/krb5cc_0");
        let run =
            run.env("SLURMD_NODENAME", "launch").env("TMP", "/launch").env("POD_IP", "launch");
        run.env("KRB5_CONFIG", "/etc/krb5.conf").args(["env"]).run()
    };
    let has = |out: &str, line: &str| out.lines().any(|own| own == line);
    let ran = run("-H a");
    let out = ran.succeeded().out();
    assert!(has(&out, "PWD=/usr/lib") && has(&out, "KRB5_CONFIG=/etc/krb5.conf"), "{ran}");
    for own in ["HOST=launch", "KRB5CCNAME=", "SLURMD_NODENAME=", "TMP=/launch", "POD_IP="] {
        assert!(!out.contains(own), "{own}: {ran}");
    }
    let ran = run("-H a -x KRB5CCNAME -x PWD=/data");
    let out = ran.succeeded().out();
    assert!(has(&out, "PWD=/data") && has(&out, "KRB5CCNAME=FILE:/tmp/krb5cc_0"), "{ran}");
    let ran = run("--no-env");
    assert!(has(&ran.succeeded().out(), "KRB5CCNAME=FILE:/tmp/krb5cc_0"), "its machine: {ran}");
}

/// openshift/jenkins#83: a container runs under any uid, while USER is that of its image.
#[test]
fn an_account_without_a_name_is_not_root() {
    let field = Field::new();
    let home = launch_directory();
    chown(home.path(), Some(54321), Some(54321)).unwrap();
    let run = |words: &str| {
        let mut command = field.lab.exec_in(Account::Root, Path::new("/"));
        command.args(["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--"]);
        command.arg(&field.rlaunch).args(words.split(' ')).env_clear();
        command.env("PATH", PATH).env("HOME", home.path()).env("USER", "root");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&field, &mut command, BOUND).finish()
    };
    let ran = run("-H a hostname");
    ran.refused(201, &["no login name: uid 54321"]).hints("NAME@a").hints("    User NAME");
    run("-H user@a hostname").refused(201, &["user may not log in"]);
    let shown = run("ssh --show a user@b");
    let out = shown.succeeded().out();
    let users: Vec<&str> = out.lines().filter(|line| line.starts_with("user ")).collect();
    assert_eq!(users, ["user user"], "{shown}");
    assert!(out.contains("# no login name: uid 54321"), "{shown}");
}

/// DeepSpeed#1924: `h1:2222` is meant as a port, and would start 2222 ranks.
#[test]
fn a_port_is_not_a_number_of_ranks() {
    let field = Field::new();
    let ran = field.rlaunch("-H a:2222 hostname").run();
    ran.refused(200, &["`a:2222` of -H gives a host 2222 slots"]).hints("--port 2222");
    assert_eq!(field.rlaunch("-H a:2222 -np 1 hostname").run().succeeded().out(), "a\n");
}

/// DeepSpeed PR#4265: what a shell would understand is not a program.
#[test]
fn a_line_for_a_shell_goes_to_one() {
    let field = Field::new();
    let ran = field.rlaunch("-H a").args(["cd /tmp && ls"]).run();
    ran.refused(127, &["cd /tmp && ls is not on a"]).hints("bash -c 'cd /tmp && ls'");
    ran.keeps_quiet_about(&["--copy"]);
    let ran = field.rlaunch("-H a FOO=1 python3 x").run();
    ran.refused(127, &["FOO=1 is not on a"]).hints("-x FOO=1");
    let ran = field.rlaunch("user@a hostname").run();
    ran.refused(127, &["user@a is not on"]).hints("rlaunch -H user@a hostname");
    field.rlaunch("-H a pushd").run().refused(127, &["pushd"]).hints("bash -c 'pushd …'");
}

/// DeepSpeed PR#4265: braces in an argument are the program's, unless they have a name of rlaunch.
#[test]
fn braces_of_a_program_stay() {
    let field = Field::new();
    let ran = field.rlaunch("-H a echo {{1}} {x} {{.State}} {{host.name}}").run();
    assert_eq!(ran.succeeded().out(), "{{1}} {x} {{.State}} a\n", "{ran}");
    let ran = field.rlaunch("-H a echo {{hots.name}}").run();
    ran.refused(200, &["`{{hots.name}}`"]).hints("host.name");
    let ran = field.rlaunch("-H a echo {{rank}}").run();
    ran.refused(200, &["`{{rank}}`", "several values"]).hints("rank.index");
}
