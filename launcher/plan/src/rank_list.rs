//! `--rankfile`: the host of each rank, one by one, and the CPUs that it is bound to.
//!
//! A line is `rank 2=b slot=0-1`, as Open MPI has it, or just a host, whose number among such lines is its rank.

use crate::hosts::{self, Host, hostfile};
use crate::placement::CpuChoice;
use rlaunch_bootstrap::id::Rank;
use std::path::{Path, PathBuf};

/// Maximum number of ranks in a job.
pub(crate) const MAX_RANKS: u32 = 1 << 20;

/// Hosts of all ranks, in the order of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankList(Vec<ListedRank>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedRank {
    host: ListedHost,
    cpus: Option<CpuChoice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ListedHost {
    /// As `-H` has it: `a`, `user@a`.
    Named(String),
    /// `+n1`: the second host of the job.
    Numbered(usize),
}

/// Error in reading or parsing a rankfile.
#[derive(Debug, thiserror::Error)]
pub enum RankListError {
    #[error(transparent)]
    Read(#[from] hostfile::HostfileError),
    #[error("{}:{line}: {what}", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{} has no line for rank {rank}", path.display())]
    Missing { path: PathBuf, rank: usize },
}

impl RankList {
    /// Reads a rankfile.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, if a line cannot be parsed, or if a rank has no line or several.
    pub fn read(path: &Path) -> Result<RankList, RankListError> {
        let text = hostfile::read_text(path)?;
        parse(&text).map_err(|problem| {
            let path = path.to_owned();
            match problem {
                Problem::Line(line, what) => RankListError::Line { path, line, what },
                Problem::Missing(rank) => RankListError::Missing { path, rank },
            }
        })
    }

    /// Returns the number of ranks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the named hosts as values of `-H`, once for each rank.
    pub fn names(&self) -> Vec<String> {
        let named = self.0.iter().filter_map(|listed| match &listed.host {
            ListedHost::Named(name) => Some(name.clone()),
            ListedHost::Numbered(_) => None,
        });
        named.collect()
    }

    /// Returns the CPUs of a rank, if its line has any.
    pub fn cpus(&self, rank: Rank) -> Option<&CpuChoice> {
        self.0.get(rank.index())?.cpus.as_ref()
    }

    pub(crate) fn choices(&self) -> impl Iterator<Item = &CpuChoice> {
        self.0.iter().filter_map(|listed| listed.cpus.as_ref())
    }

    /// Returns the index among `hosts` of the host of each rank, or the first rank with a host that is not there, and that
    /// host.
    pub(crate) fn indices(&self, hosts: &[Host]) -> Result<Vec<usize>, (usize, String)> {
        let index = |(rank, listed): (usize, &ListedRank)| match &listed.host {
            ListedHost::Named(name) => {
                let is_it = |host: &Host| host.to_string() == *name || host.name == *name;
                hosts.iter().position(is_it).ok_or_else(|| (rank, name.clone()))
            }
            ListedHost::Numbered(number) => Some(*number)
                .filter(|at| *at < hosts.len())
                .ok_or_else(|| (rank, format!("+n{number}"))),
        };
        self.0.iter().enumerate().map(index).collect()
    }
}

enum Problem {
    Line(usize, String),
    Missing(usize),
}

fn parse(text: &str) -> Result<RankList, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut ranks: Vec<Option<ListedRank>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: String| Problem::Line(number, what);
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let Some((rank, listed)) = numbered(line).transpose().map_err(wrong)? else {
            let listed = unnumbered(line).map_err(wrong)?;
            ranks.extend(listed.into_iter().map(Some));
            continue;
        };
        if rank >= MAX_RANKS as usize {
            return Err(wrong(format!("rank {rank} is more than a job has")));
        }
        if ranks.len() <= rank {
            ranks.resize(rank + 1, None);
        }
        if ranks[rank].replace(listed).is_some() {
            return Err(wrong(format!("rank {rank} has another line already")));
        }
    }
    if ranks.is_empty() {
        return Err(Problem::Missing(0));
    }
    let listed = ranks.into_iter().enumerate();
    let listed = listed.map(|(rank, listed)| listed.ok_or(Problem::Missing(rank)));
    listed.collect::<Result<_, _>>().map(RankList)
}

