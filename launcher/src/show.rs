//! `--show`: what the launcher has decided, for people or for programs. It stops nothing.

use crate::job::JobSpec;
use crate::rendezvous::Joined;
use crate::table;
use std::io::Write;
use std::str::FromStr;

/// Something to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    RankTable(Form),
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl FromStr for Show {
    type Err = String;

    fn from_str(text: &str) -> Result<Show, String> {
        match text {
            "rank-table" => Ok(Show::RankTable(Form::Text)),
            "rank-table=json" => Ok(Show::RankTable(Form::Json)),
            _ => Err("rank-table or rank-table=json can be shown".to_owned()),
        }
    }
}

/// Prints what was asked for to stdout, before any rank writes there. Waits for a slow reader; the
/// wait can be given up.
pub(crate) async fn print(job: &JobSpec, joined: &Joined) {
    let text: String = job.show.iter().map(|show| show.text(joined)).collect();
    if text.is_empty() {
        return;
    }
    let write = move || std::io::stdout().write_all(text.as_bytes());
    // A reader that has gone does not need it.
    drop(tokio::task::spawn_blocking(write).await);
}

impl Show {
    fn text(self, joined: &Joined) -> String {
        match self {
            Show::RankTable(Form::Text) => table::for_people(&joined.table),
            Show::RankTable(Form::Json) => match serde_json::to_string_pretty(&joined.table) {
                Ok(text) => format!("{text}\n"),
                Err(error) => format!("cannot be shown: {error}\n"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_refused() {
        assert_eq!("rank-table".parse(), Ok(Show::RankTable(Form::Text)));
        assert_eq!("rank-table=json".parse(), Ok(Show::RankTable(Form::Json)));
        assert!("rank-table=xml".parse::<Show>().is_err());
        assert!("".parse::<Show>().is_err());
    }
}
