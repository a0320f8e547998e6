//! Streams of the tasks of a step. srun puts the number of a task in front of each of its lines, and the task's first line
//! says on which node it runs.

use crate::connect::channel::{AgentReader, AgentWriter, Incoming};
use bytes::Bytes;
use rlaunch_console::{deadline, messages};
use rlaunch_plan::hosts::{self, Host};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// Words with which the first line of a task begins; its number, its architecture and the name of its node follow.
pub(in crate::connect::connector) const TASK_LINE: &str = "rlaunch-install task ";
/// Maximum number of lines of each [`Kind`] that wait to be read in the stream of a task.
const UNREAD_LINES: usize = 64;
/// Time limit for the last output of srun, once the streams of its tasks have no reader.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Maximum length of a line, in bytes. Longer ones are cut.
const MAX_LINE: usize = 16 << 10;

/// Reads what the tasks of a step on these nodes print, until srun ends or all readers are gone. Returns the streams by node.
/// `is_ended` says whether the user is told nothing more of the end of the step.
pub(super) fn read(
    nodes: &[String],
    reader: AgentReader,
    stdin: Option<AgentWriter>,
    is_ended: bool,
) -> (HashMap<String, StepReader>, JoinHandle<()>) {
    let (open, all_gone) = mpsc::channel(1);
    let streams = nodes.iter().map(|node| {
        let (lines, unread) = unread();
        let reader = StepReader { unread, _open: open.clone() };
        ((node.clone(), lines), (node.clone(), reader))
    });
    let (unplaced, waiting): (HashMap<_, _>, HashMap<_, _>) = streams.unzip();
    let tasks = Tasks { unplaced, is_ended, ..Tasks::default() };
    (waiting, tokio::spawn(distribute(reader, stdin, tasks, all_gone)))
}

/// Stream of one task of a step that has several.
pub struct StepReader {
    unread: Arc<Unread>,
    /// Dropped with the reader. The step ends with the last one.
    _open: mpsc::Sender<()>,
}

impl StepReader {
    /// Returns the next line; `None` once the task has ended, or the whole step. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        loop {
            // A notification that comes before the wait for it is kept.
            match self.unread.lines().take() {
                Taken::Line(line) => return Some(line),
                Taken::Ended => return None,
                Taken::Nothing => {}
            }
            self.unread.changed.notified().await;
        }
    }
}

/// Source of a line. Each has its own share of a stream, so that a task that writes much pushes out nothing else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// stdout of a task: what an agent says, which is little. Later lines are dropped.
    Output,
    /// stderr of a task. The oldest lines are dropped.
    Words,
    /// srun itself. The oldest lines are dropped.
    Srun,
}

/// Lines of a task that are not read yet.
#[derive(Default)]
struct Unread {
    lines: Mutex<UnreadLines>,
    changed: Notify,
}

#[derive(Default)]
struct UnreadLines {
    waiting: VecDeque<(Kind, Incoming)>,
    is_ended: bool,
}

enum Taken {
    Line(Incoming),
    Nothing,
    Ended,
}

impl Unread {
    fn lines(&self) -> MutexGuard<'_, UnreadLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnreadLines {
    fn take(&mut self) -> Taken {
        match self.waiting.pop_front() {
            Some((_, line)) => Taken::Line(line),
            None if self.is_ended => Taken::Ended,
            None => Taken::Nothing,
        }
    }

    fn add(&mut self, kind: Kind, line: Incoming) {
        if self.waiting.iter().filter(|(other, _)| *other == kind).count() >= UNREAD_LINES {
            if kind == Kind::Output {
                return;
            }
            let oldest = self.waiting.iter().position(|(other, _)| *other == kind);
            oldest.map(|at| self.waiting.remove(at));
        }
        self.waiting.push_back((kind, line));
    }
}

/// Makes a stream of lines: the end that writes, and the one that reads.
fn unread() -> (LineSender, Arc<Unread>) {
    let unread = Arc::new(Unread::default());
    (LineSender(Arc::clone(&unread)), unread)
}

/// Writing end of the stream of a task, which ends when this is dropped.
struct LineSender(Arc<Unread>);

