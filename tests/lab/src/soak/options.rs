//! `cargo lab soak options`: each option of mpirun and of mpiexec alone, under the launcher that it is of and under rlaunch.
//!
//! What an option does is what it changes: CPUs, directory and variables of ranks are compared with those of a run without
//! it, under the same launcher.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use clap::Args;

use crate::LabError;
use crate::command::background::Background;
use crate::command::printed;

/// The list of options, by which rlaunch's own tests go, too.
const LIST: &str = include_str!("../../../../launcher/src/cli/compat/options.txt");
/// Names in the list, each with the programs that may be this launcher and what its version begins with.
const LAUNCHERS: [(&str, &[&str], &str); 3] = [
    ("openmpi4", &["mpirun.openmpi", "mpirun"], "(Open MPI) 4."),
    ("openmpi5", &["mpirun.openmpi", "mpirun", "prterun"], "(Open MPI) 5."),
    ("hydra", &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"], "HYDRA"),
];
/// Options that say how many ranks there are.
const COUNTS: [&str; 11] =
    ["-np", "--np", "-n", "-c", "-N", "npernode", "pernode", "ppr", "-ppn", "perhost", "-grr"];
/// Time limit of a run.
const BOUND: Duration = Duration::from_secs(20);
/// Prints what a rank has, in a line and in a file for its variables.
const PROBE: &str = r#"#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMI_ID:-$RANK}}}
cpus=$(/usr/bin/sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
/usr/bin/env -0 | /usr/bin/tr '\n\0' ' \n' | /usr/bin/sed 's/=.*//' > "{directory}/names.$rank"
echo "[[rank=$rank host=$(/bin/hostname) cpus=$cpus directory=$(pwd) FOO=$FOO]]"
echo "words" >&2
"#;

#[derive(Debug, Args)]
pub struct OptionsSoak {
    /// This rlaunch, with its agent in lib/ beside it; by default the lab's build.
    #[arg(long)]
    pub rlaunch: Option<PathBuf>,
    /// Run only lines with this text.
    #[arg(long, allow_hyphen_values = true)]
    only: Option<String>,
}

/// Runs all options and prints a line for each; returns whether none is wrong.
pub(super) fn run(options: &OptionsSoak, rlaunch: &Path) -> Result<bool, LabError> {
    let directory = std::env::temp_dir().join(format!("rlaunch-options-{}", process::id()));
    fs::create_dir(&directory).map_err(LabError::io("make a directory"))?;
    let soak = Soak { rlaunch: rlaunch.to_owned(), directory };
    let result = soak.run(options);
    let _ = fs::remove_dir_all(&soak.directory);
    result
}

struct Soak {
    rlaunch: PathBuf,
    directory: PathBuf,
}

/// Line of the list.
struct Line<'a> {
    launcher: &'a str,
    kind: &'a str,
    words: &'a str,
    reason: Option<&'a str>,
}

impl Line<'_> {
    fn parse(line: &str) -> Option<Line<'_>> {
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (line, reason) = match line.split_once(" # ") {
            Some((line, reason)) => (line, Some(reason)),
            None => (line, None),
        };
        let mut parts = line.splitn(3, ' ');
        Some(Line { launcher: parts.next()?, kind: parts.next()?, words: parts.next()?, reason })
    }
}

/// What ranks had and what came of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    code: Option<i32>,
    /// By rank: host, CPUs, directory and FOO.
    ranks: BTreeMap<String, BTreeMap<String, String>>,
    /// Names of the variables of each rank.
    names: BTreeMap<String, BTreeSet<String>>,
    has_tags: bool,
    /// Other lines on stdout than those of ranks.
    more: usize,
    /// Whether what ranks write to stderr came on stdout.
    is_merged: bool,
    stderr: String,
}

