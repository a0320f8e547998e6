//! Programs that hosts lack or cannot start.

use super::{closed_hint, describe_path, missing_file_hint};
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::job::{HiddenBy, PathDefect, ProgramDefect};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::shell;
use rlaunch_text::typed::{TypedJob, interpreter_of};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{env, fs, slice};

/// Describes a program that is not there. `instead` is an installed program that the user may have meant.
pub(super) fn describe_missing_program(
    program: &OsString,
    instead: Option<&str>,
    hosts: &str,
    typed: Option<TypedJob<'_>>,
) -> (Exit, String, Option<String>) {
    if program.is_empty() {
        let hint =
            "a variable that is not set may stand there: write its value, or name the program";
        return (Exit::NOT_FOUND, "the program has an empty name".into(), Some(hint.into()));
    }
    // Variables may stand where a program was expected.
    let name = redacted(&program.to_string_lossy());
    let sentence = format!("{name} is not on {hosts}");
    let by_path = program.as_encoded_bytes().contains(&b'/');
    let is_here = Path::new(program).is_file();
    let alone = TypedJob::of_program(slice::from_ref(program));
    let own = typed.filter(|typed| typed.program() == program).unwrap_or(alone);
    let advice = own.for_shell().or_else(|| own.for_hosts()).filter(|_| !is_here);
    let hint = advice.unwrap_or_else(|| match instead {
        Some(instead) => match typed.filter(|typed| typed.program() == instead) {
            Some(typed) => format!("{instead} is there: {}", typed.with_options(&[])),
            None => format!("{instead} is there: use {instead}"),
        },
        None if is_here && !by_path && hosts == Host::this_machine().name => {
            file_here_hint(program, own)
        }
        None if by_path || is_here => program_here_hint(program, typed),
        None if is_python(program) => format!(
            "install it there: sudo apt install python3 || sudo dnf install python3; or, if \
             it is elsewhere on {hosts}, give its path, or pass PATH on by -x PATH"
        ),
        None => searched_path_hint(&name, own),
    });
    (Exit::NOT_FOUND, sentence, Some(hint))
}

/// Describes why a program that is there cannot start. The codes are those of shells.
pub(super) fn describe_defect(
    program: &OsStr,
    defect: &ProgramDefect,
    hosts: &str,
) -> (Exit, String, Option<String>) {
    let name = program.display();
    let cannot = format!("{name} cannot start on {hosts}");
    match defect {
        ProgramDefect::Unusable(defect) => {
            let state = describe_path(Path::new(program), defect, &format!("on {hosts}"));
            let sentence = format!("{name} {state}");
            (exit_of(defect), sentence, Some(program_hint(program, defect)))
        }
        ProgramDefect::NoInterpreter { interpreters, defect } => {
            let (needed, hint) = describe_interpreters(program, interpreters, defect);
            (exit_of(defect), format!("{cannot}: its first line needs {needed}"), Some(hint))
        }
        ProgramDefect::CutOff { length, whole } => {
            let sentence = format!("{cannot}: only {length} of its {whole} bytes are there");
            let hint = format!("copy it there again; `cksum {}` compares", shell::quoted(program));
            (Exit::NOT_EXECUTABLE, sentence, Some(hint))
        }
        ProgramDefect::OtherMachine { machine, host } => {
            let sentence =
                format!("{cannot}: it is built for {machine}, and the machine there is {host}");
            let hint = "give hosts of each kind their own program: \
                        rlaunch -H HOSTS PROGRAM : -H OTHERS PROGRAM";
            (Exit::NOT_EXECUTABLE, sentence, Some(hint.to_owned()))
        }
        ProgramDefect::NotOnPath { interpreter } => {
            let line = interpreter.display();
            let sentence =
                format!("{cannot}: its first line needs {line}, which is not on PATH there");
            let hint = if line.to_string().contains(' ') {
                format!("env takes it all for one name; with options: #!/usr/bin/env -S {line}")
            } else {
                "install it there, or pass PATH on by -x PATH".to_owned()
            };
            (Exit::NOT_FOUND, sentence, Some(hint))
        }
        ProgramDefect::CarriageReturn { interpreter } => {
            let sentence = format!(
                "{cannot}: its lines end as on Windows (CRLF), and no interpreter is called \
                 `{}` with a carriage return",
                interpreter.display()
            );
            let hint = format!("sed -i 's/\\r$//' {}", shell::quoted(program));
            (Exit::NOT_FOUND, sentence, Some(hint))
        }
        ProgramDefect::HiddenInterpreter { interpreter, by } => {
            let (seen, hint) = describe_hidden(program, interpreter, *by);
            let shell =
                format!("so a shell would execute it in place of {}", interpreter.display());
            (Exit::NOT_EXECUTABLE, format!("{cannot}: {seen}, {shell}"), Some(hint))
        }
        ProgramDefect::LfsPointer => {
            let sentence = format!("{cannot}: it is a pointer of Git LFS and not the file itself");
            let hint = "`git lfs pull` in its repository fetches the file";
            (Exit::NOT_EXECUTABLE, sentence, Some(hint.to_owned()))
        }
        ProgramDefect::NoLoader { loader } => {
            let loader = loader.display();
            let sentence = format!("{cannot}: it needs the loader {loader}, which is not there");
            let hint = "it was built for a system with another C library, or for 32 bits: build it \
                        on a host like these, link it statically, or install that library there";
            (Exit::NOT_FOUND, sentence, Some(hint.to_owned()))
        }
    }
}

