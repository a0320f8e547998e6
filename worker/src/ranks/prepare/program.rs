//! Program of an application on this node: its directory, its file, its script and its environment.

use crate::network::mpi::MpiOffer;
use crate::node::environment::{self, Environment};
use crate::node::inventory::libraries;
use crate::ranks::files::JobFiles;
use crate::ranks::paths::{self, find_on_path, on_path};
use crate::ranks::pseudoterminal::RankStdout;
use crate::ranks::{interpreter, mpi_library};
use nix::unistd::{Uid, User};
use rlaunch_bootstrap::env::{
    LD_LIBRARY_PATH, PATH, PWD, PYTHONPATH, RLAUNCH_PRELOAD_DIR, TMPDIR, TORCHINDUCTOR_CACHE_DIR,
};
use rlaunch_bootstrap::job::{
    Application, Job, LauncherDir, Notice, PathDefect, Problem, ProgramDefect, Pseudoterminals,
    ScriptCheck, SingletonPolicy, WorkingDir, below_home, runs_python,
};
use rlaunch_bootstrap::protocol::control::UnservedMpi;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Maximum size in bytes of a script that is compared; a longer one counts as different from the
/// launcher's.
const COMPARED: u64 = 1 << 20;

/// Program of an application, with the settings that its ranks on this node have in common.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Environment,
    /// Process management interfaces that the program's ranks are offered.
    pub(crate) mpi: MpiOffer,
    pub(crate) stdout: RankStdout,
}

impl Program {
    /// Returns what decides where the program's libraries are found. `home` is the user's home
    /// directory.
    pub(super) fn loading<'a>(&'a self, home: &'a Path) -> libraries::Loading<'a> {
        let of = |name| self.env.get(OsStr::new(name)).map_or(OsStr::new(""), |value| value);
        libraries::Loading {
            program: &self.path,
            library_path: of(LD_LIBRARY_PATH),
            python_path: of(PYTHONPATH),
            home,
        }
    }
}

/// Checks what an application needs: its directory, its program and its script.
pub(super) fn prepare_program(
    job: &Job,
    application: &Application,
    files: &JobFiles,
    node: &[(OsString, OsString)],
) -> Result<(Program, Vec<Notice>), Vec<Problem>> {
    let mut env = environment::for_application(node.iter().cloned(), &application.env);
    let mut argv = application.argv.clone();
    if let Some(directory) = files.directory() {
        env.insert(RLAUNCH_PRELOAD_DIR.into(), directory.into());
        files.redirect(&mut argv, &application.preload);
    }
    set_directories(&mut env, application, files);
    let mut notices = Vec::new();
    let directory =
        find_working_dir(&application.wdir, &mut notices).map_err(|problem| vec![problem])?;
    if !application.env.iter().any(|var| var.name == PWD) {
        env.insert(PWD.into(), pwd(&directory).into());
    }
    let search_path = env.get(OsStr::new(PATH)).cloned().unwrap_or_default();
    let path = find_by_any_name(&mut argv, &application.other_names, &search_path, &directory);
    let path = path.and_then(|path| {
        interpreter::check(&path, &directory, &search_path).map_err(|defect| {
            Problem::CannotStart { program: typed_name(application, files, &path), defect }
        })?;
        let mpi = if application.offers_mpi { mpi_offer(job, &path)? } else { MpiOffer::default() };
        Ok((path, mpi))
    });
    let is_here = |script: &&ScriptCheck| !files.redirects(script, &application.preload);
    let script = application.script.as_ref().filter(is_here);
    let installed = |package: &str| {
        let program = path.as_ref().map_or(Path::new(""), |(path, _)| path);
        is_installed(package, program, &env)
    };
    let script = script.map_or(Ok(None), |script| check_script(script, &directory, installed));
    match (path, script) {
        (Ok((path, mpi)), Ok(notice)) => {
            notices.extend(notice);
            notices.extend(other_program(application.in_environment.as_deref(), &path));
            let stdout = rank_stdout(job, &path);
            Ok((Program { directory, path, argv, env, mpi, stdout }, notices))
        }
        (path, script) => Err(path.err().into_iter().chain(script.err()).collect()),
    }
}

