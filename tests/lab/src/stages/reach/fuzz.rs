//! Fuzz targets, and the sources that they run.

use std::path::{Path, PathBuf};

use super::paths;

/// Fuzz targets that run the same sources.
struct TargetGroup {
    targets: &'static [&'static str],
    /// File that defines the targets, and the sources that they run.
    sources: &'static [&'static str],
}

/// Sources of every target.
const SHARED: &[&str] = &[
    "tests/fuzz/Cargo.toml",
    "tests/fuzz/src/lib.rs",
    "tests/fuzz/src/main.rs",
    "tests/fuzz/src/stream.rs",
    "tests/fuzz/tests/",
];

/// Folder of inputs that once failed, with a subfolder for each target.
const CORPUS: &str = "tests/fuzz/corpus";

const GROUPS: &[TargetGroup] = &[
    TargetGroup {
        targets: &["to-agent", "from-agent", "hello"],
        sources: &[
            "tests/fuzz/src/frames.rs",
            "bootstrap/src/protocol/control.rs",
            "bootstrap/src/job/",
            "bootstrap/src/id.rs",
            "bootstrap/src/job/library.rs",
            "bootstrap/src/inventory/",
            "bootstrap/src/protocol/mesh.rs",
            "bootstrap/src/rendezvous/oob.rs",
            "bootstrap/src/protocol/rank.rs",
            // Frames carry those of the tree's edges.
            "bootstrap/src/rendezvous/message.rs",
            "bootstrap/src/rendezvous/payload.rs",
        ],
    },
    TargetGroup {
        targets: &["live-messages"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/run/live/messages.rs",
            "bootstrap/src/protocol/session.rs",
            "bootstrap/src/protocol/inspection.rs",
            "bootstrap/src/inventory/traffic.rs",
        ],
    },
    TargetGroup {
        targets: &["stack-order"],
        sources: &["tests/fuzz/src/frames.rs", "bootstrap/src/protocol/inspection.rs"],
    },
    TargetGroup {
        targets: &["to-prover", "endpoints"],
        // Frames are read by the same code as the agent's.
        sources: &[
            "tests/fuzz/src/mesh.rs",
            "tests/fuzz/src/frames.rs",
            "bootstrap/src/protocol/mesh.rs",
            "bootstrap/src/id.rs",
            "bootstrap/src/protocol/control.rs",
        ],
    },
    TargetGroup {
        targets: &["ssh-config"],
        sources: &[
            "tests/fuzz/src/ssh.rs",
            "launcher/ssh/src/config/",
            "launcher/console/src/glob.rs",
        ],
    },
    TargetGroup {
        targets: &["known-hosts"],
        sources: &[
            "tests/fuzz/src/ssh.rs",
            "launcher/ssh/src/known_hosts.rs",
            "launcher/console/src/glob.rs",
        ],
    },
    TargetGroup {
        targets: &["key-file"],
        sources: &["tests/fuzz/src/ssh.rs", "launcher/ssh/src/keys/"],
    },
    TargetGroup {
        targets: &["certificate"],
        sources: &[
            "tests/fuzz/src/ssh.rs",
            "launcher/ssh/src/keys/certificate.rs",
            "launcher/console/src/glob.rs",
        ],
    },
    TargetGroup {
        targets: &["hostfile", "host-list"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/hosts/list/",
        ],
    },
    TargetGroup {
        targets: &["edge", "node", "server", "gathered"],
        sources: &[
            "tests/fuzz/src/tree.rs",
            "bootstrap/src/rendezvous/",
            "bootstrap/src/lib.rs",
            "bootstrap/src/id.rs",
            "bootstrap/src/job/",
        ],
    },
    TargetGroup {
        targets: &["from-rank", "to-rank"],
        sources: &[
            "tests/fuzz/src/client.rs",
            "bootstrap/client/src/machine.rs",
            "bootstrap/src/protocol/rank.rs",
            "bootstrap/src/security/mod.rs",
            "bootstrap/src/rendezvous/",
            "bootstrap/src/lib.rs",
            "bootstrap/src/id.rs",
            "bootstrap/src/job/",
        ],
    },
    TargetGroup {
        targets: &["library"],
        sources: &["tests/fuzz/src/library.rs", "bootstrap/src/job/library.rs"],
    },
    TargetGroup {
        targets: &["handshake", "sealed"],
        sources: &[
            "tests/fuzz/src/secure.rs",
            "bootstrap/src/security/mod.rs",
            "bootstrap/src/security/handshake.rs",
            "bootstrap/src/id.rs",
        ],
    },
    TargetGroup {
        targets: &["callback", "announcement"],
        sources: &[
            "tests/fuzz/src/callback.rs",
            "bootstrap/src/security/callback.rs",
            "bootstrap/src/security/mod.rs",
            "bootstrap/src/security/handshake.rs",
            "bootstrap/src/id.rs",
        ],
    },
    TargetGroup {
        targets: &["packets"],
        sources: &[
            "tests/fuzz/src/comm.rs",
            "worker/comm/src/testing/fuzz.rs",
            "worker/comm/src/transport/packet.rs",
            "worker/comm/src/progress/engine/",
            "worker/comm/src/transport/mod.rs",
            "worker/lock/",
        ],
    },
    TargetGroup {
        targets: &["wire-up"],
        sources: &[
            "tests/fuzz/src/comm.rs",
            "worker/comm/src/testing/fuzz.rs",
            "worker/comm/src/connect/",
        ],
    },
    TargetGroup {
        targets: &["horovod"],
        sources: &["tests/fuzz/src/horovod.rs", "worker/horovod/"],
    },
    TargetGroup {
        targets: &["cluster"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/cli/config/file.rs",
            "launcher/src/cli/config/error.rs",
            "launcher/src/hosts/host_table.rs",
        ],
    },
    TargetGroup {
        targets: &["variables"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/plan/env/env_file.rs",
        ],
    },
    TargetGroup {
        targets: &["tag-pattern"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/job/tag_pattern.rs",
        ],
    },
    TargetGroup {
        targets: &["test-program"],
        sources: &[
            "tests/fuzz/src/launcher.rs",
            "launcher/src/fuzz.rs",
            "launcher/src/commands/bench/programs/",
            "launcher/src/commands/report/log_metrics/collective.rs",
            "launcher/src/commands/report/nccl_tests.rs",
        ],
    },
    TargetGroup {
        targets: &["table"],
        sources: &[
            "tests/fuzz/src/table.rs",
            "bootstrap/src/rank_table/mod.rs",
            "bootstrap/src/rank_table/",
            "bootstrap/rank-table.example.json",
            "bootstrap/src/id.rs",
        ],
    },
    TargetGroup {
        targets: &["table-message"],
        sources: &[
            "tests/fuzz/src/table.rs",
            "bootstrap/src/rank_table/",
            "bootstrap/rank-table.example.json",
            "bootstrap/src/rendezvous/payload.rs",
            "bootstrap/src/id.rs",
        ],
    },
    TargetGroup {
        targets: &["pmi1"],
        sources: &[
            "tests/fuzz/src/pmi.rs",
            "tests/fuzz/src/pmi1.rs",
            "worker/pmi/Cargo.toml",
            "worker/pmi/src/fence.rs",
            "worker/pmi/src/layout.rs",
            "worker/pmi/src/lib.rs",
            "worker/pmi/src/node.rs",
            "worker/pmi/src/output.rs",
            "worker/pmi/src/protocol.rs",
            "worker/pmi/src/segments.rs",
            "worker/pmi/src/server.rs",
            "worker/pmi/src/sorted_map.rs",
            "worker/pmi/src/pmi1/",
        ],
    },
    TargetGroup {
        targets: &["pmix"],
        sources: &[
            "tests/fuzz/src/pmi.rs",
            "tests/fuzz/src/pmix.rs",
            "worker/pmi/Cargo.toml",
            "worker/pmi/src/fence.rs",
            "worker/pmi/src/layout.rs",
            "worker/pmi/src/lib.rs",
            "worker/pmi/src/node.rs",
            "worker/pmi/src/output.rs",
            "worker/pmi/src/protocol.rs",
            "worker/pmi/src/segments.rs",
            "worker/pmi/src/server.rs",
            "worker/pmi/src/sorted_map.rs",
            "worker/pmi/src/pmix/",
        ],
    },
];

