//! Queue pairs, and the completion queues that report the end of their work requests.
//!
//! | file | contents |
//! |---|---|
//! | `completion_queue` | [`CompletionQueue`], the [`Completion`]s polled from it, and [`CompletionChannel`], the file descriptor that completion events arrive on |
//! | `mod` | [`Resources`]: the objects and capacities that a queue pair is created with |
//! | `address_vector` | [`Endpoint`], what a queue pair tells its peer; [`AddressVector`]: the path to a peer's port |
//! | `queue_pair` | [`QueuePair`]: a reliable connection |

mod address_vector;
mod completion_queue;
mod queue_pair;

pub use address_vector::{AddressVector, Endpoint, GlobalRoute, LocalPort, RemoteAddr};
pub use completion_queue::{
    Completion, CompletionBatch, CompletionChannel, CompletionQueue, WcStatus,
};
pub use queue_pair::{Connected, Prepared, QueuePair, Settings};

use crate::error::{Verb, VerbsError};
use crate::memory::ProtectionDomain;
use rdma_sys::{ibv_context, ibv_qp_init_attr, ibv_qp_type};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Objects and capacities that a queue pair is created with. Several queue pairs may share the
/// objects. The domain and the completion queue must belong to the same opened device.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Domain whose memory the queue pair may access.
    pub domain: Arc<ProtectionDomain>,
    /// Queue for the completions of both sends and receives.
    pub completions: Arc<CompletionQueue>,
    /// Capacities of the queue pair.
    pub depth: Depth,
}

/// Capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Maximum number of outstanding sends, RDMA reads and RDMA writes.
    pub send: u32,
    /// Maximum number of outstanding receives.
    pub receive: u32,
    /// Maximum number of bytes of inline data. Inline data is copied into the work request, so that
    /// the device need not fetch it from memory. If the device does not support this number, the
    /// queue pair has no inline data at all: see [`crate::QueuePair::max_inline`].
    pub inline: u32,
}

/// Defaults: small queues, for programs with many peers. A work request takes 64 to 256 bytes,
/// depending on the device, so a queue pair takes about 4 KiB. There is no inline data, because not
/// every device supports it.
impl Default for Depth {
    fn default() -> Depth {
        Depth { send: 16, receive: 1, inline: 0 }
    }
}

impl Resources {
    /// Makes resources of the default [`Depth`].
    pub fn new(domain: &Arc<ProtectionDomain>, completions: &Arc<CompletionQueue>) -> Resources {
        let (domain, completions) = (domain.clone(), completions.clone());
        Resources { domain, completions, depth: Depth::default() }
    }

    /// Returns the attributes to create a reliable connection (RC) on this opened device. Fails
    /// with EINVAL if the domain or the completion queue belongs to another opened device.
    pub(crate) fn init_attr(&self, context: *mut ibv_context) -> Result<InitAttr, VerbsError> {
        let own = self.domain.context();
        if own.as_ptr() != context || self.completions.context().as_ptr() != context {
            return Err(VerbsError::from_errno(Verb::CreateQp, own.name(), libc::EINVAL));
        }
        let attr = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        // SAFETY: the structure consists of integers and pointers, for which zeros are valid.
        let mut attr = unsafe { attr.assume_init() };
        attr.send_cq = self.completions.as_ptr();
        attr.recv_cq = self.completions.as_ptr();
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        attr.cap.max_send_wr = self.depth.send;
        attr.cap.max_recv_wr = self.depth.receive;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = self.depth.inline;
        Ok(InitAttr(attr))
    }
}

/// Attributes that a queue pair is created with.
pub(crate) struct InitAttr(ibv_qp_init_attr);

impl InitAttr {
    /// Calls `create` with the attributes and, if that fails, again without inline data. Returns
    /// the result of `create`, and the queue pair's inline capacity in bytes.
    pub(crate) fn create_with_inline_fallback<T>(
        mut self,
        create: impl Fn(*mut ibv_qp_init_attr) -> Result<T, VerbsError>,
    ) -> Result<(T, u32), VerbsError> {
        let inline = self.0.cap.max_inline_data;
        let mut attr = self.0;
        match create(&raw mut attr) {
            Ok(created) => Ok((created, inline)),
            Err(error) if inline == 0 => Err(error),
            Err(_) => {
                self.0.cap.max_inline_data = 0;
                Ok((create(&raw mut self.0)?, 0))
            }
        }
    }
}
