//! MPI libraries and Horovod.

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, id};
use rlaunch_text::text;

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
];

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
pub(super) fn program_name<'a>(cluster: &Cluster<'a>) -> &'a str {
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
    use super::super::testing::{Machine, line, with_cluster};
    use super::*;

    fn found(on_b: &ProgramOnHost) -> Vec<String> {
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
            found(&on_host),
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
