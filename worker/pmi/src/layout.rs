//! Which ranks run on which nodes.

/// Ranks of a job and the nodes they run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLayout {
    /// Name of the job for MPI libraries. It ends with a token of 128 random bits, so that only processes
    /// that can read a rank's environment know it, and no two jobs on a host share it.
    pub namespace: String,
    /// Nodes of the job, by number.
    pub nodes: Vec<NodeLayout>,
    /// Number of the node whose agent runs this server.
    pub here: usize,
    /// Program of each rank, by rank, as a number from 0.
    pub application_of: Vec<u32>,
    /// Directory on this node for temporary files of MPI libraries, which has the directories of
    /// [`JobLayout::rank_directory`] and is removed when the job ends. `None` if the libraries are to choose
    /// one themselves; some leave files there.
    pub directory: Option<String>,
    /// Secret of each rank of this node, by local rank: a random number below 2^31 that a PMI-1 client
    /// sends (`PMI_ID`) to say which rank it is. A process that merely knows the ranks' numbers cannot
    /// take the place of a rank.
    pub pmi_ids: Vec<u32>,
}

/// A rank of this node, as its environment describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPlace {
    /// Name of the job for MPI libraries ([`JobLayout::namespace`]).
    pub namespace: String,
    pub node: usize,
    pub host: String,
    pub rank: u32,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// Position of the rank among the ranks of its node.
    pub local_rank: usize,
    /// Number of ranks on the node.
    pub local_size: usize,
    /// Secret of the rank ([`JobLayout::pmi_ids`]).
    pub pmi_id: u32,
}

/// Ranks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLayout {
    /// Host name, unique in the job.
    pub host: String,
    /// Ranks, by local rank.
    pub ranks: Vec<u32>,
}

impl JobLayout {
    /// Returns the number of ranks in the job.
    pub fn world_size(&self) -> u32 {
        self.nodes.iter().map(|node| u32::try_from(node.ranks.len()).unwrap_or(u32::MAX)).sum()
    }

    /// Returns the ranks of this node, by local rank.
    pub fn ranks_here(&self) -> &[u32] {
        self.nodes.get(self.here).map_or(&[], |node| &node.ranks)
    }

    /// Returns the position of a rank among the ranks of this node, or `None` if it runs elsewhere.
    pub fn local_rank(&self, rank: u32) -> Option<usize> {
        self.ranks_here().iter().position(|&other| other == rank)
    }

    /// Returns the directory for temporary files of a rank of this node.
    pub fn rank_directory(&self, rank: u32) -> Option<String> {
        self.directory.as_ref().map(|directory| format!("{directory}/{rank}"))
    }

    /// Describes a rank of this node for its environment. Returns `None` if it does not run on this node.
    pub fn place(&self, rank: u32) -> Option<RankPlace> {
        let node = self.nodes.get(self.here)?;
        let local_rank = self.local_rank(rank)?;
        Some(RankPlace {
            namespace: self.namespace.clone(),
            node: self.here,
            host: node.host.clone(),
            rank,
            world_size: self.world_size(),
            local_rank,
            local_size: node.ranks.len(),
            pmi_id: *self.pmi_ids.get(local_rank)?,
        })
    }

    /// Returns the number of the node of each rank, by rank. Returns `None` unless every rank from 0 to
    /// the last is on exactly one node.
    pub fn node_of_ranks(&self) -> Option<Vec<usize>> {
        let total = self.nodes.iter().map(|node| node.ranks.len()).sum();
        let mut node_of = vec![None; total];
        for (number, node) in self.nodes.iter().enumerate() {
            for &rank in &node.ranks {
                let place = node_of.get_mut(usize::try_from(rank).ok()?)?;
                if place.replace(number).is_some() {
                    return None;
                }
            }
        }
        node_of.into_iter().collect()
    }
}
