//! Tests of the whole catalogue with input that no kernel gives: absurd numbers, and names that a
//! shell would run.

use super::faults::{dgx, healthy};
use super::testing::{Machine, with_cluster};
use super::{CheckState, catalogue, fold, state};
use crate::findings::{self, Action, Finding, Step};
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::diagnostics::Counter;
use rlaunch_bootstrap::protocol::changes::Change;
use serde_json::{Number, Value};
use std::collections::BTreeSet;

/// Numbers at the ends of their types.
const EXTREMES: [u64; 9] = [
    u64::MAX,
    i64::MAX as u64,
    u32::MAX as u64,
    u32::MAX as u64 - 59,
    i32::MAX as u64,
    u16::MAX as u64,
    u8::MAX as u64,
    1,
    0,
];
/// Name that a shell would run if it were not quoted.
const PROGRAM: &str = "a;$(b)";

fn machines() -> Vec<Machine> {
    let cabled = triangle().map(|inventory| healthy(Machine { inventory, ..Machine::default() }));
    let servers = [dgx(), dgx(), healthy(Machine::recorded("bond"))];
    let counted = |machine: Machine| {
        machine.diagnosed(|state| {
            let counter = |name: &str| Counter { name: name.to_owned(), first: 7, last: 9 };
            let names = ["rx_errors", "symbol_error", "out_of_sequence", "RcvbufErrors"];
            let counters: Vec<Counter> = names.map(counter).into();
            state.counters.clone_from(&counters);
            state.interfaces.iter_mut().for_each(|one| one.counters.clone_from(&counters));
            state.rdma_ports.iter_mut().for_each(|one| one.counters.clone_from(&counters));
            state.interval_ms = 1000;
            state.memory_available = Some(1 << 30);
            state.tmp_available = Some(1 << 30);
            state.shared_memory_available = Some(1 << 30);
            state.kernel.ephemeral_ports = Some((32_768, 60_999));
        })
    };
    cabled.into_iter().chain(servers).map(counted).collect()
}

/// Calls `visit` with each leaf of a value and its place, in which all elements of a list are alike.
fn leaves(value: &mut Value, place: &str, visit: &mut dyn FnMut(&str, &mut Value)) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(|item| leaves(item, &format!("{place}[]"), visit));
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(field, &format!("{place}.{name}"), visit);
            }
        }
        leaf => visit(place, leaf),
    }
}

fn to_json(machine: &Machine) -> Value {
    serde_json::to_value((&machine.inventory, &machine.diagnostics)).unwrap()
}

fn from_json(value: Value) -> Option<Machine> {
    let (inventory, diagnostics) = serde_json::from_value(value).ok()?;
    Some(Machine { inventory, diagnostics })
}

/// Runs all checks, and returns the lines that users paste, and those that rlaunch would run.
fn lines_to_paste(machines: &[Machine]) -> Vec<String> {
    with_cluster(machines, |cluster| {
        let checks = catalogue().filter(|check| state(check, &cluster) == CheckState::Ran);
        let found = checks.flat_map(|check| (check.examine)(&cluster));
        let folded = fold(&findings::merge(found), &cluster);
        let found: Vec<Finding> = folded.into_iter().map(|folded| folded.finding).collect();
        let line = |step: &Step| match step {
            Step::Run(line) | Step::RunOn(_, line) | Step::RunHere(line) => Some(line.clone()),
            Step::Do(_) => None,
        };
        let pasted = found.iter().flat_map(|finding| &finding.fix).filter_map(line);
        let changes =
            found.iter().flat_map(|finding| &finding.fixes).flat_map(|fix| match &fix.action {
                Action::Change(changes) | Action::ChangeOn(_, changes) => changes.as_slice(),
                Action::RunHere | Action::InstallKey => &[],
            });
        let run = changes.flat_map(|change| match change {
            Change::Run { line, save, undo } | Change::RunUntilBoot { line, save, undo } => {
                [Some(line), save.as_ref(), undo.as_ref()].into_iter().flatten().cloned().collect()
            }
            // The content is no line for a shell.
            Change::File { path, mode, .. } => {
                let (path, mode, content, expected) = (path.clone(), *mode, None, None);
                vec![Change::File { path, mode, content, expected }.to_string()]
            }
            Change::Edit { line, .. } => vec![line.clone(), change.to_string()],
            Change::Network(_) => vec![change.to_string()],
        });
        pasted.chain(run).collect()
    })
}

/// Puts each extreme into all numbers of one kind at a time, of the first machine.
#[test]
fn absurd_numbers_are_judged() {
    let mut failed = Vec::new();
    for machines in machines().chunks(3) {
        let mut places = BTreeSet::new();
        let sound = to_json(&machines[0]);
        leaves(&mut sound.clone(), "", &mut |place, leaf| {
            if leaf.is_number() {
                places.insert(place.to_owned());
            }
        });
        assert!(places.len() > 30, "{places:?}");
        for place in &places {
            let mut tried = 0;
            for extreme in EXTREMES {
                let mut absurd = sound.clone();
                leaves(&mut absurd, "", &mut |own, leaf| {
                    if own == place && leaf.is_number() {
                        *leaf = Value::Number(Number::from(extreme));
                    }
                });
                let Some(first) = from_json(absurd) else { continue };
                tried += 1;
                let mut machines = machines.to_vec();
                machines[0] = first;
                let judged = std::panic::catch_unwind(|| lines_to_paste(&machines));
                failed.extend(judged.is_err().then(|| format!("{place} = {extreme}")));
            }
            assert!(tried > 1, "{place}");
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Renames all interfaces and RDMA devices of a machine with faults that have lines to paste.
#[test]
fn names_of_hosts_are_words_for_the_shell() {
    let mut lines = Vec::new();
    for mut machines in machines().chunks(3).map(<[Machine]>::to_vec) {
        let state = &mut machines[0].diagnostics;
        state.interfaces.iter_mut().for_each(|one| one.is_up = false);
        state.rdma_ports.iter_mut().for_each(|one| one.cm_roce_mode = Some("RoCE v1".into()));
        for port in machines[0].inventory.rdma.iter_mut().flat_map(|device| &mut device.ports) {
            port.mtu = port.mtu.map(|_| 1024);
        }
        let inventory = &machines[0].inventory;
        let names = inventory.netdevs.iter().map(|netdev| &netdev.name);
        let names = names.chain(inventory.rdma.iter().map(|device| &device.name));
        for name in names.cloned().collect::<BTreeSet<String>>() {
            let mut renamed = to_json(&machines[0]);
            leaves(&mut renamed, "", &mut |_, leaf| {
                if *leaf == *name {
                    *leaf = Value::String(PROGRAM.to_owned());
                }
            });
            let mut machines = machines.clone();
            machines[0] = from_json(renamed).unwrap();
            lines.extend(lines_to_paste(&machines));
        }
    }
    let named: Vec<&String> = lines.iter().filter(|line| line.contains(PROGRAM)).collect();
    for line in &named {
        // Every second part is between quotes.
        assert!(line.split('\'').step_by(2).all(|part| !part.contains("$(b)")), "{line}");
    }
    let kinds = ["ip link set", "mtu ", "rdma_cm"];
    for kind in kinds {
        assert!(named.iter().any(|line| line.contains(kind)), "{kind}: {named:?}");
    }
}
