//! One place in the chain, while it copies: threads around a [`Hop`].
//!
//! | thread | of | what it does |
//! |---|---|---|
//! | receiver | each stream upstream | checks and writes chunks |
//! | teller | first stream upstream | asks for chunks; beats |
//! | sender | each stream downstream | sends chunks, from memory or from files |
//! | beater | first stream downstream | beats |
//! | listener | first stream downstream | hears what the host after asks for |
//! | scanner | files | finds chunks that are there |
//! | watcher | | reports how far it is |
//! | main | | gives files their names; ends the rest |
//!
//! They share one [`State`] under a lock, which none of them holds while it waits, and one condition
//! for all that changes.

use super::files::Files;
use super::report::{INTERVAL, Reporter};
use super::{RoleError, Settings};
use crate::files::StageError;
use crate::link::{BEAT, Handle, Incoming, Link, LinkError, Pace, Payload, Receiver, Sender, lock};
use crate::meter::{Meter, Times};
use rlaunch_copy::control::{Limit, Report};
use rlaunch_copy::{ChunkId, ChunkSet, Hop, Manifest, Message, Step};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time in which a neighbour whose connection has ended may still have said why.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time for telling neighbours of an error.
const FAREWELL: Duration = Duration::from_millis(500);
/// Time in which the host before closes a link that is done.
const CLOSING: Duration = Duration::from_secs(5);
/// Longer than any copy.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Number of chunks that stay in memory for the host after. Others are read again from files, which
/// are in the page cache.
const FRESH: usize = 32;

/// What a place has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Bytes of chunks that came from upstream.
    pub(super) received: u64,
    /// Bytes of chunks that were there.
    pub(super) found: u64,
}

struct State {
    hop: Hop,
    /// What the host before is to be told.
    to_tell: VecDeque<Message>,
    /// Chunks that have just come.
    fresh: VecDeque<(ChunkId, Arc<Payload>)>,
    received: u64,
    found: u64,
    sent: u64,
    phase: Phase,
    /// The host after has all files.
    is_downstream_done: bool,
    /// This host and those after it have all files.
    is_done: bool,
    /// Neighbours that have been told how it ended.
    told: usize,
    failure: Option<RoleError>,
    /// All threads are to end.
    is_over: bool,
    /// Threads that receive from upstream.
    receiving: usize,
}

/// How far the files of this host are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Scanning,
    Receiving,
    Finishing,
    Finished,
}

struct Place {
    manifest: Arc<Manifest>,
    files: Arc<Files>,
    me: Reporter,
    pace: Pace,
    meter: Arc<Meter>,
    state: Mutex<State>,
    changed: Condvar,
    upstream: Option<Handle>,
    downstream: Option<Handle>,
}

/// Copies the files of a manifest: asks the host before for what is lacking, if there is one, and
/// sends to the host after what that asks for. Returns when all hosts from here on have all files.
///
/// After an error a thread may still wait for a disk. It ends with the process.
pub(super) fn copy(
    manifest: &Arc<Manifest>,
    files: &Arc<Files>,
    (upstream, downstream): (Option<Link>, Option<Link>),
    settings: &Settings,
    me: &Reporter,
) -> Result<Summary, RoleError> {
    let chunks = manifest.chunk_count();
    let hop = match upstream {
        Some(_) => Hop::receiver(chunks, downstream.is_some()),
        None => Hop::source(chunks),
    };
    let place = Arc::new(Place {
        manifest: Arc::clone(manifest),
        files: Arc::clone(files),
        me: me.clone(),
        pace: Pace::new(settings.limit),
        meter: files.meter(),
        state: Mutex::new(State::new(hop, upstream.is_none())),
        changed: Condvar::new(),
        upstream: upstream.as_ref().map(|link| link.handle.clone()),
        downstream: downstream.as_ref().map(|link| link.handle.clone()),
    });
    place.run(upstream, downstream, settings.verify);
    let mut state = place.lock();
    match state.failure.take() {
        Some(error) => Err(error),
        None => Ok(Summary { received: state.received, found: state.found }),
    }
}

impl State {
    fn new(hop: Hop, is_source: bool) -> State {
        State {
            hop,
            to_tell: VecDeque::new(),
            fresh: VecDeque::new(),
            received: 0,
            found: 0,
            sent: 0,
            phase: if is_source { Phase::Finished } else { Phase::Scanning },
            is_downstream_done: false,
            is_done: false,
            told: 0,
            failure: None,
            is_over: false,
            receiving: 0,
        }
    }

