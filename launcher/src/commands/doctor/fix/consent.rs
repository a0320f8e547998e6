//! Questions: which of the planned fixes the user wants.

use super::{FixRecord, Outcome};
use crate::commands::doctor::Examination;
use rlaunch_console::messages;
use rlaunch_plan::fixes::{Class, PlannedFix};
use rlaunch_ssh::prompt::Prompter;

/// Divides fixes in those that are to be made and those that are not, by questions where they are needed.
pub(super) async fn choose(
    planned: Vec<PlannedFix>,
    yes: bool,
    examination: &Examination,
) -> (Vec<PlannedFix>, Vec<FixRecord>) {
    let asks = planned.iter().any(|fix| matches!(fix.class, Class::Asked(_)));
    let prompter = if asks && !yes { Prompter::open() } else { None };
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for fix in planned {
        let answer = if is_in_container(&fix, examination) {
            Err("it runs in a container: what it lacks is given to it when it is started")
        } else {
            may_be_done(&fix, yes, prompter.as_ref()).await
        };
        match answer {
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

/// Tells whether a host of the fix is a container for its agent.
pub(in crate::commands::doctor) fn is_in_container(
    fix: &PlannedFix,
    examination: &Examination,
) -> bool {
    let changes = fix.changes();
    let mut hosts = examination.hosts.iter();
    hosts.any(|host| {
        host.diagnosis.inventory.system.container.is_some()
            && changes.iter().any(|(name, _)| *name == host.name)
    })
}