/// Finds the targets that should search for new inputs after these files have changed; for the
/// others it is enough to replay known ones.
pub(crate) fn fuzz_targets_changed(files: &[PathBuf]) -> Vec<&'static str> {
    all().filter(|target| files.iter().any(|file| feeds(target, file))).collect()
}

/// Lists the names of all targets.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|row| row.targets).copied()
}

fn feeds(target: &str, file: &Path) -> bool {
    let mut of_target = GROUPS.iter().filter(|row| row.targets.contains(&target));
    of_target.any(|row| paths::any_names(row.sources, file))
        || paths::any_names(SHARED, file)
        || file.starts_with(Path::new(CORPUS).join(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist;
    use std::collections::BTreeSet;
    use std::fs;

    fn read(file: &str) -> String {
        fs::read_to_string(dist::workspace().join(file)).unwrap()
    }

    #[test]
    fn every_target_has_a_row_and_no_row_has_another() {
        let list = read("tests/fuzz/src/lib.rs");
        let list = &list[list.find("pub const TARGETS").unwrap()..];
        let named = list.split("name: \"").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert_eq!(all().collect::<BTreeSet<_>>(), named.collect::<BTreeSet<_>>());
        assert_eq!(all().count(), all().collect::<BTreeSet<_>>().len(), "a target has two rows");
    }

    #[test]
    fn every_source_is_there() {
        for source in GROUPS.iter().flat_map(|row| row.sources).chain(SHARED) {
            let path = dist::workspace().join(source);
            assert!(if source.ends_with('/') { path.is_dir() } else { path.is_file() }, "{source}");
        }
    }

    /// The groups of a target name every module that its file imports.
    #[test]
    fn what_a_target_imports_is_among_its_sources() {
        for entry in fs::read_dir(dist::workspace().join("tests/fuzz/src")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let file = format!("tests/fuzz/src/{name}");
            if SHARED.contains(&&*file) {
                continue;
            }
            let rows = || GROUPS.iter().filter(|row| row.sources.contains(&&*file));
            assert!(rows().count() > 0, "{file} has no row");
            for part in read(&file).split("rlaunch_bootstrap::").skip(1) {
                let module = part.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                let (as_file, folder) =
                    (format!("bootstrap/src/{module}.rs"), format!("bootstrap/src/{module}/"));
                let is_named = |source: &&str| **source == as_file || source.starts_with(&folder);
                let mut sources = rows().flat_map(|row| row.sources);
                assert!(sources.any(is_named), "{file} imports {module}");
            }
        }
    }

    #[test]
    fn targets_follow_their_sources_and_what_was_found() {
        let changed = |file: &str| fuzz_targets_changed(&[file.into()]);
        assert_eq!(changed("launcher/src/job/tag_pattern.rs"), ["tag-pattern"]);
        assert_eq!(changed("launcher/console/src/glob.rs").len(), 3);
        assert_eq!(changed("tests/fuzz/corpus/table/a"), ["table"]);
        assert_eq!(changed("tests/fuzz/src/lib.rs").len(), all().count());
        assert!(changed("launcher/src/run/output/line_arbiter.rs").is_empty());
    }
}
