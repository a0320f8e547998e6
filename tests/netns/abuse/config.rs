//! Configuration, command lines and records: files of another user run nothing, and secrets stay on
//! this machine.

use crate::running::Outcome;
use crate::support::{Field, Run, launch_directory};
use rlaunch_lab::Account;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Configuration with commands to run, files to write and variables to set, as in a cloned
/// repository.
const STRANGE: &str = "[defaults]\ntag-output = true\nrsh = \"sh -c 'id >pwned'\"\n\
    events = \"kept\"\noutput-dir = \"out\"\nenv = [\"A=stranger\"]\n\
    [profile.x]\nagent = \"./worker\"\n";
/// Shell line that prints the variable that [`STRANGE`] sets.
const SHOW_A: &str = "echo ${A:-none}";

/// Directory with files of another user, and the state directory of an account.
struct Place {
    account: Account,
    directory: TempDir,
    state: TempDir,
}

impl Place {
    fn new(account: Account) -> Place {
        let place = Place { account, directory: launch_directory(), state: launch_directory() };
        for directory in [&place.directory, &place.state] {
            place.give(directory.path());
        }
        place
    }

    fn give(&self, path: &Path) {
        chown(path, Some(self.account.id()), Some(self.account.id())).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        self.give(&self.path(name));
    }