/// Describes why the kernel does not see the interpreter of a script. Also returns advice.
fn describe_hidden(program: &OsStr, interpreter: &OsStr, by: HiddenBy) -> (&'static str, String) {
    let (file, interpreter) = (shell::quoted(program), shell::quoted(interpreter));
    match by {
        HiddenBy::Length => (
            "its first line is longer than the 255 bytes that the kernel reads",
            format!(
                "a short first line: #!/usr/bin/env {interpreter}; or name the interpreter: {interpreter} {file}"
            ),
        ),
        HiddenBy::ByteOrderMark => (
            "it begins with a byte order mark and not with #!",
            format!(r"sed -i '1s/^\xEF\xBB\xBF//' {file}"),
        ),
        HiddenBy::Blanks => (
            "it begins with blanks or empty lines and not with #!",
            format!("let the first line of {file} begin with #!"),
        ),
    }
}

/// Returns the exit code that a shell would have for a program with this defect.
fn exit_of(defect: &PathDefect) -> Exit {
    match defect {
        PathDefect::Missing
        | PathDefect::DanglingLink { .. }
        | PathDefect::NotADirectory { .. } => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    }
}

/// Returns advice on a program that has a name on the hosts, but cannot be used.
fn program_hint(program: &OsStr, defect: &PathDefect) -> String {
    let name = shell::quoted(program);
    match defect {
        PathDefect::NotExecutable => format!("chmod +x {name}"),
        PathDefect::NotAFile { .. } => "name the program to start".into(),
        PathDefect::MountedNoexec => format!(
            "put it elsewhere, such as below your home directory; `findmnt -T {name}` there shows \
             the mount"
        ),
        PathDefect::Closed { directory } => closed_hint(directory),
        PathDefect::DanglingLink { link, .. } | PathDefect::LinkLoop { link } => {
            let link = shell::quoted(link.as_os_str());
            format!("`ls -l {link}` there shows the link: install what it should lead to")
        }
        PathDefect::Missing | PathDefect::NotADirectory { .. } | PathDefect::Unreachable { .. } => {
            format!("`ls -l {name}` there")
        }
    }
}

/// Describes the interpreters that a script needs, of which the last has this defect: the rest of a sentence, and a hint.
fn describe_interpreters(
    program: &OsStr,
    interpreters: &[OsString],
    defect: &PathDefect,
) -> (String, String) {
    let names: Vec<String> = interpreters.iter().map(|name| name.display().to_string()).collect();
    let last = interpreters.last().map(OsString::as_os_str).unwrap_or_default();
    let state = describe_path(Path::new(last), defect, "there");
    let needed = format!("{}, which {state}", names.join(", whose first line needs "));
    // Only what could be an interpreter is one to name.
    let hint = match defect {
        PathDefect::Missing if names.len() == 1 => {
            let base = Path::new(last).file_name().unwrap_or(last);
            let words = format!("{} {}", shell::quoted(base), shell::quoted(program));
            format!("install it there, or name the interpreter to take: rlaunch -H HOSTS {words}")
        }
        PathDefect::Missing => "install it there".into(),
        PathDefect::NotExecutable | PathDefect::NotAFile { .. } => {
            "let the first line name an interpreter, such as #!/bin/sh or #!/usr/bin/env python3"
                .into()
        }
        defect => program_hint(last, defect),
    };
    (needed, hint)
}

/// Tells whether a program is called as the interpreter of Python is.
fn is_python(program: &OsStr) -> bool {
    program == "python" || program == "python3"
}

