//! Link for messages of a rank to itself.

use super::{Armed, Limits, Link, Sink};
use crate::transport::packet::Header;
use crate::types::error::LinkError;
use std::collections::VecDeque;

/// Link of a rank to itself: an unbounded queue of packets.
#[derive(Debug, Default)]
pub(crate) struct SelfLink {
    packets: VecDeque<(Header, Vec<u8>)>,
}

impl Link for SelfLink {
    fn limits(&self) -> Limits {
        // All messages are eager, because a rank that is sending cannot answer its own RTS.
        let all = u32::MAX as usize & !63;
        Limits { eager: all, packet: all, fetch: all, write: all, poll_is_syscall: false }
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        self.packets.push_back((header, payload.to_vec()));
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let Some((header, payload)) = self.packets.pop_front() else { return Ok(false) };
        sink.packet(header, &payload)?;
        Ok(true)
    }

    fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
        Ok(Armed::NoFd)
    }
}
