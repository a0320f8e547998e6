//! Lines that PMI-1 clients send.

use thiserror::Error;

/// Maximum length in bytes of a line. Clients build lines in buffers of 1024 or 4096 bytes; only the
/// message of an abort may be longer.
pub(super) const LINE_MAX: usize = 16 * 1024;

/// Request of a client: a line without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pmi1Request<'a> {
    /// First line on a connection to the agent's port.
    Identify { id: u32 },
    /// Begins with MPI.
    Init { version: i32 },
    /// Asks for the lengths of names, keys and values.
    Maxes,
    /// Asks for the number of the program among those of the job.
    Appnum,
    /// Asks for the name of the key-value store.
    KvsName,
    /// Asks for the number of ranks that the job may have.
    UniverseSize,
    /// Stores a value.
    Put { kvsname: &'a [u8], key: &'a [u8], value: &'a [u8] },
    /// Reads a value.
    Get { kvsname: &'a [u8], key: &'a [u8] },
    /// Enters a fence.
    Barrier { is_world: bool },
    /// Ends with MPI.
    Finalize,
    /// Ends the job.
    Abort { code: i32, message: String },
    /// Publishes a port under the name of a service.
    Publish { service: &'a [u8], port: &'a [u8] },
    /// Asks for the port of a service.
    Lookup { service: &'a [u8] },
    /// Withdraws a service.
    Unpublish { service: &'a [u8] },
    /// First line of a block that asks for new processes.
    Spawn,
    /// Command that this server does not know. Its name has only letters, digits and `_`.
    Unknown(&'a str),
}

/// Reason why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum LineError {
    /// The line does not begin with the name of a command.
    #[error("the line does not begin with cmd=NAME")]
    NoCommand,
    /// A field is missing.
    #[error("a field is missing")]
    Missing,
    /// A field is not a number in the allowed range.
    #[error("a field is not a number in the allowed range")]
    NotANumber,
}

/// Parses a line without its end.
pub(super) fn parse(line: &[u8]) -> Result<Pmi1Request<'_>, LineError> {
    let line = line.trim_ascii_end();
    if line == b"mcmd=spawn" {
        return Ok(Pmi1Request::Spawn);
    }
    let line = line.strip_prefix(b"cmd=").ok_or(LineError::NoCommand)?;
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let (command, fields) = line.split_at(end);
    let command = std::str::from_utf8(command).map_err(|_| LineError::NoCommand)?;
    Ok(match command {
        "initack" => Pmi1Request::Identify { id: number(fields, "pmiid")? },
        "init" => Pmi1Request::Init { version: number(fields, "pmi_version")? },
        "get_maxes" => Pmi1Request::Maxes,
        "get_appnum" => Pmi1Request::Appnum,
        "get_my_kvsname" => Pmi1Request::KvsName,
        "get_universe_size" => Pmi1Request::UniverseSize,
        "put" => Pmi1Request::Put {
            kvsname: word(fields, "kvsname")?,
            key: word(fields, "key")?,
            value: rest(fields, "value")?,
        },
        "get" => Pmi1Request::Get { kvsname: word(fields, "kvsname")?, key: word(fields, "key")? },
        "barrier_in" => {
            let group = word(fields, "group").unwrap_or(b"WORLD");
            Pmi1Request::Barrier { is_world: group == b"WORLD" }
        }
        "finalize" => Pmi1Request::Finalize,
        "abort" => Pmi1Request::Abort {
            code: number(fields, "exitcode").unwrap_or(1),
            message: text(rest(fields, "message").unwrap_or_default()),
        },
        "publish_name" => publish(fields)?,
        "lookup_name" => Pmi1Request::Lookup { service: rest(fields, "service")? },
        "unpublish_name" => Pmi1Request::Unpublish { service: rest(fields, "service")? },
        _ => Pmi1Request::Unknown(name(command)?),
    })
}

/// Returns the value of `field=number` in a line of a spawn block.
pub(super) fn block_number(line: &[u8], field: &str) -> Option<u32> {
    let value = line.strip_prefix(field.as_bytes())?.strip_prefix(b"=")?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Parses the fields of `publish_name`. Clients write spaces of the service as they are, so the service
/// ends at the last field `port`.
fn publish(fields: &[u8]) -> Result<Pmi1Request<'_>, LineError> {
    const PORT: &[u8] = b" port=";
    let fields = rest(fields, "service")?;
    let at =
        fields.windows(PORT.len()).rposition(|window| window == PORT).ok_or(LineError::Missing)?;
    let (service, port) = fields.split_at(at);
    Ok(Pmi1Request::Publish { service, port: port.get(PORT.len()..).unwrap_or_default() })
}

/// Returns the value of a field to the end of the line.
fn rest<'a>(fields: &'a [u8], field: &'static str) -> Result<&'a [u8], LineError> {
    let starts = |at: usize| {
        let after = fields.get(at..)?.strip_prefix(b" ")?;
        after.strip_prefix(field.as_bytes())?.strip_prefix(b"=")
    };
    (0..fields.len()).find_map(starts).ok_or(LineError::Missing)
}

/// Returns the value of a field to the next space.
fn word<'a>(fields: &'a [u8], field: &'static str) -> Result<&'a [u8], LineError> {
    let value = rest(fields, field)?;
    Ok(value.split(|&byte| byte == b' ').next().unwrap_or_default())
}

/// Returns the value of a field that is a number.
fn number<N: std::str::FromStr>(fields: &[u8], field: &'static str) -> Result<N, LineError> {
    let value = word(fields, field)?;
    let value = std::str::from_utf8(value).map_err(|_| LineError::NotANumber)?;
    value.parse().map_err(|_| LineError::NotANumber)
}

/// Returns text for the user without control characters.
fn text(bytes: &[u8]) -> String {
    let blank = |letter: char| if letter.is_control() { ' ' } else { letter };
    String::from_utf8_lossy(bytes).chars().map(blank).collect()
}

/// Returns the name of an unknown command if it may be part of an answer.
fn name(command: &str) -> Result<&str, LineError> {
    /// Longest command of PMI-1 has 17 letters.
    const NAME_MAX: usize = 64;
    let fits = (1..=NAME_MAX).contains(&command.len());
    let is_plain = command.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if fits && is_plain { Ok(command) } else { Err(LineError::NoCommand) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_runs_to_the_end_of_the_line() {
        let request = parse(b"cmd=put kvsname=K key=k value=a b=c key=x [#$]").unwrap();
        let value: &[u8] = b"a b=c key=x [#$]";
        assert_eq!(request, Pmi1Request::Put { kvsname: b"K", key: b"k", value });
        let request = parse(b"cmd=put kvsname=K key=k value=").unwrap();
        assert_eq!(request, Pmi1Request::Put { kvsname: b"K", key: b"k", value: b"" });
    }

    #[test]
    fn a_service_may_have_spaces_and_even_a_port() {
        let request = parse(b"cmd=publish_name service=my svc port=2 port=tag#0$x$").unwrap();
        assert_eq!(request, Pmi1Request::Publish { service: b"my svc port=2", port: b"tag#0$x$" });
        let request = parse(b"cmd=lookup_name service=my svc").unwrap();
        assert_eq!(request, Pmi1Request::Lookup { service: b"my svc" });
        assert_eq!(parse(b"cmd=publish_name service=x"), Err(LineError::Missing));
    }

    #[test]
    fn an_abort_needs_nothing() {
        let abort = |code, message: &str| Pmi1Request::Abort { code, message: message.to_owned() };
        assert_eq!(parse(b"cmd=abort"), Ok(abort(1, "")));
        assert_eq!(parse(b"cmd=abort exitcode=x"), Ok(abort(1, "")));
        assert_eq!(
            parse(b"cmd=abort exitcode=-7 message=all\x1b[ over"),
            Ok(abort(-7, "all [ over"))
        );
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(parse(b""), Err(LineError::NoCommand));
        assert_eq!(parse(b"cmd="), Err(LineError::NoCommand));
        assert_eq!(parse(b"cmd=\xff"), Err(LineError::NoCommand));
        assert_eq!(parse(b"cmd=a;b"), Err(LineError::NoCommand));
        assert_eq!(parse(b"mcmd=other"), Err(LineError::NoCommand));
        assert_eq!(parse(b"cmd=get key=k"), Err(LineError::Missing));
        assert_eq!(parse(b"cmd=initack"), Err(LineError::Missing));
        assert_eq!(parse(b"cmd=initack pmiid=-1"), Err(LineError::NotANumber));
        assert_eq!(parse(b"cmd=getbyidx idx=0"), Ok(Pmi1Request::Unknown("getbyidx")));
    }

    #[test]
    fn a_barrier_of_a_group_is_told_apart() {
        assert_eq!(parse(b"cmd=barrier_in\r"), Ok(Pmi1Request::Barrier { is_world: true }));
        assert_eq!(
            parse(b"cmd=barrier_in group=WORLD"),
            Ok(Pmi1Request::Barrier { is_world: true })
        );
        assert_eq!(
            parse(b"cmd=barrier_in group=NODE:1"),
            Ok(Pmi1Request::Barrier { is_world: false })
        );
    }
}
