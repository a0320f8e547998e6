//! What the program needs: MPI libraries that rlaunch serves, and files that are on all hosts.

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Severity, id};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_text::text;
use rlaunch_text::typed::command_line;
use std::ffi::OsString;
use std::path::Path;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::MPI_SINGLETON,
        about: "rlaunch serves the MPI library of the program",
        needs: Needs::Program,
        examine: unserved,
        causes: &[],
        explanation: "\
Symptoms: every process prints `rank 0 of 1`; a benchmark reports the speed of one process, N times.

An MPI library asks its launcher for rank and size through an interface: PMI, PMIx, or one of its \
own. Without an answer, most libraries run the process as a job of one (a singleton) and report no \
error. rlaunch answers PMI and PMIx. The program, or the mpi4py of its interpreter, is linked with \
a library that needs another interface.

Leave out --mpi none if it was given, start the program with the library's own mpirun, or use an \
MPI library with PMI or PMIx, such as MPICH, Intel MPI and Open MPI. --singleton warn starts it \
anyway.",
    },
    Check {
        id: id::MPI_HOROVOD,
        about: "Horovod connects its ranks in the same way on all hosts",
        needs: Needs::Program,
        examine: horovod,
        causes: &[],
        explanation: "\
Symptoms: hvd.init() never returns, and no rank says anything.

Horovod connects its ranks by Gloo or by MPI, as it was built and as HOROVOD_CONTROLLER says. rlaunch serves both: a \
build with Gloo gets the store that Gloo needs, and a build with MPI alone meets by its MPI library. Ranks that meet in \
one way wait forever for those that meet in the other. rlaunch looked at the extension modules of the Horovod that the \
program's interpreter would import.

Install the same build on all hosts; HOROVOD_CONTROLLER=mpi makes builds with both use MPI.",
    },
    Check {
        id: id::FILES_MISSING,
        about: "every host has the program and the files that its command line names",
        needs: Needs::Program,
        examine: missing,
        causes: &[],
        explanation: "\
Symptoms: `No such file or directory`, `can't open file 'train.py'`, exit code 127 on some hosts only.

rlaunch starts the same command on every host, in a directory of the same name as yours if it \
exists there. Each agent looked for the program on PATH and for the words of the command line that \
are files, and did not find what the finding names. Other words count only if another host or this \
machine has such a file: one that exists nowhere may be a file that the program writes.

Use a directory that all hosts share, name one with --wdir, or let rlaunch copy the file: \
--copy train.py.",
    },
    Check {
        id: id::FILES_DIFFER,
        about: "files of the program have the same contents on every host",
        needs: Needs::Program,
        examine: differing,
        causes: &[],
        explanation: "\
Symptoms: ranks that hang in different collectives, `Detected mismatch between collectives on ranks`, results that \
depend on which hosts take part.

One host has an older copy of a script or of a library. Each agent computed the SHA-256 of the files that the \
command line names; the finding lists which hosts have the same contents. Files over 64 MiB are compared by size.

Copy the file to all hosts, use a shared directory, or --copy, which sends yours to every host for each job.",
    },
    Check {
        id: id::FILES_SPACE,
        about: "/tmp of every host has space left",
        needs: Needs::Diagnostics,
        examine: space,
        causes: &[],
        explanation: "\
Symptoms: `No space left on device`, `OSError: [Errno 28]`, compilers and torch.compile that fail on one host.

Each job has a directory below TMPDIR, /tmp by default, for its TMPDIR, sockets and preloaded files; if its path is \
long, sockets are in /tmp. NCCL, Triton and torch.compile write caches there. rlaunch asked the file system how much \
this user may still write.

`du -xsh /tmp/* | sort -h` shows what fills it. A start-up file of the shell there can set TMPDIR to another \
directory.",
    },
];

/// Space in `/tmp` below which jobs are likely to fail, in bytes.
const SPACE: u64 = 64 << 20;
/// Space in `/tmp` below which caches of compilers may not fit, in bytes.
const LITTLE_SPACE: u64 = 512 << 20;

