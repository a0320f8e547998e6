//! Hosts: how users name them, and the addresses by which they reach each other.
//!
//! | file | subject |
//! |---|---|
//! | `list` | `-H` and host files, with ranges as in `n[01-16]` |
//! | `host_table` | `[hosts.NAME]` of a configuration file |
//! | `addresses` | addresses by which agents connect to each other (out-of-band network), in the order in which they are tried |

pub mod addresses;
pub mod host_table;
mod list;

pub(crate) use list::parse_with_slots;
pub use list::{Host, HostSet, HostsError, SlotsBy, are_local, hostfile, parse, ranges};
