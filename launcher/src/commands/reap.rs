//! `rlaunch reap`: ends by hand what a job left on its hosts.

use crate::cli::args::ReapArgs;
use crate::commands::agent_query;
use crate::connect::agent::store::AGENT;
use crate::connect::connector::Container;
use rlaunch_bootstrap::cleanup_report::CleanupReport;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::stdout;

/// Reaps on every host at once and prints one line for each.
pub(crate) async fn reap(args: ReapArgs) -> Result<Exit, Failed> {
    if args.reach.container.as_ref().is_some_and(Container::is_image) {
        let message = "containers that are started from an image end with their job";
        let hint = "leave --container out: what is left of one is seen from its host";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let job = args.job.unwrap_or_else(|| "all".to_owned());
    let answers = agent_query::every_host(&args.hosts, args.reach, &format!("reap {job}")).await?;
    let mut failures = Vec::new();
    for (host, answer) in answers {
        match answer.and_then(|answer| what_was_done(&answer, &host.to_string())) {
            Ok(words) => stdout::print(&format!("{host}: {words}\n")),
            Err(failed) => failures.push(failed),
        }
    }
    agent_query::conclude(failures)
}

/// The last line that the agent prints. Any other says nothing about what is left.
fn what_was_done(answer: &[u8], host: &str) -> Result<String, Failed> {
    let text = String::from_utf8_lossy(answer);
    let failed = |cause: String| Failed::new(Exit::HOST, format!("{host}: {cause}"));
    let last = text.lines().last().ok_or_else(|| failed(format!("{AGENT} said nothing")))?;
    match last.parse() {
        Ok(clean @ CleanupReport::Clean { .. }) => Ok(clean.to_string()),
        Ok(CleanupReport::Remaining(processes)) => {
            Err(failed(format!("could not end {processes}")))
        }
        Err(_) => Err(failed(format!("{AGENT} did not say what it ended, but {last:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_program_is_no_success() {
        let words = what_was_done(b"Welcome!\n2 ended, 0 segments removed\n", "a").unwrap();
        assert_eq!(words, "2 ended, 0 segments removed");
        for (line, cause) in [
            ("left: 7 x (state D)", "a: could not end 7 x (state D)"),
            ("logout", "a: rlaunch-worker did not say what it ended, but \"logout\""),
        ] {
            assert_eq!(what_was_done(line.as_bytes(), "a").unwrap_err().message, cause);
        }
    }
}
