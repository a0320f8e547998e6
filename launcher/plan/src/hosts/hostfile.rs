//! Host files in the syntax of mpirun and mpiexec: one host per line, with its slots.
//!
//! Valid lines are `name slots=4 max_slots=8`, `name:4`, `user@name`, `[fd00::2]:4` and `n[01-16] slots=8`;
//! `#` begins a comment. Slots of repeated hosts add up, as with `-H`. A host that is named only once,
//! without slots, gets as many slots as it has GPUs ([`SlotsBy::Open`]).

use super::{Host, HostSet, SlotsBy};
use rlaunch_text::text;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Maximum size of a host file, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Keys that set the number of slots, as in `slots=4`.
const SLOTS: &[&str] = &["slots", "count", "cpu", "cpus"];
/// Keys of other launchers that are accepted but ignored.
const IGNORED: &[&str] = &["max_slots", "max-slots", "ifname"];

/// Error in reading or parsing a host file.
#[derive(Debug, thiserror::Error)]
pub enum HostfileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {what}", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{} names no host", path.display())]
    Empty { path: PathBuf },
}

/// Reads the hosts in a host file, in the order of their first mention.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is larger than 4 MiB, has a line that cannot be parsed, or
/// names no host.
pub fn read(path: &Path) -> Result<Vec<Host>, HostfileError> {
    read_rewritten(path, str::to_owned)
}

/// Reads the hosts in a file of another syntax like [`read`]. `rewrite` returns the text of a host file with the same
/// lines.
///
/// # Errors
///
/// Returns the errors of [`read`].
pub fn read_rewritten(
    path: &Path,
    rewrite: impl Fn(&str) -> String,
) -> Result<Vec<Host>, HostfileError> {
    let text = read_text(path)?;
    let hosts = parse(&rewrite(&text)).map_err(|(line, what)| HostfileError::Line {
        path: path.to_owned(),
        line,
        what,
    })?;
    if hosts.is_empty() { Err(HostfileError::Empty { path: path.to_owned() }) } else { Ok(hosts) }
}

/// Texts of what can be read only once, as pipes can: `--hostfile <(command)`. The check of a command line, that of
/// `--preflight full` and the job each ask for the hosts.
static READ_ONCE: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// Reads a file of at most 4 MiB.
pub(crate) fn read_text(path: &Path) -> Result<String, HostfileError> {
    // A named pipe would be waited for again when it is opened.
    if std::fs::metadata(path).map_or(true, |about| about.is_file()) {
        return read_file(path);
    }
    let mut texts = READ_ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts.get(path) {
        return Ok(text.clone());
    }
    let text = read_file(path)?;
    texts.insert(path.to_owned(), text.clone());
    Ok(text)
}

fn read_file(path: &Path) -> Result<String, HostfileError> {
    let failed = |source| HostfileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::other(format!("more than {} MiB", MAX_BYTES >> 20))));
    }
    text::refuse_utf16(&bytes).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the text of a host file. The error is the number of the first wrong line, from 1, and a
/// description of what is wrong.
pub fn parse(text: &str) -> Result<Vec<Host>, (usize, String)> {
    // Editors of Windows put a byte order mark there, which is no part of the first name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut hosts = HostSet::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        for host in parse_line(line).map_err(|what| (number, what))? {
            hosts.add(host).map_err(|error| (number, error.to_string()))?;
        }
    }
    Ok(hosts.into_hosts())
}

/// Parses a line without its comment. An empty line has no hosts, a line with ranges may have several.
fn parse_line(line: &str) -> Result<Vec<Host>, String> {
    // Spaces around `=` are allowed.
    let spaced = line.replace('=', " = ");
    let mut words = spaced.split_whitespace();
    let Some(entry) = words.next() else { return Ok(Vec::new()) };
    let text = |error: super::HostsError| error.to_string();
    let mut hosts = super::parse_entry(entry, SlotsBy::Open).map_err(text)?;
    while let Some(name) = words.next() {
        let value = words.next().filter(|&word| word == "=").and_then(|_| words.next());
        let value = value.ok_or_else(|| format!("`{name}` is not understood"))?;
        if SLOTS.contains(&name) {
            let slots = super::parse_slots(entry, value).map_err(text)?;
            for host in &mut hosts {
                (host.slots, host.slots_by) = (slots, SlotsBy::Given);
            }
        } else if name == "user" {
            let named = super::parse_entry(&format!("{value}@host"), SlotsBy::Open);
            let user = named.map_err(text)?.into_iter().next().and_then(|host| host.user);
            hosts.iter_mut().for_each(|host| host.user.clone_from(&user));
        } else if name == "binding" {
            return Err("`binding=` is for all hosts here: --bind, or --rankfile with the CPUs of each rank".into());
        } else if !IGNORED.contains(&name) {
            return Err(format!("`{name}=` is not known"));
        }
    }
    Ok(hosts)
}

