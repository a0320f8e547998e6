//! Report of problems that nodes found while they prepared: one line for each problem, with all hosts that
//! have it.

mod program;

use program::{describe_defect, describe_missing_program};
use rlaunch_bootstrap::job::{FewFiles, Notice, PathDefect, Problem};
use rlaunch_console::messages;
use rlaunch_plan::checks;
use rlaunch_plan::findings::{self, CheckId, id};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell;
use rlaunch_text::text;
use rlaunch_text::typed::{TypedJob, command_line};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Ports for a hint where the usual ones are taken.
const OTHER_PORTS: &str = "22000-22511";

/// Combines the problems of all hosts into one error. There must be at least one problem. `typed` is the command line of
/// the job, if it has one program.
pub(crate) fn explain(problems: &[(&Host, &Problem)], typed: Option<TypedJob<'_>>) -> Failed {
    let groups = text::grouped(problems.iter().map(|&(host, problem)| (problem, host)));
    let replaced = typed.and_then(|typed| with_program_there(problems, typed));
    let works = typed.zip(replaced.as_deref()).map(|(typed, words)| typed.with_program(words));
    let lacks_script = problems.iter().any(|(_, one)| matches!(one, Problem::NoScript { .. }));
    let mut failed = Failed::new(Exit::FILES, "");
    for (problem, hosts) in groups {
        let (exit, sentence, hint) = describe(problem, &text::list(&hosts), works.or(typed));
        // The line that copies the script names the program that is there.
        let is_said = works.is_some() && lacks_script;
        let hint = hint.filter(|_| !is_said || !matches!(problem, Problem::NoProgram { .. }));
        if failed.message.is_empty() {
            failed = findings::with_finding(failed, finding(problem));
            failed.message = sentence;
            failed.exit = exit;
        } else {
            failed.details.push(sentence);
        }
        failed = failed.hint(hint);
    }
    failed
}

/// Returns the words of the program with the name that is installed in place of the one that was typed, if there is such.
fn with_program_there(
    problems: &[(&Host, &Problem)],
    typed: TypedJob<'_>,
) -> Option<Vec<OsString>> {
    let (program, arguments) = typed.words().split_first()?;
    let instead = problems.iter().find_map(|(_, problem)| match problem {
        Problem::NoProgram { program: missing, instead } if missing == program => instead.clone(),
        _ => None,
    })?;
    Some([&[OsString::from(instead)][..], arguments].concat())
}

/// Returns the id of the finding that a problem states, if it has one.
fn finding(problem: &Problem) -> Option<CheckId> {
    match problem {
        Problem::NoScript { .. } | Problem::NoFile { .. } | Problem::NoDirectory { .. } => {
            Some(id::FILES_MISSING)
        }
        Problem::Singleton { .. } => Some(id::MPI_SINGLETON),
        Problem::FewFiles(_) => Some(id::LIM_FILES),
        Problem::NoProgram { .. }
        | Problem::CannotStart { .. }
        | Problem::PreloadFailed { .. }
        | Problem::NoPort { .. }
        | Problem::PortTaken { .. }
        | Problem::CannotBind { .. }
        | Problem::System { .. } => None,
    }
}