/// Returns advice on a program that is not in PATH. `name` is the program without secrets.
fn searched_path_hint(name: &str, typed: TypedJob<'_>) -> String {
    let advice = format!("rlaunch searched PATH there: give {name} with its path");
    if !is_on_path_here(typed.program()) {
        return advice;
    }
    let advice = format!("{advice}, or pass");
    if typed.has_option_value("PATH=") {
        format!("{advice} -x PATH")
    } else {
        let words = [OsStr::new("-x"), OsStr::new("PATH")];
        format!("{advice} yours on: {}", typed.with_options(&words))
    }
}

fn is_on_path_here(program: &OsStr) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns the words that start a script of this machine, if its interpreter must be named.
fn interpreted(script: &OsStr, typed: TypedJob<'_>) -> Option<Vec<OsString>> {
    let is_executable = |found: fs::Metadata| found.permissions().mode() & 0o111 != 0;
    let interpreter = interpreter_of(script)?;
    let starts_itself = fs::metadata(script).is_ok_and(is_executable);
    let words = || [&[OsString::from(interpreter)][..], typed.words()].concat();
    (!starts_itself).then(words)
}

/// Returns the hint for a job on this machine whose program is a file of the current directory.
fn file_here_hint(program: &OsStr, typed: TypedJob<'_>) -> String {
    let words = interpreted(program, typed).unwrap_or_else(|| {
        let arguments = typed.words().get(1..).unwrap_or_default();
        [&[Path::new(".").join(program).into_os_string()][..], arguments].concat()
    });
    format!("it is in this directory: {}", typed.with_program(&words).with_options(&[]))
}

/// Returns the hint for a program that this machine may have and hosts lack.
fn program_here_hint(program: &OsStr, typed: Option<TypedJob<'_>>) -> String {
    let words = typed.and_then(|typed| interpreted(program, typed));
    let works = typed.zip(words.as_deref()).map(|(typed, words)| typed.with_program(words));
    missing_file_hint(program, works.or(typed))
}

#[cfg(test)]
mod tests {
    use super::super::explain;
    use super::*;
    use rlaunch_bootstrap::job::Problem;

    fn host(name: &str) -> Host {
        Host { name: name.into(), ..Host::this_machine() }
    }

    #[test]
    fn what_a_program_lacks_is_named() {
        let b = host("b");
        let of = |program: &str, defect| {
            let problem = Problem::CannotStart { program: program.into(), defect };
            explain(&[(&b, &problem)], None)
        };
        let needs = |names: &[&str], defect| {
            let interpreters = names.iter().map(OsString::from).collect();
            of("./run.py", ProgramDefect::NoInterpreter { interpreters, defect })
        };
        let failed = needs(&["./tool", "/tmp"], PathDefect::NotAFile { is_directory: true });
        let words =
            "its first line needs ./tool, whose first line needs /tmp, which is a directory";
        assert_eq!(failed.message, format!("./run.py cannot start on b: {words} there"));
        assert_eq!(failed.exit, Exit::NOT_EXECUTABLE);
        assert!(failed.hints[0].contains("#!/bin/sh"), "{failed:?}");
        let failed = needs(&["/opt/venv/bin/python"], PathDefect::Missing);
        let words = "its first line needs /opt/venv/bin/python, which is not there";
        assert_eq!(failed.message, format!("./run.py cannot start on b: {words}"));
        assert_eq!(failed.exit, Exit::NOT_FOUND);
        assert!(failed.hints[0].ends_with("rlaunch -H HOSTS python ./run.py"), "{failed:?}");
        let failed = of("./a b", ProgramDefect::CarriageReturn { interpreter: "/bin/sh".into() });
        assert!(failed.message.contains("CRLF"), "{failed:?}");
        assert_eq!(failed.hints, [r"sed -i 's/\r$//' './a b'"]);
        let failed = of("x", ProgramDefect::NotOnPath { interpreter: "python3 -u".into() });
        assert!(failed.hints[0].ends_with("#!/usr/bin/env -S python3 -u"), "{failed:?}");
        let failed = of("x", ProgramDefect::NoLoader { loader: "/lib/ld-linux.so.2".into() });
        assert!(failed.message.ends_with("the loader /lib/ld-linux.so.2, which is not there"));
        for (by, words, hint) in [
            (HiddenBy::Length, "longer than the 255 bytes", "#!/usr/bin/env python3;"),
            (HiddenBy::ByteOrderMark, "a byte order mark", r"sed -i '1s/^\xEF\xBB\xBF//' x"),
            (HiddenBy::Blanks, "begins with blanks", "begin with #!"),
        ] {
            let interpreter = "python3".into();
            let failed = of("x", ProgramDefect::HiddenInterpreter { interpreter, by });
            assert_eq!(failed.exit, Exit::NOT_EXECUTABLE);
            assert!(failed.message.contains(words) && failed.hints[0].contains(hint), "{failed:?}");
            assert!(failed.message.ends_with("in place of python3"), "{failed:?}");
        }
        let failed = of("x", ProgramDefect::LfsPointer);
        assert!(failed.hints[0].contains("git lfs pull"), "{failed:?}");
        let failed = of("x", ProgramDefect::CutOff { length: 100, whole: 4000 });
        assert_eq!(failed.message, "x cannot start on b: only 100 of its 4000 bytes are there");
        let (machine, host) = ("aarch64".to_owned(), "x86_64".to_owned());
        let failed = of("x", ProgramDefect::OtherMachine { machine, host });
        let words = "it is built for aarch64, and the machine there is x86_64";
        assert_eq!(failed.message, format!("x cannot start on b: {words}"));
    }