    /// Notes what is to be done but for sending chunks, which senders take by themselves.
    fn plan(&mut self) {
        while let Some(step) = self.hop.next_other() {
            match step {
                Step::Ask(chunks) => self.to_tell.push_back(Message::Want(chunks)),
                Step::AskEnd => self.to_tell.push_back(Message::WantEnd),
                Step::Complete => self.phase = Phase::Finishing,
                Step::Done => {
                    self.is_done = true;
                    self.to_tell.push_back(Message::Have);
                }
                // Only `next` returns it.
                Step::Send(_) => {}
            }
        }
    }

    /// Takes a chunk that has just come.
    fn take_fresh(&mut self, id: ChunkId) -> Option<Arc<Payload>> {
        let place = self.fresh.iter().position(|(fresh, _)| *fresh == id)?;
        self.fresh.remove(place).map(|(_, bytes)| bytes)
    }

    fn has_ended(&self) -> bool {
        self.is_over || self.failure.is_some()
    }
}

impl Place {
    fn run(self: &Arc<Self>, upstream: Option<Link>, downstream: Option<Link>, verify: bool) {
        if let Some(link) = upstream {
            self.begin_upstream(link);
        }
        if let Some(link) = downstream {
            self.begin_downstream(link);
        }
        let watcher = self.spawn(|place| {
            place.watch();
            Ok(())
        });
        self.guard(|| self.finish(verify));
        self.end();
        // What it reports comes before the report of the end.
        let _ = watcher.join();
    }

    fn begin_upstream(self: &Arc<Self>, link: Link) {
        self.lock().receiving = link.receivers.len();
        for mut receiver in link.receivers {
            self.spawn(move |place| {
                let received = place.receive(&mut receiver);
                place.lock().receiving -= 1;
                place.changed.notify_all();
                received
            });
        }
        if let Some(mut teller) = link.senders.into_iter().next() {
            self.spawn(move |place| place.tell(&mut teller));
        }
        self.spawn(Place::scan);
    }

    fn begin_downstream(self: &Arc<Self>, link: Link) {
        let senders: Vec<Arc<Mutex<Sender>>> =
            link.senders.into_iter().map(|sender| Arc::new(Mutex::new(sender))).collect();
        if let Some(first) = senders.first().cloned() {
            self.spawn(move |place| place.beat(&first));
        }
        for sender in senders {
            self.spawn(move |place| place.send(&sender));
        }
        if let Some(mut listener) = link.receivers.into_iter().next() {
            self.spawn(move |place| place.listen(&mut listener));
        }
    }