/// Describes a problem of `hosts`: the exit code, a sentence and a hint.
fn describe(
    problem: &Problem,
    hosts: &str,
    typed: Option<TypedJob<'_>>,
) -> (Exit, String, Option<String>) {
    match problem {
        Problem::NoProgram { program, instead } => {
            describe_missing_program(program, instead.as_deref(), hosts, typed)
        }
        Problem::CannotStart { program, defect } => describe_defect(program, defect, hosts),
        Problem::NoScript { script, defect } => {
            let state = describe_path(script, defect, &format!("on {hosts}"));
            let sentence = format!("{} {state}", script.display());
            (Exit::FILES, sentence, Some(missing_file_hint(script.as_os_str(), typed)))
        }
        Problem::NoFile { option, path } => {
            let sentence = format!("{} of {option} is not on {hosts}", path.display());
            let hint = format!("every host needs {} at this path", path.display());
            (Exit::FILES, sentence, Some(hint))
        }
        Problem::NoDirectory { directory, defect } => {
            let state = describe_path(directory, defect, &format!("on {hosts}"));
            let sentence = format!("the directory {} {state}", directory.display());
            (Exit::FILES, sentence, Some(directory_hint(directory, defect, hosts)))
        }
        Problem::PreloadFailed { operation, cause } => {
            let sentence = format!("cannot copy files to {hosts}: {operation}: {cause}");
            (Exit::FILES, sentence, Some("copies go to TMPDIR on the host".into()))
        }
        Problem::NoPort { range } => {
            let sentence = format!("no port of {}-{} is free on {hosts}", range.first, range.last);
            let line = TypedJob::or_options(typed, &["--port-range", OTHER_PORTS]);
            (Exit::RENDEZVOUS, sentence, Some(format!("choose other ports: {line}")))
        }
        Problem::PortTaken { port } => {
            let sentence = format!("port {port} of --master-port is taken on {hosts}");
            let hint = format!(
                "`ss -tlnp sport = :{port}` there shows the process that has it; without \
                 --master-port rlaunch chooses a free one"
            );
            (Exit::RENDEZVOUS, sentence, Some(hint))
        }
        Problem::Singleton { program, library, needs } => {
            let program = format!("{} on {hosts}", program.display());
            let (sentence, hint) = checks::unserved_mpi(&program, library, needs);
            (Exit::SINGLETON, sentence, Some(hint))
        }
        Problem::FewFiles(few) => describe_few_files(few, hosts),
        Problem::CannotBind { cause } => {
            let sentence = format!("ranks cannot be bound to CPUs on {hosts}: {cause}");
            let hint = "a filter of system calls there, as of a container, forbids sched_setaffinity; \
                        with --bind none ranks run without";
            (Exit::AGENT, sentence, Some(hint.into()))
        }
        Problem::System { operation, cause } => {
            (Exit::AGENT, format!("cannot {operation} on {hosts}: {cause}"), None)
        }
    }
}

/// Describes why a path does not lead to what it should, as the rest of a sentence that begins with the path. `place` is
/// `there`, or names hosts.
fn describe_path(path: &Path, defect: &PathDefect, place: &str) -> String {
    match defect {
        PathDefect::Missing => format!("is not {place}"),
        PathDefect::DanglingLink { link, target } => {
            let link = if link == path { "it".into() } else { link.display().to_string() };
            let target = target.display();
            format!("is not {place}: {link} is a link to {target}, which is not there")
        }
        PathDefect::LinkLoop { link } => {
            format!("is not {place}: the link {} leads back to itself", link.display())
        }
        PathDefect::Closed { directory } => {
            let directory = directory.display();
            format!("cannot be reached {place}: this user may not enter {directory}")
        }
        PathDefect::NotAFile { is_directory } => {
            let kind = if *is_directory { "a directory" } else { "a device, a pipe or a socket" };
            format!("is {kind} {place}")
        }
        PathDefect::NotADirectory { file } if file == path => {
            format!("is a file {place}")
        }
        PathDefect::NotADirectory { file } => {
            format!("is not {place}: {} is a file there", file.display())
        }
        PathDefect::NotExecutable => format!("is not executable {place}"),
        PathDefect::MountedNoexec => {
            format!("cannot be executed {place}: its file system is mounted noexec")
        }
        PathDefect::Unreachable { cause } => format!("cannot be reached {place}: {cause}"),
    }
}

fn closed_hint(directory: &Path) -> String {
    let directory = shell::quoted(directory.as_os_str());
    format!(
        "`ls -ld {directory}` there shows who may enter it: name a place that this user may enter"
    )
}

fn missing_file_hint(file: &OsStr, typed: Option<TypedJob<'_>>) -> String {
    // The file of a module is found by its package, and a directory is more than one file.
    let is_typed = |typed: TypedJob<'_>| typed.words().iter().any(|word| word == file);
    if Path::new(file).is_dir() || typed.is_some_and(|typed| !is_typed(typed)) {
        return format!("copy this directory along: {}", TypedJob::or_options(typed, &["--sync"]));
    }
    match typed {
        Some(typed) => {
            format!("copy it along: {}", typed.with_options(&[OsStr::new("--copy"), file]))
        }
        None => format!("copy it along: --copy {}", shell::quoted(file)),
    }
}

/// Returns advice on a directory that ranks cannot enter.
fn directory_hint(directory: &Path, defect: &PathDefect, hosts: &str) -> String {
    match defect {
        PathDefect::Missing => missing_directory_hint(directory, hosts),
        // mkdir(1) makes nothing at the place of a link.
        PathDefect::DanglingLink { target, .. } => missing_directory_hint(target, hosts),
        PathDefect::Closed { directory } => closed_hint(directory),
        _ => "name another by --wdir DIR".into(),
    }
}

