//! Placement of ranks, and how each launcher starts its program there.

use clap::ValueEnum;

use crate::bench::launchers::Launcher;

/// Transport between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP between hosts.
    Tcp,
}

impl Transport {
    /// Returns the name of the transport in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

/// Placement of ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) transport: Transport,
    pub(super) hosts: usize,
    pub(super) per_host: usize,
    /// Whether rows of this setting have a bar. With more ranks than processors they have none,
    /// since the results depend mostly on the kernel's scheduling.
    pub(super) has_bar: bool,
}

impl Setting {
    pub(super) const ALL: [Setting; 4] = [
        Setting { transport: Transport::Shm, hosts: 1, per_host: 2, has_bar: true },
        Setting { transport: Transport::Tcp, hosts: 2, per_host: 1, has_bar: true },
        Setting { transport: Transport::Shm, hosts: 1, per_host: 4, has_bar: false },
        Setting { transport: Transport::Tcp, hosts: 4, per_host: 1, has_bar: false },
    ];

    /// Describes the setting.
    pub(super) fn describe(&self) -> String {
        let ranks = self.hosts * self.per_host;
        match self.transport {
            Transport::Shm => format!("shared memory, {ranks} ranks on one host"),
            Transport::Tcp => format!("TCP, {ranks} hosts with one rank each"),
        }
    }

    /// Lists the contenders, rlaunch first. With `variants` peers are measured in less usual
    /// configurations as well.
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

    /// Returns the number of rounds: few are enough for rows that have no bar.
    pub(super) fn rounds(&self, rounds: usize) -> usize {
        if self.has_bar { rounds } else { rounds.min(5) }
    }

    /// Returns the time limit of a program in seconds, as an option of launchers. Without a bar,
    /// spinning ranks may keep the processor from the rank that they wait for, and take minutes.
    pub(super) fn limit(&self) -> &'static str {
        if self.has_bar { "120" } else { "30" }
    }
}

/// Launcher with the options that make it fastest in a setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) launcher: Launcher,
    /// Options as on a command line, without quotes.
    options: &'static str,
    is_variant: bool,
}

impl Contender {
    /// Returns the options of the contender's launcher, one word each.
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
/// Options for copies through shared memory; by default the kernel copies.
const COPY_SHM: &str = "--mca pml ob1 --mca btl self,vader --bind-to core --mca btl_vader_single_copy_mechanism \
     none";
const UCX_SHM: &str =
    "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --bind-to core";
/// Options for more ranks than processors, where waiting ranks have to yield.
const OB1_SHM_CROWDED: &str =
    "--mca pml ob1 --mca btl self,vader --bind-to none --mca mpi_yield_when_idle 1";
/// Options for TCP. Without `--bind-to none` each host would bind its rank to the first core, and
/// that is the same core for all hosts.
const OB1_TCP: &str =
    "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none";
const UCX_TCP: &str = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --bind-to none -x \
     UCX_TLS=tcp,self -x UCX_NET_DEVICES=eth0";
const OB1_TCP_CROWDED: &str = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include eth0 --bind-to none --mca \
     mpi_yield_when_idle 1";
const UCX_TCP_HYDRA: &str = "-genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0";
