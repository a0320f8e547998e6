//! Tests on network-namespace hosts.