/// Parses `rank 2=b slot=0-1`; `None` if the line does not begin so.
fn numbered(line: &str) -> Option<Result<(usize, ListedRank), String>> {
    let rest = line.strip_prefix("rank").filter(|rest| rest.starts_with([' ', '\t']))?;
    let parse = || {
        let spaced = rest.replace('=', " = ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let (rank, host, slots) = match words[..] {
            [rank, "=", host] => (rank, host, None),
            [rank, "=", host, "slot" | "slots", "=", slots] => (rank, host, Some(slots)),
            _ => return Err(format!("`{line}` is not of the form `rank 0=HOST slot=0-1`")),
        };
        let rank = rank.parse().map_err(|_| format!("`{rank}` is not the number of a rank"))?;
        let cpus = slots.map(slot).transpose()?;
        Ok((rank, ListedRank { host: host_of(host)?, cpus }))
    };
    Some(parse())
}

/// Parses a line that begins with a host: `b`, `n[1-3]`, `b slots=2`, `b 0-1`. Numbers of slots mean nothing here.
fn unnumbered(line: &str) -> Result<Vec<ListedRank>, String> {
    let mut words = line.split_whitespace();
    let entry = words.next().unwrap_or_default();
    let cpus = match words.next().filter(|word| !word.contains('=')) {
        Some(list) => Some(CpuChoice::cpus(list)?),
        None => None,
    };
    let named = hosts::parse(&[entry.to_owned()]).map_err(|error| error.to_string())?;
    let listed =
        |host: Host| ListedRank { host: ListedHost::Named(host.to_string()), cpus: cpus.clone() };
    Ok(named.into_iter().map(listed).collect())
}

fn host_of(word: &str) -> Result<ListedHost, String> {
    if let Some(number) = word.strip_prefix("+n") {
        let number = number.parse().map_err(|_| format!("`{word}` is not of the form +n0"))?;
        return Ok(ListedHost::Numbered(number));
    }
    let named = hosts::parse(&[word.to_owned()]).map_err(|error| error.to_string())?;
    match &named[..] {
        [host] => Ok(ListedHost::Named(host.to_string())),
        _ => Err(format!("`{word}` is several hosts")),
    }
}

/// Parses the value of `slot=`: numbers of cores, or with a `p` of CPUs.
fn slot(text: &str) -> Result<CpuChoice, String> {
    if text.contains(':') {
        return Err(format!(
            "slot={text} numbers the cores of each socket: number those of the host, as in slot=4-7"
        ));
    }
    match text.strip_prefix(['p', 'P']) {
        Some(cpus) => CpuChoice::cpus(&cpus.replace(['p', 'P'], "")),
        None => CpuChoice::cores(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<RankList, String> {
        parse(text).map_err(|problem| match problem {
            Problem::Line(line, what) => format!("{line}: {what}"),
            Problem::Missing(rank) => format!("missing {rank}"),
        })
    }

    #[test]
    fn ranks_are_listed_by_number_or_in_turn() {
        let hosts = hosts::parse(&["a,me@b,c".to_owned()]).unwrap();
        let listed =
            parsed("# two\nrank 1=b slot=0,2\n\nrank 0 = +n2  slot = p1-2 # last\nrank 2=a\n")
                .unwrap();
        assert_eq!(listed.indices(&hosts), Ok(vec![2, 1, 0]));
        assert_eq!(listed.cpus(Rank(1)), Some(&CpuChoice::cores("0,2").unwrap()));
        assert_eq!(listed.cpus(Rank(0)), Some(&CpuChoice::cpus("1-2").unwrap()));
        assert_eq!(listed.cpus(Rank(2)), None);
        assert_eq!(listed.names(), ["b", "a"]);
        let in_turn = parsed("\u{feff}b slots=4\na 0-1\nb\nn[1-2]\n").unwrap();
        assert_eq!(in_turn.names(), ["b", "a", "b", "n1", "n2"]);
        assert_eq!(in_turn.cpus(Rank(1)), Some(&CpuChoice::cpus("0-1").unwrap()));
        assert_eq!(in_turn.indices(&hosts), Err((3, "n1".to_owned())));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, what) in [
            ("rank 0=a slot=0\nrank 2=a slot=1", "missing 1"),
            ("", "missing 0"),
            ("rank 0=a\nrank 0=b", "2: rank 0 has another line already"),
            ("rank x=a", "1: `x` is not the number of a rank"),
            ("rank 0=a slot=1:0", "1: slot=1:0 numbers the cores of each socket"),
            ("rank 0=n[1-2] slot=0", "1: `n[1-2]` is several hosts"),
            ("rank 0=a slot=zero", "1: \"zero\" is not a list of CPUs"),
            ("rank 0 a", "1: `rank 0 a` is not of the form"),
            ("rank 0=+nx", "1: `+nx` is not of the form +n0"),
            ("rank 1048576=a", "1: rank 1048576 is more than a job has"),
            ("rank 1048575=a", "missing 0"),
            ("a;b", "1: "),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(what), "{text}: {error}");
        }
    }
}