/// Lets ranks keep their temporary files in directories of the job, unless the user has named one.
fn set_directories(env: &mut Environment, application: &Application, files: &JobFiles) {
    if application.env.iter().any(|var| var.name == TMPDIR) {
        return;
    }
    if let Some(tmpdir) = files.tmpdir() {
        if runs_python(&application.argv) {
            set_compile_cache(env, files.parent(), tmpdir);
        }
        env.insert(TMPDIR.into(), tmpdir.into());
    }
}

/// Sets the directory of torch.compile to that which torch would choose in the host's own TMPDIR, `parent`. In the
/// job's TMPDIR what was compiled would end with the job, and each job would compile everything again. As torch looks for
/// precompiled headers in its own choice alone, whatever it is told, a link leads from there to it: without that, a
/// second run took 9 s instead of 3.
fn set_compile_cache(env: &mut Environment, parent: &Path, tmpdir: &Path) {
    let name = format!("torchinductor_{}", torch_user(env));
    let directory = parent.join(&name);
    // It may exist. Code is loaded from it, so it must not be one that somebody else has put there.
    let _ = DirBuilder::new().mode(0o700).create(&directory);
    let is_own = fs::symlink_metadata(&directory).is_ok_and(|found| {
        found.is_dir() && found.uid() == Uid::effective().as_raw() && found.mode() & 0o002 == 0
    });
    if is_own {
        // Fails for a second program, whose ranks have the same.
        let _ = symlink(&directory, tmpdir.join(name));
        env.entry(TORCHINDUCTOR_CACHE_DIR.into()).or_insert(directory.into());
    }
}

/// Returns the user as torch names them in paths: by Python's `getpass.getuser`, with what no file name may have replaced.
fn torch_user(env: &Environment) -> String {
    let set = |name: &&str| env.get(OsStr::new(name)).filter(|user| !user.is_empty());
    let user = ["LOGNAME", "USER", "LNAME", "USERNAME"].iter().find_map(set);
    let user = user
        .map(|user| user.to_string_lossy().into_owned())
        .or_else(|| User::from_uid(Uid::effective()).ok().flatten().map(|account| account.name));
    let user = user.unwrap_or_else(|| format!("uid_{}", Uid::effective()));
    user.replace(['\\', '/', ':', '*', '?', '"', '<', '>', '|'], "_")
}

/// Returns the name by which the user knows the program at `path`: what was typed if that is a path or a
/// file to preload, else the path at which the program was found.
fn typed_name(application: &Application, files: &JobFiles, path: &Path) -> OsString {
    let typed = application.argv.first().filter(|typed| {
        let by_path = typed.as_encoded_bytes().contains(&b'/');
        by_path || files.named(typed, &application.preload).is_some()
    });
    typed.cloned().unwrap_or_else(|| path.into())
}

/// Finds the directory in which ranks start: that of the launcher, under its own path or behind its links, if it can be
/// entered on this host; else the home directory, with a notice. A directory that the user has named must be one to enter.
pub(crate) fn find_working_dir(
    wanted: &WorkingDir,
    notices: &mut Vec<Notice>,
) -> Result<PathBuf, Problem> {
    match wanted {
        WorkingDir::Required(directory) => {
            let directory = below_home(directory, std::env::var_os("HOME").as_deref());
            match paths::check_directory(&directory) {
                Ok(()) => Ok(directory),
                Err(defect) => Err(Problem::NoDirectory { directory, defect }),
            }
        }
        WorkingDir::SameAsLauncher(LauncherDir { path, physical }) => {
            // A link of the same path may lead elsewhere here.
            let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
            let can_enter = |path: &Path| paths::check_directory(path).is_ok();
            let is_same = || !physical.is_dir() || id(path) == id(physical);
            if can_enter(path) && is_same() {
                return Ok(path.clone());
            }
            if can_enter(physical) {
                return Ok(physical.clone());
            }
            let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| can_enter(home));
            let home = home.unwrap_or_else(|| PathBuf::from("/"));
            notices.push(Notice::RunsInHome { home: home.clone() });
            Ok(home)
        }
    }
}