fn missing_directory_hint(directory: &Path, hosts: &str) -> String {
    // A long list of hosts is cut.
    let is_cut = hosts.ends_with(" more");
    let hosts = if is_cut { "HOSTS".to_owned() } else { hosts.replace(", ", ",") };
    let mut words = ["-H", &hosts, "mkdir", "-p"].map(OsString::from).to_vec();
    words.push(directory.into());
    format!("make it there: {}; or name another by --wdir DIR", command_line(&words))
}

fn describe_few_files(few: &FewFiles, hosts: &str) -> (Exit, String, Option<String>) {
    let (ranks, does) = (count_ranks(few), if few.ranks == 1 { "does" } else { "do" });
    let sentence = format!("{ranks} {does} not fit on {hosts}: {}", describe_limit(few));
    (Exit::AGENT, sentence, Some(more_files_hint(few)))
}

fn count_ranks(few: &FewFiles) -> String {
    text::count(few.ranks as usize, "rank")
}

fn describe_limit(few: &FewFiles) -> String {
    format!(
        "rlaunch's agent would have up to {} files open, and {} are allowed there",
        few.needed, few.limit
    )
}

fn more_files_hint(few: &FewFiles) -> String {
    format!(
        "`ulimit -n {}` allows them where the hard limit is as high; else root raises it, by `* - nofile 65536` in \
         /etc/security/limits.conf there and a new login; a container needs --ulimit nofile=65536",
        few.needed
    )
}

