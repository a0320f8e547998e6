//! What hosts are asked: a job of the program that copies, whose ranks answer and end.

use super::attempt::{self, Origin};
use crate::commands::bench::own_program;
use crate::commands::bench::records::{self, Ended, LineReader};
use rlaunch_console::deadline::Deadline;
use rlaunch_console::messages;
use rlaunch_copy::control::{Answer, Question};
use rlaunch_engine::connect::agent::store;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Time that the program has here. It gives each command of a container engine 30 s itself.
const HERE: Duration = Duration::from_secs(300);

/// Answers of one machine.
pub(super) type Answers = Vec<Answer>;

/// Asks all hosts of `origin`. Returns the answers of each.
pub(super) async fn hosts(
    origin: Origin<'_>,
    question: &Question,
) -> Result<Vec<(String, Answers)>, Failed> {
    let mut launch = origin.launch(&["answer"])?;
    let names: Vec<String> = launch.spec.hosts.iter().map(ToString::to_string).collect();
    let stdin = attempt::give_to_ranks(&mut launch, attempt::line(question)?)?;
    let reader = AnswerReader { answers: vec![Vec::new(); names.len()] };
    let Ended { ended, reader, .. } = records::run_lines(launch, reader).await?;
    drop(stdin);
    ended?;
    let mut all: Vec<(String, Answers)> = names.into_iter().zip(reader.answers).collect();
    for (host, answers) in &mut all {
        check_end(answers, host)?;
    }
    Ok(all)
}

/// Asks this machine.
pub(super) async fn here(agent: Option<&Path>, question: &Question) -> Result<Answers, Failed> {
    let program = own_program(store::COPIER, agent)?;
    let failed = |error: io::Error| {
        Failed::new(Exit::FILES, format!("cannot run {}: {error}", program.display()))
    };
    let mut command = Command::new(&program);
    command.arg("answer").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(&attempt::line(question)?).await.map_err(failed)?;
    }
    let answered = Deadline::after(HERE).wait("its answer", child.wait_with_output()).await;
    let late = |late| Failed::new(Exit::FILES, format!("{}: {late}", program.display()));
    let output = answered.map_err(late)?.map_err(failed)?;
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let mut answers = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    check_end(&mut answers, "this machine")?;
    Ok(answers)
}

/// Takes the end off answers, without which they are not whole.
fn check_end(answers: &mut Answers, machine: &str) -> Result<(), Failed> {
    if matches!(answers.pop(), Some(Answer::End { .. })) {
        return Ok(());
    }
    Err(Failed::new(Exit::BUG, format!("{machine} has answered only a part of what it was asked")))
}

struct AnswerReader {
    /// By rank.
    answers: Vec<Answers>,
}

impl LineReader for AnswerReader {
    fn take(&mut self, line: &[u8], _facts: Option<&StartFacts>) -> io::Result<()> {
        let Ok(answer) = serde_json::from_slice::<Answer>(line) else {
            messages::warn(String::from_utf8_lossy(line).trim_end());
            return Ok(());
        };
        let (Answer::Images { rank, .. }
        | Answer::NoImages { rank, .. }
        | Answer::Copies { rank, .. }
        | Answer::Pruned { rank, .. }
        | Answer::End { rank }) = &answer;
        let of_rank = usize::try_from(*rank).ok().and_then(|rank| self.answers.get_mut(rank));
        of_rank.into_iter().for_each(|answers| answers.push(answer.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_lack_their_end_are_none() {
        let mut reader = AnswerReader { answers: vec![Vec::new(); 2] };
        let refused = r#"{"no_images":{"rank":1,"engine":"docker","text":"x"}}"#;
        for line in [refused, r#"{"end":{"rank":1}}"#, r#"{"end":{"rank":9}}"#] {
            reader.take(format!("{line}\n").as_bytes(), None).unwrap();
        }
        let [mut none, mut one] = <[Answers; 2]>::try_from(reader.answers).unwrap();
        check_end(&mut one, "b").unwrap();
        assert_eq!(one.len(), 1);
        let failed = check_end(&mut none, "a").unwrap_err();
        assert_eq!(failed.message, "a has answered only a part of what it was asked");
    }
}
