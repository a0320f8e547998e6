//! The agent while its ranks run: each event goes to the part of the agent that it is for.

use crate::agent::inspector::Inspector;
use crate::agent::mesh::Mesh;
use crate::agent::{Agent, Input, is_mesh_message, pass_to_mesh};
use crate::console::errln;
use crate::network::ports::AwaitedPorts;
use crate::network::rendezvous::{Tree, TreeEvent};
use crate::network::until;
use crate::ranks::{RankChange, Ranks, stream_ends};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use tokio::task::yield_now;

impl Agent {
    /// Serves the tree of agents after the ranks of this node have ended, until the launcher ends
    /// the job or closes the channel.
    pub(super) async fn relay_until_end(&mut self, tree: &mut Tree) {
        loop {
            tokio::select! {
                message = self.next_message() => match message {
                    None => return,
                    Some(ToAgent::Relay { from, data }) => tree.on_relayed(from, &data),
                    // The others are for ranks, which have ended.
                    Some(_) => {}
                },
                () = tree.run_once() => {}
            }
        }
    }

    /// Runs the ranks until all have ended and their output is sent.
    pub(super) async fn run_to_completion(
        &mut self,
        ranks: &mut Ranks,
        tree: &mut Tree,
        mesh: &mut Mesh,
        mut ports: AwaitedPorts,
    ) {
        let mut inspector = Inspector::new(&self.channel.to_launcher);
        while !ranks.are_over() {
            if ranks.have_ended() {
                // The prover's paths are no longer used. It must exit now: only once this process
                // has no child is it certain that nothing is left of the ranks.
                mesh.shutdown();
            }
            if ranks.are_ending() {
                inspector.kill_programs(ranks);
            }
            exchange_events(tree, ranks);
            self.is_isolated = tree.is_isolated();
            let timer = until(ranks.deadline());
            let input = match self.early.pop_front() {
                Some(message) => Some(Input::Message(message)),
                None => tokio::select! {
                    input = self.next_input() => Some(input),
                    () = timer => None,
                    () = ranks.drained() => None,
                    () = tree.run_once() => continue,
                    event = mesh.next_event() => {
                        mesh.on_prover_event(event);
                        continue;
                    }
                    answer = inspector.next_answer() => {
                        inspector.on_answer(answer, ranks);
                        continue;
                    }
                    id = ports.next_open() => {
                        self.channel.to_launcher.send(&FromAgent::PortOpen { id });
                        continue;
                    }
                    () = yield_now(), if ranks.are_starting() && !self.suspended => {
                        ranks.start_due();
                        continue;
                    }
                    error = stream_ends::refused_thread() => {
                        ranks.say_held_up(&error);
                        continue;
                    }
                },
            };
            match input {
                Some(input) => self.on_input(input, ranks, tree, mesh, &mut inspector),
                None => ranks.on_deadline(),
            }
        }
    }

    /// Passes an input to the part of the agent that it is for, while ranks run.
    fn on_input(
        &mut self,
        input: Input,
        ranks: &mut Ranks,
        tree: &mut Tree,
        mesh: &mut Mesh,
        inspector: &mut Inspector,
    ) {
        match input {
            Input::Message(ToAgent::Relay { from, data }) => tree.on_relayed(from, &data),
            Input::Message(ToAgent::JobEvent(event)) => tree.notify_ranks(&event),
            Input::Message(ToAgent::Suspend) => {
                tree.watch_for_isolation();
                ranks.signal_all(&[Signal::SIGSTOP]);
                self.channel.to_launcher.send(&FromAgent::Suspended);
            }
            Input::Message(message) if is_mesh_message(&message) => pass_to_mesh(mesh, message),
            Input::Message(message) if Inspector::is_inspection(&message) => {
                inspector.on_inspection(message, ranks);
            }
            input => {
                if let Some(why) = end_reason(&input) {
                    tree.notify_ranks(&JobEvent::JobEnding { why });
                }
                self.pass_to_ranks(input, ranks);
            }
        }
    }

    fn pass_to_ranks(&mut self, input: Input, ranks: &mut Ranks) {
        self.job_is_ending |= matches!(
            input,
            Input::Message(ToAgent::End { .. })
                | Input::Interrupted
                | Input::LauncherGone(_)
                | Input::LauncherSilent(_)
        );
        let to_launcher = &self.channel.to_launcher;
        match input {
            Input::Message(ToAgent::Credit(bytes)) => to_launcher.grant(bytes),
            Input::Message(ToAgent::Stdin(data)) => ranks.feed_stdin(data),
            Input::Message(ToAgent::Signal(signal)) => ranks.forward_signal(signal),
            Input::Signal(signal) => ranks.forward_signal(signal as i32),
            Input::Message(ToAgent::Resize(size)) => ranks.resize(size),
            Input::Message(ToAgent::StartApplication { index }) => ranks.start_application(index),
            Input::Message(ToAgent::End { now }) => ranks.end(now),
            Input::Message(ToAgent::Session { id, what }) => ranks.on_session(id, what),
            Input::Message(ToAgent::Resume) => ranks.signal_all(&[Signal::SIGCONT]),
            // The others belong to steps that are over.
            Input::Message(_) => {}
            Input::Children => ranks.reap(),
            Input::Interrupted => ranks.end(false),
            Input::LauncherGone(reason) => {
                errln!("rlaunch-worker: the launcher is gone: {reason}");
                to_launcher.discard_output();
                ranks.end(false);
            }
            Input::LauncherSilent(_) => {
                to_launcher.discard_output();
                ranks.end(false);
            }
        }
    }
}

/// Passes texts of the tree to the ranks, and changes of ranks to the tree. The tree's other events belong to the steps
/// before the start.
fn exchange_events(tree: &mut Tree, ranks: &mut Ranks) {
    while let Some(event) = tree.poll_event() {
        if let TreeEvent::Print(rank, text) = event {
            ranks.print(rank, &text);
        }
    }
    while let Some(change) = ranks.poll_change() {
        match change {
            RankChange::Started(rank, pid) => tree.rank_started(rank, pid),
            RankChange::Ended(rank, status) => tree.rank_ended(rank, status),
        }
    }
}

/// Returns the reason why this node's ranks are being ended, to be told to the ranks. Returns
/// `None` if the launcher has ordered the end, because the launcher then sends the reason itself.
fn end_reason(input: &Input) -> Option<String> {
    match input {
        Input::Interrupted => Some("the agent was told to end".to_owned()),
        Input::LauncherGone(reason) => Some(format!("the launcher is gone: {reason}")),
        Input::LauncherSilent(length) => {
            Some(format!("nothing from the launcher for {} s", length.as_secs()))
        }
        Input::Message(_) | Input::Children | Input::Signal(_) => None,
    }
}
