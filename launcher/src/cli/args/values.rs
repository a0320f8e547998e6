//! Parsers of options' values. The error of each says which values are accepted.

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use rlaunch_bootstrap::job::{PortRange, below_home};
use rlaunch_bootstrap::protocol::control::BEAT;
use rlaunch_plan::job::name::{JobName, JobNameError};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use strum::VariantArray;

/// Returns the parser of a path on this machine. `~/x` is in the home directory here.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new()
        .map(|path: PathBuf| below_home(&path, std::env::var_os("HOME").as_deref()))
}

/// Parses a word that means a job. Ids have the form of names.
pub(crate) fn parse_job_word(text: &str) -> Result<String, String> {
    match text.parse::<JobName>() {
        Ok(_) | Err(JobNameError::Last) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a word for a job that a verb asks about. A number of jobs back, as in `!-3` of a shell, means none; clap would
/// advise to type `-- -3`.
pub(crate) fn parse_listed_job(text: &str) -> Result<String, String> {
    match text.strip_prefix('-').and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => Err(format!(
            "a job has a name or an id: `rlaunch jobs -n {number}` lists the last {number}"
        )),
        None => Ok(text.to_owned()),
    }
}

pub(crate) fn parse_ranks(text: &str) -> Result<u32, String> {
    let ranks = text.trim().parse().ok().filter(|&n: &u32| n > 0);
    ranks.ok_or_else(|| "a number of ranks, 1 or more".to_owned())
}

/// Reads a number of bytes, in which K, M and G are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.trim().char_indices().last() {
        Some((at, 'K' | 'k')) => (&text.trim()[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text.trim()[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text.trim()[..at], 1 << 30),
        _ => (text.trim(), 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Parses a number of bytes above 0.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).and_then(|bytes| u64::try_from(bytes).ok());
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a number of bytes, such as 500M or 3G".to_owned())
}

/// Parses a number of seconds from 0 to 3600, which may have a fraction.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds);
    duration.ok().filter(|d| d.as_secs() <= 3600).ok_or_else(|| "0 to 3600 seconds".to_owned())
}

/// Parses the time without progress after which a job hangs, in seconds: 1 to 86400.
pub(crate) fn parse_hang_timeout(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(86_400);
    let timeout = parse_timeout(text).ok();
    let timeout = timeout.filter(|time| (Duration::from_secs(1)..=LONGEST).contains(time));
    timeout.ok_or_else(|| format!("1 to {} seconds", LONGEST.as_secs()))
}

/// Parses a node timeout in seconds: at least two beats ([`BEAT`]), at most 3600.
pub(crate) fn parse_node_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_seconds(text).ok().filter(|&timeout| timeout >= BEAT * 2);
    timeout.ok_or_else(|| format!("{} to 3600 seconds", BEAT.as_secs() * 2))
}

/// Parses a number of seconds above 0, which may have a fraction.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).ok();
    duration.filter(|d| !d.is_zero()).ok_or_else(|| "more than 0 seconds".to_owned())
}

/// TCP ports that the driver of eRDMA devices reserves in its compat mode, so that jobs cannot use them.
const ERDMA_PORTS: std::ops::RangeInclusive<u16> = 30608..=30623;

pub(crate) fn parse_master_port(text: &str) -> Result<u16, String> {
    let port = text.trim().parse().ok().filter(|&port: &u16| port >= 1024);
    let port = port.ok_or_else(|| "a port from 1024 to 65535".to_owned())?;
    if ERDMA_PORTS.contains(&port) {
        return Err("a port other than 30608-30623, which eRDMA's compat mode takes".to_owned());
    }
    Ok(port)
}

pub(crate) fn parse_port_range(text: &str) -> Result<PortRange, String> {
    let wanted = || "a range of ports like 21000-21511".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wanted)?;
    let first: u16 = first.trim().parse().map_err(|_| wanted())?;
    let last: u16 = last.trim().parse().map_err(|_| wanted())?;
    if first < 1024 || first > last {
        return Err("ports from 1024 up, the lower one first".to_owned());
    }
    if first <= *ERDMA_PORTS.end() && last >= *ERDMA_PORTS.start() {
        return Err("ports other than 30608-30623, which eRDMA's compat mode takes".to_owned());
    }
    Ok(PortRange { first, last })
}

/// Returns the parser of an option whose values are the variants of `T`, by their names.
pub(crate) fn named<T>() -> impl TypedValueParser<Value = T>
where
    T: VariantArray + FromStr + Clone + Send + Sync + 'static,
    &'static str: for<'a> From<&'a T>,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let names = T::VARIANTS.iter().map(<&'static str>::from);
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Returns the parser of an option whose values have these names.
pub(crate) fn one_of<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).try_map(move |name| {
        let named = values.iter().find(|(known, _)| *known == name);
        named.map(|(_, value)| value.clone()).ok_or("this value has no meaning")
    })
}
