//! Ranks that were built without RDMA.

use super::{Contact, WireUpError};
use crate::transport::{LinkHint, SelfLink};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// There is none.
#[derive(Debug)]
pub(crate) enum Fabric {}

/// Nor this.
#[derive(Debug)]
pub(crate) enum ConnectedQp {}

/// Nor this.
#[derive(Debug)]
pub(crate) enum LazyRdma {}

impl ConnectedQp {
    pub(crate) fn link(self) -> SelfLink {
        match self {}
    }
}

impl Fabric {
    /// None, whatever the rank table names.
    pub(crate) fn open(
        _: &RankTable,
        _: Rank,
        _: String,
        _: bool,
    ) -> Result<Option<Fabric>, WireUpError> {
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
    ) -> Result<BTreeMap<Rank, ConnectedQp>, WireUpError> {
        match self {}
    }

    pub(crate) fn lazy(self, _: &[Contact], _: &Arc<RankTable>) -> Result<LazyRdma, WireUpError> {
        match self {}
    }
}

impl LazyRdma {
    pub(crate) fn link_hint(&self) -> BTreeMap<Rank, LinkHint> {
        match *self {}
    }

    pub(crate) fn speaks_with(&self, _: Rank) -> bool {
        match *self {}
    }

    pub(crate) fn begins(&self, _: Rank) -> bool {
        match *self {}
    }

    pub(crate) fn begin(&mut self, _: Rank, _: TcpStream, _: Instant) -> Result<(), WireUpError> {
        match *self {}
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match *self {}
    }

    pub(crate) fn end(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn advance(&mut self) -> Vec<(Rank, Result<Box<SelfLink>, WireUpError>)> {
        match *self {}
    }
}
