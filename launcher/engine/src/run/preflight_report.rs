//! Report of problems that nodes found while they prepared: one line for each problem, with all hosts that
//! have it.

use rlaunch_bootstrap::job::{Notice, Problem};
use rlaunch_console::messages;
use rlaunch_plan::checks;
use rlaunch_plan::findings::{self, CheckId, id};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::ffi::OsStr;

/// Combines the problems of all hosts into one error. There must be at least one problem.
pub(crate) fn explain(problems: &[(&Host, &Problem)]) -> Failed {
    let groups = text::grouped(problems.iter().map(|&(host, problem)| (problem, host)));
    let mut failed = Failed::new(Exit::FILES, "");
    for (problem, hosts) in groups {
        let (exit, sentence, hint) = describe(problem, &text::list(&hosts));
        if failed.message.is_empty() {
            failed = findings::mark(failed, finding(problem));
            failed.message = sentence;
            failed.exit = exit;
        } else {
            failed.details.push(sentence);
        }
        failed = failed.hint(hint);
    }
    failed
}

/// Returns the id of the finding that a problem states, if it has one.
fn finding(problem: &Problem) -> Option<CheckId> {
    match problem {
        Problem::NoScript { .. } | Problem::NoFile { .. } | Problem::NoDirectory { .. } => {
            Some(id::FILES_MISSING)
        }
        Problem::Singleton { .. } => Some(id::MPI_SINGLETON),
        Problem::NoProgram { .. }
        | Problem::NotExecutable { .. }
        | Problem::PreloadFailed { .. }
        | Problem::NoPort { .. }
        | Problem::PortTaken { .. }
        | Problem::System { .. } => None,
    }
}

fn describe(problem: &Problem, hosts: &str) -> (Exit, String, Option<String>) {
    match problem {
        Problem::NoProgram { program, instead } => {
            let name = program.display();
            let sentence = format!("{name} is not on {hosts}");
            let by_path = program.as_encoded_bytes().contains(&b'/');
            let hint = match instead {
                Some(instead) => format!("{instead} is there: use {instead}"),
                None if by_path => missing_file_hint(&name.to_string()),
                None if is_python(program) => format!(
                    "install it there: sudo apt install python3 || sudo dnf install python3; or, if \
                     it is elsewhere on {hosts}, give its path, or pass PATH on by -x PATH"
                ),
                None => {
                    format!(
                        "rlaunch searched PATH there: give {name} with its path, or pass -x PATH"
                    )
                }
            };
            (Exit::NOT_FOUND, sentence, Some(hint))
        }
        Problem::NotExecutable { program } => {
            let sentence = format!("{} is not executable on {hosts}", program.display());
            (Exit::NOT_EXECUTABLE, sentence, Some(format!("chmod +x {}", program.display())))
        }
        Problem::NoScript { script } => {
            let name = script.display().to_string();
            (Exit::FILES, format!("{name} is not on {hosts}"), Some(missing_file_hint(&name)))
        }
        Problem::NoFile { option, path } => {
            let sentence = format!("{} of {option} is not on {hosts}", path.display());
            let hint = format!("every host needs {} at this path", path.display());
            (Exit::FILES, sentence, Some(hint))
        }
        Problem::NoDirectory { directory } => {
            let sentence = format!("the directory {} is not on {hosts}", directory.display());
            (Exit::FILES, sentence, Some("--wdir names a directory that every host has".into()))
        }
        Problem::PreloadFailed { operation, cause } => {
            let sentence = format!("cannot preload on {hosts}: {operation}: {cause}");
            (Exit::FILES, sentence, Some("copies go to TMPDIR on the host".into()))
        }
        Problem::NoPort { range } => {
            let sentence = format!("no port of {}-{} is free on {hosts}", range.first, range.last);
            (
                Exit::RENDEZVOUS,
                sentence,
                Some("choose other ports with --port-range FIRST-LAST".into()),
            )
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
        Problem::System { operation, cause } => {
            (Exit::AGENT, format!("cannot {operation} on {hosts}: {cause}"), None)
        }
    }
}

/// Tells whether a program is called as the interpreter of Python is.
fn is_python(program: &OsStr) -> bool {
    program == "python" || program == "python3"
}

fn missing_file_hint(name: &str) -> String {
    format!("--preload {name}, --wdir DIR or a shared directory")
}

pub(crate) fn print_notices(notices: &[(&Host, &Notice)]) {
    for (notice, hosts) in text::grouped(notices.iter().map(|&(host, notice)| (notice, host))) {
        let hosts = text::list(&hosts);
        match notice {
            Notice::RunsInHome { home } => {
                messages::info(&format!(
                    "this directory is not on {hosts}: the ranks there run in {}",
                    home.display()
                ));
            }
            Notice::ScriptDiffers { script } => {
                let line = format!("{} on {hosts} differs from yours", script.display());
                messages::warn_of(Some(id::FILES_DIFFER.as_str()), &line);
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

    fn host(name: &str) -> Host {
        Host { name: name.into(), ..Host::this_machine() }
    }

    #[test]
    fn one_sentence_for_one_cause() {
        let (b, c) = (host("b"), host("c"));
        let missing = Problem::NoScript { script: "train.py".into() };
        let failed = explain(&[(&b, &missing), (&c, &missing)]);
        assert_eq!(failed.message, "train.py is not on b, c");
        assert_eq!(failed.hints, ["--preload train.py, --wdir DIR or a shared directory"]);
        assert_eq!(failed.exit, Exit::FILES);
    }

    #[test]
    fn python3_is_offered() {
        let b = host("b");
        let missing =
            Problem::NoProgram { program: "python".into(), instead: Some("python3".into()) };
        let failed = explain(&[(&b, &missing)]);
        assert_eq!(failed.hints, ["python3 is there: use python3"]);
        assert_eq!(failed.exit, Exit::NOT_FOUND);
        let missing = Problem::NoProgram { program: "python3".into(), instead: None };
        let failed = explain(&[(&b, &missing)]);
        assert!(failed.hints[0].contains("apt install python3"), "{:?}", failed.hints);
    }
}