/// Prints what the user should know about hosts that can run the job, one line for all hosts with the same notice.
pub(crate) fn print_notices(notices: &[(&Host, &Notice)]) {
    for (notice, hosts) in text::grouped(notices.iter().map(|&(host, notice)| (notice, host))) {
        let hosts = text::list(&hosts);
        match notice {
            // Nodes keep it, since it is said again when a rank fails.
            Notice::RunsInHome { .. } => {}
            Notice::OtherProgram { expected, found } => {
                let name = expected.file_name().unwrap_or_default().display();
                let (expected, found) = (expected.display(), found.display());
                messages::warn(&format!("{name} is {found} on {hosts}, and {expected} here"));
            }
            Notice::ScriptDiffers { script } => {
                let line = format!("{} on {hosts} differs from yours", script.display());
                messages::warn_of(Some(id::FILES_DIFFER.as_str()), &line);
            }
            Notice::FewFiles(few) => {
                let sentence = format!(
                    "{} on {hosts} may fail in a barrier, in MPI or when they connect: {}",
                    count_ranks(few),
                    describe_limit(few)
                );
                messages::warn_of(Some(id::LIM_FILES.as_str()), &sentence);
                messages::hint(&more_files_hint(few));
            }
            Notice::OtherTmpdir { cause, instead } => {
                messages::warn(&format!(
                    "TMPDIR on {hosts} cannot be used ({cause}): temporary files of the ranks there go to {}",
                    instead.display()
                ));
                messages::hint(
                    "make the directory there, or name another by -x TMPDIR=DIR or in the file that sets it \
                     (~/.bashrc)",
                );
            }
            Notice::Unbound { cause } => {
                messages::warn(&format!("ranks on {hosts} are not bound to CPUs: {cause}"));
                messages::hint("--bind none asks for that, without this warning");
            }
            Notice::NoWorkspace { cause } => {
                messages::warn(&format!(
                    "no directory for the job on {hosts} ({cause}): its ranks have no `rlaunch` \
                     commands, rank table, communicator or TMPDIR there"
                ));
                messages::hint(
                    "make one of these places writable, or let a start-up file of the shell there \
                     (~/.bashrc) set TMPDIR to one that is",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::job::{PortRange, ProgramDefect};

    fn host(name: &str) -> Host {
        Host { name: name.into(), ..Host::this_machine() }
    }

    #[test]
    fn one_sentence_for_one_cause() {
        let (b, c) = (host("b"), host("c"));
        let defect = PathDefect::Missing;
        let missing = Problem::NoScript { script: "train.py".into(), defect: defect.clone() };
        let typed = ["rlaunch", "-H", "b,c", "python3", "train.py"].map(OsString::from);
        let typed = TypedJob::new(&typed, &typed[3..]);
        let failed = explain(&[(&b, &missing), (&c, &missing)], typed);
        assert_eq!(failed.message, "train.py is not on b, c");
        let expected = "copy it along: rlaunch -H b,c --copy train.py python3 train.py";
        assert_eq!(failed.hints, [expected]);
        let failed = explain(&[(&b, &missing)], None);
        assert_eq!(failed.hints, ["copy it along: --copy train.py"]);
        let no_port = Problem::NoPort { range: PortRange { first: 21_000, last: 21_511 } };
        let line = "rlaunch -H b,c --port-range 22000-22511 python3 train.py";
        let failed = explain(&[(&b, &no_port)], typed);
        assert_eq!(failed.hints, [format!("choose other ports: {line}")]);
        let missing = Problem::NoDirectory { directory: "/a b".into(), defect };
        let failed = explain(&[(&b, &missing), (&c, &missing)], typed);
        let made = "make it there: rlaunch -H b,c mkdir -p '/a b'; or name another by --wdir DIR";
        assert_eq!(failed.hints, [made]);
        assert_eq!(failed.exit, Exit::FILES);
    }

    #[test]
    fn what_is_there_is_not_said_to_be_missing() {
        let b = host("b");
        let of = |defect| {
            let defect = ProgramDefect::Unusable(defect);
            let problem = Problem::CannotStart { program: "/d/x".into(), defect };
            let failed = explain(&[(&b, &problem)], None);
            (failed.exit, failed.message, failed.hints.concat())
        };
        let closed = || PathDefect::Closed { directory: "/d".into() };
        let link = |link: &str| PathDefect::DanglingLink { link: link.into(), target: "/n".into() };
        let file = |file: &str| PathDefect::NotADirectory { file: file.into() };
        let (found, executable) = (Exit::NOT_FOUND, Exit::NOT_EXECUTABLE);
        for (defect, exit, sentence, hint) in [
            (
                closed(),
                executable,
                "cannot be reached on b: this user may not enter /d",
                "ls -ld /d",
            ),
            (
                link("/d/x"),
                found,
                "is not on b: it is a link to /n, which is not there",
                "ls -l /d/x",
            ),
            (link("/d"), found, "is not on b: /d is a link to /n, which is not there", "ls -l /d"),
            (file("/d"), found, "is not on b: /d is a file there", "ls -l /d/x"),
            (PathDefect::NotExecutable, executable, "is not executable on b", "chmod +x /d/x"),
            (
                PathDefect::NotAFile { is_directory: true },
                executable,
                "is a directory on b",
                "name",
            ),
            (
                PathDefect::MountedNoexec,
                executable,
                "cannot be executed on b: its file system is mounted noexec",
                "findmnt -T /d/x",
            ),
        ] {
            let (code, message, advice) = of(defect);
            assert_eq!((code, message), (exit, format!("/d/x {sentence}")));
            assert!(advice.contains(hint), "{advice}");
        }
        let wdir = |defect| {
            let problem = Problem::NoDirectory { directory: "/d".into(), defect };
            let failed = explain(&[(&b, &problem)], None);
            (failed.message, failed.hints.concat())
        };
        let (message, hint) = wdir(file("/d"));
        assert_eq!(message, "the directory /d is a file on b");
        assert_eq!(hint, "name another by --wdir DIR");
        assert!(wdir(closed()).1.contains("ls -ld /d"));
        let (message, hint) = wdir(link("/d"));
        assert!(message.ends_with("it is a link to /n, which is not there"), "{message}");
        assert!(hint.contains("mkdir -p /n;"), "{hint}");
    }

    #[test]
    fn ranks_that_take_too_many_files_are_told_the_limit() {
        let b = host("b");
        let problem = Problem::FewFiles(FewFiles { ranks: 501, limit: 1024, needed: 1526 });
        let failed = explain(&[(&b, &problem)], None);
        assert_eq!(
            failed.message,
            "501 ranks do not fit on b: rlaunch's agent would have up to 1526 files open, and 1024 \
             are allowed there"
        );
        assert!(failed.hints[0].starts_with("`ulimit -n 1526` "), "{:?}", failed.hints);
        let problem = Problem::FewFiles(FewFiles { ranks: 1, limit: 8, needed: 26 });
        let failed = explain(&[(&b, &problem)], None);
        assert!(failed.message.starts_with("1 rank does not fit on b: "), "{}", failed.message);
    }
}