fn missing(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let Some(program) = host.program else { return Vec::new() };
        let mut findings = Vec::new();
        if program.is_absent {
            let name = program_name(cluster);
            let seen = format!("{name} is not there");
            let found =
                Finding::error(id::FILES_MISSING, host.name, seen, "the program cannot start");
            findings.push(found.advise(format!(
                "install it, name it with its path, or pass another PATH by -x PATH; or copy yours \
                 along: {}",
                copying_line(cluster, name)
            )));
        }
        let files = program
            .missing
            .iter()
            .filter(|(path, _)| !(program.is_absent && path == program_name(cluster)));
        let finding = |(path, reason): &(String, String)| missing_file(cluster, host, path, reason);
        findings.extend(files.filter_map(finding));
        findings
    };
    cluster.hosts.iter().flat_map(of_host).collect()
}

/// Makes the finding for a file that a host lacks; `None` if it may be one that the program writes.
fn missing_file(
    cluster: &Cluster<'_>,
    host: &ClusterHost<'_>,
    path: &str,
    reason: &str,
) -> Option<Finding> {
    let has = |host: &ClusterHost<'_>| {
        host.program.is_some_and(|program| program.missing.iter().all(|(other, _)| other != path))
    };
    let is_here = cluster.program.is_some_and(|p| p.files_here.iter().any(|file| file == path));
    let is_somewhere = is_here || cluster.hosts.iter().any(has);
    let (severity, matters) = if is_script(cluster, path) {
        (Severity::Error, "ranks there fail")
    } else if is_somewhere {
        (Severity::Warning, "ranks there that read it fail")
    } else {
        return None;
    };
    let seen = format!("{path}: {reason}");
    let found = Finding::new(id::FILES_MISSING, severity, host.name, seen, matters);
    Some(found.advise(if is_here {
        format!("copy it along: {}", copying_line(cluster, path))
    } else {
        "put it there, or name a directory that has it by --wdir DIR".to_owned()
    }))
}

/// Returns the command line of the job that copies a file of this machine along.
fn copying_line(cluster: &Cluster<'_>, path: &str) -> String {
    let hosts: Vec<&str> = cluster.hosts.iter().map(|host| host.name).collect();
    let hosts = hosts.join(",");
    let program = cluster.program.map(|program| program.words.as_slice()).unwrap_or_default();
    let options = ["-H", &hosts, "--copy", path].into_iter();
    let words = options.chain(program.iter().map(String::as_str)).map(OsString::from);
    command_line(&words.collect::<Vec<_>>())
}

/// Tells whether a word of the command line is what the program's interpreter runs: the first word with the
/// extension of a script.
fn is_script(cluster: &Cluster<'_>, path: &str) -> bool {
    let words = cluster.program.map(|program| &program.words[..]).unwrap_or_default();
    let has_extension = |word: &&String| {
        let extension = Path::new(word.as_str()).extension().and_then(|word| word.to_str());
        matches!(extension, Some("py" | "sh" | "jl" | "pl" | "lua" | "R"))
    };
    let script = words.iter().take(3).find(has_extension);
    script.or(words.first()).is_some_and(|word| word == path)
}

fn differing(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(path, groups): &(String, Vec<Vec<String>>)| {
        let same: Vec<String> = groups.iter().map(|hosts| text::list(hosts)).collect();
        let seen = format!("{path} differs: one version on {}", same.join("; another on "));
        let matters = "ranks would run different programs";
        let smallest = groups.iter().rev().min_by_key(|hosts| hosts.len());
        let found = Finding::warning(id::FILES_DIFFER, "", seen, matters);
        let hosts = smallest.cloned().unwrap_or_default();
        Finding { hosts, ..found }.advise(format!(
            "take a shared directory, or copy yours along: {}",
            copying_line(cluster, path)
        ))
    };
    cluster.program.iter().flat_map(|program| &program.differing).map(finding).collect()
}

fn space(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let left = state.tmp_available.filter(|bytes| *bytes < LITTLE_SPACE)?;
        let severity = if left < SPACE { Severity::Warning } else { Severity::Note };
        let seen = format!("/tmp has {} left", super::size(left));
        let matters = "temporary files of jobs and caches of compilers are there";
        let found = Finding::new(id::FILES_SPACE, severity, host.name, seen, matters);
        Some(found.run("du -xsh /tmp/* 2>/dev/null | sort -h | tail"))
    };
    cluster.diagnosed().filter_map(finding).collect()
}