    #[test]
    fn a_line_for_a_shell_goes_to_one() {
        let b = host("b");
        let missing = |program: &str| {
            let problem = Problem::NoProgram { program: program.into(), instead: None };
            explain(&[(&b, &problem)], None)
        };
        let failed = missing("cd /tmp && ls");
        assert_eq!(failed.message, "cd /tmp && ls is not on b");
        assert!(failed.hints[0].ends_with("bash -c 'cd /tmp && ls'"), "{:?}", failed.hints);
        assert!(missing("FOO=1").hints[0].contains("-x FOO=1"));
        assert_eq!(missing("a,b").hints, ["-H names hosts: rlaunch -H a,b PROGRAM"]);
        let failed = missing("API_KEY=abc");
        assert!(!format!("{failed:?}").contains("abc"), "{failed:?}");
    }

    #[test]
    fn a_program_of_this_machine_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let b = host("b");
        let hint = |name: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let program = path.into_os_string();
            let missing = Problem::NoProgram { program: program.clone(), instead: None };
            let typed = [OsString::from("rlaunch"), program];
            let failed = explain(&[(&b, &missing)], TypedJob::new(&typed, &typed[1..]));
            failed.hints[0].replace(&format!("{}/", directory.path().display()), "")
        };
        let copied = "copy it along: rlaunch --copy";
        assert_eq!(hint("x.py", 0o644), format!("{copied} x.py python3 x.py"));
        assert_eq!(hint("y.sh", 0o644), format!("{copied} y.sh bash y.sh"));
        assert_eq!(hint("z.py", 0o755), format!("{copied} z.py z.py"));
        let here = |program: &str| {
            let words = [OsString::from(program), "-v".into()];
            file_here_hint(&words[0], TypedJob::of_program(&words))
        };
        assert_eq!(here("no.py"), "it is in this directory: rlaunch python3 no.py -v");
        assert_eq!(here("tool"), "it is in this directory: rlaunch ./tool -v");
    }

    #[test]
    fn path_is_passed_on_where_it_has_the_program() {
        let b = host("b");
        let hint = |program: &str| {
            let problem = Problem::NoProgram { program: program.into(), instead: None };
            explain(&[(&b, &problem)], None).hints.swap_remove(0)
        };
        assert!(hint("sh").ends_with("or pass yours on: rlaunch -x PATH sh"), "{}", hint("sh"));
        let unknown = "rlaunch searched PATH there: give no-such-program with its path";
        assert_eq!(hint("no-such-program"), unknown);
    }

    #[test]
    fn python3_is_offered() {
        let b = host("b");
        let missing =
            Problem::NoProgram { program: "python".into(), instead: Some("python3".into()) };
        let failed = explain(&[(&b, &missing)], None);
        assert_eq!(failed.hints, ["python3 is there: use python3"]);
        assert_eq!(failed.exit, Exit::NOT_FOUND);
        let typed = ["rlaunch", "-H", "b", "python", "x.py"].map(OsString::from);
        let typed = TypedJob::new(&typed, &typed[3..]);
        let failed = explain(&[(&b, &missing)], typed);
        assert_eq!(failed.hints, ["python3 is there: rlaunch -H b python3 x.py"]);
        let script = Problem::NoScript { script: "x.py".into(), defect: PathDefect::Missing };
        let failed = explain(&[(&b, &missing), (&b, &script)], typed);
        assert_eq!(failed.hints, ["copy it along: rlaunch -H b --copy x.py python3 x.py"]);
        assert_eq!(failed.details, ["x.py is not on b"]);
        let missing = Problem::NoProgram { program: "python3".into(), instead: None };
        let failed = explain(&[(&b, &missing)], None);
        assert!(failed.hints[0].contains("apt install python3"), "{:?}", failed.hints);
    }
}