impl LineSender {
    fn send(&self, kind: Kind, text: &str) {
        let bytes: Bytes = format!("{text}\n").into();
        let line = match kind {
            Kind::Output => Incoming::Data(bytes),
            Kind::Words | Kind::Srun => Incoming::Diagnostics(bytes),
        };
        self.0.lines().add(kind, line);
        self.0.changed.notify_one();
    }
}

impl Drop for LineSender {
    fn drop(&mut self) {
        self.0.lines().is_ended = true;
        self.0.changed.notify_one();
    }
}

/// Reads what srun prints until it ends or all readers are gone. Then the tasks read a line, and srun gets SIGTERM, unless
/// it ends soon, and ends the tasks.
async fn distribute(
    mut srun: AgentReader,
    stdin: Option<AgentWriter>,
    mut tasks: Tasks,
    mut all_gone: mpsc::Receiver<()>,
) {
    let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
    let is_left = loop {
        let incoming = tokio::select! {
            incoming = srun.next() => incoming,
            _ = all_gone.recv() => break true,
        };
        match incoming {
            Some(Incoming::Data(bytes)) => stdout.push(&bytes, |line| tasks.on_output(line)),
            Some(Incoming::Diagnostics(bytes)) => stderr.push(&bytes, |line| tasks.on_words(line)),
            None => break false,
        }
    };
    stdout.finish(|line| tasks.on_output(line));
    if let Some(mut stdin) = stdin {
        let _ = stdin.send(Bytes::from_static(b"\n")).await;
    }
    if is_left {
        hear_out(&mut srun, &mut stderr, &mut tasks).await;
    }
    stderr.finish(|line| tasks.on_words(line));
    // The ends of the streams tell the readers, which must come after srun's exit status is known.
    drop(tasks);
    srun.reap().await;
}

/// Passes on what Slurm says of the end, which may come behind what the agents say of theirs.
async fn hear_out(srun: &mut AgentReader, stderr: &mut Lines, tasks: &mut Tasks) {
    let words = async {
        while let Some(incoming) = srun.next().await {
            if let Incoming::Diagnostics(bytes) = incoming {
                stderr.push(&bytes, |line| tasks.on_words(line));
            }
        }
    };
    deadline::within(LAST_WORDS, words).await;
}

/// Bytes up to the end of a line.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.0.len());
            self.0.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                on_line(String::from_utf8_lossy(&self.0).trim_end());
                self.0.clear();
            }
        }
    }

    /// Passes on a last line that has no newline.
    fn finish(&mut self, on_line: impl FnOnce(&str)) {
        let rest = std::mem::take(&mut self.0);
        if !rest.is_empty() {
            on_line(String::from_utf8_lossy(&rest).trim_end());
        }
    }
}

/// Tasks of a step whose streams are open.
#[derive(Default)]
struct Tasks {
    /// Nodes whose task has not said its number yet.
    unplaced: HashMap<String, LineSender>,
    /// Streams by the number of the task.
    placed: HashMap<u32, LineSender>,
    /// Whether the user is told no more that Slurm ends the step.
    is_ended: bool,
}

impl Tasks {
    /// Passes a line of stdout to the reader of its task.
    fn on_output(&mut self, line: &str) {
        let Some((task, text)) = labelled(line) else { return };
        if let Some(of) = text.strip_prefix(TASK_LINE)
            && let Some((_, node)) = of.rsplit_once(' ')
            && let Some(lines) = self.unplaced.remove(node)
        {
            self.placed.insert(task, lines);
        }
        if let Some(lines) = self.placed.get(&task) {
            lines.send(Kind::Output, text);
        }
    }

