//! The manifest goes down the chain first: every host passes parts of it on as they come.
//!
//! Until the source has hashed its files there is nothing to send. Meanwhile it beats, and every host
//! passes that on too. Each host beats to the one before, which has no other sign of it once all parts
//! are under way: hosts after it may take long to take them.

use super::RoleError;
use super::chain::unexpected;
use super::report::Reporter;
use crate::link::{BEAT, Handle, Incoming, Link, LinkError, Receiver, Sender};
use rlaunch_copy::wire::{Assembly, manifest_parts};
use rlaunch_copy::{Manifest, Message};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

/// Receives the manifest, and passes it on.
pub(super) fn receive(
    upstream: &mut Link,
    downstream: Option<&mut Link>,
) -> Result<Arc<Manifest>, RoleError> {
    let Link { senders, receivers, handle } = upstream;
    while_beating(vec![&mut senders[0]], || receive_parts(&mut receivers[0], handle, downstream))
}

fn receive_parts(
    receiver: &mut Receiver,
    upstream: &Handle,
    mut downstream: Option<&mut Link>,
) -> Result<Arc<Manifest>, RoleError> {
    let mut assembly = Assembly::default();
    loop {
        let Incoming { message, .. } = receiver.receive()?;
        if !matches!(message, Message::Beat | Message::Manifest { .. }) {
            return Err(unexpected(message, Some(upstream)));
        }
        if let Some(link) = &mut downstream {
            send_or_ask(link, &message)?;
        }
        if let Message::Manifest { part, last } = message
            && let Some(manifest) =
                assembly.push(&part, last).map_err(|source| unusable(upstream, source))?
        {
            return Ok(Arc::new(manifest));
        }
    }
}

fn unusable(link: &Handle, source: rlaunch_copy::WireError) -> RoleError {
    RoleError::Listing { host: link.host().to_owned(), source }
}

/// Sends the manifest to the host after.
pub(super) fn send(link: &mut Link, manifest: &Manifest) -> Result<(), RoleError> {
    manifest_parts(manifest).try_for_each(|message| send_or_ask(link, &message))
}

/// Sends a message. If the connection has ended, finds out whether the host after has said why.
fn send_or_ask(link: &mut Link, message: &Message) -> Result<(), RoleError> {
    match link.senders[0].send(message, &[]) {
        Err(error @ LinkError::Closed { .. }) => {
            while let Ok(Incoming { message, .. }) = link.receivers[0].receive() {
                if matches!(message, Message::Failed { .. }) {
                    return Err(unexpected(message, Some(&link.handle)));
                }
            }
            Err(error.into())
        }
        sent => Ok(sent?),
    }
}

/// Does something long, and meanwhile lets neighbours know that this host is there.
pub(super) fn while_beating<T>(
    mut senders: Vec<&mut Sender>,
    work: impl FnOnce() -> Result<T, RoleError>,
) -> Result<T, RoleError> {
    let (working, is_over) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || beat_until(&is_over, &mut senders));
        let done = work();
        drop(working);
        done
    })
}

/// Sends beats until the other end of a channel is dropped.
pub(super) fn beat_until(is_over: &mpsc::Receiver<()>, senders: &mut [&mut Sender]) {
    while is_over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
        for sender in senders.iter_mut() {
            // What is sent next fails too.
            let _ = sender.send(&Message::Beat, &[]);
        }
    }
}

/// Tells neighbours why this host cannot go on, before it has begun to copy.
pub(super) fn tell<'a>(
    links: impl IntoIterator<Item = &'a mut Link>,
    error: &RoleError,
    me: &Reporter,
) {
    for link in links {
        // One that has gone knows.
        let _ = link.senders[0].send(&me.message(error), &[]);
    }
}
