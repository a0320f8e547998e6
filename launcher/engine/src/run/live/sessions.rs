//! Sessions beside ranks, between their clients and the agents. A state machine without I/O, part of the
//! supervisor.
//!
//! Clients and agents may be hostile: an end that sends a message before the last one was taken is cut off, so
//! that the queues between them stay short.

use super::messages::Reply;
use super::socket::ConnectionId;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::session::{
    FromSession, MAX_SESSION_DATA, SessionError, SessionStart, ToSession,
};
use std::collections::BTreeMap;

/// Sessions that have begun and are not over.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    next: u32,
    open: BTreeMap<u32, OpenSession>,
    steps: Vec<SessionStep>,
}

/// Message that the supervisor must send.
#[derive(Debug, PartialEq)]
pub(crate) enum SessionStep {
    Send(NodeId, ToAgent),
    Reply(ConnectionId, Reply),
}

#[derive(Debug)]
struct OpenSession {
    connection: ConnectionId,
    node: NodeId,
    input: Lane,
    output: Lane,
    size: Lane,
}

/// Kind of message that has to be taken before the next one is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lane {
    #[default]
    Free,
    /// A message was sent and is not taken yet.
    Busy,
}

impl Lane {
    /// Takes note that a message is sent. Returns false if the last one was not taken.
    fn send(&mut self) -> bool {
        std::mem::replace(self, Lane::Busy) == Lane::Free
    }

    /// Takes note that the message was taken. Returns false if none was sent.
    fn take(&mut self) -> bool {
        std::mem::replace(self, Lane::Free) == Lane::Busy
    }
}

impl Sessions {
    /// Begins a session for a client. `node` runs the rank, or is the reason why the session cannot begin.
    pub(crate) fn start(
        &mut self,
        connection: ConnectionId,
        start: SessionStart,
        node: Result<NodeId, String>,
    ) {
        let node = match (node, self.of_client(connection)) {
            (Ok(node), None) => node,
            (Err(why), None) => return self.reply(connection, Reply::Refused(why)),
            // A client has one session on its connection.
            (_, Some(id)) => return self.cut(id),
        };
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let session = OpenSession {
            connection,
            node,
            input: Lane::Free,
            output: Lane::Free,
            size: Lane::Free,
        };
        self.open.insert(id, session);
        self.send(node, id, ToSession::Start(start));
    }

    /// Handles a message of a client for its session. The session may be over already.
    pub(crate) fn on_client(&mut self, connection: ConnectionId, what: ToSession) {
        let Some(id) = self.of_client(connection) else { return };
        let Some(session) = self.open.get_mut(&id) else { return };
        let is_valid = match &what {
            ToSession::Stdin(data) => data.len() <= MAX_SESSION_DATA && session.input.send(),
            ToSession::Resize(_) => session.size.send(),
            ToSession::OutputTaken => session.output.take(),
            ToSession::End => return self.end(id),
            ToSession::Start(_) => false,
        };
        let node = session.node;
        if is_valid { self.send(node, id, what) } else { self.cut(id) }
    }

    /// Handles a message of an agent. Messages of sessions that are over, or of another node, are dropped.
    pub(crate) fn on_agent(&mut self, node: NodeId, id: u32, what: FromSession) {
        let Some(session) = self.open.get_mut(&id).filter(|session| session.node == node) else {
            return;
        };
        let is_valid = match &what {
            FromSession::Output { data, .. } => {
                data.len() <= MAX_SESSION_DATA && session.output.send()
            }
            FromSession::StdinTaken => session.input.take(),
            FromSession::Resized => session.size.take(),
            _ => true,
        };
        if !is_valid {
            return self.cut(id);
        }
        let connection = session.connection;
        if what.is_last() {
            self.open.remove(&id);
        }
        self.reply(connection, Reply::Session(what));
    }

    /// Ends the sessions of a node that has ended all processes of the job.
    pub(crate) fn on_node_done(&mut self, node: NodeId) {
        let over = || Reply::Session(FromSession::Failed(SessionError::JobEnding));
        self.drop_node(node, over);
    }

    /// Ends the sessions of a node that is lost, with the reason.
    pub(crate) fn on_node_lost(&mut self, node: NodeId, why: &str) {
        self.drop_node(node, || Reply::Refused(why.to_owned()));
    }

    /// Ends the session of a client that is gone.
    pub(crate) fn on_client_gone(&mut self, connection: ConnectionId) {
        if let Some(id) = self.of_client(connection) {
            self.end(id);
        }
    }

    /// Tells all clients about the job, such as that it is suspended.
    pub(crate) fn tell_all(&mut self, reply: &Reply) {
        let clients: Vec<_> = self.open.values().map(|session| session.connection).collect();
        clients.into_iter().for_each(|connection| self.reply(connection, reply.clone()));
    }

    /// Takes the messages to send.
    pub(crate) fn take_steps(&mut self) -> Vec<SessionStep> {
        std::mem::take(&mut self.steps)
    }

    fn of_client(&self, connection: ConnectionId) -> Option<u32> {
        let mut open = self.open.iter();
        open.find(|(_, session)| session.connection == connection).map(|(id, _)| *id)
    }

    fn drop_node(&mut self, node: NodeId, reply: impl Fn() -> Reply) {
        let gone = self.open.extract_if(.., |_, session| session.node == node);
        let clients: Vec<_> = gone.map(|(_, session)| session.connection).collect();
        clients.into_iter().for_each(|connection| self.reply(connection, reply()));
    }

