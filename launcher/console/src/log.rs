//! `-v`, `--log-level` and `--log-json`: what rlaunch says about its own work, on stderr.

use std::io;
use tracing::Level;
use tracing_subscriber::EnvFilter;

/// Starts logging. `-v` says what happens and `-vv` says it in detail; RLAUNCH_LOG takes a filter
/// of tracing's. Every line of a job carries its id.
pub fn to_stderr(verbose: u8, level: Option<Level>, json: bool) {
    let level = match (level, verbose) {
        (Some(level), _) => format!("rlaunch={level}"),
        (None, 0) => "rlaunch=warn".to_owned(),
        (None, 1) => "rlaunch=info".to_owned(),
        (None, _) => "rlaunch=debug".to_owned(),
    };
    let filter = EnvFilter::try_from_env("RLAUNCH_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let plain = anstream::AutoStream::choice(&io::stderr()) == anstream::ColorChoice::Never;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(!plain)
        // It would say so on the very stderr that cannot be written.
        .log_internal_errors(false)
        .with_target(false);
    // Not `init`: it would also take up what others log, wherever another crate of the same build
    // turns that feature on.
    let set = match json {
        true => tracing::subscriber::set_global_default(log.json().finish()),
        false => tracing::subscriber::set_global_default(log.finish()),
    };
    debug_assert!(set.is_ok(), "logging is started once");
}
