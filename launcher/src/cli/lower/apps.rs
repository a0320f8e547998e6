//! Conversion of the options of a job's programs, including their conditions and templates, and the files of this machine that
//! are copied to hosts or that hosts must have.

use super::{JobError, directory};
use crate::cli::args::{ApplicationArgs, ImageArgs, ProgramArgs, PythonArgs};
use crate::cli::command_line::is_program_here;
use crate::cli::host_selection::{self, HostSelectionError, RankCount};
use rlaunch_bootstrap::job::{PreloadFile, ScriptCheck, WorkingDir};
use rlaunch_plan::env::forwarded;
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::{Host, HostSet, HostsError, SlotsBy};
use rlaunch_plan::job::apps::template::{self, TemplateFile};
use rlaunch_plan::job::apps::{AppError, AppSpec, AppTitle, after};
use rlaunch_plan::job::{JobSpec, Preload};
use rlaunch_plan::map::MapBy;
use rlaunch_plan::program::{self, Script, Starter};
use rlaunch_text::typed::{TypedJob, interpreter_of};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Program behind a `:`, with its own hosts. The list is empty if the program runs on the job's hosts.
pub(super) struct Program {
    args: ProgramArgs,
    hosts: Vec<Host>,
}

/// Lists the options for containers of all programs.
pub(super) fn images(programs: &[Program]) -> impl Iterator<Item = &ImageArgs> {
    programs.iter().map(|program| &program.args.image)
}

/// Parses the hosts of programs. A host without a number of slots has that of `table`, or else one slot.
pub(super) fn with_hosts(
    programs: Vec<ProgramArgs>,
    table: &HostTable,
    map_by: MapBy,
) -> Result<Vec<Program>, HostSelectionError> {
    let with_hosts = |args: ProgramArgs| {
        let hosts = table.parse_hosts(&args.hosts)?;
        host_selection::check_ports(&hosts, "-H", RankCount::new(args.ranks, map_by))?;
        Ok(Program { args, hosts })
    };
    programs.into_iter().map(with_hosts).collect()
}

/// Returns all hosts: the job's own, and those of programs with hosts of their own.
pub(super) fn all_hosts(job_hosts: &[Host], programs: &[Program]) -> Result<Vec<Host>, HostsError> {
    let mut all = HostSet::default();
    let of_programs = programs.iter().flat_map(|program| &program.hosts);
    job_hosts.iter().chain(of_programs).cloned().try_for_each(|host| all.add(host))?;
    Ok(all.into_hosts())
}

/// Counts the ranks on the job's own hosts. `first` is the number of ranks of the first program. A program
/// without a number counts as one rank.
pub(super) fn ranks_on_job_hosts(first: Option<u32>, programs: &[Program]) -> u32 {
    let others = programs.iter().filter(|program| program.hosts.is_empty());
    let ranks = others.map(|program| program.args.ranks).chain([first]);
    ranks.fold(0, |all: u32, ranks| all.saturating_add(ranks.unwrap_or(1)))
}

/// Converts the options of all programs, and returns the programs with the files that are preloaded for any
/// of them. `first` is complete except for the options `first_args`. The other programs inherit its
/// environment, directory and preloaded files, to which they may add their own.
pub(super) fn lower(
    first: AppSpec,
    first_args: &ApplicationArgs,
    preload: Vec<PathBuf>,
    others: Vec<Program>,
) -> Result<(Vec<AppSpec>, Vec<PathBuf>), JobError> {
    let mut files = preload;
    let mut application_args = vec![first_args.clone()];
    let mut apps = vec![first];
    for Program { args, hosts } in others {
        let first = &apps[0];
        let inherited = (first.env.clone(), first.user_set_vars.clone());
        let process = args.process;
        let (env, user_set_vars) =
            forwarded::extended(inherited, std::env::vars_os(), &process.env)?;
        let mut preload = first.preload.clone();
        preload.extend(process.preload.iter().map(|path| index_of(path, &mut files)));
        let wdir = process.wdir.map(directory::required).transpose()?;
        let wdir = wdir.unwrap_or_else(|| first.wdir.clone());
        apps.push(AppSpec {
            hosts: Some(hosts).filter(|hosts| !hosts.is_empty()),
            ranks: args.ranks,
            env,
            user_set_vars,
            preload,
            ..of_words(args.command.argv, args.python, wdir)
        });
        application_args.push(args.application);
    }
    relate(&mut apps, &application_args)?;
    Ok((apps, files))
}

