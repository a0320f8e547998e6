//! What is run after a change: tests of crates by nextest's `rdeps()`, and by two tables tests on
//! hosts and fuzz targets, which depend on no crate that could tell. What no row names runs all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{LabError, dist};

/// Files on which every result depends.
const EVERYTHING: &[&str] =
    &["Cargo.lock", "Cargo.toml", ".cargo", ".ci", ".config", "tests/lab", "tests/stopwatch"];
/// Files that only formatting and `cargo deny` read, if anything does.
const PLAIN: &[&str] = &[
    "LICENSE", "ARCHITECTURE.md", "CHANGELOG.md", ".github", ".gitignore", ".rustfmt.toml",
    ".deny.toml", ".advisories.toml", "tests/README.md",
];
/// Sources of the simulation.
const SIM: &str = "tests/sim bootstrap/copy bootstrap/rendezvous bootstrap/id.rs \
                   bootstrap/job bootstrap/Cargo.toml";
/// Crate of tests on hosts.
const ON_HOSTS: &str = "rlaunch-tests";

/// Sources, and the files of tests on hosts (netns) and guests (vm) that cover them; the row with the
/// longest path counts.
///
/// A path is one of the workspace, or one below the `src` of any crate in a top folder: `launcher/run`
/// is `launcher/src/run` as well as `launcher/ssh/src/run`.
#[rustfmt::skip]
const HOSTS: &[(&str, &str, &str)] = &[
    // Command line, configuration, hosts.
    ("launcher/cli/args launcher/cli/compat launcher/commands/help.rs launcher/commands/completions.rs launcher/help", "words dry_run missing example frameworks field", ""),
    ("launcher/cli/config", "config environment shells abuse hosts field", ""),
    ("launcher/cli/allocation.rs launcher/hosts/mod.rs launcher/hosts/hostfile.rs", "hosts rsh abuse field slurm", ""),
    ("launcher/hosts/addresses bootstrap/rendezvous worker/network/rendezvous", "oob services lost hello mpi horovod abuse", "launching"),
    // Ranks, their environment, their devices.
    ("launcher/map", "placement hosts hello network starters", "launching"),
    ("launcher/program.rs launcher/cli/lower/apps.rs worker/ranks/prepare", "starters missing environment dry_run", "launching"),
    ("launcher/env launcher/rank_config", "environment frameworks starters placement network gpu mpi singleton missing horovod report config shells", "launching selection"),
    ("launcher/selection", "network guides", "selection guides mesh"),
    ("launcher/mesh launcher/run/rendezvous/mesh_proof.rs launcher/run/links.rs worker/agent/mesh worker/prover bootstrap/protocol/mesh.rs", "", "mesh mesh_faults mesh_killed mesh_watch iwarp prover selection guides launching"),
    ("launcher/picture launcher/commands/topo", "topo placement guides", "topo launching guides"),
    ("worker/node/inventory bootstrap/inventory", "topo placement guides doctor environment monitor", "topo launching guides doctor selection"),
    ("worker/node/inventory/netlink", "topo placement guides doctor environment monitor horovod mpi abuse", "topo launching guides doctor selection"),
    ("bootstrap/rank_table", "rank_table placement network topo communicator mpi", "launching selection"),
    // Connections, and what they carry.
    ("launcher/ssh", "jump keys unreachable first_contact rekey shells abuse ssh_setup field", ""),
    ("launcher/commands/ssh_setup", "ssh_setup abuse", ""),
    ("launcher/connect/connector", "rsh callback delivery abuse containers images field slurm", "containers"),
    ("launcher/connect/agent launcher/commands/host_files.rs launcher/commands/self_test launcher/commands/self_test.rs", "packages library local delivery shells aarch64 shipped callback rsh abuse containers field slurm", "containers launching"),
    ("launcher/connect/agent/callback worker/network/channel.rs bootstrap/security", "callback oob services abuse", ""),
    ("bootstrap/client", "services communicator library horovod", ""),
    // A job that runs, and its end.
    ("worker/agent/silence.rs worker/network/connection.rs", "standstill lost ending teardown abuse callback", ""),
    ("launcher/run/supervisor worker/cleanup", "failing ending lost teardown abuse mpi restarts delivery environment live field", "launching"),
    ("worker/cleanup/processes worker/cleanup/helpers.rs worker/cleanup/usage.rs", "failing ending lost teardown abuse mpi restarts delivery environment live hang sessions monitor", "launching stacks mesh_killed"),
    ("launcher/run/detach.rs launcher/run/logout.rs launcher/run/output/store.rs launcher/run/output/replay.rs", "detached live", ""),
    ("launcher/run/output worker/ranks/output.rs bootstrap/protocol/line_turn.rs", "output printing teardown stdin field", ""),
    ("launcher/terminal.rs launcher/commands/shell.rs worker/ranks/pseudoterminal.rs", "printing sessions", ""),
    ("launcher/run/record launcher/commands/report launcher/job/name.rs", "report network live detached", ""),
    ("launcher/run/live launcher/run/hang launcher/run/stragglers worker/stack launcher/commands/logs.rs launcher/commands/meant.rs", "live jobs hang sessions stragglers containers detached", "stacks"),
    ("launcher/commands/found.rs launcher/commands/stop.rs launcher/commands/rerun.rs launcher/run/notify.rs", "jobs live detached", ""),
    ("launcher/commands/exec worker/ranks/session bootstrap/protocol/session.rs", "sessions library", ""),
    ("launcher/commands/monitor", "monitor field", ""),
    ("launcher/commands/copy launcher/schemas/copy.schema.json launcher/schemas/images.schema.json worker/copier worker/files bootstrap/copy", "copy copy_images sync packages shipped", ""),
    // What is wrong with hosts.
    ("launcher/checks launcher/findings launcher/commands/doctor worker/diagnosis worker/node/diagnostics bootstrap/protocol/diagnosis.rs", "doctor hello monitor", "doctor"),
    ("launcher/commands/network worker/network/cabling bootstrap/protocol/network.rs", "network_plan doctor field", "up guides"),
    ("launcher/commands/up launcher/commands/changes.rs launcher/up worker/changes bootstrap/protocol/changes", "up up_faults up_systemd network_plan", "up guides"),
    // Measurements and libraries.
    ("launcher/commands/bench launcher/plot launcher/schemas worker/comm/bench bootstrap/bench.rs", "bench doctor report topo", "bench"),
    ("worker/verbs", "", "verbs counts prover mesh iwarp communicator bench"),
    ("worker/comm tests/comm worker/lock", "communicator abuse library training bench hello", "communicator iwarp bench counts verbs"),
    ("worker/comm/capi worker/comm/python worker/ranks/library.rs bootstrap/job/library.rs", "library aarch64 training sessions", ""),
    ("worker/pmi worker/network/mpi.rs worker/ranks/mpi_library.rs", "mpi singleton missing guides horovod report", ""),
    ("worker/horovod worker/network/horovod", "horovod abuse", ""),
    ("worker/network/tcp_owner.rs", "horovod mpi abuse", ""),
    // Examples, and what only unit tests and fuzzers run.
    ("examples/train", "example restarts", ""),
    ("examples/resnet examples/torch_ddp", "training restarts", ""),
    ("examples/hello examples/all_reduce examples/notebook worker/comm/README.md", "library", ""),
    ("examples/guides tests/guide.rs worker/fixtures", "guides ssh_setup rsh images", "guides"),
    ("examples/ring examples/services README.md tests/layers.rs tests/fuzz tests/sim tests/gpu", "", ""),
    ("launcher/goldens launcher/testing.rs launcher/fixtures launcher/fuzz.rs", "", ""),
    ("bootstrap/client/tests worker/comm/tests worker/comm/examples .clippy.toml", "", ""),
];