/// Returns the path of a directory as shells expect it in PWD: without `.` and `..`, but with links.
fn pwd(directory: &Path) -> PathBuf {
    if directory.components().any(|part| part == Component::ParentDir) {
        return directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    }
    directory.components().collect()
}

/// Finds the program under its own name, or under the first of `other_names` that the node has, which
/// then replaces the program in `argv`.
fn find_by_any_name(
    argv: &mut [OsString],
    other_names: &[OsString],
    search_path: &OsStr,
    directory: &Path,
) -> Result<PathBuf, Problem> {
    let found = find_program(argv, search_path, directory);
    if found.is_ok() {
        return found;
    }
    let other = other_names.iter().find_map(|name| {
        let path = find_program(std::slice::from_ref(name), search_path, directory).ok()?;
        Some((name, path))
    });
    match (other, argv) {
        (Some((name, path)), [program, ..]) => {
            program.clone_from(name);
            Ok(path)
        }
        _ => found,
    }
}

/// Finds the program as a shell would: by path if the name has a slash, else along `PATH`.
pub(crate) fn find_program(
    argv: &[OsString],
    search_path: &OsStr,
    directory: &Path,
) -> Result<PathBuf, Problem> {
    let name = argv.first().cloned().unwrap_or_default();
    let no_program = |instead| Err(Problem::NoProgram { program: name.clone(), instead });
    let unusable = |program: &OsStr, defect| {
        let (program, defect) = (program.to_owned(), ProgramDefect::Unusable(defect));
        Err(Problem::CannotStart { program, defect })
    };
    if name.is_empty() {
        return no_program(None);
    }
    if name.as_encoded_bytes().contains(&b'/') {
        let path = directory.join(&name);
        return match paths::check_executable(&path) {
            Ok(()) => Ok(path),
            Err(PathDefect::Missing) => no_program(None),
            Err(defect) => unusable(&name, defect),
        };
    }
    if let Some(path) = find_on_path(&name, search_path, directory) {
        return Ok(path);
    }
    // A directory of this name is nothing that the user means.
    let is_meant = |path: &PathBuf| fs::symlink_metadata(path).is_ok() && !path.is_dir();
    if let Some(path) = on_path(&name, search_path, directory).find(is_meant)
        && let Err(defect) = paths::check_executable(&path)
    {
        return unusable(path.as_os_str(), defect);
    }
    let instead = (name == "python").then_some("python3");
    no_program(
        instead
            .filter(|i| find_on_path(OsStr::new(i), search_path, directory).is_some())
            .map(str::to_owned),
    )
}

/// Chooses the process management interfaces for the ranks of a program. Refuses a program whose
/// MPI library needs an interface that rlaunch does not serve, unless the user lets such programs
/// run.
fn mpi_offer(job: &Job, program: &Path) -> Result<MpiOffer, Problem> {
    if job.world_size < 2 {
        return Ok(MpiOffer::default());
    }
    match mpi_library::offer(job.mpi, program) {
        Err(UnservedMpi { library, needs, .. }) if job.singleton == SingletonPolicy::Error => {
            Err(Problem::Singleton { program: program.to_owned(), library, needs })
        }
        offer => Ok(offer.unwrap_or_default()),
    }
}

/// Decides what the stdout of a program's ranks is.
fn rank_stdout(job: &Job, program: &Path) -> RankStdout {
    match job.pseudoterminals {
        Pseudoterminals::All(size) => RankStdout::Terminal(size),
        Pseudoterminals::Usual(size)
            if job.world_size == 1 || mpi_library::is_mpi_program(job.mpi, program) =>
        {
            RankStdout::TerminalOrPipe(size)
        }
        Pseudoterminals::Usual(_) | Pseudoterminals::None => RankStdout::Pipe,
    }
}