/// Returns an error if a job with several programs has a host without a number of slots in `common`. Such a
/// host has one slot for each of its GPUs, which are counted only later.
pub(super) fn check_slots(apps: &[AppSpec], common: &[Host]) -> Result<(), AppError> {
    match common.iter().find(|host| host.slots_by == SlotsBy::Open) {
        Some(open) if apps.len() > 1 => Err(AppError::SlotsFromGpus(open.to_string())),
        _ => Ok(()),
    }
}

/// Lists what the programs are that start processes themselves.
pub(super) fn starters(apps: &[AppSpec]) -> Vec<Option<Starter>> {
    apps.iter().map(|app| program::read(&app.argv).starter).collect()
}

/// Returns the index of a file in `files`, after adding the file if it is missing.
fn index_of(path: &Path, files: &mut Vec<PathBuf>) -> u32 {
    let at = files.iter().position(|file| file == path).unwrap_or_else(|| {
        files.push(path.to_owned());
        files.len() - 1
    });
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Checks and sets the names, conditions and templates of all programs. A condition or template may refer to
/// any of the programs.
fn relate(apps: &mut [AppSpec], args: &[ApplicationArgs]) -> Result<(), AppError> {
    let names: Vec<Option<String>> = args.iter().map(|args| args.name.clone()).collect();
    for (index, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(AppError::Name(name.clone()));
        }
        if names[..index].contains(&Some(name.clone())) {
            return Err(AppError::NameTwice(name.clone()));
        }
    }
    let title =
        |apps: &[AppSpec], at: usize| AppTitle::new(at, names[at].as_deref(), &apps[at].argv);
    for (index, args) in args.iter().enumerate() {
        let title = title(apps, index);
        let templates: Result<Vec<TemplateFile>, AppError> =
            args.template.iter().map(|option| TemplateFile::load(option)).collect();
        let app = &mut apps[index];
        app.name.clone_from(&names[index]);
        app.after = after::parse(&args.after, &names, &title)?;
        app.templates = templates?;
        template::check(app, &title)?;
    }
    let after: Vec<&[_]> = apps.iter().map(|app| &app.after[..]).collect();
    after::check_cycles(&after, &names)?;
    let on_job_hosts = |app: &&(usize, &AppSpec)| app.1.hosts.is_none();
    let all: Vec<(usize, &AppSpec)> = apps.iter().enumerate().collect();
    let last = all.iter().rfind(on_job_hosts).map(|(index, _)| *index);
    let unlimited = all
        .iter()
        .filter(on_job_hosts)
        .find(|(index, app)| app.ranks.is_none() && Some(*index) != last);
    match unlimited {
        Some((index, app)) => Err(AppError::NoRanks(app.title(*index))),
        None => Ok(()),
    }
}

/// Maximum size of a script that is compared with the hosts' copies, in bytes.
const MAX_COMPARED: u64 = 1 << 20;