/// Sources, and the fuzz targets that search for new inputs when one of them changes.
#[rustfmt::skip]
const FUZZED: &[(&str, &str)] = &[
    ("bootstrap/id.rs bootstrap/job", "to-agent from-agent hello to-prover endpoints edge node server gathered from-rank to-rank library handshake sealed callback announcement table table-message"),
    ("bootstrap/protocol bootstrap/inventory", "to-agent from-agent hello live-messages stack-order to-prover endpoints changes"),
    ("bootstrap/rendezvous", "edge node server gathered from-rank to-rank to-agent from-agent table-message"),
    ("bootstrap/client", "from-rank to-rank to-agent from-agent"),
    ("bootstrap/copy", "copy-control copy-frames copy-hop copy-manifest"),
    ("bootstrap/security", "handshake sealed callback announcement"),
    ("bootstrap/rank_table bootstrap/rank-table.example.json", "table table-message"),
    ("launcher/config", "ssh-config"),
    ("launcher/glob.rs", "ssh-config known-hosts certificate"),
    ("launcher/known_hosts.rs", "known-hosts"),
    ("launcher/keys", "key-file certificate"),
    ("launcher/hosts/mod.rs launcher/hosts/hostfile.rs", "hostfile host-list"),
    ("launcher/cli/config launcher/hosts/host_table.rs", "cluster"),
    ("launcher/env", "variables"),
    ("launcher/job/tag_pattern.rs", "tag-pattern"),
    ("launcher/commands/bench/programs launcher/commands/report", "test-program"),
    ("launcher/run/live", "live-messages"),
    ("launcher/fuzz.rs", "hostfile host-list cluster variables tag-pattern test-program live-messages"),
    ("worker/comm/src", "packets wire-up"),
    ("worker/lock", "packets"),
    ("worker/horovod", "horovod"),
    ("worker/pmi", "pmi1 pmix"),
];
/// Sources of every fuzz target, and the folder of inputs that were found, with one of each target.
const FUZZ: &str = "tests/fuzz";
const CORPUS: &str = "tests/fuzz/corpus";