/// Writes hosts as the text of a host file. [`parse`] turns the text back into the same hosts with the same slots.
pub fn write(hosts: &[Host]) -> String {
    let line = |host: &Host| match host.slots_by {
        SlotsBy::Open => format!("{host}\n"),
        _ => format!("{host} slots={}\n", host.slots),
    };
    hosts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn listed(text: &str) -> Result<Vec<String>, (usize, String)> {
        let hosts = parse(text)?;
        Ok(hosts.iter().map(|host| format!("{host} {}", host.slots)).collect())
    }

    #[test]
    fn files_of_mpi_operator_and_of_people() {
        let open_mpi = "rl-worker-0.rl.default.svc slots=8\nrl-worker-1.rl.default.svc slots=8\n";
        let expected = ["rl-worker-0.rl.default.svc 8", "rl-worker-1.rl.default.svc 8"];
        assert_eq!(listed(open_mpi).unwrap(), expected);
        assert_eq!(
            listed("rl-worker-0:2\nrl-worker-1:2").unwrap(),
            ["rl-worker-0 2", "rl-worker-1 2"]
        );
        let people = "# two of them\r\n\r\n  a slots = 4 max_slots=8 # fast\r\n\tme@b\na\n\
                      [fd00::2]:3\nc user=you count=2\n";
        let expected = ["a 5", "me@b 1", "fd00::2 3", "you@c 2"];
        assert_eq!(listed(people).unwrap(), expected);
        assert_eq!(listed("# nobody\n\n").unwrap(), Vec::<String>::new());
        let ranges = listed("n[09-10,12] slots=8 # three\nme@g[1-2]:4\n").unwrap();
        assert_eq!(ranges, ["n09 8", "n10 8", "n12 8", "me@g1 4", "me@g2 4"]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_name() {
        assert_eq!(listed("\u{feff}a slots=2\r\nb\r\n").unwrap(), ["a 2", "b 1"]);
        assert_eq!(listed("\u{feff}# two\n\nb:3\n").unwrap(), ["b 3"]);
        assert_eq!(listed("\u{feff}").unwrap(), Vec::<String>::new());
        // Elsewhere it is a character that no name has.
        assert_eq!(listed("a\n\u{feff}b\n").unwrap_err().0, 2);
    }

    #[test]
    fn what_is_named_once_without_a_number_is_open() {
        let by = |text: &str| parse(text).unwrap().remove(0).slots_by;
        assert_eq!([by("a"), by("n[1-2] max_slots=4")], [SlotsBy::Open; 2]);
        assert_eq!([by("a:1"), by("a slots=1"), by("a\na")], [SlotsBy::Given; 3]);
        assert_eq!(by("a:2222"), SlotsBy::LikelyPort(2222));
        assert_eq!([by("a slots=2222"), by("a:2222 slots=2")], [SlotsBy::Given; 2]);
    }

    #[test]
    fn mistakes_are_named_by_their_lines() {
        let error = |text: &str| listed(text).unwrap_err();
        assert_eq!(error("a\nb slots=many"), (2, "`b`: `many` is not a number of slots".into()));
        assert_eq!(error("a\n\nb slots"), (3, "`slots` is not understood".into()));
        assert_eq!(error("a slots=0").0, 1);
        assert_eq!(error("a port=22"), (1, "`port=` is not known".into()));
        assert_eq!(error("-oProxyCommand=x").0, 1);
        assert_eq!(error("a b").0, 1);
        let backwards = "`n[3-1]`: `3-1` runs backwards";
        assert_eq!(error("a\nn[3-1] slots=2"), (2, backwards.into()));
        assert_eq!(error("n[1-65536]\nm"), (2, "more than 65536 hosts".into()));
        let often = "hosts are named more than 262144 times";
        assert_eq!(error(&"n[1-65536]\n".repeat(5)), (5, often.into()));
    }

    #[test]
    fn a_file_is_read_with_its_name_in_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hostfile");
        assert!(matches!(read(&path), Err(HostfileError::Read { .. })));
        std::fs::write(&path, "a\nb x\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("hostfile:2: `x` is not understood"), "{error}");
        std::fs::write(&path, "#\n").unwrap();
        assert!(matches!(read(&path), Err(HostfileError::Empty { .. })));
        std::fs::write(&path, "a\n".repeat(2 << 20) + "b").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("cannot read"));
        for text in [&b"\xff\xfea\0\n\0"[..], b"\xfe\xff\0a\0\n"] {
            std::fs::write(&path, text).unwrap();
            let Err(HostfileError::Read { source, .. }) = read(&path) else { panic!("{text:?}") };
            assert!(source.to_string().contains("UTF-16"), "{source}");
        }
    }

    #[test]
    fn a_pipe_is_read_once_for_all_who_ask() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a slots=2\nb\n").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let first = read(&path).unwrap();
        assert_eq!(first.iter().map(|host| &*host.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read(&path).unwrap(), first);
    }

    proptest! {
        #[test]
        fn anything_is_hosts_or_an_error(text in "[a-c@:=#\\[\\] \n0-9slot_-]{0,80}|.{0,40}") {
            match parse(&text) {
                Ok(hosts) => {
                    let mut written = hosts.clone();
                    for host in written.iter_mut().filter(|host| host.has_given_slots()) {
                        host.slots_by = SlotsBy::Given;
                    }
                    prop_assert_eq!(parse(&write(&hosts)), Ok(written));
                    for host in &hosts {
                        prop_assert!(host.slots > 0 && !host.name.is_empty());
                        prop_assert!(!host.name.contains(char::is_whitespace));
                        prop_assert!(!host.name.starts_with('-'));
                    }
                }
                Err((line, _)) => prop_assert!(line >= 1 && line <= text.lines().count()),
            }
        }

        #[test]
        fn what_is_written_is_read(named in prop::collection::btree_map(
            "[a-z][a-z0-9.-]{0,12}", 1..100u32, 1..6,
        )) {
            let expected: Vec<String> = named.iter().map(|(n, s)| format!("{n} {s}")).collect();
            let by_word = named.iter().map(|(n, s)| format!("{n} slots={s}\n")).collect::<String>();
            let by_colon = named.iter().map(|(n, s)| format!("{n}:{s}\n")).collect::<String>();
            prop_assert_eq!(listed(&by_word).unwrap(), expected.clone());
            prop_assert_eq!(listed(&by_colon).unwrap(), expected);
        }
    }
}
