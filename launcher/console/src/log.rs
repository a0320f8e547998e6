//! Log lines of rlaunch on stderr: `-v`, `--log-level` and `--log-json`.

use crate::messages::LogLine;
use std::io;
use tracing::Level;
use tracing_subscriber::EnvFilter;

/// Starts logging to stderr; may be called once per process. `verbose` is the number of `-v` options: 0
/// logs warnings, 1 also info, 2 also debug. `level` overrides `verbose`. The environment variable
/// RLAUNCH_LOG, in the filter syntax of `tracing`, overrides both.
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
        .with_writer(|| LogLine)
        .with_ansi(!plain)
        // A failed write to stderr would be reported on stderr, where it would fail as well.
        .log_internal_errors(false)
        .with_target(false);
    // `init` is not used, because it also installs a bridge for the `log` crate if any crate of the build
    // enables that feature.
    let set = match json {
        true => tracing::subscriber::set_global_default(log.json().finish()),
        false => tracing::subscriber::set_global_default(log.finish()),
    };
    debug_assert!(set.is_ok(), "logging is started once");
}