/// Stage whose tests need hosts or guests.
#[derive(Debug)]
pub(super) struct HostStage {
    /// Folder of its tests, a module each.
    folder: &'static str,
    /// Modules without tests, which the others share.
    support: &'static str,
}

const NETNS: HostStage =
    HostStage { folder: "tests/netns", support: "main running support terminal" };
const VM: HostStage = HostStage { folder: "tests/vm", support: "main background support tools" };

/// Tests on hosts, by files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostTests {
    All,
    /// Tests of these files: none at all, if it is empty.
    Files(BTreeSet<String>),
}

impl HostTests {
    fn add(&mut self, files: &str) {
        if let HostTests::Files(all) = self {
            all.extend(files.split_whitespace().map(str::to_owned));
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == HostTests::Files(BTreeSet::new())
    }

    pub(super) fn includes(&self, file: &str) -> bool {
        match self {
            HostTests::All => true,
            HostTests::Files(files) => files.contains(file),
        }
    }

    /// Returns nextest's filterset of these tests.
    pub(super) fn filterset(&self) -> String {
        match self {
            HostTests::All => "all()".into(),
            _ if self.is_nothing() => "none()".into(),
            HostTests::Files(files) => {
                let files = Vec::from_iter(files.iter().map(String::as_str)).join("|");
                format!("test(/^({files})::/)")
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            HostTests::All => "everything".into(),
            _ if self.is_nothing() => "nothing".into(),
            HostTests::Files(files) => Vec::from_iter(files.iter().map(String::as_str)).join(" "),
        }
    }
}

/// Everything that is run after a change.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Filtersets of nextest, one of which a unit test matches.
    pub(super) unit: BTreeSet<String>,
    /// Whether a change reaches everything, the lab's own tests included.
    pub(super) everything: bool,
    pub(super) sim: bool,
    /// Targets that are fuzzed.
    pub(super) fuzz: BTreeSet<&'static str>,
    pub(super) netns: HostTests,
    pub(super) vm: HostTests,
}

impl Reach {
    /// Decides what is run after these files have changed.
    pub(super) fn from_files(files: &[PathBuf]) -> Result<Reach, LabError> {
        let crates = Crates::read()?;
        let mut reach = Reach {
            unit: BTreeSet::new(),
            everything: false,
            sim: false,
            fuzz: fuzz_targets(files),
            netns: HostTests::Files(BTreeSet::new()),
            vm: HostTests::Files(BTreeSet::new()),
        };
        for file in files.iter().filter(|file| !PLAIN.iter().any(|plain| file.starts_with(plain))) {
            reach.everything |= EVERYTHING.iter().any(|name| file.starts_with(name));
            reach.sim |= any_names(SIM, file).is_some();
            reach.add_on_hosts(file);
            reach.unit.extend(crates.filterset(file));
        }
        Ok(if reach.everything { Reach::all() } else { reach })
    }

