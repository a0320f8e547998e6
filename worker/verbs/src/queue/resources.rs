//! What queue pairs are made of.

use super::completion_queue::CompletionQueue;
use crate::error::{Verb, VerbsError};
use crate::memory::ProtectionDomain;
use rdma_sys::{ibv_context, ibv_qp_init_attr, ibv_qp_type};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// What a queue pair is made of; several may be made of the same. All parts are of one opened
/// device.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Whose memory it may use.
    pub domain: Arc<ProtectionDomain>,
    /// Where it says what has ended, both of what it sends and of what it receives.
    pub completions: Arc<CompletionQueue>,
    /// How much it holds.
    pub depth: Depth,
}

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Requests to send, read or write at once.
    pub send: u32,
    /// Requests to receive at once.
    pub receive: u32,
    /// Bytes that a request may carry itself, so that the device need not fetch them. Where it has no
    /// room for so many, for none: [`crate::QueuePair::inline`] says which.
    pub inline: u32,
}

/// Little, for peers that are many: 64 bytes to 256 for each request, by device, so 4 KiB at most.
/// No inline data, which a device need not have room for.
impl Default for Depth {
    fn default() -> Depth {
        Depth { send: 16, receive: 1, inline: 0 }
    }
}

impl Resources {
    /// As much as is usual.
    pub fn new(domain: &Arc<ProtectionDomain>, completions: &Arc<CompletionQueue>) -> Resources {
        let (domain, completions) = (domain.clone(), completions.clone());
        Resources { domain, completions, depth: Depth::default() }
    }

    /// A reliable connection all of whose completions go to one queue, on this opened device. EINVAL
    /// when a part is of another.
    pub(crate) fn wanted(&self, context: *mut ibv_context) -> Result<Wanted, VerbsError> {
        let own = self.domain.context();
        if own.as_ptr() != context || self.completions.context().as_ptr() != context {
            return Err(VerbsError::code(Verb::CreateQp, own.name(), libc::EINVAL));
        }
        let wanted = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        // SAFETY: integers and pointers: zeros are a value of each.
        let mut wanted = unsafe { wanted.assume_init() };
        wanted.send_cq = self.completions.as_ptr();
        wanted.recv_cq = self.completions.as_ptr();
        wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
        wanted.cap.max_send_wr = self.depth.send;
        wanted.cap.max_recv_wr = self.depth.receive;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        wanted.cap.max_inline_data = self.depth.inline;
        Ok(Wanted(wanted))
    }
}

/// What a queue pair is to be.
pub(crate) struct Wanted(ibv_qp_init_attr);

impl Wanted {
    /// Makes it, without room for inline data where there is none; also says how much there is.
    pub(crate) fn or_without_inline<T>(
        mut self,
        make: impl Fn(*mut ibv_qp_init_attr) -> Result<T, VerbsError>,
    ) -> Result<(T, u32), VerbsError> {
        let inline = self.0.cap.max_inline_data;
        let mut wanted = self.0;
        match make(&raw mut wanted) {
            Ok(made) => Ok((made, inline)),
            Err(error) if inline == 0 => Err(error),
            Err(_) => {
                self.0.cap.max_inline_data = 0;
                Ok((make(&raw mut self.0)?, 0))
            }
        }
    }
}