    /// Passes a line of stderr to the reader of its task, or a line of srun itself to all that it is about.
    fn on_words(&mut self, line: &str) {
        if let Some(why) = ended_by_slurm(line)
            && !std::mem::replace(&mut self.is_ended, true)
        {
            messages::warn(&format!("Slurm ends the job: {why}"));
        }
        if let Some((task, text)) = labelled(line) {
            if let Some(lines) = self.placed.get(&task) {
                lines.send(Kind::Words, text);
            }
            return;
        }
        let Some((nodes, tasks)) = ended_tasks(line) else {
            let all = self.placed.values().chain(self.unplaced.values());
            return all.for_each(|lines| lines.send(Kind::Srun, line));
        };
        let placed = tasks.into_iter().filter_map(|task| self.placed.remove(&task));
        // Tasks that failed before their first line.
        let unplaced = nodes.iter().filter_map(|node| self.unplaced.remove(node));
        placed.chain(unplaced).for_each(|lines| lines.send(Kind::Srun, line));
    }
}

/// Splits `12: text`, as `srun --label` prints the lines of task 12. Numbers are padded to the same width.
fn labelled(line: &str) -> Option<(u32, &str)> {
    let (task, text) = line.split_once(':')?;
    Some((task.trim_start().parse().ok()?, text.strip_prefix(' ').unwrap_or(text)))
}

/// Returns what Slurm says in a line such as `slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME
/// LIMIT ***`.
pub(in crate::connect::connector) fn ended_by_slurm(line: &str) -> Option<&str> {
    let (_, said) = line.split_once("*** ")?;
    let (said, _) = said.split_once(" ***")?;
    (said.starts_with("STEP ") || said.starts_with("JOB ")).then_some(said)
}

/// Returns the nodes and the tasks of a line by which srun says that tasks have ended, such as
/// `srun: error: h[2-3]: tasks 1-2: Exited with exit code 1`.
fn ended_tasks(line: &str) -> Option<(Vec<String>, Vec<u32>)> {
    let (_, text) = line.split_once("error: ")?;
    let (nodes, rest) = text.split_once(": task")?;
    let (tasks, _) = rest.strip_prefix('s').unwrap_or(rest).trim_start().split_once(": ")?;
    let numbers = hosts::parse(&[format!("t[{tasks}]")]).ok()?;
    let numbers = numbers.iter().filter_map(|name| name.name.strip_prefix('t')?.parse().ok());
    let names = |listed: Vec<Host>| listed.into_iter().map(|host| host.name).collect();
    let nodes = hosts::parse(&[nodes.to_owned()]).map_or_else(|_| vec![nodes.to_owned()], names);
    Some((nodes, numbers.collect()))
}

#[cfg(test)]
pub(in crate::connect::connector) mod tests {
    use super::*;

    /// Writing end of the stream of a task.
    pub(in crate::connect::connector) struct TaskLines(LineSender);

    impl TaskLines {
        pub(in crate::connect::connector) fn output(&self, line: &str) {
            self.0.send(Kind::Output, line);
        }

        pub(in crate::connect::connector) fn srun(&self, line: &str) {
            self.0.send(Kind::Srun, line);
        }
    }

    /// Makes the stream of a task.
    pub(in crate::connect::connector) fn stream() -> (TaskLines, StepReader) {
        let (lines, unread) = unread();
        (TaskLines(lines), StepReader { unread, _open: mpsc::channel(1).0 })
    }

    fn tasks(nodes: &[&str]) -> (Tasks, HashMap<String, Arc<Unread>>) {
        let channels = nodes.iter().map(|node| {
            let (lines, unread) = unread();
            (((*node).to_owned(), lines), ((*node).to_owned(), unread))
        });
        let (unplaced, unread) = channels.unzip();
        (Tasks { unplaced, ..Tasks::default() }, unread)
    }

    /// Returns all that waits in a stream; the last word says whether it is open.
    fn read(unread: &Unread) -> String {
        let mut text = String::new();
        loop {
            match unread.lines().take() {
                Taken::Line(Incoming::Data(line)) => text += &String::from_utf8_lossy(&line),
                Taken::Line(Incoming::Diagnostics(line)) => {
                    text += &format!("! {}", String::from_utf8_lossy(&line));
                }
                Taken::Nothing => return text + "open",
                Taken::Ended => return text + "ended",
            }
        }
    }

