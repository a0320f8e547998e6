//! `cargo lab`: test hosts on this machine, and everything that runs on them.
//!
//! The hosts are in `lab/`, the emulated computers in `vm/`, the test stages in `stages/`, the benches in
//! `bench/`; `dist/` links for older C libraries and aarch64. `tests/README.md` says what can be done with it.

mod args;
mod vm_command;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

use args::{Args, Bench, Soak, Verb};
use rlaunch_lab::bench::{
    comm, failure, inventory, launch, mesh, output, rendezvous, train, verbs,
};
use rlaunch_lab::dist::{self, Profile};
use rlaunch_lab::setup::{self, Extent};
use rlaunch_lab::{
    Account, Cut, Lab, LabError, Options, Status, demo, fuzz, names, sim, soak, stages, tidy,
};

fn main() -> ExitCode {
    let args = Args::parse();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &Args) -> Result<ExitCode, LabError> {
    if args.verb.needs_root() {
        setup::become_root()?;
    }
    let name = args.lab.as_str();
    match &args.verb {
        Verb::Up { hosts, shared_home, net } => {
            let options =
                Options { name: name.into(), hosts: *hosts, net: *net, shared_home: *shared_home };
            print_status(&Lab::up(&options)?.status());
        }
        Verb::Down => match Lab::down(name)? {
            true => println!("lab {name}: removed"),
            false => println!("lab {name}: there was none"),
        },
        Verb::Status { json } => status(name, *json)?,
        Verb::Hosts { count } => match count {
            Some(count) => println!("{}", names::host_list(*count)),
            None => println!("{}", Lab::attach(name)?.hosts().join(",")),
        },
        Verb::Exec { user, command } => {
            return become_command(Lab::attach(name)?.exec(account(*user)).args(command));
        }
        Verb::On { host, user, command } => {
            return become_command(Lab::attach(name)?.on(host, account(*user))?.args(command));
        }
        Verb::Ssh { host, user, command } => {
            let mut ssh = Lab::attach(name)?.exec(account(*user));
            return become_command(ssh.args(["ssh", host]).args(command));
        }
        Verb::Ps { hosts } => print_processes(&Lab::attach(name)?, hosts)?,
        Verb::Cut { host, silent } => {
            let kind = if *silent { Cut::Silent } else { Cut::Carrier };
            Lab::attach(name)?.cut(host, kind)?;
        }
        Verb::Heal(of) => Lab::attach(name)?.heal(&of.host)?,
        Verb::Crash(of) => Lab::attach(name)?.crash(&of.host)?,
        Verb::Boot(of) => Lab::attach(name)?.boot(&of.host)?,
        Verb::Setup => {
            setup::install(Extent::Peers)?;
            dist::aarch64::prepare()?;
            println!("everything the lab and its benches need is installed");
        }
        Verb::Demo { keep } => demo::run(*keep)?,
        Verb::Test { stage, filter, repeat, changed } => {
            // Without root the stages that need it are skipped, and say so.
            let _ = setup::become_root();
            let mut plan = stages::Plan::new(stage.clone(), filter.clone());
            if let Some(revision) = changed {
                plan = plan.changed_since(revision.as_deref())?;
            }
            return Ok(exit_code(match repeat {
                Some(times) => stages::repeat(&plan, *times as usize)?,
                None => stages::test(&plan),
            }));
        }
        Verb::Bench(Bench::Launch { hosts, rounds, skip, against }) => {
            let plan = launch::Plan { hosts: *hosts, rounds: *rounds, skip: skip.clone() };
            return Ok(exit_code(match against.find()? {
                Some(earlier) => launch::run_against(&plan, &earlier)?,
                None => launch::run(&plan)?,
            }));
        }
        Verb::Bench(Bench::Rendezvous { hosts, rounds }) => {
            let plan = rendezvous::Plan { hosts: *hosts, rounds: *rounds };
            return Ok(exit_code(rendezvous::run(&plan)?));
        }
        Verb::Bench(Bench::Comm { rounds, row, only, variants, against }) => {
            let (row, only) = (row.clone(), *only);
            let plan = comm::Plan { rounds: *rounds, row, only, variants: *variants };
            return Ok(exit_code(match against.find()? {
                Some(earlier) => comm::run_against(&plan, &earlier)?,
                None => comm::run(&plan)?,
            }));
        }
        Verb::Bench(Bench::Train { rounds, steps }) => {
            return Ok(exit_code(train::run(&train::Plan { rounds: *rounds, steps: *steps })?));
        }
        Verb::Bench(Bench::Inventory { rounds }) => {
            return Ok(exit_code(inventory::run(&inventory::Plan { rounds: *rounds })?));
        }
        Verb::Bench(Bench::Verbs { rounds, row }) => {
            let plan = verbs::Plan { rounds: *rounds, row: row.clone() };
            return Ok(exit_code(verbs::run(&plan)?));
        }
        Verb::Bench(Bench::Mesh { rounds }) => {
            return Ok(exit_code(mesh::run(&mesh::Plan { rounds: *rounds })?));
        }
        Verb::Bench(Bench::Output { hosts, mebibytes, rounds, against }) => {
            let plan = output::Plan { hosts: *hosts, mebibytes: *mebibytes, rounds: *rounds };
            return Ok(exit_code(match against.find()? {
                Some(earlier) => output::run_against(&plan, &earlier)?,
                None => output::run(&plan)?,
            }));
        }
        Verb::Bench(Bench::Failure { rounds }) => {
            return Ok(exit_code(failure::run(&failure::Plan { rounds: *rounds })?));
        }
        Verb::Soak(Soak::Launch { launches, hosts, load }) => {
            let plan = soak::Plan { launches: *launches, hosts: *hosts, load: *load };
            return Ok(exit_code(soak::launch(&plan, &dist::build(Profile::Lab)?)?));
        }
        Verb::Soak(Soak::Mesh { launches }) => {
            return Ok(exit_code(mesh::soak(*launches)?));
        }
        Verb::Soak(Soak::Comm { seconds }) => {
            return Ok(exit_code(soak::comm(*seconds)?));
        }
        Verb::Soak(Soak::Teardown { jobs, of }) => {
            let rlaunch = match of {
                Some(directory) => directory.join("rlaunch"),
                None => dist::build(Profile::Lab)?,
            };
            return Ok(exit_code(soak::teardown(*jobs, &rlaunch)?));
        }
        Verb::Soak(Soak::Sim { seeds }) => {
            let seeds = sim::run(&["--seeds", &seeds.to_string()])?;
            return Ok(exit_code(sim::run(&["--mutations"])? && seeds));
        }
        Verb::Deps { online } => {
            return Ok(exit_code(stages::check_dependencies(*online).failed == 0));
        }
        Verb::Tidy { only, edges, known } => {
            let options = tidy::TidyOptions { only: only.as_deref(), edges: *edges, known: *known };
            return Ok(exit_code(tidy::run(&options)?));
        }
        Verb::Fuzz { target, seconds } => {
            let targets = target.clone().map(|target| vec![target]);
            let plan = fuzz::Plan { targets, seconds: *seconds, searched: None };
            return Ok(exit_code(fuzz::run(&plan)?.failed == 0));
        }
        Verb::Sim { words } => return Ok(exit_code(sim::run(words)?)),
        Verb::Vm(vm) => return vm_command::dispatch(name, vm),
        Verb::Build { profile } => {
            // Minutes before a compiler would find out.
            setup::require(Extent::Verbs)?;
            for lacking in dist::aarch64::lacking()? {
                println!("not built: {lacking}");
            }
            let launcher = dist::build(*profile)?;
            dist::build_bench(*profile)?;
            dist::build_prover(*profile)?;
            dist::aarch64::build(*profile)?;
            println!("{}", launcher.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn account(user: bool) -> Account {
    if user { Account::User } else { Account::Root }
}

/// Replaces this process, so that signals, terminal and exit status are the command's own.
fn become_command(command: &mut Command) -> Result<ExitCode, LabError> {
    let source = command.exec();
    Err(LabError::Io { operation: "start sh".into(), source })
}

fn status(name: &str, json: bool) -> Result<(), LabError> {
    let status = match Lab::attach(name) {
        Ok(lab) => lab.status(),
        Err(LabError::NotUp { .. }) => Status::down(name),
        Err(error) => return Err(error),
    };
    if json {
        let text = serde_json::to_string(&status).map_err(io::Error::from);
        let operation = || "write the status".to_owned();
        println!("{}", text.map_err(|source| LabError::Io { operation: operation(), source })?);
    } else {
        print_status(&status);
    }
    Ok(())
}

fn print_status(status: &Status) {
    if !status.up {
        println!("lab {}: down", status.lab);
        return;
    }
    let down: Vec<&str> =
        status.hosts.iter().filter(|host| !host.up).map(|host| host.name.as_str()).collect();
    let first = status.hosts.first().map_or("", |host| host.name.as_str());
    let last = status.hosts.last().map_or("", |host| host.name.as_str());
    let homes = if status.shared_home { ", shared home" } else { "" };
    println!("lab {}: {} hosts {first}..{last}{homes}", status.lab, status.hosts.len());
    if !down.is_empty() {
        println!("crashed: {}", down.join(","));
    }
}

fn print_processes(lab: &Lab, hosts: &[String]) -> Result<(), LabError> {
    let mut processes = Vec::new();
    for host in hosts {
        processes.extend(lab.processes(host)?);
    }
    if hosts.is_empty() {
        processes = lab.all_processes();
    }
    for process in processes {
        let (pid, parent, state) = (process.pid, process.parent, process.state);
        println!("{}\t{pid}\t{parent}\t{state}\t{}", process.host, process.command_line());
    }
    Ok(())
}

fn report(error: &LabError) {
    eprintln!("error: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        eprintln!("  caused by: {source}");
        cause = source.source();
    }
    if let Some(hint) = error.hint() {
        eprintln!("\nhint: {hint}");
    }
}
