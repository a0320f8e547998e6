//! Queue pairs, and the completion queues that report the end of their work requests.
//!
//! | file | contents |
//! |---|---|
//! | `completion_channel` | [`CompletionChannel`]: the file descriptor that completion events arrive on |
//! | `completion_queue` | [`CompletionQueue`] and the [`Completion`]s polled from it |
//! | `resources` | [`Resources`]: the objects and capacities that a queue pair is created with |
//! | `address_vector` | [`AddressVector`]: the path to a peer's port |
//! | `queue_pair` | [`QueuePair`]: a reliable connection |

mod address_vector;
mod completion_channel;
mod completion_queue;
mod queue_pair;
mod resources;

pub use address_vector::{AddressVector, GlobalRoute, LocalPort};
pub use completion_channel::CompletionChannel;
pub use completion_queue::{Completion, CompletionBatch, CompletionQueue, WcStatus};
pub use queue_pair::{Connected, Endpoint, Prepared, QueuePair, RemoteAddr, Settings};
pub use resources::{Depth, Resources};