    #[test]
    fn each_node_reads_the_lines_of_its_task() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3"]);
        for line in [
            " 1: rlaunch-install task 1 x h3", " 0: rlaunch-install task 0 x h1", " 1: at: x",
            "stray",
        ] {
            tasks.on_output(line);
        }
        tasks.on_words(" 0: sh: no");
        tasks.on_words("srun: busy");
        assert_eq!(read(&unread["h3"]), "rlaunch-install task 1 x h3\nat: x\n! srun: busy\nopen");
        let of_first = "rlaunch-install task 0 x h1\n! sh: no\n! srun: busy\nopen";
        assert_eq!(read(&unread["h1"]), of_first);
        assert_eq!(read(&unread["h2"]), "! srun: busy\nopen");
    }

    #[test]
    fn a_task_that_has_ended_ends_its_stream_alone() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3", "h4"]);
        for task in 0..3 {
            tasks.on_output(&format!("{task}: rlaunch-install task {task} x h{}", task + 1));
        }
        let ended = "srun: error: h[2-3]: tasks 1-2: Exited with exit code 1";
        tasks.on_words(ended);
        tasks.on_words("srun: error: h4: task 3: Bus error");
        let last = |node: &str| read(&unread[node]).lines().last().unwrap().to_owned();
        assert_eq!(["h1", "h2", "h3", "h4"].map(last), ["open", "ended", "ended", "ended"]);
    }

    #[test]
    fn tasks_of_several_nodes_that_end_before_their_first_line_end_their_streams() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3"]);
        let ended = "srun: error: h[2-3]: tasks 1-2: Exited with exit code 1";
        tasks.on_words(ended);
        let ends = ["h1", "h2", "h3"].map(|node| read(&unread[node]));
        assert_eq!(
            ends,
            ["open".to_owned(), format!("! {ended}\nended"), format!("! {ended}\nended")]
        );
    }

    #[test]
    fn what_a_task_writes_pushes_out_only_its_own_older_words() {
        let (mut tasks, unread) = tasks(&["h1"]);
        tasks.on_output("0: rlaunch-install task 0 x h1");
        tasks.on_words("srun: first");
        for number in 0..10 * UNREAD_LINES {
            tasks.on_words(&format!("0: noise {number}"));
        }
        tasks.on_output("0: rlaunch-install key");
        tasks.on_words("srun: last");
        let seen = read(&unread["h1"]);
        let begin =
            format!("rlaunch-install task 0 x h1\n! srun: first\n! noise {}\n", 9 * UNREAD_LINES);
        assert!(seen.starts_with(&begin), "{seen}");
        assert!(seen.ends_with("rlaunch-install key\n! srun: last\nopen"), "{seen}");
        assert_eq!(seen.lines().count(), UNREAD_LINES + 5);
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_a_line_and_by_the_end() {
        let (open, _gone) = mpsc::channel(1);
        let (lines, unread) = unread();
        let mut reader = StepReader { unread, _open: open };
        let reading = tokio::spawn(async move {
            let first = reader.next().await;
            (matches!(first, Some(Incoming::Data(_))), reader.next().await.is_none())
        });
        tokio::task::yield_now().await;
        lines.send(Kind::Output, "x");
        tokio::task::yield_now().await;
        drop(lines);
        assert_eq!(reading.await.unwrap(), (true, true));
    }

    #[test]
    fn slurms_reason_for_the_end_is_found() {
        let line = "slurmstepd-a: error: *** STEP 2.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME LIMIT ***";
        let why = "STEP 2.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME LIMIT";
        assert_eq!(ended_by_slurm(line), Some(why));
        assert_eq!(ended_by_slurm("srun: *** note ***"), None);
    }

    #[test]
    fn lines_come_in_any_pieces_and_have_a_limit() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for part in ["0: a", "b\n1: ", "c\n"] {
            lines.push(part.as_bytes(), |line| seen.push(line.to_owned()));
        }
        lines.push(&vec![b'x'; 10 * MAX_LINE], |_| ());
        lines.push(b"\n", |line| seen.push(line.len().to_string()));
        lines.push(b"1: last words", |_| ());
        lines.finish(|line| seen.push(line.to_owned()));
        lines.finish(|line| seen.push(line.to_owned()));
        let longest = MAX_LINE.to_string();
        assert_eq!(seen, ["0: ab", "1: c", &longest, "1: last words"]);
    }
}
