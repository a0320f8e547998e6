//! Commands to a running QEMU by QMP: one line of JSON in each direction.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::LabError;

/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Plugs or unplugs the cable of a network card, as its guest sees it.
pub(super) fn set_link(monitor: &Path, interface: usize, up: bool) -> Result<(), LabError> {
    let command = json!({
        "execute": "set_link",
        "arguments": { "name": format!("net{interface}"), "up": up },
    });
    let operation = format!("set the link of eth{interface} by {}", monitor.display());
    let io = || LabError::io(operation.clone());
    let stream = UnixStream::connect(monitor).map_err(io())?;
    stream.set_read_timeout(Some(ANSWER)).map_err(io())?;
    let mut writer = stream.try_clone().map_err(io())?;
    let mut lines = BufReader::new(stream).lines();
    for command in [json!({ "execute": "qmp_capabilities" }), command] {
        writer.write_all(format!("{command}\n").as_bytes()).map_err(io())?;
        // QEMU also sends a greeting and events.
        let answer = loop {
            let line =
                lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
            if let Some(answer) = answer(&line.map_err(io())?) {
                break answer;
            }
        };
        answer.map_err(|why| LabError::Unexpected(format!("could not {operation}: {why}")))?;
    }
    Ok(())
}

/// Parses the answer to the last command. Returns nothing if the line is not an answer.
fn answer(line: &str) -> Option<Result<(), String>> {
    let line: Value = serde_json::from_str(line).ok()?;
    match (line.get("return"), line.get("error")) {
        (Some(_), _) => Some(Ok(())),
        (_, Some(error)) => Some(Err(error["desc"].as_str().unwrap_or("QEMU refused").into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_events() {
        assert_eq!(answer(r#"{"QMP": {"version": {}, "capabilities": []}}"#), None);
        assert_eq!(answer(r#"{"event": "NIC_RX_FILTER_CHANGED", "data": {}}"#), None);
        assert_eq!(answer(r#"{"return": {}}"#), Some(Ok(())));
        let line = r#"{"error": {"class": "DeviceNotFound", "desc": "Device 'net9' not found"}}"#;
        assert_eq!(answer(line), Some(Err("Device 'net9' not found".into())));
        assert_eq!(answer("no JSON"), None);
    }
}
