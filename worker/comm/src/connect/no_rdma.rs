//! Replacement of [`rdma`](super::rdma) in builds without RDMA. Its types have no values, so their
//! methods are never called.

use super::{ConnectError, Contact};
use crate::transport::{LinkHint, SelfLink};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// RDMA ports of this rank, which do not exist in this build.
#[derive(Debug)]
pub(crate) enum Fabric {}

/// Connected queue pair, which does not exist in this build.
#[derive(Debug)]
pub(crate) enum ConnectedQp {}

/// Connector of RDMA peers, which does not exist in this build.
#[derive(Debug)]
pub(crate) enum LazyRdma {}

impl ConnectedQp {
    pub(crate) fn link(self) -> SelfLink {
        match self {}
    }
}

impl Fabric {
    /// Returns `None`, whatever the rank table says.
    pub(crate) fn open(
        _: &RankTable,
        _: Rank,
        _: String,
        _: bool,
    ) -> Result<Option<Fabric>, ConnectError> {
        Ok(None)
    }

    pub(crate) fn advert(&self) -> Result<Vec<u8>, ConnectError> {
        match *self {}
    }

    pub(crate) fn connect(
        self,
        _: &[Contact],
        _: &RankTable,
        _: Duration,
    ) -> Result<BTreeMap<Rank, ConnectedQp>, ConnectError> {
        match self {}
    }

    pub(crate) fn lazy(self, _: &[Contact], _: &Arc<RankTable>) -> Result<LazyRdma, ConnectError> {
        match self {}
    }
}

impl LazyRdma {
    pub(crate) fn link_hint(&self) -> BTreeMap<Rank, LinkHint> {
        match *self {}
    }

    pub(crate) fn uses_rdma(&self, _: Rank) -> bool {
        match *self {}
    }

    pub(crate) fn is_connecting(&self, _: Rank) -> bool {
        match *self {}
    }

    pub(crate) fn begin(&mut self, _: Rank, _: TcpStream, _: Instant) -> Result<(), ConnectError> {
        match *self {}
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match *self {}
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn advance(&mut self) -> Vec<(Rank, Result<Box<SelfLink>, ConnectError>)> {
        match *self {}
    }
}
