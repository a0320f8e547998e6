//! What a command line runs, as far as its words say: the script behind Python, shells, wrappers and launchers, and whether the
//! program starts processes itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Program that starts processes itself. Its host gets one of it, and it divides the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starter {
    /// Name for messages.
    pub name: &'static str,
    pub kind: StarterKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarterKind {
    /// torchrun, which takes its place among the hosts from `PET_*`.
    Torchrun(Nodes),
    /// Launcher of ranks that finds its place in other ways.
    Launcher,
    /// Server, or worker of a cluster: what it runs is no rank of this job.
    Service,
}

/// Nodes that meet, as far as the words of torchrun say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Each host is a job of its own.
    Alone,
    /// Their number is left to `PET_NNODES`.
    Untold,
    /// From the first number to the second, all of which rlaunch starts.
    Told(u32, u32),
}

impl Starter {
    pub fn is_service(self) -> bool {
        self.kind == StarterKind::Service
    }
}

/// File or module that an interpreter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    File(&'a OsStr),
    /// Python module, by its dotted name.
    Module(&'a OsStr),
}

/// What a command line runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Program<'a> {
    pub starter: Option<Starter>,
    pub script: Option<Script<'a>>,
}

/// Options of a program that stand before what it runs.
enum Options {
    /// The value of these is the next word; others are flags.
    WithValue(&'static str),
    /// These are flags; the value of others is the next word, or behind `=`.
    Flags(&'static str),
}

/// What the first word behind the options of a program is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Program that it executes.
    Command,
    /// Word of its own, as the time of timeout(1), before the program that it executes.
    Word,
    /// Python script.
    Python,
    /// Script for a shell.
    Shell,
    /// Nothing that is run, except the program behind `--`.
    Dashes,
}

/// Program that runs what stands behind it.
struct Carrier {
    /// Its name and the words that must follow it.
    words: &'static [&'static str],
    options: Options,
    behind: Behind,
    kind: Option<StarterKind>,
}

use Behind::{Command, Dashes, Python, Shell, Word};
use Options::{Flags, WithValue};

