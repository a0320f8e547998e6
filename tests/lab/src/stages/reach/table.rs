//! Sources, and the tests on hosts and guests that cover them.
//!
//! A row lists not all tests that a source could break, which for most sources would be every test,
//! but the few that would fail first. A run without `--changed` covers the rest.

use std::path::Path;

use super::paths;

/// Sources, and the tests on hosts and guests that run when one of them changes.
///
/// A test is named by its module, or by the beginning of its name after `module::`. If several rows
/// name a file, the row with the longest path counts.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Files, and folders with a slash at the end.
    pub(super) sources: &'static [&'static str],
    pub(super) netns: &'static [&'static str],
    pub(super) vm: &'static [&'static str],
}

/// Tests for sources that every job runs, or that no row names: a job from its start to each of its
/// ends.
pub(super) const SMOKE: Coverage = Coverage {
    sources: &[],
    netns: &["hello", "failing", "ending", "lost", "teardown", "output", "stdin", "local"],
    vm: &["launching"],
};

/// Tests that take minutes or run hundreds of jobs. They run without `--changed`, or when their own
/// file has changed.
pub(super) const LONG: &[&str] = &[
    "communicator::no_message_is_lost_or_wrong_in_twenty_seconds",
    "hello::a_hundred_launches_in_a_row_all_work",
];

/// Test modules that no row names, since they do not test rlaunch.
#[cfg(test)]
pub(super) const UNREACHED: &[&str] = &[
    // Tests of other launchers, whose behaviour tests/README.md describes.
    "peers", // Tests of the lab's guests.
    "guests",
];

/// Lists all rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Coverage> {
    ROWS.iter()
}

/// Finds the row of a file, and the path by which the row names it.
pub(super) fn row_of(file: &Path) -> Option<(&'static str, &'static Coverage)> {
    let all = rows().flat_map(|row| row.sources.iter().map(move |name| (*name, row)));
    all.filter(|(name, _)| paths::names(name, file)).max_by_key(|(name, _)| name.len())
}

