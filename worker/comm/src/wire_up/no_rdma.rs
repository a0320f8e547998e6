//! Ranks that were built without RDMA.

use super::{Contact, WireUpError};
use crate::link::OwnLink;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::table::RankTable;
use std::collections::BTreeMap;
use std::time::Duration;

/// There is none.
#[derive(Debug)]
pub(crate) enum Fabric {}

/// Nor this.
#[derive(Debug)]
pub(crate) enum Joined {}

impl Joined {
    pub(crate) fn link(self) -> OwnLink {
        match self {}
    }
}

impl Fabric {
    /// None, whatever the rank table names.
    pub(crate) fn open(_: &RankTable, _: Rank, _: String) -> Result<Option<Fabric>, WireUpError> {
        Ok(None)
    }

    pub(crate) fn told(&self) -> Result<Vec<u8>, WireUpError> {
        match *self {}
    }

    pub(crate) fn connect(
        self,
        _: &[Contact],
        _: &RankTable,
        _: Duration,
    ) -> Result<BTreeMap<Rank, Joined>, WireUpError> {
        match self {}
    }
}
