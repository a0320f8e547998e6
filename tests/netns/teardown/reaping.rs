//! `rlaunch reap`, for jobs of which no launcher, agent or guardian is left to clean up.

use super::{EIGHT, HELPER, HOSTS, MEEK, SOON, as_each, nothing_left, up};
use crate::running::Outcome;
use crate::support::{Field, kill_at_once};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_lab::Account;

/// Starts a job, then kills all of its agents and its launcher at once, so that one leftover of
/// each rank remains. Returns the job's id.
fn orphan_helpers(field: &Field, account: Account) -> String {
    let script = format!("echo job $RLAUNCH_JOB_ID; {HELPER} {MEEK}");
    let (others, alone) = (workers(field), helpers(field) + 8);
    let running = up(field.rlaunch(EIGHT).account(account), &script);
    let mut everyone = workers(field);
    everyone.retain(|worker| !others.contains(worker));
    everyone.push(running.pid());
    kill_at_once(&everyone);
    let killed = running.finish_first();
    killed.ended_with(-(Signal::SIGKILL as i32));
    field.wait_for("the helpers to be alone", || {
        helpers(field) == alone && field.ranks().iter().all(|rank| rank.args != ["sleep", "1000"])
    });
    let out = killed.out();
    out.lines().find_map(|line| line.strip_prefix("job ")).unwrap().to_owned()
}

fn helpers(field: &Field) -> usize {
    field.ranks().iter().filter(|rank| rank.args[0] == "sh").count()
}

/// Returns the agents and guardians of all jobs.
fn workers(field: &Field) -> Vec<Pid> {
    let mut found = field.started();
    found.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    found.iter().map(|process| Pid::from_raw(process.pid)).collect()
}

fn reap(field: &Field, account: Account, what: &str) -> Outcome {
    let hosts = HOSTS.join(",");
    field.rlaunch("reap").args([what, "-H", &hosts]).account(account).spawn().finish_first()
}

/// Asserts that `words` holds for the line that each host prints.
fn every_host_says(ran: &Outcome, words: impl Fn(&str) -> bool) {
    let lines = ran.succeeded().sorted();
    assert_eq!(lines.len(), HOSTS.len(), "{ran}");
    for (line, host) in lines.iter().zip(HOSTS) {
        let said = line.strip_prefix(host).and_then(|rest| rest.strip_prefix(": "));
        assert!(said.is_some_and(&words), "{line}: {ran}");
    }
}

fn ended_something(words: &str) -> bool {
    words.split_once(" ended").is_some_and(|(count, _)| count.parse::<u32>().is_ok_and(|n| n >= 2))
}

fn ended_nothing(words: &str) -> bool {
    words.starts_with("0 ended")
}

/// Reaps one job by its id, and nothing of another job of the same user.
#[test]
fn one_job() {
    as_each(|field, account| {
        let bystander = up(field.rlaunch(EIGHT).account(account), "echo up; exec sleep 2000");
        let job = orphan_helpers(field, account);
        every_host_says(&reap(field, account, &job), ended_something);
        every_host_says(&reap(field, account, &job), ended_nothing);
        let mut others = field.ranks();
        others.retain(|rank| rank.args != ["sleep", "2000"]);
        assert!(others.is_empty(), "not reaped: {others:#?}");
        assert_eq!(field.ranks().len(), 8, "the other job was touched");
        assert_eq!(field.job_directories().len(), 4, "one of the other job for each host");
        bystander.signal(Signal::SIGTERM);
        let ran = bystander.finish_first();
        nothing_left(field, SOON, ran.ended_with(143));
    });
}

#[test]
fn all_jobs() {
    as_each(|field, account| {
        orphan_helpers(field, account);
        orphan_helpers(field, account);
        every_host_says(&reap(field, account, "--all"), ended_something);
        let ran = reap(field, account, "--all");
        every_host_says(&ran, ended_nothing);
        nothing_left(field, SOON, &ran);
    });
}

/// A directory of the user whose name begins like that of a job's directory stays, and so does one that a program of a job on
/// another host may have made by the name of the job's directory there.
#[test]
fn directories_of_the_user() {
    const NOTES: &str = "/tmp/rlaunch-notes";
    const NAMESAKE: &str = "/tmp/rlaunch-0123456789abcdef";
    as_each(|field, account| {
        let _gone = [NOTES, NAMESAKE].map(|path| field.scratch(&HOSTS, path));
        for host in HOSTS {
            let name = account.name();
            field.on(host, &format!("install -d -m 700 -o {name} {NOTES} {NAMESAKE}"));
        }
        every_host_says(&reap(field, account, "--all"), ended_nothing);
        let left = field.job_directories();
        assert_eq!(
            left.len(),
            2 * HOSTS.len(),
            "reap took other directories than a job's: {left:?}"
        );
    });
}