    fn end(&mut self, id: u32) {
        if let Some(session) = self.open.remove(&id) {
            self.send(session.node, id, ToSession::End);
        }
    }

    /// Ends a session of which one end has broken the protocol.
    fn cut(&mut self, id: u32) {
        if let Some(session) = self.open.get(&id) {
            let broken = FromSession::Failed(SessionError::Protocol);
            self.reply(session.connection, Reply::Session(broken));
            self.end(id);
        }
    }

    fn send(&mut self, node: NodeId, id: u32, what: ToSession) {
        self.steps.push(SessionStep::Send(node, ToAgent::Session { id, what }));
    }

    fn reply(&mut self, connection: ConnectionId, reply: Reply) {
        self.steps.push(SessionStep::Reply(connection, reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::job::ExitStatus;
    use rlaunch_bootstrap::protocol::control::Stream;
    use rlaunch_bootstrap::protocol::session::{SessionKind, TerminalSize};

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);
    const NODE: NodeId = NodeId(0);

    fn started() -> Sessions {
        let mut sessions = Sessions::default();
        sessions.start(A, SessionStart { rank: Rank(3), kind: SessionKind::Debugger }, Ok(NODE));
        let steps = sessions.take_steps();
        assert!(matches!(steps[..], [SessionStep::Send(NODE, ToAgent::Session { id: 0, .. })]));
        sessions
    }

    fn to_agent(what: ToSession) -> SessionStep {
        SessionStep::Send(NODE, ToAgent::Session { id: 0, what })
    }

    fn to_client(what: FromSession) -> SessionStep {
        SessionStep::Reply(A, Reply::Session(what))
    }

    fn cut() -> [SessionStep; 2] {
        [to_client(FromSession::Failed(SessionError::Protocol)), to_agent(ToSession::End)]
    }

    fn output(length: usize) -> FromSession {
        FromSession::Output { stream: Stream::Stdout, data: vec![7; length] }
    }

    #[test]
    fn one_message_of_a_kind_is_on_its_way() {
        let mut sessions = started();
        for _ in 0..2 {
            sessions.on_client(A, ToSession::Stdin(vec![1]));
            sessions.on_agent(NODE, 0, FromSession::StdinTaken);
            sessions.on_agent(NODE, 0, output(MAX_SESSION_DATA));
            sessions.on_client(A, ToSession::OutputTaken);
            let steps = [
                to_agent(ToSession::Stdin(vec![1])),
                to_client(FromSession::StdinTaken),
                to_client(output(MAX_SESSION_DATA)),
                to_agent(ToSession::OutputTaken),
            ];
            assert_eq!(sessions.take_steps(), steps);
        }
        sessions.on_agent(NODE, 0, FromSession::Ended(ExitStatus::Code(3)));
        assert_eq!(sessions.take_steps(), [to_client(FromSession::Ended(ExitStatus::Code(3)))]);
        sessions.on_client(A, ToSession::Stdin(vec![1]));
        sessions.on_client_gone(A);
        assert!(sessions.take_steps().is_empty());
    }

    #[test]
    fn an_end_that_does_not_wait_is_cut_off() {
        let size = ToSession::Resize(TerminalSize { rows: 1, columns: 1 });
        for twice in [ToSession::Stdin(Vec::new()), size] {
            let mut sessions = started();
            sessions.on_client(A, twice.clone());
            sessions.take_steps();
            sessions.on_client(A, twice);
            assert_eq!(sessions.take_steps(), cut());
        }
        let mut sessions = started();
        sessions.on_agent(NODE, 0, output(1));
        sessions.take_steps();
        sessions.on_agent(NODE, 0, output(1));
        assert_eq!(sessions.take_steps(), cut());
        for wrong in [output(MAX_SESSION_DATA + 1), FromSession::StdinTaken, FromSession::Resized] {
            let mut sessions = started();
            sessions.on_agent(NODE, 0, wrong);
            assert_eq!(sessions.take_steps(), cut());
        }
    }

    #[test]
    fn a_session_belongs_to_one_client_and_one_node() {
        let mut sessions = started();
        sessions.on_client(B, ToSession::Stdin(vec![1]));
        sessions.on_agent(NodeId(1), 0, output(1));
        sessions.on_agent(NODE, 1, output(1));
        sessions.on_client_gone(B);
        assert!(sessions.take_steps().is_empty());
        sessions.on_client_gone(A);
        assert_eq!(sessions.take_steps(), [to_agent(ToSession::End)]);
    }

    #[test]
    fn the_end_of_a_node_ends_its_sessions() {
        let mut sessions = started();
        sessions.on_node_lost(NodeId(1), "x");
        sessions.tell_all(&Reply::Suspended);
        sessions.on_node_lost(NODE, "no power");
        let steps = [Reply::Suspended, Reply::Refused("no power".into())];
        assert_eq!(sessions.take_steps(), steps.map(|reply| SessionStep::Reply(A, reply)));
        let mut sessions = started();
        sessions.on_node_done(NODE);
        let over = FromSession::Failed(SessionError::JobEnding);
        assert_eq!(sessions.take_steps(), [to_client(over)]);
        sessions.on_node_done(NODE);
        assert!(sessions.take_steps().is_empty());
    }

    #[test]
    fn a_session_that_cannot_begin_says_why() {
        let mut sessions = Sessions::default();
        let start = SessionStart { rank: Rank(9), kind: SessionKind::Debugger };
        sessions.start(A, start, Err("no rank 9".into()));
        let refused = SessionStep::Reply(A, Reply::Refused("no rank 9".into()));
        assert_eq!(sessions.take_steps(), [refused]);
    }
}