const ROWS: &[Coverage] = &[
    // Every job: from its start to each of its ends.
    Coverage {
        sources: &[
            "launcher/Cargo.toml",
            "launcher/console/Cargo.toml",
            "launcher/src/main.rs",
            "launcher/src/lib.rs",
            "launcher/src/dispatch.rs",
            "launcher/src/job/mod.rs",
            "launcher/src/job/options.rs",
            "launcher/src/cli/mod.rs",
            "launcher/src/cli/lower/",
            "launcher/src/commands/mod.rs",
            "launcher/src/commands/job.rs",
            "launcher/src/connect/mod.rs",
            "launcher/src/connect/options.rs",
            "launcher/src/connect/outbox.rs",
            "launcher/console/src/lib.rs",
            "launcher/console/src/prompt.rs",
            "launcher/src/hosts/mod.rs",
            "launcher/src/plan/mod.rs",
            "launcher/src/run/mod.rs",
            "launcher/src/run/job_run.rs",
            "launcher/src/run/nodes.rs",
            "launcher/src/run/nodes/",
            "launcher/src/run/session.rs",
            "launcher/src/connect/channel.rs",
            "worker/Cargo.toml",
            "worker/src/main.rs",
            "worker/src/cleanup/mod.rs",
            "worker/src/network/mod.rs",
            "worker/src/node/mod.rs",
            "worker/src/agent/mod.rs",
            "worker/src/network/channel.rs",
            "worker/src/network/frames.rs",
            "worker/src/console.rs",
            "worker/src/ranks/mod.rs",
            "worker/src/ranks/child.rs",
            "worker/src/ranks/exec_rank.rs",
        ],
        ..SMOKE
    },
    // The end of a job: which rank failed first, what is reported, and that nothing is left.
    Coverage {
        sources: &[
            "launcher/src/run/supervisor.rs",
            "launcher/src/run/supervisor/",
            "launcher/src/run/driver.rs",
            "launcher/src/run/first_failure.rs",
            "launcher/src/run/outcome.rs",
            "launcher/src/run/signals.rs",
            "launcher/src/commands/reap.rs",
            "launcher/src/connect/lost_agent.rs",
            "bootstrap/src/cleanup_report.rs",
            "worker/src/cleanup/cgroup.rs",
            "worker/src/cleanup/guardian.rs",
            "worker/src/cleanup/processes.rs",
            "worker/src/cleanup/reap.rs",
            "worker/src/cleanup/shm.rs",
            "worker/src/node/oom.rs",
            "worker/src/cleanup/grace.rs",
            "worker/sys/src/process.rs",
            "worker/sys/src/spawn.rs",
            "worker/sys/src/lease.rs",
        ],
        netns: &["failing", "ending", "lost", "teardown", "abuse::ending", "mpi::debian::"],
        vm: &[],
    },
    Coverage {
        sources: &["launcher/src/run/events.rs"],
        netns: &["teardown::events::", "services::clocks", "restarts::a_"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/run/preflight_report.rs",
            "launcher/console/src/messages.rs",
            "launcher/console/src/printable.rs",
            "launcher/console/src/stdout.rs",
            "launcher/console/src/text.rs",
            "launcher/console/src/exit.rs",
        ],
        netns: &["failing", "missing", "unreachable", "abuse::ssh::words_of_a_host"],
        vm: &[],
    },
    Coverage {
        sources: &["worker/src/ranks/prepare.rs", "worker/src/node/facts.rs"],
        netns: &["missing", "delivery", "environment"],
        vm: &[],
    },
    Coverage { sources: &["launcher/src/run/restart.rs"], netns: &["restarts"], vm: &[] },
    Coverage {
        sources: &[
            "launcher/src/cli/compat/",
            "launcher/src/cli/args/",
            "launcher/src/cli/command_line.rs",
            "launcher/src/commands/invocation.rs",
            "launcher/src/commands/verb_hint.rs",
            "launcher/src/commands/help/",
            "launcher/help/",
            "launcher/src/commands/man.rs",
            "launcher/src/commands/completions.rs",
            "launcher/console/src/shell.rs",
            "launcher/src/run/dry_run.rs",
            "launcher/src/run/dry_run/",
        ],
        netns: &["words", "dry_run", "missing::a_command_line", "example"],
        vm: &[],
    },
    // The environment of ranks, from all of its sources; `-v` prints it without secrets.
    Coverage {
        sources: &[
            "launcher/src/cli/config/",
            "launcher/src/commands/trust.rs",
            "launcher/src/plan/env/env_file.rs",
            "launcher/src/plan/env/forwarded.rs",
            "launcher/src/plan/env/identity.rs",
            "launcher/console/src/log.rs",
            "launcher/console/src/process_env.rs",
            "worker/src/node/environment.rs",
            "worker/src/node/login.rs",
            "bootstrap/src/env/mod.rs",
            "bootstrap/src/env/secrets.rs",
        ],
        netns: &["config", "environment", "shells", "abuse::config"],
        vm: &[],
    },
    // Host lists and allocations. An MPIJob is an allocation that also gives the command for
    // reaching its pods.
    Coverage {
        sources: &[
            "launcher/src/cli/host_selection.rs",
            "launcher/src/commands/hostfile.rs",
            "launcher/src/hosts/host_table.rs",
            "launcher/src/hosts/list/",
            "launcher/src/cli/allocation/",
            "bootstrap/src/shell_safe.rs",
        ],
        netns: &["hosts", "rsh::an_mpijob", "rsh::pods", "abuse::ssh::names"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/plan/map.rs",
            "launcher/src/plan/map/",
            "launcher/src/plan/placement.rs",
            "launcher/src/plan/placement_line.rs",
            "launcher/src/run/nodes/assign_ranks.rs",
            "worker/sys/src/numa.rs",
        ],
        netns: &["placement", "hosts", "hello", "network::processors"],
        vm: &["launching"],
    },
    Coverage {
        sources: &[
            "launcher/src/job/apps/",
            "worker/src/ranks/awaited_ports.rs",
            "worker/src/ranks/rank_files.rs",
        ],
        netns: &["apps", "environment::preloaded"],
        vm: &[],
    },
    // Variables by which libraries and frameworks find each other and their network.
    Coverage {
        sources: &[
            "launcher/src/plan/rank_config.rs",
            "launcher/src/plan/rank_config/",
            "launcher/src/plan/reserved_ports.rs",
            "launcher/src/plan/env/hardware.rs",
            "launcher/src/plan/env/interfaces.rs",
            "launcher/src/plan/env/mod.rs",
            "launcher/src/plan/env/nccl.rs",
            "launcher/src/plan/env/nccl/",
            "launcher/src/plan/env/styles.rs",
            "launcher/src/plan/options.rs",
            "worker/src/node/inventory/nccl.rs",
        ],
        netns: &["environment", "placement", "network", "gpu"],
        vm: &["launching", "selection::nccl"],
    },
    Coverage {
        sources: &[
            "launcher/src/plan/env/horovod.rs",
            "worker/src/network/horovod.rs",
            "worker/src/node/inventory/horovod.rs",
            "worker/src/network/horovod/",
            "worker/src/network/socket_owner.rs",
            "worker/horovod/",
            "bootstrap/src/rendezvous/node/root_requests.rs",
            "bootstrap/src/env/",
        ],
        netns: &["horovod", "abuse::services"],
        vm: &[],
    },
    // The tree of agents is built, carries messages of ranks, and breaks.
    Coverage {
        sources: &[
            "launcher/src/hosts/addresses.rs",
            "launcher/src/hosts/addresses/",
            "launcher/src/run/rendezvous.rs",
            "worker/src/network/rendezvous/",
            "bootstrap/src/rendezvous/",
            "bootstrap/src/transitions.rs",
        ],
        netns: &["oob", "services", "lost", "hello", "mpi::debian::"],
        vm: &["launching"],
    },
    Coverage {
        sources: &["worker/src/network/services.rs", "bootstrap/src/client/"],
        netns: &["services", "communicator::an_"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/plan/table.rs",
            "launcher/src/run/show.rs",
            "launcher/console/src/columns.rs",
            "bootstrap/src/rank_table/",
            "bootstrap/rank-table.schema.json",
            "bootstrap/rank-table.example.json",
        ],
        netns: &[
            "rank_table",
            "placement",
            "network",
            "topo::people",
            "communicator::cases_hold_among_hosts",
        ],
        vm: &["launching", "selection"],
    },
    Coverage {
        sources: &[
            "launcher/src/plan/selection.rs",
            "launcher/src/plan/selection/",
            "launcher/src/plan/rdma_check.rs",
        ],
        netns: &["network", "guides"],
        vm: &["selection", "guides", "star"],
    },
    Coverage {
        sources: &[
            "launcher/src/run/mesh/",
            "launcher/src/plan/mesh/",
            "worker/src/agent/mesh/",
            "bootstrap/src/protocol/mesh.rs",
        ],
        netns: &[],
        vm: &["mesh", "mesh_killed", "selection::people"],
    },
    // RDMA paths that do not work: the consequences, and what is reported.
    Coverage {
        sources: &[
            "launcher/src/plan/mesh/advice.rs",
            "launcher/src/plan/mesh/outcome.rs",
            "launcher/src/plan/mesh/messages.rs",
            "launcher/src/plan/mesh/show.rs",
        ],
        netns: &[],
        vm: &["mesh_faults", "selection", "mesh::six", "guides"],
    },
    Coverage {
        sources: &["launcher/src/run/mesh/links.rs", "worker/prover/src/watch.rs"],
        netns: &[],
        vm: &["mesh_watch", "prover"],
    },
    Coverage {
        sources: &["worker/prover/"],
        netns: &[],
        vm: &["prover", "mesh", "mesh_killed", "mesh_faults::a_dead", "mesh_faults::large"],
    },
    Coverage {
        sources: &["worker/verbs/"],
        netns: &[],
        vm: &[
            "verbs",
            "counts",
            "prover",
            "mesh::six",
            "mesh::soft",
            "communicator::cases_hold_over",
            "communicator::ranks_fork",
        ],
    },
    Coverage {
        sources: &[
            "launcher/src/commands/topo/",
            "launcher/src/commands/capture.rs",
            "launcher/src/commands/agent_query.rs",
            "worker/src/node/inventory/",
            "worker/src/node/diagnostics/",
            "worker/src/diagnosis/",
            "bootstrap/src/inventory/",
            "bootstrap/src/protocol/diagnosis.rs",
        ],
        netns: &["topo", "placement", "guides"],
        vm: &["topo", "launching", "guides"],
    },
    // Cables between hosts, and addresses for them.
    Coverage {
        sources: &[
            "launcher/src/commands/agent_session.rs",
            "launcher/src/commands/network/",
            "worker/src/network/cabling/",
            "bootstrap/src/protocol/network.rs",
        ],
        netns: &["network_plan", "doctor"],
        vm: &["network_plan"],
    },
    Coverage {
        sources: &["launcher/ssh/"],
        netns: &["jump", "keys", "unreachable", "rekey", "shells", "abuse::ssh::"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/commands/ssh_config.rs",
            "launcher/ssh/src/config/",
            "launcher/console/src/glob.rs",
        ],
        netns: &["jump", "keys::what_ssh_config", "unreachable", "abuse::ssh::a_configuration"],
        vm: &[],
    },
    Coverage {
        sources: &["launcher/src/commands/ssh_setup/", "launcher/ssh/src/client/password.rs"],
        netns: &["ssh_setup", "abuse::ssh::"],
        vm: &[],
    },
    // Time limits, and what is printed while waiting.
    Coverage {
        sources: &["launcher/console/src/deadline.rs", "launcher/console/src/progress.rs"],
        netns: &["jump", "unreachable", "lost::who_stands_still", "standstill"],
        vm: &[],
    },
    Coverage {
        sources: &["launcher/src/connect/connector/", "launcher/src/run/container_check.rs"],
        netns: &["rsh"],
        vm: &["containers"],
    },
    Coverage {
        sources: &["launcher/src/connect/agent/", "launcher/src/connect/connector/command.rs"],
        netns: &[
            "abuse::cache",
            "delivery",
            "shells",
            "aarch64",
            "shipped",
            "callback::a_host_without_stdin",
            "rsh",
        ],
        vm: &["containers"],
    },
    // The agent's path in the cache, other files there, and limits of open files.
    Coverage {
        sources: &[
            "launcher/console/src/open_files.rs",
            "worker/src/node/cache.rs",
            "worker/src/node/open_files.rs",
            "worker/src/node/verify.rs",
            "worker/src/cleanup/workspace.rs",
        ],
        netns: &["abuse::cache", "delivery", "environment"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/connect/callback.rs",
            "launcher/src/connect/callback/",
            "worker/src/network/callback.rs",
            "bootstrap/src/security/callback.rs",
            "bootstrap/src/security/admission.rs",
            "bootstrap/src/security/handshake.rs",
        ],
        netns: &["callback", "oob::where_n", "services::strangers", "abuse::services"],
        vm: &[],
    },
    // Output. A reader that pauses or leaves also affects the end of a job.
    Coverage {
        sources: &[
            "launcher/src/run/output.rs",
            "launcher/src/run/output/",
            "launcher/src/job/tag_pattern.rs",
            "launcher/src/run/nodes/stdio.rs",
            "worker/src/ranks/pump.rs",
            "worker/src/network/outbox.rs",
        ],
        netns: &["output", "printing", "teardown::reader::"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/run/stdin.rs",
            "launcher/src/job/stdin.rs",
            "worker/src/ranks/stdin.rs",
        ],
        netns: &["stdin"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/run/record.rs",
            "launcher/console/src/redact.rs",
            "launcher/src/run/record/",
            "launcher/src/commands/report/",
            "launcher/src/commands/bench/train.rs",
        ],
        netns: &["report", "network::what_nccl"],
        vm: &[],
    },
    Coverage {
        sources: &["launcher/src/commands/bench/mod.rs", "worker/comm/bench/"],
        netns: &["bench"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "bootstrap/src/rank_table/layout.rs",
            "launcher/src/plan/env/mpi.rs",
            "launcher/src/plan/env/process_manager.rs",
            "worker/pmi/",
            "worker/src/network/mpi.rs",
            "worker/src/node/elf.rs",
            "worker/src/ranks/mpi_library.rs",
        ],
        netns: &[
            "mpi",
            "singleton",
            "missing::a_program",
            "guides::mpi_programs",
            "horovod::a_build",
            "report::nccl_tests",
        ],
        vm: &[],
    },
    // The library that ranks link and import.
    Coverage {
        sources: &[
            "launcher/src/connect/agent/library.rs",
            "worker/src/ranks/library.rs",
            "bootstrap/src/job/library.rs",
            "worker/comm/capi/",
            "worker/comm/python/",
        ],
        netns: &["library", "aarch64::python", "training::torch_coll"],
        vm: &[],
    },
    // Shared memory, lent buffers, and probes of silent sockets: the communicator uses them.
    Coverage {
        sources: &["worker/sys/", "worker/lock/"],
        netns: &["hello", "communicator"],
        vm: &["verbs", "counts", "communicator::cases_hold_over", "communicator::ranks_fork"],
    },
    // The communicator: its suite, lost ranks, one program of each language, one measurement.
    Coverage {
        sources: &["worker/comm/", "tests/comm/"],
        netns: &[
            "communicator",
            "abuse::ranks",
            "library::the_examples",
            "training::numpy",
            "bench::messages",
        ],
        vm: &["communicator::cases_hold_over"],
    },
    Coverage {
        sources: &["worker/comm/src/transport/verbs/", "worker/comm/src/connect/rdma/"],
        netns: &[],
        vm: &["communicator", "counts"],
    },
    // Shared types and frames of a job: everything that no row above names more specifically.
    Coverage {
        sources: &["bootstrap/"],
        netns: &[
            "hello",
            "failing",
            "ending",
            "lost",
            "teardown",
            "output",
            "printing",
            "stdin",
            "local",
            "apps",
            "environment",
            "missing",
            "delivery",
            "oob",
            "services",
            "example",
        ],
        vm: &["launching", "mesh::six", "mesh_watch", "selection"],
    },
    // Sources that only unit tests and fuzzers run.
    Coverage {
        sources: &[
            "launcher/src/fuzz.rs",
            "launcher/src/goldens.rs",
            "launcher/src/recorded.rs",
            "launcher/goldens/",
            "launcher/fixtures/",
            "bootstrap/tests/",
            "worker/comm/src/testing/",
            "worker/comm/src/transport/sim/",
            "worker/comm/src/api/measure.rs",
            "worker/comm/examples/",
            "worker/comm/tests/",
            "examples/ring/",
            "examples/services/",
        ],
        netns: &[],
        vm: &[],
    },
    Coverage {
        sources: &["examples/hello/", "examples/all_reduce/"],
        netns: &["library::the_examples"],
        vm: &[],
    },
    // The page contains an example with its output, which a test compares.
    Coverage {
        sources: &["examples/notebook/", "worker/comm/README.md"],
        netns: &["library::numpy_arrays"],
        vm: &[],
    },
    // A unit test limits its length.
    Coverage { sources: &["README.md"], netns: &[], vm: &[] },
    Coverage {
        sources: &["examples/train/"],
        netns: &["example", "restarts::a_rank_killed"],
        vm: &[],
    },
    Coverage {
        sources: &["examples/resnet/", "examples/torch_ddp/"],
        netns: &["training"],
        vm: &[],
    },
    // Recorded machines, which a test of a guide uses.
    Coverage { sources: &["worker/fixtures/"], netns: &["guides"], vm: &[] },
    // Each guide is tested where its machines are; one test reads all guides.
    Coverage {
        sources: &[
            "examples/guides/connectx3/",
            "examples/guides/docker/",
            "examples/guides/mpi/",
            "examples/guides/mpijob/",
        ],
        netns: &["guides", "ssh_setup::the_guide", "rsh::the_guide"],
        vm: &[],
    },
    Coverage {
        sources: &["examples/guides/", "tests/guide.rs"],
        netns: &["guides", "ssh_setup::the_guide", "rsh::the_guide"],
        vm: &["guides"],
    },
];