fn unserved(cluster: &Cluster<'_>) -> Vec<Finding> {
    let program = program_name(cluster);
    let finding = |host: &ClusterHost<'_>| {
        let (library, needs) = host.program?.unserved_mpi.as_ref()?;
        let (sentence, hint) = unserved_mpi(program, library, needs);
        let (seen, matters) = sentence.split_once("; ").unwrap_or((&sentence, ""));
        Some(Finding::error(id::MPI_SINGLETON, host.name, seen, matters).advise(hint))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Makes the message and the hint about a program that uses an MPI library which rlaunch does not serve.
/// `needs` is what the library needs to start.
pub fn unserved_mpi(program: &str, library: &str, needs: &str) -> (String, String) {
    let sentence = format!(
        "{program} runs MPI ({library}), which needs {needs}; rlaunch does not serve it, so every rank \
         would be rank 0 of 1"
    );
    let remedy = match needs {
        "PMI" | "PMIx" => "leave out --mpi none",
        _ => "start it with its own mpirun",
    };
    (sentence, format!("{remedy}; --singleton warn lets it run anyway"))
}

/// Returns the first word of the program's command line.
fn program_name<'a>(cluster: &Cluster<'a>) -> &'a str {
    cluster.program.and_then(|program| program.words.first()).map_or("the program", |word| word)
}