/// Returns a notice if the program at `path` is not the one at the path in the launcher's virtual environment.
fn other_program(expected: Option<&Path>, path: &Path) -> Option<Notice> {
    let expected = expected.filter(|expected| *expected != path)?.to_owned();
    Some(Notice::OtherProgram { expected, found: path.to_owned() })
}

/// Tells whether a package or module of Python may be installed here for a program: in one of the places where packages are,
/// or by a file there that adds a place, as of `pip install -e`.
fn is_installed(package: &str, program: &Path, env: &Environment) -> bool {
    let of = |name| env.get(OsStr::new(name)).map_or(OsStr::new(""), |value| value);
    let home = std::env::home_dir().unwrap_or_default();
    // A launcher, such as torchrun, lies beside its Python.
    let python = if libraries::is_python(program) {
        program.to_owned()
    } else {
        program.with_file_name("python3")
    };
    let loading = libraries::Loading {
        program: &python,
        library_path: OsStr::new(""),
        python_path: of(PYTHONPATH),
        home: &home,
    };
    let has = |directory: &PathBuf| {
        let is_module = |name: &String| {
            let is_own = name == package || name.strip_suffix(".py") == Some(package);
            let adds = ["easy-install.pth", "conda.pth"].contains(&name.as_str())
                || name.ends_with(".egg-link")
                || name.starts_with("__editable__");
            is_own || adds || name.strip_suffix(".pth").is_some_and(|name| name.contains(package))
        };
        libraries::file_names(directory).iter().any(is_module)
    };
    libraries::python_directories(&loading).iter().any(has)
}

