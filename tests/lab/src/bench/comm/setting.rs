//! Where ranks are, and how each launcher starts its program there.

use clap::ValueEnum;

use crate::bench::launchers::Launcher;

/// What ranks talk over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP between hosts.
    Tcp,
}

impl Transport {
    /// Gives the transport's name in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

/// Where ranks are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) transport: Transport,
    pub(super) hosts: usize,
    pub(super) per_host: usize,
    /// Whether rlaunch has to keep up here; elsewhere more ranks than processors take turns, and
    /// what is measured is for the most part the kernel's choice of who is next.
    pub(super) has_bar: bool,
}

impl Setting {
    pub(super) const ALL: [Setting; 4] = [
        Setting { transport: Transport::Shm, hosts: 1, per_host: 2, has_bar: true },
        Setting { transport: Transport::Tcp, hosts: 2, per_host: 1, has_bar: true },
        Setting { transport: Transport::Shm, hosts: 1, per_host: 4, has_bar: false },
        Setting { transport: Transport::Tcp, hosts: 4, per_host: 1, has_bar: false },
    ];

    /// In words.
    pub(super) fn describe(&self) -> String {
        let ranks = self.hosts * self.per_host;
        match self.transport {
            Transport::Shm => format!("shared memory, {ranks} ranks on one host"),
            Transport::Tcp => format!("TCP, {ranks} hosts with one rank each"),
        }
    }

    /// Who is measured here, rlaunch first; with `variants`, peers also in ways that few people
    /// start them in.
    pub(super) fn contenders(&self, variants: bool) -> Vec<Contender> {
        let all = match (self.transport, self.has_bar) {
            (Transport::Shm, true) => SHM,
            (Transport::Tcp, true) => TCP,
            (Transport::Shm, false) => SHM_CROWDED,
            (Transport::Tcp, false) => TCP_CROWDED,
        };
        let wanted = |one: &&Contender| variants || !one.is_variant;
        [RLAUNCH].iter().chain(all).filter(wanted).copied().collect()
    }

    /// How many of `rounds` rounds are made here: for what is only printed few will do.
    pub(super) fn rounds(&self, rounds: usize) -> usize {
        if self.has_bar { rounds } else { rounds.min(5) }
    }

    /// After how many seconds a launcher gives a program up. Without a bar ranks that spin may keep
    /// the one from the processor that they wait for, and need minutes.
    pub(super) fn limit(&self) -> &'static str {
        if self.has_bar { "120" } else { "30" }
    }
}

/// A launcher, and what makes it do its best in a setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) launcher: Launcher,
    /// On a command line, without quotes.
    options: &'static str,
    is_variant: bool,
}

impl Contender {
    /// Of its launcher, one word each.
    pub(super) fn options(&self) -> impl Iterator<Item = &'static str> {
        self.options.split_whitespace()
    }
}

const fn usual(name: &'static str, launcher: Launcher, options: &'static str) -> Contender {
    Contender { name, launcher, options, is_variant: false }
}

const fn variant(name: &'static str, launcher: Launcher, options: &'static str) -> Contender {
    Contender { name, launcher, options, is_variant: true }
}

pub(super) const RLAUNCH: Contender = usual("rlaunch", Launcher::Rlaunch, "");

const SHM: &[Contender] = &[
    usual("MPICH", Launcher::Hydra, "-bind-to core"),
    usual("Open MPI", Launcher::OpenMpi, OB1_SHM),
    variant("ompi nocma", Launcher::OpenMpi, COPY_SHM),
    variant("ompi ucx", Launcher::OpenMpi, UCX_SHM),
];

const TCP: &[Contender] = &[
    usual("MPICH", Launcher::Hydra, UCX_TCP_HYDRA),
    usual("Open MPI", Launcher::OpenMpi, OB1_TCP),
    variant("ompi ucx", Launcher::OpenMpi, UCX_TCP),
];

const SHM_CROWDED: &[Contender] =
    &[usual("MPICH", Launcher::Hydra, ""), usual("Open MPI", Launcher::OpenMpi, OB1_SHM_CROWDED)];

const TCP_CROWDED: &[Contender] = &[
    usual("MPICH", Launcher::Hydra, UCX_TCP_HYDRA),
    usual("Open MPI", Launcher::OpenMpi, OB1_TCP_CROWDED),
];

const OB1_SHM: &str = "--mca pml ob1 --mca btl self,vader --bind-to core";
/// Copies through shared memory, where the above has the kernel copy.
const COPY_SHM: &str = "--mca pml ob1 --mca btl self,vader --bind-to core --mca btl_vader_single_copy_mechanism \
     none";
const UCX_SHM: &str =
    "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --bind-to core";
/// Ranks that wait have to give way.
const OB1_SHM_CROWDED: &str =
    "--mca pml ob1 --mca btl self,vader --bind-to none --mca mpi_yield_when_idle 1";
/// Left to itself each host would bind its rank to the first core, which is the same one.
const OB1_TCP: &str =
    "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none";
const UCX_TCP: &str = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --bind-to none -x \
     UCX_TLS=tcp,self -x UCX_NET_DEVICES=eth0";
const OB1_TCP_CROWDED: &str = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none --mca \
     mpi_yield_when_idle 1";
const UCX_TCP_HYDRA: &str = "-genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0";