/// Checks that the files of `--copy` are regular files with different names, and returns them.
pub(super) fn preloads(paths: &[PathBuf]) -> Result<Vec<Preload>, JobError> {
    let mut preloads: Vec<Preload> = Vec::new();
    for path in paths {
        let failed = |source| JobError::Preload { path: path.clone(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        let name = path.file_name().filter(|_| metadata.is_file());
        let name = name.ok_or_else(|| failed(io::Error::other("it is not a file")))?.to_owned();
        if preloads.iter().any(|other| other.file.name == name) {
            return Err(JobError::PreloadTwice { name });
        }
        let mode = metadata.permissions().mode() & 0o777;
        let file = PreloadFile { typed_path: path.clone(), name, size: metadata.len(), mode };
        preloads.push(Preload { file, source: path.clone() });
    }
    Ok(preloads)
}

/// Returns an error if a program is one of its copied files and not executable: copies keep the mode. Hosts would say so of a
/// path each.
pub(super) fn check_copied_programs(job: &JobSpec) -> Result<(), JobError> {
    let without_dot =
        |path: &OsStr| Path::new(path).strip_prefix(".").unwrap_or(Path::new(path)).to_owned();
    for app in &job.apps {
        let Some(program) = app.argv.first() else { continue };
        let own = app.preload.iter().filter_map(|&index| job.preload.get(index as usize));
        let is_program = |file: &&PreloadFile| {
            let names = [file.typed_path.as_os_str(), &file.name];
            names.map(without_dot).contains(&without_dot(program))
        };
        let copied = own.map(|preload| &preload.file).find(is_program);
        if copied.is_some_and(|file| file.mode & 0o111 == 0) {
            let line = job.typed().map(|typed| interpreted(program, typed));
            return Err(JobError::CopyNotExecutable { program: program.clone(), line });
        }
    }
    Ok(())
}

/// Returns the command line by which an interpreter runs the program.
fn interpreted(program: &OsStr, typed: TypedJob<'_>) -> String {
    let interpreter = interpreter_of(program).unwrap_or("INTERPRETER");
    let words = [&[OsString::from(interpreter)][..], typed.words()].concat();
    typed.with_program(&words).with_options(&[])
}

/// Makes a program of its words, with Python before them where they name a script or module of it, and with what follows from
/// this machine's files.
pub(super) fn of_words(argv: Vec<OsString>, python: PythonArgs, wdir: WorkingDir) -> AppSpec {
    let argv = with_python(argv, python);
    let Words { script, reads_tf_config, in_environment } = read(&argv);
    AppSpec { script, reads_tf_config, in_environment, ..AppSpec::new(argv, wdir) }
}

/// Returns the words of a program: Python before a script of it, as torchrun has it. A script that can be executed by its path
/// is, and so is one that only hosts have there.
fn with_python(argv: Vec<OsString>, options: PythonArgs) -> Vec<OsString> {
    let Some(first) = argv.first().filter(|_| !options.no_python) else { return argv };
    let script = Path::new(first);
    let is_script = || {
        let has_slash = first.as_bytes().contains(&b'/');
        let here = fs::metadata(script).ok().filter(fs::Metadata::is_file);
        let is_executable = |found: &fs::Metadata| found.permissions().mode() & 0o111 != 0;
        let runs_itself =
            here.as_ref().map_or(has_slash, |found| has_slash && is_executable(found));
        script.extension().is_some_and(|extension| extension == "py")
            && !runs_itself
            && (has_slash || !is_program_here(first))
    };
    let added: &[&str] = if options.module {
        &["python3", "-m"]
    } else if is_script() {
        &["python3"]
    } else {
        &[]
    };
    added.iter().map(OsString::from).chain(argv).collect()
}

/// Facts about a program that follow from its words and this machine's files.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) script: Option<ScriptCheck>,
    reads_tf_config: bool,
    in_environment: Option<PathBuf>,
}

/// Finds the script that a program runs. If this machine has the script, hosts must have it, too. Logs the
/// other arguments that are files on this machine, since hosts may lack them.
pub(super) fn read(argv: &[OsString]) -> Words {
    let script = program::read(argv).script;
    let found = script.and_then(|script| match script {
        Script::File(path) => Some((PathBuf::from(path), None)),
        Script::Module(name) => file_of_module(name.to_str()?),
    });
    let content = found.as_ref().and_then(|(path, _)| content(path));
    let checked =
        found.and_then(|(path, package)| required_script(path, package, content.as_deref()));
    let is_script = |arg: &OsStr| checked.as_ref().is_some_and(|script| script.path == arg);
    for argument in argv.iter().skip(1).filter(|arg| !is_script(arg)) {
        if Path::new(argument).is_file() {
            tracing::info!("{} is a file here: do the hosts have it?", argument.display());
        }
    }
    let text = content.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let names = |name: &str| text.contains(name);
    let is_distributed = names("MultiWorkerMirroredStrategy") || names("ParameterServerStrategy");
    let finds_others = names("TF_CONFIG") || names("SlurmClusterResolver");
    Words {
        script: checked,
        reads_tf_config: is_distributed && !finds_others,
        in_environment: argv.first().and_then(|program| in_environment(program)),
    }
}

/// Returns the file of a Python module below this directory, and the package or module that it belongs to; `None` if it is not
/// here.
fn file_of_module(name: &str) -> Option<(PathBuf, Option<String>)> {
    let path: PathBuf = name.split('.').collect();
    let package = name.split('.').next()?.to_owned();
    let is_name =
        |part: &str| part.chars().all(|c| c.is_alphanumeric() || c == '_') && !part.is_empty();
    let files = [path.with_extension("py"), path.join("__main__.py")];
    let file = files.into_iter().find(|file| file.is_file())?;
    name.split('.').all(is_name).then_some((file, Some(package)))
}

/// Returns the content of a script of this machine, unless it is long.
fn content(path: &Path) -> Option<Vec<u8>> {
    let metadata = fs::metadata(path).ok()?;
    let is_compared = metadata.is_file() && metadata.len() <= MAX_COMPARED;
    is_compared.then(|| fs::read(path).ok()).flatten()
}

/// Returns the requirement that each host must meet before the script `path` runs: a file or directory exists at the path and,
/// unless the script is large, has the SHA-256 of this content. `None` if this machine does not have the script.
fn required_script(
    path: PathBuf,
    package: Option<String>,
    content: Option<&[u8]>,
) -> Option<ScriptCheck> {
    let metadata = fs::metadata(&path).ok()?;
    let is_checked = metadata.is_file() || path.join("__main__.py").is_file();
    let sha256 = content.map(|bytes| Sha256::digest(bytes).into());
    is_checked.then_some(ScriptCheck { path, sha256, package })
}

/// Returns the path of a program in the virtual environment of this shell, if it is there.
fn in_environment(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return None;
    }
    let search_path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&search_path).map(|entry| entry.join(program));
    let path = found.find(|path| path.is_file())?;
    let of_shell = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os);
    of_shell
        .map(|root| Path::new(&root).join("bin"))
        .any(|bin| path.starts_with(bin))
        .then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lower::parse as job;

    #[test]
    fn what_stands_before_the_first_program_is_for_all() {
        let line = "-H a,b -np 1 -x A=1 -x B=1 --wdir /w x : -x B=2 y -np 3 : -H c --wdir /v z";
        let job = job(line).unwrap();
        let value = |app: &AppSpec, name: &str| {
            let var = app.env.iter().find(|var| var.name == name).unwrap();
            var.value.to_string_lossy().into_owned()
        };
        let values: Vec<[String; 2]> =
            job.apps.iter().map(|app| [value(app, "A"), value(app, "B")]).collect();
        assert_eq!(
            values,
            [["1", "1"], ["1", "2"], ["1", "1"]].map(|pair| pair.map(str::to_owned))
        );
        let wdirs: Vec<&WorkingDir> = job.apps.iter().map(|app| &app.wdir).collect();
        let required = |path: &str| WorkingDir::Required(path.into());
        assert_eq!(wdirs, [&required("/w"), &required("/w"), &required("/v")]);
        assert_eq!(job.apps[1].argv, ["y", "-np", "3"]);
        let map = job.map_ranks().unwrap();
        let nodes: Vec<(String, usize)> =
            map.nodes.iter().map(|node| (node.host.to_string(), node.ranks.len())).collect();
        assert_eq!(nodes, [("a".into(), 1), ("b".into(), 1), ("c".into(), 1)]);
        assert!(!job.is_local);
    }

    #[test]
    fn one_program_is_what_it_always_was() {
        let job = job("-np 2 x a b").unwrap();
        assert_eq!((job.apps.len(), job.is_local), (1, true));
        assert_eq!(job.map_ranks().unwrap().world_size, 2);
        assert!(job.first().name.is_none() && job.first().after.is_empty());
    }

    #[test]
    fn programs_without_hosts_are_on_this_machine() {
        let job = job("-np 2 x : -np 3 y").unwrap();
        assert!(job.is_local);
        assert_eq!(job.map_ranks().unwrap().world_size, 5);
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let error = |line: &str| job(line).err().unwrap();
        assert!(error("-H a:2 x : -np 1 y").starts_with("application 1 (x) has no -np"));
        assert_eq!(error("-np 1 --name a x : -np 1 --name a y"), "two programs are called a");
        assert!(error("-np 1 --name a,b x").contains("is not a name"));
        assert!(error("-np 1 --after srv x").contains("`srv`, but no program has that name"));
        assert!(
            error("-np 1 --name a --after b x : -np 1 --name b --after a y").starts_with("a, b")
        );
        assert!(error("-np 1 x {{host.name").contains("not a valid template"), "an open brace");
        assert!(error("-np 1 --template nothing x").contains("FILE:DEST"));
        assert!(error("-np 1 --template /no/file:/x x").contains("/no/file"));
        assert!(error("-np 1 x : -x NO_SUCH_NAME -np 1 y").contains("NO_SUCH_NAME"));
        assert!(error("-np 1 x : -H a,,b -np 1 y").contains("empty host"));
    }

    fn argv(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn python_runs_its_scripts_and_modules() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str, mode| {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let (plain, executable) = (path("x.py", 0o644), path("y.py", 0o755));
        let words = |line: &str, options: PythonArgs| with_python(argv(line), options);
        let usual = PythonArgs::default();
        for line in ["train.py --lr 1", &plain] {
            assert_eq!(words(line, usual), argv(&format!("python3 {line}")), "{line}");
        }
        for line in ["./train.py", "/data/x.py", &executable, "train", "python3 x.py", "a.pyc"] {
            assert_eq!(words(line, usual), argv(line), "{line}");
        }
        let module = PythonArgs { module: true, ..PythonArgs::default() };
        assert_eq!(words("pkg.train --lr 1", module), argv("python3 -m pkg.train --lr 1"));
        let none = PythonArgs { no_python: true, ..PythonArgs::default() };
        assert_eq!(words("train.py", none), argv("train.py"));
        for (line, expected) in [
            ("-H a --nproc_per_node 2 ddp.py --x 1", "python3 ddp.py --x 1"),
            ("-H a,b -m pkg.train -m x", "python3 -m pkg.train -m x"),
            ("-H a --module --nproc_per_node 2 pkg", "python3 -m pkg"),
            ("-H a -np 1 x : -np 1 -m y", "x"),
        ] {
            assert_eq!(job(line).unwrap().apps[0].argv, argv(expected), "{line}");
        }
        assert_eq!(job("-np 1 x : -np 1 -m y").unwrap().apps[1].argv, argv("python3 -m y"));
    }

    #[test]
    fn scripts_directories_and_packages_of_this_machine_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
            root.join(name).into_os_string().into_string().unwrap()
        };
        let script = write("t.py", "tf.distribute.MultiWorkerMirroredStrategy()");
        let told = write("u.py", "os.environ['TF_CONFIG']; MultiWorkerMirroredStrategy()");
        write("dir/__main__.py", "");
        let dir = root.join("dir").into_os_string().into_string().unwrap();
        for line in ["python3", "uv run", "torchrun --nproc-per-node 2", "accelerate launch --cpu"]
        {
            let found = read(&argv(&format!("{line} {script} --lr 1")));
            assert_eq!(found.script.as_ref().map(|own| own.path.to_str().unwrap()), Some(&*script));
            assert!(found.script.unwrap().sha256.is_some() && found.reads_tf_config, "{line}");
            assert!(read(&argv(&format!("{line} {script}.none"))).script.is_none(), "{line}");
        }
        assert!(!read(&argv(&format!("python3 {told}"))).reads_tf_config);
        let found = read(&argv(&format!("python3 {dir}"))).script.unwrap();
        assert_eq!((found.path, found.sha256), (root.join("dir"), None));
        assert!(read(&argv(&format!("python3 {}", root.display()))).script.is_none(), "no program");
        // Modules are looked for below the working directory, where this crate has none.
        assert!(read(&argv("python3 -m json.tool")).script.is_none());
        assert_eq!(file_of_module("no/such"), None);
    }

    #[test]
    fn a_copied_program_must_be_executable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sh");
        fs::write(&path, "true").unwrap();
        let copy = format!("-H a --copy {}", path.display());
        let chmod = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(0o644);
        for program in ["x.sh", "./x.sh", path.to_str().unwrap()] {
            let error = job(&format!("{copy} {program}")).err().unwrap();
            assert_eq!(error, format!("{program} is not executable"));
        }
        let words = ["rlaunch", "-H", "a", "x.sh"].map(OsString::from);
        let typed = TypedJob::new(&words, &words[3..]).unwrap();
        assert_eq!(interpreted(&words[3], typed), "rlaunch -H a bash x.sh");
        assert!(job(&format!("{copy} bash x.sh")).is_ok());
        assert!(job(&format!("{copy} other")).is_ok());
        chmod(0o755);
        assert!(job(&format!("{copy} x.sh")).is_ok());
    }

    #[test]
    fn preloads_are_files_with_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.py");
        fs::write(&file, "pass").unwrap();
        assert_eq!(preloads(std::slice::from_ref(&file)).unwrap()[0].file.size, 4);
        assert!(matches!(preloads(&[file.clone(), file]), Err(JobError::PreloadTwice { .. })));
        let directory = preloads(&[dir.path().to_owned()]);
        assert!(matches!(directory, Err(JobError::Preload { .. })));
    }
}