    fn rlaunch<'a>(&self, field: &'a Field, words: &str) -> Run<'a> {
        let run = field.rlaunch(words).account(self.account).in_directory(self.directory.path());
        run.env("XDG_STATE_HOME", self.state.path().to_str().unwrap())
    }

    /// Asserts that [`STRANGE`] has run no command and written no file.
    fn is_untouched(&self, ran: &Outcome) {
        assert!(!self.path("pwned").exists(), "a command has run: {ran}");
        assert!(!self.path("out").exists(), "a directory was made: {ran}");
        let kept = fs::read_to_string(self.path("kept")).unwrap();
        assert_eq!(kept, "mine\n", "a file was truncated: {ran}");
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_strangers_file_runs_and_writes_nothing_until_it_is_trusted() {
    for account in Account::ALL {
        println!("as {}", account.name());
        let (field, place) = (Field::new(), Place::new(account));
        place.write("rlaunch.toml", STRANGE);
        place.write("kept", "mine\n");
        let job = || place.rlaunch(&field, "-H a").sh(SHOW_A).run();
        let ran = job();
        place.is_untouched(&ran);
        // Harmless keys are used; the others are named on one line.
        assert_eq!(ran.succeeded().out(), "[0,a] none\n", "{ran}");
        let said = ran.said();
        let warnings: Vec<&String> = said.iter().filter(|l| l.starts_with("warning: ")).collect();
        let [line] = warnings[..] else { panic!("not one line: {ran}") };
        for word in ["./rlaunch.toml", "rsh (line 3)", "events (line 4)", "output-dir (line 5)"]
            .into_iter()
            .chain(["env (line 6)", "`rlaunch trust`"])
        {
            assert!(line.contains(word), "no {word}: {ran}");
        }
        assert!(!line.contains("tag-output") && !line.contains("agent"), "{ran}");
        // A profile that the user asked for cannot be ignored.
        let ran = place.rlaunch(&field, "--profile x -H a hostname").run();
        ran.refused(200, &["profile `x`", "is not trusted"]).hints("rlaunch trust");
        place.is_untouched(&ran);
        trusted_until_changed(&field, &place);
    }
}

/// A job that finds hosts only in such a file does not run here instead, and trust is spoken of once.
#[test]
fn hosts_of_an_untrusted_file_make_one_message_about_trust() {
    let (field, place) = (Field::new(), Place::new(Account::Root));
    place.write("rlaunch.toml", "hosts = [\"a\"]\n\n[groups]\ngpu = [\"a\"]\n");
    for (words, refused) in [
        ("hostname", "no hosts are named but in ./rlaunch.toml"),
        ("-H @gpu hostname", "`@gpu` is no group of hosts"),
        ("-q hostname", "no hosts are named but in ./rlaunch.toml"),
    ] {
        let ran = place.rlaunch(&field, words).run();
        ran.refused(200, &[refused]);
        let said = ran.said();
        let about_trust = said.iter().filter(|line| line.contains("`rlaunch trust`"));
        assert_eq!(about_trust.count(), 1, "{ran}");
    }
    // Trusted, it is used.
    place.rlaunch(&field, "trust").run().succeeded();
    let ran = place.rlaunch(&field, "-H @gpu:2 hostname").run();
    assert_eq!(ran.succeeded().out(), "a\na\n", "{ran}");
}

fn trusted_until_changed(field: &Field, place: &Place) {
    let job = || place.rlaunch(field, "-H a").sh(SHOW_A).run();
    let trust = |words: &str| place.rlaunch(field, "trust").args(words.split_whitespace()).run();
    let ran = trust("");
    for line in
        ["rlaunch.toml:3: rsh = \"sh -c 'id >pwned'\"", "rlaunch.toml:8: [profile.x] agent = "]
    {
        assert!(ran.succeeded().out().contains(line), "no {line}: {ran}");
    }
    place.is_untouched(&ran);
    let records = place.state.path().join("rlaunch/trusted");
    let files: Vec<_> = fs::read_dir(&records).unwrap().flatten().collect();
    let [record] = &files[..] else { panic!("{files:?}") };
    assert_eq!((mode(&record.path()), mode(&records)), (0o600, 0o700));
    job().ended_with(201);
    assert!(fs::remove_file(place.path("pwned")).is_ok(), "a trusted command has not run");
    fs::remove_dir_all(place.path("out")).ok();
    // Changed content is not trusted.
    place.write("kept", "mine\n");
    place.write("rlaunch.toml", &STRANGE.replace("id >pwned", "id  >pwned"));
    let ran = job();
    place.is_untouched(&ran);
    ran.succeeded().says(&["rsh (line 3)"]);
    assert!(trust("--list").succeeded().out().contains("changed  "), "{}", trust("--list"));
    trust("--revoke").succeeded();
    assert_eq!(trust("--list").succeeded().out(), "");
    trust("--revoke").refused(200, &["rlaunch.toml is not trusted"]);
    place.write("rlaunch.toml", STRANGE);
    place.is_untouched(&job());
}

#[test]
fn hosts_of_a_strangers_file_are_not_replaced_by_this_machine() {
    let (field, place) = (Field::new(), Place::new(Account::Root));
    place.write("rlaunch.toml", "[hosts.x]\nssh = \"b\"\n[hosts.a]\n");
    let ran = place.rlaunch(&field, "hostname").run();
    ran.refused(
        200,
        &["hosts (line 1)", "`rlaunch trust`", "hosts are named but in ./rlaunch.toml"],
    );
    // Beside the error for a host name that only the ignored file defines, a warning mentions that file.
    let ran = place.rlaunch(&field, "-H x hostname").run();
    ran.refused(201, &["hosts (line 1)", "`rlaunch trust`"]);
    assert_eq!(place.rlaunch(&field, "-H b hostname").run().succeeded().out(), "b\n");
    // A file that the user names, or trusts, is used.
    let ran = place.rlaunch(&field, "--cluster rlaunch.toml hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.keeps_quiet_about(&["trust"]);
    place.rlaunch(&field, "trust").run().succeeded();
    let ran = place.rlaunch(&field, "-H x,a hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.keeps_quiet_about(&["trust"]);
}

/// Secret in all variables and words below.
const SECRET: &str = "hunter2";

#[test]
fn secrets_are_neither_recorded_nor_shown() {
    let (field, place) = (Field::new(), Place::new(Account::Root));
    let run = place.rlaunch(&field, "-np 1 -vv --show env --events events");
    let url = format!("pg://u:{SECRET}@d/x");
    let run = run.args(["-x", &format!("DATABASE_URL={url}")]);
    let run = run.args(["-x", &format!("NCCL_PROXY={url}"), "-x", "SENTRY_DSN"]);
    let names = ["HTTP_AUTH", "MYSQL_PWD", "GITHUB_PAT", "SENTRY_DSN", "SESSION_COOKIE"];
    let run = names.iter().fold(run, |run, name| run.env(name, SECRET));
    let words = [format!("--password={SECRET}"), "--db-pwd".into(), SECRET.into(), url];
    let ran = run.args(["true"]).args(words).run();
    ran.succeeded();
    assert!(!ran.out().contains(SECRET) && !ran.err().contains(SECRET), "{ran}");
    let jobs = fs::read_dir(place.state.path().join("rlaunch/jobs")).unwrap().flatten();
    let files = jobs.map(|entry| entry.path()).chain([place.path("events")]);
    let texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    assert_eq!(texts.len(), 2);
    for text in &texts {
        assert!(!text.contains(SECRET), "{text}");
    }
    // Values that are not secret can be read.
    assert!(texts[0].contains("pg://u:(set, 7 chars)@d/x"), "{}", texts[0]);
    let path = format!("forwards PATH={}", crate::support::PATH);
    ran.says(&[&path]);
    // A mistake is reported without the value.
    for word in [format!("--pasword={SECRET}"), format!("-x =pg://u:{SECRET}@d")] {
        let ran = place.rlaunch(&field, &format!("-np 1 {word} true")).run();
        assert_eq!(ran.code, 200, "{ran}");
        assert!(!ran.err().contains(SECRET), "{ran}");
    }
}

#[test]
fn bytes_that_are_no_text_arrive_as_they_are() {
    let (field, place) = (Field::new(), Place::new(Account::Root));
    let odd = |text: &[u8]| OsString::from_vec(text.to_vec());
    let directory = place.directory.path().join(odd(b"d\xff"));
    fs::create_dir(&directory).unwrap();
    let script: &[u8] =
        b"printf '%s|' \"$A\" \"$B\" \"$1\"; case $PATH in (*/p\xff:*) echo whole;; esac; pwd";
    for hosts in [&["-np", "1"][..], &["-H", "a"]] {
        let run = field.rlaunch("-x").in_directory(&directory);
        let run = run.args([odd(b"A=\xffb")]).args(hosts).args([OsStr::new("sh"), "-c".as_ref()]);
        let run = run.args([odd(script), odd(b"sh"), odd(b"c\xfe\n")]);
        let mut command = run.command();
        let path = [crate::support::PATH.as_bytes(), b":/p\xff:/q"].concat();
        command.env("B", odd(b"\x80")).env("PATH", odd(&path));
        let output = command.output().unwrap();
        let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{hosts:?}: {err}");
        // Only on this machine, the launching machine's directory exists.
        let mut expected = b"\xffb|\x80|c\xfe\n|whole\n".to_vec();
        if hosts[0] == "-np" {
            expected.extend_from_slice(directory.as_os_str().as_bytes());
            expected.push(b'\n');
        }
        assert!(out.starts_with(&expected), "{hosts:?}: {} {err}", out.escape_ascii());
    }
}
