//! MPI libraries and Horovod.

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, id};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::MPI_SINGLETON,
        about: "rlaunch serves the MPI library of the program",
        needs: Needs::Program,
        examine: unserved,
        causes: &[],
        explanation: "\
Symptoms: every process prints `rank 0 of 1`; a benchmark reports the speed of one process, N times.

An MPI library asks its launcher for rank and size through an interface: PMI, PMIx, or one of its own. If nobody \
answers, most libraries run the process as a job of one (a singleton), without any error. rlaunch answers PMI and \
PMIx. The program, or the mpi4py of its interpreter, is linked with a library that needs another interface.

Leave out --mpi none if it was given, start the program by the library's own mpirun, or use an MPI library with PMI \
or PMIx, such as MPICH, Intel MPI and Open MPI. --singleton warn starts it anyway.",
    },
    Check {
        id: id::MPI_HOROVOD,
        about: "Horovod can start without MPI",
        needs: Needs::Program,
        examine: horovod,
        causes: &[],
        explanation: "\
Symptoms: hvd.size() is 1 in every process; each GPU trains on its own and the loss curves are all alike.

Horovod connects its processes by Gloo or by MPI, as it was built. rlaunch runs the store that Gloo needs; a build \
for MPI alone asks an MPI library instead. rlaunch looked at the extension modules of the Horovod that the program's \
interpreter would import.

Install Horovod with HOROVOD_WITH_GLOO=1, or start the program by the mpirun of the MPI library that Horovod was built \
with; `rlaunch hostfile` writes a hostfile for it.",
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
pub(crate) fn unserved_mpi(program: &str, library: &str, needs: &str) -> (String, String) {
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
    let finding = |host: &ClusterHost<'_>| {
        let is_alone = host.program?.horovod_mpi_only;
        let seen = "its Horovod is built for MPI alone, without Gloo";
        let matters = "every rank would be rank 0 of 1";
        let found = Finding::error(id::MPI_HOROVOD, host.name, seen, matters);
        is_alone.then(|| {
            found
                .run("HOROVOD_WITH_GLOO=1 pip install --no-cache-dir --force-reinstall horovod")
                .advise("or start it with the mpirun of its MPI library; `rlaunch hostfile` writes the hostfile")
        })
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{JudgedProgram, ProgramOnHost};
    use super::super::testing::{Machine, line, with_cluster};
    use super::*;

    fn found(on_b: &ProgramOnHost) -> Vec<String> {
        let machines = [Machine::recorded("no-rdma"), Machine::recorded("no-rdma")];
        let (program, on_a) = (
            JudgedProgram { words: vec!["./ring".into()], ..JudgedProgram::default() },
            ProgramOnHost::default(),
        );
        with_cluster(&machines, |cluster| {
            let mut cluster = cluster;
            cluster.program = Some(&program);
            cluster.hosts[0].program = Some(&on_a);
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
    fn horovod_without_gloo() {
        let on_host = ProgramOnHost { horovod_mpi_only: true, ..ProgramOnHost::default() };
        assert_eq!(
            found(&on_host),
            ["error mpi.horovod b: its Horovod is built for MPI alone, without Gloo — every rank \
              would be rank 0 of 1"]
        );
        assert!(found(&ProgramOnHost::default()).is_empty());
    }
}