impl Soak {
    fn run(&self, options: &OptionsSoak) -> Result<bool, LabError> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (launcher, programs, version) in LAUNCHERS {
            let Some(own) = programs.iter().find(|program| has_version(program, version)) else {
                println!("{launcher}: not on this machine");
                continue;
            };
            self.write_files(launcher, own)?;
            let bases = [self.seen(own, "")?, self.seen("", "")?];
            let lines =
                LIST.lines().filter_map(Line::parse).filter(|line| line.launcher == launcher);
            let asked = options.only.as_deref().unwrap_or_default();
            for line in lines.filter(|line| line.words.contains(asked)) {
                let (found, what) = self.compare(own, &bases, &line)?;
                println!("{found:<11} {launcher} {}{what}", line.words);
                *counts.entry(found).or_default() += 1;
            }
        }
        println!("{counts:?}");
        Ok(!counts.contains_key("WRONG"))
    }

    /// Runs a line under both launchers; returns what it came to, and the reason or what is different.
    fn compare(
        &self,
        own: &str,
        bases: &[Seen; 2],
        line: &Line<'_>,
    ) -> Result<(&'static str, String), LabError> {
        let here = self.seen("", line.words)?;
        let said = |text: &str| {
            let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
            let error = text.lines().find(|line| line.contains("error:"));
            tip.or(error).map_or(String::new(), |text| format!(": {text}"))
        };
        if line.kind == "refused" {
            let is_refused = here.code == Some(200);
            return Ok((if is_refused { "refused" } else { "WRONG" }, said(&here.stderr)));
        }
        let theirs = self.seen(own, line.words)?;
        if theirs.code != Some(0) {
            let found = if here.code == Some(0) { "done here" } else { "neither" };
            return Ok((found, format!(": {own} ends with {:?}", theirs.code)));
        }
        if line.kind == "noted" {
            let is_noted = here.stderr.contains("ignored: ");
            return Ok((if is_noted { "noted" } else { "WRONG" }, String::new()));
        }
        let wrong = differences(&bases[0], &theirs, &bases[1], &here, line.kind == "differs");
        match (wrong.is_empty(), line.reason) {
            (false, _) => Ok(("WRONG", format!(": {}{}", wrong.join("; "), said(&here.stderr)))),
            (true, Some(reason)) => Ok(("on purpose", format!(": {reason}"))),
            (true, None) => Ok(("same", String::new())),
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn write_files(&self, launcher: &str, own: &str) -> Result<(), LabError> {
        let hosts = if launcher == "hydra" { "localhost:2\n" } else { "localhost slots=2\n" };
        let probe = self.path("probe");
        for (name, text) in [
            ("probe", PROBE.replace("{directory}", &self.path(""))),
            ("rankfile", "rank 0=localhost slot=1\nrank 1=localhost slot=0\n".to_owned()),
            ("hosts", hosts.to_owned()),
            ("sequence", "localhost\nlocalhost\n".to_owned()),
            ("programs", format!("-n 1 {probe}\n-n 1 {probe}\n")),
            ("settings", "-x FOO=1 --mca pml ob1\n".to_owned()),
            ("parameters", "pml = ob1\n".to_owned()),
        ] {
            fs::write(self.directory.join(name), text)
                .map_err(LabError::io(format!("write a file for {own}")))?;
        }
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&probe, executable).map_err(LabError::io("make a file executable"))
    }

    /// Runs the words of a line under a launcher; without a name, under rlaunch.
    fn seen(&self, own: &str, words: &str) -> Result<Seen, LabError> {
        let files = ["rankfile", "hosts", "sequence", "programs", "settings", "parameters"];
        let words = words.replace("{directory}", &self.path("")).replace("{host}", "localhost");
        let words = files
            .iter()
            .fold(words, |words, name| words.replace(&format!("{{{name}}}"), &self.path(name)));
        let (variables, words): (Vec<&str>, Vec<&str>) =
            words.split_whitespace().partition(|word| {
                word.contains("_") && word.contains('=') && word.starts_with(char::is_uppercase)
            });
        let mut command =
            if own.is_empty() { Command::new(&self.rlaunch) } else { Command::new(own) };
        command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CACHE_HOME", self.path("cache"));
        let is_counted = words.iter().any(|word| {
            COUNTS.iter().any(|count| word == count || (count.len() > 2 && word.contains(count)))
        });
        let has_program = words.iter().any(|word| *word == self.path("programs"));
        if !is_counted && !has_program {
            command.args(["-np", "2"]);
        }
        command.args(&words);
        if !has_program {
            command.arg(self.path("probe"));
        }
        command.current_dir(&self.directory);
        let mut run = Background::start(command)?;
        let code = run.wait(BOUND)?.and_then(|status| status.code());
        self.read(code, &run.stdout(), run.stderr())
    }

    /// Reads what ranks have printed and written.
    fn read(&self, code: Option<i32>, stdout: &str, stderr: String) -> Result<Seen, LabError> {
        let mut seen = Seen { code, stderr, ..Seen::default() };
        for line in stdout.lines() {
            let Some((tag, rest)) = line.split_once("[[rank=") else {
                let is_of_rank = line.trim_end().ends_with("words");
                seen.is_merged |= is_of_rank;
                seen.more += usize::from(!is_of_rank && !line.trim().is_empty());
                continue;
            };
            seen.has_tags |= !tag.is_empty();
            let mut fields = rest.split("]]").next().unwrap_or_default().split(' ');
            let rank = fields.next().unwrap_or_default();
            let fields: BTreeMap<String, String> = fields
                .filter_map(|field| field.split_once('='))
                .map(|(k, v)| (k.into(), v.into()))
                .collect();
            let rank = rank.to_owned();
            let names = self.directory.join(format!("names.{rank}"));
            let text =
                fs::read_to_string(&names).map_err(LabError::io("read the variables of a rank"))?;
            seen.names.insert(rank.clone(), text.lines().map(str::to_owned).collect());
            seen.ranks.insert(rank, fields);
        }
        Ok(seen)
    }
}