    /// Returns what is run without a change.
    pub(super) fn all() -> Reach {
        Reach {
            unit: [ALL.to_owned()].into(),
            everything: true,
            sim: true,
            fuzz: FUZZED.iter().flat_map(|(_, all)| all.split_whitespace()).collect(),
            netns: HostTests::All,
            vm: HostTests::All,
        }
    }

    fn add_on_hosts(&mut self, file: &Path) {
        for (stage, tests) in [(&NETNS, &mut self.netns), (&VM, &mut self.vm)] {
            let Ok(inside) = file.strip_prefix(stage.folder) else { continue };
            let module = inside.iter().next().map(|name| Path::new(name).with_extension(""));
            match module.as_deref().and_then(Path::to_str) {
                Some(name) if !stage.support.split(' ').any(|one| one == name) => tests.add(name),
                _ => *tests = HostTests::All,
            }
            return;
        }
        let rows = HOSTS.iter().filter_map(|row| Some((any_names(row.0, file)?, row)));
        match rows.max_by_key(|(length, _)| *length) {
            Some((_, (_, netns, vm))) => {
                self.netns.add(netns);
                self.vm.add(vm);
            }
            None => (self.netns, self.vm) = (HostTests::All, HostTests::All),
        }
    }

    /// Returns whether something has to be compiled.
    pub(super) fn is_nothing(&self) -> bool {
        self.unit.is_empty() && self.netns.is_nothing() && self.vm.is_nothing()
    }

    /// Describes in lines what is run; everything else is left out.
    pub(super) fn describe(&self) -> String {
        let words = |all: Vec<&str>| if all.is_empty() { "nothing".into() } else { all.join(" ") };
        let unit = words(self.unit.iter().map(String::as_str).collect());
        let fuzz = words(self.fuzz.iter().copied().collect());
        let sim = if self.sim { "everything" } else { "nothing" };
        let (netns, vm) = (self.netns.describe(), self.vm.describe());
        format!("unit: {unit}\nsim: {sim}\nfuzz: {fuzz}\nnetns: {netns}\nvm: {vm}")
    }
}

/// Finds the targets that should search for new inputs after these files have changed.
pub(super) fn fuzz_targets(files: &[PathBuf]) -> BTreeSet<&'static str> {
    let all = || FUZZED.iter().flat_map(|(_, targets)| targets.split_whitespace());
    let of = |file: &PathBuf| -> Vec<&'static str> {
        if let Ok(found) = file.strip_prefix(CORPUS) {
            return all().filter(|target| found.starts_with(target)).collect();
        }
        if file.starts_with(FUZZ) {
            return all().collect();
        }
        let rows = FUZZED.iter().filter(|(sources, _)| any_names(sources, file).is_some());
        rows.flat_map(|(_, targets)| targets.split_whitespace()).collect()
    };
    files.iter().flat_map(of).collect()
}

