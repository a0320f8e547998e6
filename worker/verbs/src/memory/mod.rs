//! Protection domains, and memory that is registered with them.
//!
//! | file | contents |
//! |---|---|
//! | `protection_domain` | [`ProtectionDomain`] |
//! | `buffer` | page-aligned memory that a device may write to |
//! | `registration` | registration (`ibv_mr`) of either kind of memory below, and [`MrSlice`], a range of it |
//! | `region` | [`MemoryRegion`]: memory that this crate allocates |
//! | `user_mr` | [`UserMr`]: memory of the application, borrowed while it is registered |

mod buffer;
mod protection_domain;
mod region;
mod registration;
mod user_mr;

pub use protection_domain::ProtectionDomain;
pub use region::MemoryRegion;
pub use registration::MrSlice;
pub use user_mr::UserMr;
