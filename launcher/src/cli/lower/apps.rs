//! Conversion of the options of a job's programs, including their conditions and templates, and the files of this machine that
//! are copied to hosts or that hosts must have.

use super::{JobError, directory};
use crate::cli::args::{ApplicationArgs, ImageArgs, ProgramArgs};
use crate::cli::host_selection::{self, HostSelectionError, RankCount};
use rlaunch_bootstrap::job::{PreloadFile, ScriptCheck};
use rlaunch_plan::env::forwarded;
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::{Host, HostSet, HostsError, SlotsBy};
use rlaunch_plan::job::apps::template::{self, TemplateFile};
use rlaunch_plan::job::apps::{AppError, AppSpec, AppTitle, after};
use rlaunch_plan::job::{JobSpec, Preload};
use rlaunch_plan::map::MapBy;
use rlaunch_text::typed::{TypedJob, interpreter_of};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
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
            script: script_check(&args.command.argv),
            env,
            user_set_vars,
            preload,
            ..AppSpec::new(args.command.argv, wdir)
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

/// Finds the script that a program runs. If this machine has the script, hosts must have it, too. Logs the
/// other arguments that are files on this machine, since hosts may lack them.
pub(super) fn script_check(argv: &[OsString]) -> Option<ScriptCheck> {
    let script = script_of(argv).and_then(required_script);
    let is_script = |arg: &OsStr| script.as_ref().is_some_and(|script| script.path == arg);
    for argument in argv.iter().skip(1).filter(|arg| !is_script(arg)) {
        if Path::new(argument).is_file() {
            tracing::info!("{} is a file here: do the hosts have it?", argument.display());
        }
    }
    script
}

/// Returns the requirement that each host must meet before the script `path` runs: a file exists at the path and,
/// unless the script is large, has this SHA-256. `None` if this machine does not have the script.
fn required_script(path: &OsStr) -> Option<ScriptCheck> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let is_compared = metadata.len() <= MAX_COMPARED;
    let content = is_compared.then(|| fs::read(path).ok()).flatten();
    let sha256 = content.map(|bytes| Sha256::digest(bytes).into());
    Some(ScriptCheck { path: path.into(), sha256 })
}

/// Returns the script that Python or a shell runs: the first argument that is not an option. `None` for other
/// programs.
fn script_of(argv: &[OsString]) -> Option<&OsStr> {
    let program = Path::new(argv.first()?).file_name()?.to_str()?;
    let version = program.strip_prefix("python").map(|v| v.trim_start_matches(['.', '-']));
    let is_python = version.is_some_and(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.'));
    // Options whose value is the next word, and options in place of a script.
    let (takes_word, no_script): (&[&str], &[&str]) = match program {
        _ if is_python => (&["-W", "-X", "--check-hash-based-pycs"], &["-c", "-m", "-V"]),
        "bash" | "sh" => (&["-o", "+o", "-O", "+O", "--rcfile", "--init-file"], &["-c", "-s"]),
        _ => return None,
    };
    let mut words = argv[1..].iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if no_script.contains(&&*text) || text == "-" {
            return None;
        }
        if takes_word.contains(&&*text) {
            words.next();
        } else if text == "--" {
            return words.next().map(OsString::as_os_str);
        } else if !text.starts_with(['-', '+']) {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lower::parse as job;
    use rlaunch_bootstrap::job::WorkingDir;

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

    fn script(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        script_of(&argv).map(|s| s.to_string_lossy().into_owned())
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(script("python train.py --epochs 3"), some("train.py"));
        assert_eq!(script("/usr/bin/python3.11 -u -W ignore ./train.py"), some("./train.py"));
        assert_eq!(script("bash -x -o pipefail run.sh a"), some("run.sh"));
        assert_eq!(script("sh -- -odd"), some("-odd"));
        for none in
            ["python -m torch", "python -c pass", "sh -c true", "./train.py", "python", "perl x"]
        {
            assert_eq!(script(none), None, "{none}");
        }
    }

    #[test]
    fn a_copied_program_must_be_executable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.py");
        fs::write(&path, "pass").unwrap();
        let copy = format!("-H a --copy {}", path.display());
        let chmod = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(0o644);
        for program in ["x.py", "./x.py", path.to_str().unwrap()] {
            let error = job(&format!("{copy} {program}")).err().unwrap();
            assert_eq!(error, format!("{program} is not executable"));
        }
        let words = ["rlaunch", "-H", "a", "x.py"].map(OsString::from);
        let typed = TypedJob::new(&words, &words[3..]).unwrap();
        assert_eq!(interpreted(&words[3], typed), "rlaunch -H a python3 x.py");
        assert!(job(&format!("{copy} python3 x.py")).is_ok());
        assert!(job(&format!("{copy} other")).is_ok());
        chmod(0o755);
        assert!(job(&format!("{copy} x.py")).is_ok());
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
