//! Simulated job in one process. Its ranks are threads, of which only one runs at a time.
//!
//! A seed determines which rank runs next, how long packets take and when links have room, so
//! failures can be replayed. Time is virtual.

pub use crate::transport::sim::{Dice, Faults};

use crate::api::communicator::{Communicator, Group};
use crate::progress::engine::Engine;
use crate::progress::idle::Idle;
use crate::progress::wait::{Progress, SpinPolicy};
use crate::transport::sim::{SimLink, SimWorld};
use crate::transport::{Link, SelfLink, WatchedFd};
use crate::types::{LinkError, PeerName};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Parameters of a simulated job.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks per node.
    pub per_node: usize,
    /// Faults to inject.
    pub faults: Faults,
    /// Virtual time after which a rank's wait fails.
    pub timeout: Duration,
}

/// Clock and sleep of a simulated rank.
#[derive(Debug)]
struct SimIdle {
    world: Arc<SimWorld>,
    me: usize,
}

impl Idle for SimIdle {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn yield_now(&self) {
        self.world.pass(self.me, Duration::ZERO);
    }

    fn sleep(&self, longest: Duration) -> bool {
        self.world.pass(self.me, longest);
        false
    }

    fn watch_agent(&self, _: BorrowedFd<'_>) -> Result<(), LinkError> {
        Ok(())
    }

    fn watch(&self, _: usize, _: WatchedFd<'_>) -> Result<(), LinkError> {
        Ok(())
    }

    fn unwatch(&self, _: usize, _: BorrowedFd<'_>) {}

    // A simulated rank has one thread.
    fn wake(&self) {}
}

/// Runs `program` in every rank, and returns the results in rank order.
pub fn run<R: Send>(settings: &Settings, program: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let ranks = settings.ranks;
    let world = Arc::new(SimWorld::new(settings.seed, ranks, settings.faults.clone()));
    std::thread::scope(|scope| {
        let rank = |me| {
            let (world, program) = (&world, &program);
            scope.spawn(move || {
                // Its drop gives another rank the next turn even if the program panics.
                let _end = EndGuard { world, me };
                world.begin(me);
                program(&communicator(world, settings, me))
            })
        };
        let threads: Vec<_> = (0..ranks).map(rank).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

struct EndGuard<'w> {
    world: &'w Arc<SimWorld>,
    me: usize,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.world.end(self.me);
    }
}

fn communicator(world: &Arc<SimWorld>, settings: &Settings, me: usize) -> Communicator {
    let link = |peer| -> Box<dyn Link> {
        if peer == me {
            Box::new(SelfLink::default())
        } else {
            Box::new(SimLink::new(world, me, peer))
        }
    };
    let name = |rank: usize| PeerName {
        rank: rank as u32,
        host: format!("n{}", rank / settings.per_node).into(),
    };
    let names: Vec<PeerName> = (0..settings.ranks).map(name).collect();
    let links = (0..settings.ranks).map(link).collect();
    let engine = Engine::new(me, links, names.into());
    let nodes = (0..settings.ranks).map(|rank| (rank / settings.per_node) as u32);
    let group = Group::world(me, nodes.collect());
    let idle = Arc::new(SimIdle { world: world.clone(), me });
    let progress = Progress::new(engine, idle, SpinPolicy::none(), Some(settings.timeout));
    Communicator::new(Arc::new(progress), group)
}

#[cfg(test)]
mod tests;