/// Tells whether a program is there and says that it is of this version.
fn has_version(program: &str, version: &str) -> bool {
    printed("ask for a version", Command::new(program).arg("--version"))
        .is_ok_and(|text| text.replace("(OpenRTE)", "(Open MPI)").contains(version))
}

/// Lists in what an option has another effect here. Where it differs on purpose, only hosts and exit codes are compared.
fn differences(
    their_base: &Seen,
    theirs: &Seen,
    base: &Seen,
    here: &Seen,
    is_on_purpose: bool,
) -> Vec<String> {
    if here.code != theirs.code {
        return vec![format!("ends with {:?}, not {:?}", here.code, theirs.code)];
    }
    let mut found = if is_on_purpose { Vec::new() } else { other_output(theirs, here) };
    if is_on_purpose && (here.ranks.is_empty() || theirs.ranks.is_empty()) {
        return found;
    }
    if here.ranks.keys().ne(theirs.ranks.keys()) {
        found.push(format!("ranks {:?}, not {:?}", here.ranks.keys(), theirs.ranks.keys()));
    }
    for rank in theirs.ranks.keys().filter(|rank| here.ranks.contains_key(*rank)) {
        let compared: &[&str] =
            if is_on_purpose { &["host", "FOO"] } else { &["host", "cpus", "directory", "FOO"] };
        for &name in compared {
            let of = |seen: &Seen| seen.ranks.get(rank)?.get(name).cloned();
            let (is, wanted) = (of(here), of(theirs));
            let is_unchanged = of(their_base) == wanted && of(base) == is;
            if is != wanted && !is_unchanged {
                let [is, wanted] = [is, wanted].map(Option::unwrap_or_default);
                found.push(format!("rank {rank}: {name} {is}, not {wanted}"));
            }
        }
        let (wanted, names) = (changed(rank, their_base, theirs), changed(rank, base, here));
        if wanted != names && !is_on_purpose {
            let list = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
                one.difference(other).take(6).cloned().collect::<Vec<_>>().join(" ")
            };
            let (here, there) = (list(&names, &wanted), list(&wanted, &names));
            found.push(format!("rank {rank}: variables that change here: {here}; there: {there}"));
        }
    }
    found
}

/// Lists what is different about the output.
fn other_output(theirs: &Seen, here: &Seen) -> Vec<String> {
    type Question = fn(&Seen) -> bool;
    let questions: [(&str, Question); 3] = [
        ("tags", |seen| seen.has_tags),
        ("stderr on stdout", |seen| seen.is_merged),
        ("more output", |seen| seen.more > 0),
    ];
    let differ = questions.into_iter().filter(|(_, is)| is(theirs) != is(here));
    differ.map(|(what, is)| format!("{what}: {}, not {}", is(here), is(theirs))).collect()
}

/// Lists the user's variables of a rank that are there in only one of two runs.
fn changed(rank: &str, before: &Seen, after: &Seen) -> BTreeSet<String> {
    let (Some(before), Some(after)) = (before.names.get(rank), after.names.get(rank)) else {
        return BTreeSet::new();
    };
    let names = before.symmetric_difference(after);
    names.filter(|name| !is_of_launcher(name)).cloned().collect()
}

/// Tells whether a variable is one by which a launcher and MPI talk, or that a shell sets.
fn is_of_launcher(name: &str) -> bool {
    const BEGIN: [&str; 22] = [
        "OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI", "HYD", "ORTE", "RLAUNCH", "NCCL_", "UCX_", "FI_",
        "GLOO_", "HOROVOD_", "TORCH", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "OMP_", "XLA_",
        "JAX_", "OPAL_",
    ];
    const WHOLE: [&str; 14] = [
        "_", "PWD", "OLDPWD", "SHLVL", "RANK", "WORLD_SIZE", "PYTHONUNBUFFERED",
        "PYTHONBREAKPOINT", "TMPDIR", "IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE", "LD_LIBRARY_PATH",
        "NODE_RANK", "CROSS_RANK",
    ];
    BEGIN.iter().any(|begin| name.starts_with(begin)) || WHOLE.contains(&name)
}
