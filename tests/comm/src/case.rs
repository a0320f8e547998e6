//! Test cases: every collective with every type, every operation and several lengths.

use rlaunch_comm::ElementType;
pub use rlaunch_comm::Op;
use std::fmt;

/// Collective to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    Gather,
    Scatter,
    AllGather,
    ReduceScatter,
    AllToAll,
}

impl Collective {
    /// All collectives.
    pub const ALL: [Collective; 9] = [
        Collective::Barrier,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
    ];

    fn reduces(self) -> bool {
        matches!(self, Collective::Reduce | Collective::AllReduce | Collective::ReduceScatter)
    }
}

/// Block lengths in elements.
pub(crate) const COUNTS: [usize; 4] = [0, 1, 7, 8 << 10];

/// Call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Collective to call.
    pub collective: Collective,
    /// Element type.
    pub element: ElementType,
    /// Reduction operation; ignored by other collectives.
    pub op: Op,
    /// Block length in elements.
    pub count: usize,
    /// Whether one buffer is both input and output.
    pub in_place: bool,
    /// Whether the call is nonblocking.
    pub later: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { collective, element, op, count, in_place, later } = self;
        write!(f, "{collective:?} {element} {op} × {count}")?;
        f.write_str(if *in_place { ", in place" } else { "" })?;
        f.write_str(if *later { ", waited for later" } else { "" })
    }
}

/// Returns every combination of collective, type, operation and length, blocking and with separate
/// buffers.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in Collective::ALL {
        let elements = if collective == Collective::Barrier { 1 } else { ElementType::ALL.len() };
        let ops = if collective.reduces() { Op::ALL.len() } else { 1 };
        let counts = if collective == Collective::Barrier { 1 } else { COUNTS.len() };
        for element in &ElementType::ALL[..elements] {
            for op in &Op::ALL[..ops] {
                for count in &COUNTS[..counts] {
                    let (element, op, count) = (*element, *op, *count);
                    let (in_place, later) = (false, false);
                    cases.push(Case { collective, element, op, count, in_place, later });
                }
            }
        }
    }
    cases
}
