//! Hosts: how people name them, and the addresses by which they reach each other.

pub(crate) mod addresses;
pub(crate) mod host_table;
mod list;

pub(crate) use list::{Host, HostSet, HostsError, SlotsBy, are_local, hostfile, parse, ranges};
