//! Functions in which the processes of hosts wait.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::command::printed;
use crate::{Lab, Process, setup};

/// Maximum number of functions of a stack that are printed.
const DEPTH: usize = 12;
/// Maximum number of stacks that are printed.
const MAX_STACKS: usize = 8;

/// Describes what the processes of all hosts wait in, those in the same functions together. The
/// functions are known if gdb is installed.
pub(super) fn of(lab: &Lab) -> String {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for process in lab.all_processes() {
        let program = process.args.first().map_or("", String::as_str);
        if process.state != 'Z' && !program.starts_with("sshd") {
            let name = format!("{} {}", process.host, process.host_pid);
            groups.entry(describe(&process)).or_default().push(name);
        }
    }
    let line =
        |(stack, names): (&String, &Vec<String>)| format!("{stack}\n    {}", names.join(", "));
    groups.iter().take(MAX_STACKS).map(line).collect::<Vec<_>>().join("\n")
}

/// Formats the program, the state letter, where the kernel has the process wait, and its functions
/// from the innermost.
fn describe(process: &Process) -> String {
    let pid = process.pid;
    let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let words: Vec<&str> = process.args.iter().take(3).map(String::as_str).collect();
    let functions = if setup::has("gdb") { functions(pid) } else { Vec::new() };
    format!("{} {} {channel}: {}", words.join(" "), process.state, functions.join(" < "))
}

/// Lists the functions that a process is in, by gdb, without those of an interpreter.
fn functions(pid: i32) -> Vec<String> {
    let mut gdb = Command::new("timeout");
    gdb.args(["20", "gdb", "-batch", "-nx", "-ex", "bt 60", "-p", &pid.to_string()]);
    parse(&printed("read a stack", &mut gdb).unwrap_or_default())
}

fn parse(printed: &str) -> Vec<String> {
    // `#3  0x00007f in PMPI_Finalize () from target:/lib/libmpich.so.12`
    let name = |line: &str| {
        let frame = line.strip_prefix('#')?.split_once(' ')?.1.trim_start();
        let frame = frame.split_once(" in ").map_or(frame, |(_, after)| after);
        frame.split_whitespace().next().map(str::to_owned)
    };
    let is_told = |name: &String| !["Py", "_Py", "??"].iter().any(|begin| name.starts_with(begin));
    printed.lines().filter_map(name).filter(is_told).take(DEPTH).collect()
}