const ALL: &[Carrier] = &[
    carrier(&["env"], WithValue("-u --unset -C --chdir"), Command),
    carrier(&["nice"], WithValue("-n --adjustment"), Command),
    carrier(&["nohup"], WithValue(""), Command),
    carrier(
        &["numactl"],
        WithValue(
            "-N -m -C -p -i -P -w --cpunodebind --membind --physcpubind --interleave --preferred \
             --preferred-many --weighted-interleave",
        ),
        Command,
    ),
    carrier(&["stdbuf"], WithValue("-i -o -e --input --output --error"), Command),
    carrier(&["setsid"], WithValue(""), Command),
    carrier(&["time"], WithValue("-f --format -o --output"), Command),
    carrier(&["ionice"], WithValue("-c --class -n --classdata"), Command),
    carrier(&["timeout"], WithValue("-k --kill-after -s --signal"), Word),
    carrier(&["taskset"], WithValue(""), Word),
    carrier(&["nsys", "profile"], Flags("-h --help"), Command),
    carrier(&["conda", "run"], WithValue(OF_CONDA), Command),
    carrier(&["mamba", "run"], WithValue(OF_CONDA), Command),
    carrier(&["micromamba", "run"], WithValue(OF_CONDA), Command),
    carrier(&["pdm", "run"], WithValue("-p --project"), Command),
    carrier(
        &["hatch", "run"],
        WithValue("-e --env -p --project --data-dir --cache-dir --config"),
        Command,
    ),
    carrier(&["poetry", "run"], WithValue("-C --directory -P --project"), Command),
    carrier(&["pipenv", "run"], WithValue(""), Command),
    carrier(&["pixi", "run"], WithValue("-e --environment --manifest-path --color"), Command),
    carrier(&["uv", "run"], WithValue(OF_UV), Command),
    carrier(&["python"], WithValue("-W -X --check-hash-based-pycs"), Python),
    carrier(&["bash"], WithValue("-o +o -O +O --rcfile --init-file"), Shell),
    carrier(&["sh"], WithValue("-o +o"), Shell),
    starter(&["torchrun"], Flags(OF_TORCHRUN), Python, StarterKind::Torchrun(Nodes::Untold)),
    starter(&["accelerate", "launch"], Flags(OF_ACCELERATE), Python, StarterKind::Launcher),
    starter(&["accelerate-launch"], Flags(OF_ACCELERATE), Python, StarterKind::Launcher),
    starter(&["deepspeed"], Flags(OF_DEEPSPEED), Python, StarterKind::Launcher),
    starter(&["ray"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["dask", "worker"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["dask", "scheduler"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["dask", "cuda"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["dask-worker"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["dask-scheduler"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["vllm", "serve"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["sglang", "serve"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["jupyter", "lab"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["jupyter", "notebook"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["jupyter", "server"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["jupyter-lab"], WithValue(""), Dashes, StarterKind::Service),
    starter(&["jupyter-notebook"], WithValue(""), Dashes, StarterKind::Service),
];

/// Python modules that are these programs.
const MODULES: &[(&str, &[&str])] = &[
    ("torch.distributed.run", &["torchrun"]),
    ("torch.distributed.launch", &["torchrun"]),
    ("accelerate.commands.launch", &["accelerate", "launch"]),
    ("accelerate.commands.accelerate_cli", &["accelerate"]),
    ("deepspeed.launcher.runner", &["deepspeed"]),
    ("ray.scripts.scripts", &["ray"]),
    ("distributed.cli.dask_worker", &["dask", "worker"]),
    ("distributed.cli.dask_scheduler", &["dask", "scheduler"]),
    ("vllm.entrypoints.openai.api_server", &["vllm", "serve"]),
    ("vllm.entrypoints.api_server", &["vllm", "serve"]),
    ("vllm.entrypoints.cli.main", &["vllm"]),
    ("sglang.launch_server", &["sglang", "serve"]),
    ("jupyter", &["jupyter"]),
    ("jupyterlab", &["jupyter", "lab"]),
    ("notebook", &["jupyter", "notebook"]),
];

const OF_CONDA: &str = "-n --name -p --prefix --cwd -e --env -r --root-prefix";
const OF_UV: &str = "--with --with-editable --with-requirements -w -p --python --project --directory --package --extra \
    --no-extra --group --no-group --only-group --env-file --index --default-index --index-url -i --extra-index-url \
    --find-links -f --index-strategy --keyring-provider --resolution --prerelease --exclude-newer --link-mode \
    --config-setting -C --cache-dir --config-file --color --refresh-package -P --upgrade-package --reinstall-package \
    --allow-insecure-host --python-platform --python-preference --fork-strategy --exclude-newer-package \
    --no-build-package --no-binary-package --no-build-isolation-package --upgrade-group --config-settings-package";
const OF_TORCHRUN: &str =
    "-h --help --standalone -m --module --no-python --run-path --virtual-local-rank --use-env";
const OF_ACCELERATE: &str = "-h --help -q --quiet -m --module --no-python --cpu --multi-gpu --tpu --ipex --use-xpu \
    --use-deepspeed --use-fsdp --use-megatron-lm --use-parallelism-config --use-mps-device --same-network --debug \
    --tpu-cluster --no-tpu-cluster --tpu-use-sudo --standalone --dynamo-use-dynamic --dynamo-use-fullgraph \
    --enable-cpu-affinity --downcast-bf16";
const OF_DEEPSPEED: &str = "-h --help --module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi \
    --save-pid --bind-cores-to-rank --elastic-training";

const fn carrier(words: &'static [&'static str], options: Options, behind: Behind) -> Carrier {
    Carrier { words, options, behind, kind: None }
}

const fn starter(
    words: &'static [&'static str],
    options: Options,
    behind: Behind,
    kind: StarterKind,
) -> Carrier {
    Carrier { words, options, behind, kind: Some(kind) }
}

/// Reads a command line.
pub fn read(argv: &[OsString]) -> Program<'_> {
    let mut words: Vec<&OsStr> = argv.iter().map(OsString::as_os_str).collect();
    let mut program = Program::default();
    let mut is_elsewhere = false;
    // Each step takes a word at least.
    while let Some((carrier, before, behind)) = find(&words) {
        let (options, found) = carrier.split(behind);
        is_elsewhere |= carrier.changes_directory(before) || carrier.changes_directory(options);
        program.starter = program.starter.or_else(|| carrier.starter(options));
        match found {
            Found::Script(script) => {
                program.script = Some(script);
                let module = match script {
                    Script::Module(name) => name.to_str(),
                    Script::File(_) => None,
                };
                let module = module.and_then(|name| MODULES.iter().find(|(own, _)| *own == name));
                let Some((_, own)) = module.filter(|_| program.starter.is_none()) else { break };
                program.script = None;
                let rest = behind.get(options.len() + 1..).unwrap_or_default();
                words = own.iter().map(OsStr::new).chain(rest.iter().copied()).collect();
            }
            Found::Command(rest) => words = rest.to_vec(),
            Found::Nothing => break,
        }
    }
    // Whether a relative path leads to a file there is not known here.
    let is_relative = |script: &Script<'_>| match script {
        Script::File(path) => Path::new(path).is_relative(),
        Script::Module(_) => true,
    };
    program.script = program.script.filter(|script| !(is_elsewhere && is_relative(script)));
    program
}

/// Finds the program that the first words name, with the words up to its last name, as in `uv --quiet run`, and those behind.
fn find<'a, 'b>(words: Words<'a, 'b>) -> Option<(&'static Carrier, Words<'a, 'b>, Words<'a, 'b>)> {
    let (first, rest) = words.split_first()?;
    let name = Path::new(first).file_name()?.to_str()?;
    let name = if is_python(name) { "python" } else { name };
    ALL.iter().find_map(|carrier| {
        let (own, following) = carrier.words.split_first()?;
        if name != *own {
            return None;
        }
        let (before, behind) = rest.split_at(carrier.after(following, rest)?);
        Some((carrier, before, behind))
    })
}

/// Tells whether a name is that of an interpreter of Python, such as `python3.11`.
fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python").map(|version| version.trim_start_matches(['.', '-']));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Words of a command line.
type Words<'a, 'b> = &'b [&'a OsStr];

/// What was found behind the options of a program.
enum Found<'a, 'b> {
    Script(Script<'a>),
    Command(Words<'a, 'b>),
    Nothing,
}

impl Carrier {
    /// Returns what this program is if it starts processes itself. `options` are its words before what it runs.
    fn starter(&self, options: &[&OsStr]) -> Option<Starter> {
        let kind = match self.kind? {
            StarterKind::Torchrun(_) => StarterKind::Torchrun(nodes(options)),
            kind => kind,
        };
        Some(Starter { name: self.words.first().copied().unwrap_or_default(), kind })
    }

    /// Returns the number of words up to the last of its names, with the options between them; none if a name is missing.
    fn after(&self, names: &[&str], words: &[&OsStr]) -> Option<usize> {
        let mut at = 0;
        for name in names {
            while let Some(option) = words.get(at)?.to_str().filter(|word| word.starts_with('-')) {
                at += if self.takes_next(option) { 2 } else { 1 };
            }
            if words.get(at)? != name {
                return None;
            }
            at += 1;
        }
        Some(at)
    }

    /// Tells whether these options make it run its program in another directory.
    fn changes_directory(&self, options: &[&OsStr]) -> bool {
        let by: &[&str] = match self.words {
            ["env"] => &["-C", "--chdir"],
            ["poetry", _] => &["-C", "--directory"],
            [_, "run"] => &["--directory", "--cwd"],
            _ => return false,
        };
        options.iter().any(|word| {
            let word = word.to_string_lossy();
            let is_short = word.starts_with("-C") && by.contains(&"-C");
            is_short || by.contains(&word.split('=').next().unwrap_or_default())
        })
    }

    /// Splits the words behind this program into its options and what it runs.
    fn split<'a, 'b>(&self, words: Words<'a, 'b>) -> (Words<'a, 'b>, Found<'a, 'b>) {
        let has_modules = self.behind == Python || self.words == ["uv", "run"];
        let is_python = self.behind == Python && self.kind.is_none();
        let (mut is_module, mut is_command) = (false, matches!(self.behind, Command | Word));
        let mut has_word = self.behind != Word;
        let mut at = 0;
        while let Some(&word) = words.get(at) {
            let text = word.to_string_lossy().replace('_', "-");
            at += 1;
            match &*text {
                "--" if self.behind == Dashes => {
                    return (words, Found::Command(words.get(at..).unwrap_or_default()));
                }
                _ if self.behind == Dashes => {}
                "--" => return self.found(words, at, is_module, is_command),
                "-c" | "-" | "-s"
                    if matches!(self.behind, Python | Shell) && self.kind.is_none() =>
                {
                    return (words, Found::Nothing);
                }
                "-m" | "--module" if has_modules => {
                    is_module = true;
                    // What follows Python's own option is the module, and the rest is the module's.
                    if is_python {
                        return self.found(words, at, is_module, is_command);
                    }
                }
                _ if is_python && module_flag(word).is_some() => match module_flag(word) {
                    Some(module) if !module.is_empty() => {
                        return (&words[..at - 1], Found::Script(Script::Module(module)));
                    }
                    _ => return self.found(words, at, true, false),
                },
                "--no-python" if self.kind.is_some() => is_command = true,
                _ if self.takes_next(&text) => at += 1,
                _ if text.starts_with(['-', '+']) => {}
                // env(1) sets variables.
                _ if self.behind == Command && text.contains('=') && self.words == ["env"] => {}
                _ if !has_word => has_word = true,
                _ => return self.found(words, at - 1, is_module, is_command),
            }
        }
        (words, Found::Nothing)
    }

    /// Tells whether the value of an option is the next word.
    fn takes_next(&self, option: &str) -> bool {
        let lists = |names: &str| names.split(' ').any(|name| name == option);
        match self.options {
            WithValue(names) => !option.is_empty() && lists(names),
            Flags(names) => option.starts_with('-') && !option.contains('=') && !lists(names),
        }
    }

    /// Returns the word at this place as what the program runs, with the words before it.
    fn found<'a, 'b>(
        &self,
        words: Words<'a, 'b>,
        at: usize,
        is_module: bool,
        is_command: bool,
    ) -> (Words<'a, 'b>, Found<'a, 'b>) {
        let (options, rest) = words.split_at(at.min(words.len()));
        let Some(&word) = rest.first() else { return (options, Found::Nothing) };
        let is_file = Path::new(word).extension().is_some_and(|extension| extension == "py");
        let found = if is_module {
            Found::Script(Script::Module(word))
        } else if is_command && !is_file {
            Found::Command(rest)
        } else {
            // uv runs a script by its own Python, and env by the script's first line.
            Found::Script(Script::File(word))
        };
        (options, found)
    }
}

/// Returns what stands behind the `m` of flags of Python that are one word, as in `-um` and `-mpkg.train`; none without one.
fn module_flag(word: &OsStr) -> Option<&OsStr> {
    const FLAGS: &[u8] = b"bBdEiIOPqRsSuvx";
    let flags = word.as_bytes().strip_prefix(b"-")?;
    let at = flags.iter().position(|byte| !FLAGS.contains(byte))?;
    Some(OsStr::from_bytes(flags[at..].strip_prefix(b"m")?))
}

/// Returns the nodes that torchrun's options name. It takes the beginning of an option's name for it.
fn nodes(options: &[&OsStr]) -> Nodes {
    let words: Vec<String> =
        options.iter().map(|word| word.to_string_lossy().replace('_', "-")).collect();
    let value = |name: &str, shortest: usize| {
        // The last one counts.
        words.iter().enumerate().rev().find_map(|(at, word)| {
            let (option, value) = word.split_once('=').unwrap_or((word, ""));
            let is_it = option.len() >= shortest && name.starts_with(option);
            let next = || words.get(at + 1).map_or("", String::as_str);
            is_it.then(|| if word.contains('=') { value } else { next() })
        })
    };
    let nodes = value("--nnodes", "--nn".len());
    let told = nodes.and_then(|nodes| {
        let (least, most) = nodes.split_once(':').unwrap_or((nodes, nodes));
        Some((least.parse().ok()?, most.parse().ok()?))
    });
    let meets_itself = |endpoint: &str| {
        ["localhost", "127.", "[::1]", "::1"].iter().any(|own| endpoint.starts_with(own))
    };
    let is_here = value("--rdzv-endpoint", "--rdzv-e".len()).is_some_and(meets_itself);
    let is_alone = value("--standalone", "--stan".len()).is_some() || nodes.is_none() && is_here;
    // One with a place of its own may be a part of something larger.
    let has_place = value("--node-rank", "--nod".len()).is_some();
    match told {
        _ if is_alone => Nodes::Alone,
        Some((1, 1)) => Nodes::Alone,
        Some((least, most)) if !is_here && !has_place => Nodes::Told(least, most),
        _ => Nodes::Untold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn script(line: &str) -> Option<String> {
        match read(&words(line)).script? {
            Script::File(path) => Some(path.to_string_lossy().into_owned()),
            Script::Module(name) => Some(format!("-m {}", name.to_string_lossy())),
        }
    }

    fn starter_of(line: &str) -> Option<(&'static str, StarterKind)> {
        read(&words(line)).starter.map(|starter| (starter.name, starter.kind))
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        for (line, expected) in [
            ("python train.py --epochs 3", "train.py"),
            ("/usr/bin/python3.11 -u -W ignore ./train.py", "./train.py"),
            ("bash -x -o pipefail run.sh a", "run.sh"),
            ("sh -- -odd", "-odd"),
            ("python3 pkg/", "pkg/"),
            ("python3 -u -m pkg.train -c x", "-m pkg.train"),
            ("env -u B A=1 python3 t.py", "t.py"),
            ("env -C /d python3 /d/t.py", "/d/t.py"),
            ("numactl -N 0 -m 0 python3 t.py", "t.py"),
            ("uv run --with torch t.py", "t.py"),
            ("uv run -p 3.12 python -m pkg", "-m pkg"),
            ("uv run -m pkg", "-m pkg"),
            ("uv run -C a=b t.py", "t.py"),
            ("uv -q --project p run t.py", "t.py"),
            ("conda --no-plugins run -n env python t.py", "t.py"),
            ("python3 -mpkg.train -c x", "-m pkg.train"),
            ("python3 -um pkg.train", "-m pkg.train"),
            ("python3 -umtorch.distributed.run --nproc_per_node=2 t.py", "t.py"),
            ("timeout -k 9 3600 python3 -u t.py", "t.py"),
            ("taskset -c 0-7 torchrun t.py", "t.py"),
            ("conda run --no-capture-output -n env python t.py", "t.py"),
            ("nsys profile -o x --stats=true python3 t.py", "t.py"),
            ("torchrun --signals-to-handle SIGTERM t.py", "t.py"),
            ("accelerate launch --fsdp_offload_params true --downcast_bf16 t.py", "t.py"),
            ("uv run torchrun --nproc_per_node 2 t.py", "t.py"),
            ("torchrun --nproc-per-node 8 --rdzv-id=x t.py --standalone x", "t.py"),
            ("torchrun --standalone -m pkg.train --lr 1", "-m pkg.train"),
            ("torchrun -m --nproc_per_node 2 pkg", "-m pkg"),
            ("python3 -m torch.distributed.run --nproc_per_node=2 t.py", "t.py"),
            ("accelerate launch --multi_gpu --num_processes 4 t.py --x", "t.py"),
            ("deepspeed --num_gpus 2 t.py --deepspeed ds.json", "t.py"),
            ("torchrun --no-python --nnodes 2 bash run.sh", "run.sh"),
            ("ray symmetric-run --address a:6379 -- python3 drv.py", "drv.py"),
        ] {
            assert_eq!(script(line).as_deref(), Some(expected), "{line}");
        }
        for none in [
            "python -c pass", "sh -c true", "./train.py", "python", "perl x", "python -m",
            "env -C /d python3 t.py", "uv run --directory=d t.py", "uv --directory d run t.py",
            "poetry -Cd run python t.py", "poetry run -C d python t.py", "env -C/d python3 t.py",
            "uv sync x.py", "torchrun", "accelerate config x.py", "ray start --head", "env", "",
        ] {
            assert_eq!(script(none), None, "{none}");
        }
    }

    #[test]
    fn programs_that_start_processes_are_known() {
        let torchrun = |nodes| Some(("torchrun", StarterKind::Torchrun(nodes)));
        for (line, expected) in [
            ("torchrun --nproc-per-node 8 train.py", torchrun(Nodes::Untold)),
            ("/venv/bin/torchrun --nnodes 2 train.py --standalone", torchrun(Nodes::Told(2, 2))),
            ("torchrun --standalone train.py", torchrun(Nodes::Alone)),
            ("torchrun --nnodes=1 train.py", torchrun(Nodes::Alone)),
            ("torchrun --nnodes 1:4 train.py", torchrun(Nodes::Told(1, 4))),
            ("torchrun --nnodes {{nodes}} train.py", torchrun(Nodes::Untold)),
            ("torchrun --nnodes 4 --node_rank 2 train.py", torchrun(Nodes::Untold)),
            ("torchrun --nnodes 4 --nnodes=2 train.py", torchrun(Nodes::Told(2, 2))),
            ("poetry -P p run torchrun train.py", torchrun(Nodes::Untold)),
            ("hatch -e test run torchrun train.py", torchrun(Nodes::Untold)),
            ("torchrun --nnodes 1:1 train.py", torchrun(Nodes::Alone)),
            ("torchrun --nnode=1 train.py", torchrun(Nodes::Alone)),
            ("torchrun --nnode 2 train.py", torchrun(Nodes::Told(2, 2))),
            (
                "torchrun --signals-to-handle SIGTERM,SIGUSR1 --standalone t.py",
                torchrun(Nodes::Alone),
            ),
            (
                "torchrun --rdzv_backend c10d --rdzv_endpoint=localhost:0 t.py",
                torchrun(Nodes::Alone),
            ),
            ("torchrun --nnodes 2 --rdzv_endpoint localhost:0 t.py", torchrun(Nodes::Untold)),
            ("torchrun --rdzv_endpoint a:29400 t.py", torchrun(Nodes::Untold)),
            ("conda run -n env torchrun x.py", torchrun(Nodes::Untold)),
            ("timeout 3600 torchrun x.py", torchrun(Nodes::Untold)),
            ("numactl --interleave all torchrun x.py", torchrun(Nodes::Untold)),
            ("python3 -mtorch.distributed.run x.py", torchrun(Nodes::Untold)),
            ("accelerate-launch x.py", Some(("accelerate-launch", StarterKind::Launcher))),
            ("python3 -u -m torch.distributed.run --nnodes 2 x.py", torchrun(Nodes::Told(2, 2))),
            ("uv run torchrun x.py", torchrun(Nodes::Untold)),
            ("uv --color never run torchrun x.py", torchrun(Nodes::Untold)),
            ("accelerate launch x.py", Some(("accelerate", StarterKind::Launcher))),
            (
                "python -m accelerate.commands.launch x.py",
                Some(("accelerate", StarterKind::Launcher)),
            ),
            ("deepspeed x.py", Some(("deepspeed", StarterKind::Launcher))),
            ("ray start --head", Some(("ray", StarterKind::Service))),
            ("vllm serve model", Some(("vllm", StarterKind::Service))),
            ("python3 -m sglang.launch_server --tp 8", Some(("sglang", StarterKind::Service))),
            ("dask worker tcp://a:8786", Some(("dask", StarterKind::Service))),
            ("jupyter lab --no-browser", Some(("jupyter", StarterKind::Service))),
            ("ray symmetric-run -- torchrun x.py", Some(("ray", StarterKind::Service))),
        ] {
            assert_eq!(starter_of(line), expected, "{line}");
        }
        for none in [
            "python3 torchrun.py", "sh torchrun", "accelerate env", "dask-mpi x",
            "jupyter execute x", "echo ray",
        ] {
            assert_eq!(starter_of(none), None, "{none}");
        }
    }
}
