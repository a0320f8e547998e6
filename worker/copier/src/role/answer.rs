//! Answers to questions of the launcher about this host.

use super::report::{LOCAL, write_line};
use super::{RoleError, read_line};
use crate::files::{Index, kept};
use crate::images::{EngineError, engines};
use rlaunch_bootstrap::env as names;
use rlaunch_copy::control::{Answer, Question};
use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

/// Reads a question, and answers it.
pub fn answer() -> Result<(), RoleError> {
    let rank = env::var(names::RLAUNCH_RANK).ok().and_then(|rank| rank.parse().ok());
    let question = read_line::<Question>(&mut io::stdin().lock())?;
    let question = question.ok_or(RoleError::NoRequest)?;
    answer_to(&question, rank.unwrap_or(LOCAL), &mut io::stdout());
    Ok(())
}

fn home() -> Option<PathBuf> {
    env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

fn answer_to(question: &Question, rank: u32, out: &mut impl Write) {
    match question {
        Question::Images { engine: named } => {
            for engine in engines(named.as_deref()) {
                let answer = match engine.images() {
                    Ok(engine) => Answer::Images { rank, engine },
                    Err(EngineError::Missing { .. }) if named.is_none() => continue,
                    Err(error) => {
                        let (engine, text) = (engine.name().to_owned(), error.to_string());
                        Answer::NoImages { rank, engine, text }
                    }
                };
                write_line(out, &answer);
            }
        }
        Question::Copies => {
            let copies = kept::copies(&Index::all(), home().as_deref());
            write_line(out, &Answer::Copies { rank, copies });
        }
        Question::Prune { trees } => {
            let pruned = kept::prune(&Index::all(), trees, home().as_deref());
            write_line(out, &Answer::Pruned { rank, pruned });
        }
    }
    write_line(out, &Answer::End { rank });
}
