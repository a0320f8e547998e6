//! Questions: which of the planned fixes the user wants.

use super::{FixRecord, Outcome};
use rlaunch_console::messages;
use rlaunch_plan::fixes::{Class, PlannedFix};
use rlaunch_ssh::prompt::Prompter;

/// Divides fixes in those that are to be made and those that are not, by questions where they are needed.
pub(super) async fn choose(
    planned: Vec<PlannedFix>,
    yes: bool,
) -> (Vec<PlannedFix>, Vec<FixRecord>) {
    let asks = planned.iter().any(|fix| matches!(fix.class, Class::Asked(_)));
    let prompter = if asks && !yes { Prompter::open() } else { None };
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for fix in planned {
        match may_be_done(&fix, yes, prompter.as_ref()).await {
            Ok(()) => chosen.push(fix),
            Err(why) => left_out.push(FixRecord::new(&fix, Outcome::Skipped(why))),
        }
    }
    (chosen, left_out)
}

/// Returns why a fix is not to be made.
async fn may_be_done(
    fix: &PlannedFix,
    yes: bool,
    prompter: Option<&Prompter>,
) -> Result<(), &'static str> {
    let Class::Asked(does) = fix.class else { return Ok(()) };
    if yes {
        return Ok(());
    }
    let Some(prompter) = prompter else {
        return Err("it needs your consent: --yes, or a terminal");
    };
    messages::info(&format!("{} on {} {does}:", fix.id(), fix.place()));
    fix.finding.hints().iter().for_each(|hint| messages::hint(hint));
    let answer = prompter.ask_visibly("do it? [y/N] ").await.unwrap_or_default();
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err("you said no"),
    }
}
