//! `rlaunch doctor` on real hosts: a fault is found first, and healthy hosts have none.

use crate::support::{Field, Undo, launch_directory};
use serde_json::Value;
use std::time::Duration;

/// Time limit for a diagnosis of 8 hosts, on which a probe that gets no answer waits 3 s.
const BOUND: Duration = Duration::from_secs(90);

/// Report of a diagnosis.
struct Report {
    code: i32,
    json: Value,
}

impl Report {
    /// Diagnoses with `--json` and these words.
    fn new(field: &Field, words: &str) -> Report {
        let ran = field.rlaunch(&format!("doctor --json {words}")).within(BOUND).run();
        let json =
            serde_json::from_str(&ran.out()).unwrap_or_else(|error| panic!("{error}: {ran}"));
        Report { code: ran.code, json }
    }

    /// Returns the findings of a severity that are not consequences of others.
    fn of_severity(&self, severity: &str) -> Vec<&Value> {
        let findings = self.json["findings"].as_array().unwrap();
        findings.iter().filter(|finding| finding["severity"] == severity).collect()
    }

    /// Asserts that there is one error, and that it is this one, on these hosts.
    fn has_one_error(&self, id: &str, hosts: &[&str]) -> &Value {
        let errors = self.of_severity("error");
        let ids: Vec<&Value> = errors.iter().map(|error| &error["id"]).collect();
        assert_eq!(ids, [id], "{:#}", self.json);
        let named: Vec<&str> =
            errors[0]["hosts"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(named, hosts, "{:#}", self.json);
        assert_eq!(self.code, 2, "{:#}", self.json);
        errors[0]
    }
}

#[test]
fn healthy_hosts_have_no_fault() {
    let field = Field::new();
    field.warm("a,b,c,d", rlaunch_lab::Account::Root);
    let ran = field.rlaunch("doctor -H a,b,c,d --strict").within(BOUND).run();
    let out = ran.succeeded().out().into_owned();
    let last = out.lines().last().unwrap();
    assert!(last.contains("4 hosts, no RDMA paths, ") && !out.contains("error "), "{ran}");
    ran.took_less_than(10);
    let verbose = field.rlaunch("doctor -H a,b -v --only ssh,net").within(BOUND).run();
    assert!(verbose.succeeded().out().contains("\nok     net.pair  "), "{verbose}");
}

#[test]
fn a_host_that_is_not_there_is_an_error_and_hides_no_other() {
    let field = Field::new();
    let report = Report::new(&field, "-H a,nosuchhost,b");
    report.has_one_error("ssh.reach", &["nosuchhost"]);
    assert_eq!(report.json["hosts"], 3);
}

#[test]
fn a_login_that_is_refused_is_told_from_a_host_that_is_not_reached() {
    let field = Field::new();
    let report = Report::new(&field, "-H a,nosuchuser@b");
    report.has_one_error("ssh.auth", &["nosuchuser@b"]);
}

/// The probes of other hosts get no answer because of the packet filter, which root may read.
#[test]
fn a_packet_filter_is_found_behind_probes_without_an_answer() {
    let field = Field::new();
    field.on(
        "c",
        "nft add table inet t && nft add chain inet t c '{ type filter hook input priority 0; }' && \
         nft add rule inet t c tcp dport 1024-65535 drop",
    );
    let _open = Undo(|| {
        field.on("c", "nft delete table inet t");
        Ok::<(), String>(())
    });
    let report = Report::new(&field, "-H a,b,c");
    let found = report.has_one_error("fw.ports", &["c"]);
    let effects = found["consequences"].as_array().unwrap();
    assert!(effects.iter().any(|effect| effect["id"] == "net.pair"), "{found:#}");
}

#[test]
fn a_name_that_leads_elsewhere_is_named() {
    let field = Field::new();
    field.on(
        "b",
        "(echo 192.0.2.7 $(hostname); cat /etc/hosts) > /run/hosts && \
         mount --bind /run/hosts /etc/hosts",
    );
    let _undo = Undo(|| {
        field.on("b", "umount /etc/hosts && rm /run/hosts");
        Ok::<(), String>(())
    });
    let report = Report::new(&field, "-H a,b");
    let warnings = report.of_severity("warning");
    let named = warnings.iter().find(|finding| finding["id"] == "net.name");
    assert_eq!(named.unwrap()["hosts"][0], "b", "{:#}", report.json);
}

#[test]
fn a_file_that_only_some_hosts_have_is_missed() {
    let field = Field::new();
    let _file = field.files(&["a"], "/tmp/doctor/train.py", "print()", 0o644);
    let report = Report::new(&field, "-H a,b -- python3 /tmp/doctor/train.py");
    report.has_one_error("files.missing", &["b"]);
    let job = field.rlaunch("-H a,b --preflight full python3 /tmp/doctor/train.py").within(BOUND);
    job.run().refused(203, &["error[files.missing]: --preflight full: b: /tmp/doctor/train.py"]);
    let _other = field.files(&["b"], "/tmp/doctor/train.py", "print(1)", 0o644);
    let report = Report::new(&field, "-H a,b -- python3 /tmp/doctor/train.py");
    let found = report.of_severity("warning");
    assert!(found.iter().any(|finding| finding["id"] == "files.differ"), "{:#}", report.json);
}

#[test]
fn a_recording_has_the_same_faults() {
    let field = Field::new();
    let directory = launch_directory();
    let archive = directory.path().join("x.tar");
    field.rlaunch(&format!("capture -H a,b -o {}", archive.display())).run().succeeded();
    let live = Report::new(&field, "-H a,b --probe=never");
    let recorded = Report::new(&field, &format!("--from {}", archive.display()));
    let ids = |report: &Report| -> Vec<String> {
        let findings = report.json["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["id"].to_string()).collect()
    };
    assert_eq!(ids(&recorded), ids(&live), "{:#}\n{:#}", recorded.json, live.json);
}

#[test]
fn checks_are_listed_and_explained() {
    let field = Field::new();
    let ran = field.rlaunch("doctor --list").run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.lines().count() > 80 && out.contains("\nmtu.path "), "{ran}");
    let explained = field.rlaunch("help mtu.path").run();
    assert!(explained.succeeded().out().starts_with("mtu.path: "), "{explained}");
    field.rlaunch("doctor --only mtu.pth").run().refused(200, &["no check has the id", "mtu.path"]);
}