/// Returns the length of the longest of the paths `names` that leads to `file`.
fn any_names(names: &str, file: &Path) -> Option<usize> {
    // `a/b` is the folder as well as the file `a/b.rs` beside it.
    let whole = [file.to_path_buf(), below_source(file)];
    let stems = whole.each_ref().map(|path| path.with_extension(""));
    let leads = |name: &&str| whole.iter().chain(&stems).any(|path| path.starts_with(name));
    names.split_whitespace().filter(leads).map(str::len).max()
}

/// Removes what is between the top folder of a path and the end of its first `src`.
fn below_source(file: &Path) -> PathBuf {
    let mut parts = file.iter();
    let top = parts.next();
    let rest = parts.as_path();
    match rest.iter().position(|part| part == "src") {
        Some(at) => top.into_iter().chain(rest.iter().skip(at + 1)).collect(),
        None => file.to_path_buf(),
    }
}

/// Filterset of all unit tests.
const ALL: &str = "all()";

/// Names of crates, by folder.
#[derive(Debug)]
struct Crates(Vec<(PathBuf, String)>);

impl Crates {
    fn read() -> Result<Crates, LabError> {
        let read = dist::metadata("ask cargo for the workspace's crates")?;
        let root = read["workspace_root"].as_str().unwrap_or_default();
        let folder = |package: &Value| {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            let folder = manifest.parent()?.strip_prefix(root).ok()?;
            Some((folder.to_path_buf(), package["name"].as_str()?.to_owned()))
        };
        Ok(Crates(read["packages"].as_array().into_iter().flatten().filter_map(folder).collect()))
    }

