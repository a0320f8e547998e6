//! Cases: every collective on every type, with every operation and several lengths.

use rlaunch_comm::ElementType;
pub use rlaunch_comm::Op;
use std::fmt;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the communicator's")]
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
    /// All of them.
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

/// Elements of a block.
pub(crate) const COUNTS: [usize; 4] = [0, 1, 7, 8 << 10];

/// One call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which.
    pub collective: Collective,
    /// On what.
    pub element: ElementType,
    /// How it is reduced, if it is.
    pub op: Op,
    /// Elements of a block.
    pub count: usize,
    /// In one buffer.
    pub in_place: bool,
    /// Begun, and waited for later.
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

/// Every collective × type × operation × length, blocking and not in place.
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