/// Checks that a script is here, or that its package is `installed` elsewhere. A notice says that the script differs from the
/// launcher's.
fn check_script(
    check: &ScriptCheck,
    directory: &Path,
    installed: impl FnOnce(&str) -> bool,
) -> Result<Option<Notice>, Problem> {
    let path = directory.join(&check.path);
    let metadata = match paths::metadata(&path) {
        Ok(metadata) => metadata,
        Err(_) if check.package.as_deref().is_some_and(installed) => return Ok(None),
        Err(defect) => return Err(Problem::NoScript { script: check.path.clone(), defect }),
    };
    let Some(expected) = check.sha256 else { return Ok(None) };
    let same = metadata.len() <= COMPARED
        && fs::read(&path).is_ok_and(|bytes| Sha256::digest(bytes)[..] == expected);
    Ok((!same).then(|| Notice::ScriptDiffers { script: check.path.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn programs_are_found_as_a_shell_would() {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("tool");
        fs::write(&tool, "").unwrap();
        let by_path = argv(&["./tool"]);
        let unusable = |program: &OsStr, defect| {
            let defect = ProgramDefect::Unusable(defect);
            Err(Problem::CannotStart { program: program.to_owned(), defect })
        };
        let found = find_program(&by_path, OsStr::new(""), dir.path());
        assert_eq!(found, unusable(OsStr::new("./tool"), PathDefect::NotExecutable));
        let search = || find_program(&argv(&["tool"]), dir.path().as_os_str(), Path::new("/"));
        assert_eq!(search(), unusable(tool.as_os_str(), PathDefect::NotExecutable));
        fs::remove_file(&tool).unwrap();
        std::os::unix::fs::symlink("gone", &tool).unwrap();
        let target = dir.path().join("gone");
        let dangling = PathDefect::DanglingLink { link: tool.clone(), target };
        assert_eq!(search(), unusable(tool.as_os_str(), dangling));
        fs::remove_file(&tool).unwrap();
        fs::create_dir(&tool).unwrap();
        let nothing = Problem::NoProgram { program: "tool".into(), instead: None };
        assert_eq!(search(), Err(nothing));
        fs::remove_dir(&tool).unwrap();
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(find_program(&by_path, OsStr::new(""), dir.path()).is_ok());
        assert_eq!(search(), Ok(tool));
    }

    #[test]
    fn what_torch_compiles_outlives_the_job_in_a_directory_of_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |user: &str| {
            let job = tempfile::tempdir().unwrap();
            let mut env = Environment::from([("LOGNAME".into(), user.into())]);
            set_compile_cache(&mut env, dir.path(), job.path());
            let linked = fs::read_link(job.path().join(format!("torchinductor_{user}"))).ok();
            let set = env.get(OsStr::new(TORCHINDUCTOR_CACHE_DIR));
            assert!(user.contains('/') || set.map(Path::new) == linked.as_deref(), "{linked:?}");
            env.get(OsStr::new(TORCHINDUCTOR_CACHE_DIR)).cloned()
        };
        let path = |name: &str| Some(dir.path().join(name).into_os_string());
        // The second job finds what the first has made.
        for _ in 0..2 {
            assert_eq!(kept("alice"), path("torchinductor_alice"));
        }
        assert_eq!(kept("a/b"), path("torchinductor_a_b"));
        let open = dir.path().join("torchinductor_bob");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join("torchinductor_carol")).unwrap();
        assert_eq!((kept("bob"), kept("carol")), (None, None), "others may write there");
        let mut set = Environment::from([(TORCHINDUCTOR_CACHE_DIR.into(), "/mine".into())]);
        let job = tempfile::tempdir().unwrap();
        set_compile_cache(&mut set, dir.path(), job.path());
        assert_eq!(set[OsStr::new(TORCHINDUCTOR_CACHE_DIR)], "/mine");
    }

    #[test]
    fn a_directory_and_a_device_are_there_but_are_no_programs() {
        for (name, is_directory) in [("/usr/bin", true), ("./", true), ("/dev/null", false)] {
            let defect = ProgramDefect::Unusable(PathDefect::NotAFile { is_directory });
            let problem = Problem::CannotStart { program: name.into(), defect };
            let found = find_program(&argv(&[name]), OsStr::new(""), Path::new("/"));
            assert_eq!(found, Err(problem));
        }
        let problem = Problem::NoProgram { program: "./none".into(), instead: None };
        let found = find_program(&argv(&["./none"]), OsStr::new(""), Path::new("/"));
        assert_eq!(found, Err(problem));
    }

    #[test]
    fn the_launchers_directory_has_two_paths_of_which_a_node_may_have_one() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, physical) = (scratch.path().join("link"), scratch.path().join("physical"));
        let wanted = WorkingDir::SameAsLauncher(LauncherDir {
            path: path.clone(),
            physical: physical.clone(),
        });
        let found = |notices: &mut Vec<Notice>| find_working_dir(&wanted, notices).unwrap();
        let mut notices = Vec::new();
        fs::create_dir(&physical).unwrap();
        assert_eq!(found(&mut notices), physical);
        fs::create_dir(&path).unwrap();
        assert_eq!(found(&mut notices), physical, "another directory has the path");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("physical", &path).unwrap();
        assert_eq!(found(&mut notices), path);
        assert!(notices.is_empty(), "{notices:?}");
        drop(scratch);
        assert!(![path, physical].contains(&found(&mut notices)));
        assert!(matches!(notices[..], [Notice::RunsInHome { .. }]), "{notices:?}");
        for (name, defect) in [
            ("/no/such/place", PathDefect::Missing),
            ("/dev/null", PathDefect::NotADirectory { file: "/dev/null".into() }),
        ] {
            let required = WorkingDir::Required(name.into());
            let problem = Problem::NoDirectory { directory: name.into(), defect };
            assert_eq!(find_working_dir(&required, &mut notices), Err(problem));
        }
    }

    #[test]
    fn pwd_keeps_links_and_has_no_dots() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        fs::create_dir(real.join("a")).unwrap();
        std::os::unix::fs::symlink("a", real.join("link")).unwrap();
        // Paths that differ only in dots and slashes at the end are equal.
        let text = |path: PathBuf| path.into_os_string();
        assert_eq!(text(pwd(&real.join("link/./"))), text(real.join("link")));
        assert_eq!(pwd(&real.join("link/..")), real);
        assert_eq!(pwd(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn another_name_is_used_where_the_first_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("tool_mpi");
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        let find = |argv: &mut [OsString], others: &[&str]| {
            let search_path = dir.path().as_os_str();
            find_by_any_name(argv, &self::argv(others), search_path, Path::new("/"))
        };
        let mut words = argv(&["tool", "-x"]);
        let problem = find(&mut words, &["none"]).unwrap_err();
        assert_eq!(problem, Problem::NoProgram { program: "tool".into(), instead: None });
        assert_eq!(find(&mut words, &["none", "tool_mpi"]), Ok(other));
        assert_eq!(words, argv(&["tool_mpi", "-x"]));
        let tool = dir.path().join("tool");
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(&mut argv(&["tool"]), &["tool_mpi"]), Ok(tool));
    }

    #[test]
    fn python3_is_offered_for_python() {
        let dir = tempfile::tempdir().unwrap();
        let python3 = dir.path().join("python3");
        fs::write(&python3, "").unwrap();
        fs::set_permissions(&python3, fs::Permissions::from_mode(0o755)).unwrap();
        let problem = find_program(&argv(&["python"]), dir.path().as_os_str(), Path::new("/"));
        let instead = Some("python3".to_owned());
        assert_eq!(problem, Err(Problem::NoProgram { program: "python".into(), instead }));
    }

    #[test]
    fn a_changed_script_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("train.py"), "old").unwrap();
        let check = |text: &str| ScriptCheck {
            path: "train.py".into(),
            sha256: Some(Sha256::digest(text).into()),
            package: None,
        };
        let checked = |check: &ScriptCheck, directory| check_script(check, directory, |_| false);
        assert_eq!(checked(&check("old"), dir.path()), Ok(None));
        assert!(checked(&check("new"), dir.path()).unwrap().is_some());
        assert!(checked(&check("old"), Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_module_may_be_installed_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let check =
            ScriptCheck { path: "pkg/x.py".into(), sha256: None, package: Some("pkg".into()) };
        let python = dir.path().join("bin/python3");
        let packages = dir.path().join("lib/python3.11/site-packages");
        fs::create_dir_all(&packages).unwrap();
        let env = Environment::from([(PYTHONPATH.into(), dir.path().join("path").into())]);
        let checked = |program: &Path| {
            check_script(&check, dir.path(), |package| is_installed(package, program, &env))
        };
        assert!(matches!(checked(&python), Err(Problem::NoScript { .. })));
        for name in ["pkg", "__editable___x_finder.py", "pkg.pth"] {
            fs::write(packages.join(name), "").unwrap();
            assert_eq!(checked(&python), Ok(None), "{name}");
            assert_eq!(checked(&dir.path().join("bin/torchrun")), Ok(None), "{name}");
            fs::remove_file(packages.join(name)).unwrap();
        }
        fs::create_dir_all(dir.path().join("path/pkg")).unwrap();
        assert_eq!(checked(&python), Ok(None), "PYTHONPATH");
        fs::remove_dir_all(dir.path().join("path")).unwrap();
        fs::create_dir(dir.path().join("pkg")).unwrap();
        assert!(checked(&python).is_err());
        fs::write(dir.path().join("pkg/x.py"), "").unwrap();
        assert_eq!(checked(&python), Ok(None));
    }

    #[test]
    fn another_program_than_that_of_the_virtual_environment_is_noticed() {
        let (here, there) = (Path::new("/v/bin/python3"), Path::new("/usr/bin/python3"));
        let notice = Notice::OtherProgram { expected: here.into(), found: there.into() };
        assert_eq!(other_program(Some(here), there), Some(notice));
        assert_eq!(other_program(Some(here), here), None);
        assert_eq!(other_program(None, there), None);
    }
}