    /// Returns the filterset of the unit tests that a file reaches. What is no source of a crate,
    /// such as recorded machines, may be read by the tests of any.
    fn filterset(&self, file: &Path) -> Option<String> {
        let of_hosts = [NETNS.folder, VM.folder].iter().any(|folder| file.starts_with(folder));
        let inside = |(folder, _): &&(PathBuf, String)| file.starts_with(folder);
        let owner = self.0.iter().filter(inside).max_by_key(|(folder, _)| folder.iter().count());
        let (folder, name) = match owner {
            _ if of_hosts => return None,
            Some(owner) => owner,
            None => return Some(ALL.into()),
        };
        let first = file.strip_prefix(folder).ok().and_then(|inside| inside.iter().next());
        match first.and_then(|first| first.to_str()) {
            Some("src" | "Cargo.toml" | "build.rs") => Some(format!("rdeps(={name})")),
            Some("tests" | "benches") => Some(format!("package(={name})")),
            // Scripts, which the lab packs and runs.
            Some("gpu") if name == ON_HOSTS => {
                Some(format!("package(={})", env!("CARGO_PKG_NAME")))
            }
            _ if name == ON_HOSTS => Some(format!("package(={name})")),
            _ => Some(ALL.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn reach(files: &[&str]) -> Reach {
        Reach::from_files(&files.iter().map(PathBuf::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn every_path_of_the_tables_exists() {
        let mut git = Command::new("git");
        git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        let listed = git.current_dir(dist::workspace()).output().unwrap().stdout;
        let files: Vec<PathBuf> =
            str::from_utf8(&listed).unwrap().lines().map(Into::into).collect();
        let sources =
            HOSTS.iter().map(|row| row.0).chain(FUZZED.iter().map(|(sources, _)| *sources));
        for name in sources.chain([SIM]).flat_map(str::split_whitespace) {
            let leads = |file: &PathBuf| any_names(name, file).is_some();
            assert!(dist::workspace().join(name).exists() || files.iter().any(leads), "{name}");
        }
        for name in EVERYTHING.iter().chain(PLAIN) {
            assert!(dist::workspace().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn every_file_of_tests_on_hosts_that_a_row_names_exists() {
        let rows = |of: fn(&(&str, &'static str, &'static str)) -> &'static str| {
            HOSTS.iter().flat_map(move |row| of(row).split_whitespace()).collect::<BTreeSet<_>>()
        };
        for (stage, named) in [(&NETNS, rows(|row| row.1)), (&VM, rows(|row| row.2))] {
            let main = Path::new(stage.folder).join("main.rs");
            let main = fs::read_to_string(dist::workspace().join(main)).unwrap();
            let modules =
                main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
            let modules: BTreeSet<&str> = modules.collect();
            let unknown: Vec<_> = named.difference(&modules).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", stage.folder);
        }
    }

    #[test]
    fn every_fuzz_target_has_a_row_and_no_row_has_another() {
        let list = fs::read_to_string(dist::workspace().join("tests/fuzz/src/lib.rs")).unwrap();
        let named = list.split(" name: \"").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert_eq!(fuzz_targets(&["tests/fuzz/src/lib.rs".into()]), named.collect());
        assert_eq!(fuzz_targets(&["tests/fuzz/corpus/table/a".into()]), ["table"].into());
    }

    #[test]
    fn a_source_reaches_what_its_row_names() {
        let output = reach(&["launcher/src/run/output/line_arbiter.rs"]);
        let described = output.describe();
        let expected = "unit: rdeps(=rlaunch)\nsim: nothing\nfuzz: nothing\n\
                        netns: field output printing stdin teardown\nvm: nothing";
        assert_eq!(described.replace("rlaunch-engine", "rlaunch"), expected);
        let moved = reach(&["launcher/any/src/run/output.rs", "launcher/any/src/run/output/a.rs"]);
        assert_eq!(moved.netns, output.netns);
        let verbs = reach(&["worker/verbs/src/queue/queue_pair.rs"]);
        assert!(verbs.netns.is_nothing() && verbs.vm.includes("counts"));
        assert!(reach(&["bootstrap/src/rendezvous/link.rs"]).sim);
        assert!(reach(&["bootstrap/copy/src/hop.rs"]).sim);
    }

    #[test]
    fn what_no_row_names_runs_all() {
        let unknown = reach(&["launcher/src/unheard_of.rs"]);
        assert_eq!((&unknown.netns, &unknown.vm), (&HostTests::All, &HostTests::All));
        assert!(!unknown.everything);
        let fixture = reach(&["worker/fixtures/dgx.tree"]);
        assert_eq!(fixture.unit, [ALL.to_owned()].into());
        for file in ["Cargo.lock", ".cargo/config.toml", "tests/lab/src/main.rs", ".ci/run"] {
            let all = reach(&["LICENSE", file]);
            assert!(all.everything && all.sim && all.netns == HostTests::All, "{file}");
            assert_eq!(all.unit, [ALL.to_owned()].into());
        }
        assert!(reach(&["LICENSE", "tests/README.md"]).is_nothing());
    }

    #[test]
    fn tests_are_what_their_own_change_reaches() {
        let own = reach(&["tests/netns/teardown/lost.rs", "tests/vm/tools.rs"]);
        assert_eq!((own.netns.describe().as_str(), &own.vm), ("teardown", &HostTests::All));
        assert!(own.unit.is_empty());
        let crates = reach(&["tests/sim/src/world.rs", "bootstrap/client/tests/client.rs"]);
        let expected = ["package(=rlaunch-client)", "rdeps(=rlaunch-sim)"];
        assert_eq!(crates.unit, expected.map(str::to_owned).into());
        assert!(crates.netns.is_nothing() && crates.vm.is_nothing());
        let proofs = reach(&["tests/gpu/claims/nccl.py"]);
        assert_eq!(proofs.unit, ["package(=rlaunch-lab)".to_owned()].into());
        assert!(proofs.netns.is_nothing() && proofs.vm.is_nothing());
    }
}