fn horovod(cluster: &Cluster<'_>) -> Vec<Finding> {
    let built = |alone: bool| {
        let hosts = cluster.hosts.iter();
        let built = |host: &&ClusterHost<'_>| {
            host.program.and_then(|program| program.horovod_mpi_only) == Some(alone)
        };
        hosts.filter(built).map(|host| host.name).collect::<Vec<_>>()
    };
    let (by_mpi, by_gloo) = (built(true), built(false));
    if by_gloo.is_empty() {
        return Vec::new();
    }
    let seen = format!(
        "its Horovod is built with MPI alone, and that of {} with Gloo",
        text::list(&by_gloo)
    );
    let matters = "ranks that meet by MPI and by Gloo wait for each other forever";
    let finding = |host: &&str| {
        Finding::error(id::MPI_HOROVOD, *host, seen.clone(), matters)
            .run("HOROVOD_WITH_GLOO=1 pip install --no-cache-dir --force-reinstall horovod")
            .advise("or set HOROVOD_CONTROLLER=mpi, if the other builds have MPI as well")
    };
    by_mpi.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{JudgedProgram, ProgramOnHost};
    use super::super::testing::{Machine, line, lines, with_cluster};
    use super::*;

    /// Runs the checks of files for `python train.py --out x.pt --data d.json` on hosts `a` and `b`. The launcher has
    /// `d.json`.
    fn found(
        on_a: &ProgramOnHost,
        on_b: &ProgramOnHost,
        differing: &[(&str, &[&[&str]])],
    ) -> Vec<String> {
        let words = "python train.py --out x.pt --data d.json".split(' ').map(str::to_owned);
        let group = |hosts: &&[&str]| hosts.iter().map(|host| (*host).to_owned()).collect();
        let differing = differing.iter();
        let differing = differing
            .map(|(path, groups)| ((*path).to_owned(), groups.iter().map(group).collect()));
        let program = JudgedProgram {
            words: words.collect(),
            files_here: vec!["d.json".to_owned()],
            differing: differing.collect(),
        };
        let machines = [Machine::recorded("no-rdma"), Machine::recorded("no-rdma")];
        with_cluster(&machines, |cluster| {
            let mut cluster = cluster;
            cluster.program = Some(&program);
            cluster.hosts[0].program = Some(on_a);
            cluster.hosts[1].program = Some(on_b);
            let found = missing(&cluster).into_iter().chain(differing_of(&cluster));
            crate::findings::merge(found).iter().map(line).collect()
        })
    }

    fn differing_of(cluster: &Cluster<'_>) -> Vec<Finding> {
        super::differing(cluster)
    }

    fn lacks(path: &str) -> ProgramOnHost {
        let missing = vec![(path.to_owned(), "it does not exist".to_owned())];
        ProgramOnHost { missing, ..ProgramOnHost::default() }
    }

    #[test]
    fn files_that_are_missing() {
        let whole = ProgramOnHost::default;
        assert!(found(&whole(), &whole(), &[]).is_empty());
        assert_eq!(
            found(&whole(), &lacks("x.pt"), &[]),
            ["warn files.missing b: x.pt: it does not exist — ranks there that read it fail"]
        );
        assert!(found(&lacks("x.pt"), &lacks("x.pt"), &[]).is_empty(), "the program may write it");
        assert_eq!(
            found(&lacks("d.json"), &lacks("d.json"), &[]),
            ["warn files.missing a,b: d.json: it does not exist — ranks there that read it fail"]
        );
        assert_eq!(
            found(&lacks("train.py"), &lacks("train.py"), &[]),
            ["error files.missing a,b: train.py: it does not exist — ranks there fail"]
        );
        let absent = ProgramOnHost { is_absent: true, ..lacks("python") };
        assert_eq!(
            found(&whole(), &absent, &[]),
            ["error files.missing b: python is not there — the program cannot start"]
        );
    }

    #[test]
    fn files_that_differ() {
        let whole = ProgramOnHost::default;
        let groups: &[&[&str]] = &[&["a", "c"], &["b"]];
        assert_eq!(
            found(&whole(), &whole(), &[("train.py", groups)]),
            ["warn files.differ b: train.py differs: one version on a, c; another on b — \
              ranks would run different programs"]
        );
    }

    #[test]
    fn little_space() {
        let with =
            |left| Machine::recorded("no-rdma").diagnosed(|state| state.tmp_available = Some(left));
        assert_eq!(
            lines(space, &[with(5 << 20)]),
            ["warn files.space a: /tmp has 5 MiB left — temporary files of jobs and caches of \
              compilers are there"]
        );
        assert!(
            lines(space, &[with(100 << 20)])[0].starts_with("note files.space a: /tmp has 100 MiB")
        );
        assert!(lines(space, &[with(1 << 30), Machine::recorded("no-rdma")]).is_empty());
    }

    fn mpi_found(on_b: &ProgramOnHost) -> Vec<String> {
        found_with(&ProgramOnHost::default(), on_b)
    }

    fn found_with(on_a: &ProgramOnHost, on_b: &ProgramOnHost) -> Vec<String> {
        let machines = [Machine::recorded("no-rdma"), Machine::recorded("no-rdma")];
        let program = JudgedProgram { words: vec!["./ring".into()], ..JudgedProgram::default() };
        with_cluster(&machines, |cluster| {
            let mut cluster = cluster;
            cluster.program = Some(&program);
            cluster.hosts[0].program = Some(on_a);
            cluster.hosts[1].program = Some(on_b);
            CHECKS.iter().flat_map(|check| (check.examine)(&cluster)).map(|f| line(&f)).collect()
        })
    }

    #[test]
    fn a_library_that_is_not_served() {
        let unserved_mpi = Some(("libmpi.so.12".to_owned(), "its own daemon".to_owned()));
        let on_host = ProgramOnHost { unserved_mpi, ..ProgramOnHost::default() };
        assert_eq!(
            mpi_found(&on_host),
            [
                "error mpi.singleton b: ./ring runs MPI (libmpi.so.12), which needs its own daemon — \
              rlaunch does not serve it, so every rank would be rank 0 of 1"
            ]
        );
    }

    #[test]
    fn builds_of_horovod_that_differ() {
        let built = |alone| ProgramOnHost { horovod_mpi_only: alone, ..ProgramOnHost::default() };
        assert_eq!(
            found_with(&built(Some(false)), &built(Some(true))),
            [
                "error mpi.horovod b: its Horovod is built with MPI alone, and that of a with Gloo — ranks \
              that meet by MPI and by Gloo wait for each other forever"
            ]
        );
        for (a, b) in [(Some(true), Some(true)), (Some(false), Some(false)), (None, Some(true))] {
            assert!(found_with(&built(a), &built(b)).is_empty(), "{a:?} {b:?}");
        }
    }
}