    /// Starts a thread, whose error ends the copy.
    fn spawn(
        self: &Arc<Self>,
        run: impl FnOnce(&Place) -> Result<(), RoleError> + Send + 'static,
    ) -> JoinHandle<()> {
        let place = Arc::clone(self);
        std::thread::spawn(move || place.guard(|| run(&place)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the state, plans what follows, and wakes all threads.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.plan();
        self.changed.notify_all();
    }

    /// Waits until the state is so that something can be done, or for a time.
    fn wait(
        &self,
        time: Duration,
        mut is_idle: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let idle = |state: &mut State| !state.has_ended() && is_idle(state);
        let waited = self.changed.wait_timeout_while(self.lock(), time, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the copy if a thread fails.
    fn guard(&self, run: impl FnOnce() -> Result<(), RoleError>) {
        let Err(error) = run() else { return };
        if matches!(error, RoleError::Link(LinkError::Ended)) {
            // This end closed the link, since all is done or something else has failed.
            return;
        }
        if matches!(error, RoleError::Link(LinkError::Closed { .. })) {
            // Another thread may be about to read why.
            drop(self.wait(LAST_WORDS, |_| true));
        }
        let mut state = self.lock();
        if !state.has_ended() {
            state.failure = Some(error);
        }
        self.changed.notify_all();
    }

    /// Looks at local files.
    fn scan(&self) -> Result<(), RoleError> {
        self.files.scan(&mut |found: ChunkSet| {
            let bytes = found.ranges().map(|range| self.bytes_of(range)).sum::<u64>();
            self.change(|state| {
                state.hop.on_have(&found);
                state.found += bytes;
            });
        })?;
        self.change(|state| {
            state.phase = Phase::Receiving;
            state.hop.on_scanned();
        });
        Ok(())
    }

    fn bytes_of(&self, chunks: Range<u32>) -> u64 {
        chunks.map(|id| u64::from(self.manifest.chunk(ChunkId(id)).length)).sum()
    }

    /// Receives a stream to its end.
    fn receive(&self, receiver: &mut Receiver) -> Result<(), RoleError> {
        loop {
            let begin = Instant::now();
            let incoming = receiver.receive();
            let waited = receiver.take_waited();
            self.meter.upstream(waited);
            self.meter.cpu(begin.elapsed().saturating_sub(waited));
            let Incoming { message, payload } = match incoming {
                // The host before closes a link over which it was told that all is done.
                Err(_) if self.lock().is_done => return Ok(()),
                incoming => incoming?,
            };
            match message {
                Message::Chunk { id } => self.take(id, payload)?,
                Message::Beat => {}
                other => return Err(unexpected(other, self.upstream.as_ref())),
            }
        }
    }

    /// Checks and writes a chunk.
    fn take(&self, id: ChunkId, payload: Payload) -> Result<(), RoleError> {
        let host = || name(self.upstream.as_ref());
        if !self.lock().hop.awaits(id) {
            return Err(RoleError::Unasked { host: host() });
        }
        self.files.write(id, &payload).map_err(|error| match error {
            RoleError::Stage(StageError::WrongChunk { .. }) => {
                // As all hosts know it, since the error is reported of another one.
                let entry = self.manifest.chunk(id).entry;
                let path = self.manifest.entries[entry].path.to_string();
                RoleError::Damaged { path, host: host() }
            }
            error => error,
        })?;
        let bytes = payload.len() as u64;
        self.change(|state| {
            state.received += bytes;
            state.hop.on_chunk(id);
            if self.downstream.is_some() {
                state.fresh.push_back((id, Arc::new(payload)));
            }
            if state.fresh.len() > FRESH {
                state.fresh.pop_front();
            }
        });
        Ok(())
    }

    /// Tells the host before what is wanted, and how it ends.
    fn tell(&self, teller: &mut Sender) -> Result<(), RoleError> {
        loop {
            let (message, is_last) = {
                let mut state = self.wait(BEAT, |state| state.to_tell.is_empty());
                let failed = state.failure.as_ref().map(|error| self.me.message(error));
                match failed {
                    Some(message) => (message, true),
                    None if state.is_over => return Ok(()),
                    None => (state.to_tell.pop_front().unwrap_or(Message::Beat), false),
                }
            };
            let sent = teller.send(&message, &[]);
            if is_last || message == Message::Have {
                self.lock().told += 1;
                self.changed.notify_all();
                return Ok(());
            }
            sent?;
        }
    }

    /// Sends the chunks that the host after asks for.
    fn send(&self, sender: &Mutex<Sender>) -> Result<(), RoleError> {
        let mut read = Vec::new();
        while let Some((id, fresh)) = self.next_chunk() {
            if let Some(bytes) = fresh {
                self.send_chunk(sender, id, &bytes)?;
                continue;
            }
            let begin = Instant::now();
            self.files.read(id, &mut read)?;
            self.meter.disk(begin.elapsed());
            self.send_chunk(sender, id, &read)?;
        }
        Ok(())
    }

    /// Waits for a chunk that the host after asks for, with its bytes if it has just come. `None` is
    /// the end.
    fn next_chunk(&self) -> Option<(ChunkId, Option<Arc<Payload>>)> {
        let mut next = None;
        let mut state = self.wait(FOREVER, |state| {
            next = state.hop.next_send();
            next.is_none() && !state.is_downstream_done
        });
        let id = next.filter(|_| !state.has_ended())?;
        Some((id, state.take_fresh(id)))
    }

    fn send_chunk(
        &self,
        sender: &Mutex<Sender>,
        id: ChunkId,
        bytes: &[u8],
    ) -> Result<(), RoleError> {
        self.pace.wait(bytes.len(), || self.lock().has_ended());
        let begin = Instant::now();
        let mut sender = lock(sender);
        let sent = sender.send(&Message::Chunk { id }, bytes);
        let waited = sender.take_waited();
        drop(sender);
        self.meter.wire(waited);
        self.meter.cpu(begin.elapsed().saturating_sub(waited));
        sent?;
        self.lock().sent += bytes.len() as u64;
        Ok(())
    }

    /// Lets the host after know that this one is there, also while its senders wait for a disk or for
    /// `--limit`, and tells it of an error.
    fn beat(&self, sender: &Mutex<Sender>) -> Result<(), RoleError> {
        loop {
            let message = {
                let state = self.wait(BEAT, |state| !state.is_downstream_done);
                match &state.failure {
                    Some(error) => Some(self.me.message(error)),
                    None if state.is_over || state.is_downstream_done => return Ok(()),
                    None => None,
                }
            };
            if let Some(message) = message {
                // If it cannot be told, it sees that the connection ends.
                let _ = lock(sender).send(&message, &[]);
                self.lock().told += 1;
                self.changed.notify_all();
                return Ok(());
            }
            // A sender that has it is sending.
            if let Ok(mut sender) = sender.try_lock() {
                sender.send(&Message::Beat, &[])?;
            }
        }
    }

    /// Hears the host after.
    fn listen(&self, listener: &mut Receiver) -> Result<(), RoleError> {
        loop {
            match listener.receive()?.message {
                Message::Want(chunks) => self.change(|state| state.hop.on_want(&chunks)),
                Message::WantEnd => self.change(|state| state.hop.on_want_end()),
                Message::Have => {
                    self.change(|state| {
                        state.is_downstream_done = true;
                        state.hop.on_downstream_done();
                    });
                    // It waits for that.
                    if let Some(link) = &self.downstream {
                        link.close();
                    }
                    return Ok(());
                }
                Message::Beat => {}
                other => return Err(unexpected(other, self.downstream.as_ref())),
            }
        }
    }

    /// Gives files their names once all chunks are there, and waits until all hosts after have done so.
    fn finish(&self, verify: bool) -> Result<(), RoleError> {
        let is_lacking =
            |state: &mut State| matches!(state.phase, Phase::Scanning | Phase::Receiving);
        // Of a source all have theirs already.
        let phase = {
            let state = self.wait(FOREVER, is_lacking);
            if state.has_ended() {
                return Ok(());
            }
            state.phase
        };
        if phase == Phase::Finishing {
            self.files.finish(&self.me)?;
            if verify {
                self.files.verify()?;
            }
        }
        self.change(|state| {
            state.phase = Phase::Finished;
            state.hop.on_finished();
        });
        let has_upstream = self.upstream.is_some();
        drop(self.wait(FOREVER, |state| !state.is_done || (has_upstream && state.told == 0)));
        if !has_upstream && verify && !self.lock().has_ended() {
            self.files.verify()?;
        }
        Ok(())
    }

    /// Ends all threads, once neighbours have been told of an error, or the host before has closed its
    /// link.
    fn end(&self) {
        let links = [&self.upstream, &self.downstream];
        let neighbours = links.iter().filter(|link| link.is_some()).count();
        let state = self.lock();
        let has_failed = state.failure.is_some();
        let time = if has_failed { FAREWELL } else { CLOSING };
        let is_due = |state: &mut State| {
            if has_failed { state.told < neighbours } else { state.receiving > 0 }
        };
        let waited = self.changed.wait_timeout_while(state, time, is_due);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over = true;
        self.changed.notify_all();
        links.into_iter().flatten().for_each(Handle::close);
    }

    /// Reports how far this host is.
    fn watch(&self) {
        let mut before = self.meter.read();
        loop {
            let state = self.wait(INTERVAL, |_| true);
            if state.has_ended() {
                return;
            }
            let times = self.meter.read();
            let report = self.progress(&state, times, before);
            drop(state);
            self.me.report(&report);
            before = times;
        }
    }

    fn progress(&self, state: &State, times: Times, before: Times) -> Report {
        let is_source = self.upstream.is_none();
        let waits_for = match state.phase {
            Phase::Scanning => times.limit_of_reading(before),
            Phase::Finishing => Limit::Disk,
            Phase::Finished if !is_source => Limit::Downstream,
            Phase::Finished if state.hop.is_idle() => Limit::Downstream,
            Phase::Receiving | Phase::Finished => times.limit(before, is_source),
        };
        let written = if is_source { state.sent } else { state.found + state.received };
        let (rank, received) = (self.me.rank(), state.received);
        Report::Progress { rank, received, written, total: self.manifest.bytes(), waits_for }
    }
}

fn name(link: Option<&Handle>) -> String {
    link.map_or_else(String::new, |link| link.host().to_owned())
}

/// Makes the error of a message that tells of one, or that must not come here.
pub(super) fn unexpected(message: Message, link: Option<&Handle>) -> RoleError {
    match message {
        Message::Failed { host, text } => RoleError::Other { host, text },
        _ => RoleError::Unexpected { host: name(link) },
    }
}
