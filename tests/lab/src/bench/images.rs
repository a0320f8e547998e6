//! `cargo lab bench images`: jobs in containers of an image beside `docker run`, and `rlaunch push image:NAME` beside
//! `docker save | ssh docker load`. Hosts have a Docker each, whose layers are in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::{Args, ValueEnum};
use fastrand::Rng;

use super::contender::{Scratch, Testbed, check_names};
use super::copy::{RATE, fill};
use super::table::{Bar, Rounds, Row, Table};
use crate::command::{at_once, printed, run as run_command};
use crate::dist::{self, Profile};
use crate::files::make_dir;
use crate::setup::{self, PackageSet};
use crate::{Account, LabError};

/// Image of jobs, and image that travels.
const SMALL: &str = "lab/small:1";
const LARGE: &str = "lab/large:1";
const LARGE_BYTES: u64 = 200_000_000;

/// Script that starts a Docker without networks. Arguments: directory of its data, of its state, its socket, and the file
/// with its process id.
const DAEMON: &str = r#"set -e
    mkdir -p "$1" "$2"
    # At its first run, Docker makes a key in /etc/docker, and hosts may not write there.
    if [ -d /etc/docker ] && ! mountpoint -q /etc/docker; then mount -t tmpfs none /etc/docker; fi
    start() {
        dockerd --data-root "$1" --exec-root "$2" --pidfile "$4" -H "unix://$3" --iptables=false --ip6tables=false \
            --bridge=none --storage-driver="$5" </dev/null >"$2/log" 2>&1 &
        daemon=$! n=0
        until docker -H "unix://$3" info >/dev/null 2>&1; do
            kill -0 $daemon 2>/dev/null && [ $((n+=1)) -lt 150 ] || return 1
            sleep 0.2
        done
    }
    # overlay2 is what people have; it does not run on top of another overlay.
    start "$@" overlay2 || start "$@" vfs || { cat "$2/log" >&2; exit 1; }
    docker -H "unix://$3" info --format '{{.Driver}}'"#;
/// Script that ends it. Argument: directory of its state.
const STOP: &str = r#"daemon=$(cat "$1/pid") || exit 0
    kill $daemon && while kill -0 $daemon 2>/dev/null; do sleep 0.1; done"#;
/// Script that makes the image of jobs on a host.
const IMAGE: &str = r#"set -e
    mkdir -p /tmp/image && cd /tmp/image && mkdir -p bin dev etc opt proc root run sys tmp
    echo root:x:0:0::/root:/bin/sh >etc/passwd
    cp -L /usr/bin/hostname bin/
    for file in $(ldd /usr/bin/hostname | grep -o '/[^ ]*'); do
        mkdir -p .${file%/*} && cp -L $file .$file
    done
    tar -c . | docker import - "$1" && cd / && rm -rf /tmp/image"#;
/// What people type. Arguments: image, hosts.
const LOOP: &str = r#"image=$1; shift
    for host; do ssh $host docker run --rm --network host $image hostname; done"#;
/// The same for an image that hosts lack, to all at once, by the cipher with the least CPU time.
const SAVE: &str = r#"image=$1; shift
    for host; do docker save $image | ssh -c aes128-gcm@openssh.com $host docker load >/dev/null & done; wait"#;

/// A job takes no longer than its parts.
const START_BAR: Bar = Bar::RatioAtMost("docker run + start", 1.15);
/// To all hosts at less than half the time, and in little more than that of one.
const PUSH_BARS: [Bar; 2] =
    [Bar::RatioAtMost("save | load", 0.5), Bar::RatioAtMost("save | load to one", 1.2)];

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct ImagesOptions {
    /// Number of hosts.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    hosts: u16,
    /// Number of timed rounds, after one warm-up round.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure only this; can be repeated.
    #[arg(long, value_enum)]
    part: Vec<Part>,
}

/// Part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// `hostname` in a container on every host.
    Start,
    /// An image of 200 MB to all hosts over slow links.
    Push,
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(options: &ImagesOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make(std::env::temp_dir())?;
    let mut measured = Vec::new();
    Testbed::with_fresh(options.hosts.into(), |testbed| {
        let field = Field { testbed, rlaunch: &rlaunch, scratch: &scratch };
        println!("Docker's storage driver on hosts: {}", field.start_engines()?);
        for part in Part::value_variants() {
            if options.part.is_empty() || options.part.contains(part) {
                measured.push(match part {
                    Part::Start => field.starts(options.rounds)?,
                    Part::Push => field.pushes(options.rounds)?,
                });
            }
        }
        Ok(())
    })?;
    let met: Vec<bool> = measured.iter().map(|(title, table)| table.print(title)).collect();
    Ok(met.into_iter().all(|met| met))
}

/// Title and table.
type Measured = (String, Table);

/// Hosts with a Docker each.
struct Field<'a> {
    testbed: &'a Testbed,
    rlaunch: &'a Path,
    scratch: &'a Scratch,
}

/// Docker of the launch node, which the lab does not end.
struct OwnEngine<'a> {
    field: &'a Field<'a>,
    state: PathBuf,
    socket: PathBuf,
}

impl Drop for OwnEngine<'_> {
    fn drop(&mut self) {
        let mut stop = self.field.here("sh");
        // What stays is named by its directory in the list of processes.
        let _ = run_command("end Docker", stop.args(["-c", STOP, "sh"]).arg(&self.state));
    }
}

impl<'a> Field<'a> {
    /// Starts Docker on all hosts, with the image of jobs, and returns its storage driver.
    fn start_engines(&self) -> Result<String, LabError> {
        let drivers = at_once(&self.testbed.hosts, |host| {
            // Where they are by themselves: rlaunch reads there whether Docker may raise limits.
            let words =
                ["/tmp/docker", "/run/dockerd", "/var/run/docker.sock", "/var/run/docker.pid"];
            let driver = self.on(host, "start Docker", DAEMON, &words)?;
            self.on(host, "make an image", IMAGE, &[SMALL])?;
            Ok(driver.trim().to_owned())
        })?;
        Ok(drivers.into_iter().next().unwrap_or_default())
    }

    /// Starts Docker on the launch node, with the image that travels.
    fn start_own_engine(&'a self) -> Result<OwnEngine<'a>, LabError> {
        let place = |name: &str| self.scratch.0.join(name);
        let engine = OwnEngine { field: self, state: place("state"), socket: place("socket") };
        let mut start = self.here("sh");
        start.args(["-c", DAEMON, "sh"]).arg(place("data")).arg(&engine.state).arg(&engine.socket);
        start.arg(engine.state.join("pid"));
        run_command("start Docker", &mut start)?;
        let content = place("image");
        make_dir(&content)?;
        fill(&content.join("random"), LARGE_BYTES, &mut Rng::with_seed(0))?;
        let mut import = self.with_engine(&engine, "sh");
        import.args(["-c", "tar -C \"$1\" -c . | docker import - \"$2\"", "sh"]);
        run_command("make an image", import.arg(&content).arg(LARGE))?;
        fs::remove_dir_all(&content).map_err(LabError::io("remove what an image is made of"))?;
        Ok(engine)
    }

    /// Measures jobs of `hostname` on every host.
    fn starts(&self, rounds: usize) -> Result<Measured, LabError> {
        let names = ["rlaunch --image", "docker run + start", "loop of ssh"];
        let mut table = Table::new(names, [Row::new("wall", "s", &[START_BAR])]);
        let job = |words: &[&str]| {
            let mut job = self.here(self.rlaunch);
            job.args(["-H", &self.testbed.hosts.join(",")]).args(words).arg("hostname");
            job
        };
        table.measure(Rounds::new(rounds), |turn| {
            let seconds = match turn.contender {
                0 => self.complete(&mut job(&["--image", SMALL, "--gpus", "none"]))?,
                1 => {
                    // The slowest host counts, and all have the machine to share, as they have in a job.
                    let own = at_once(&self.testbed.hosts, |host| {
                        let began = Instant::now();
                        let line = "docker run --rm --network host \"$1\" hostname";
                        self.on(host, "run a container", line, &[SMALL])?;
                        Ok(began.elapsed().as_secs_f64())
                    })?;
                    own.into_iter().fold(0.0, f64::max) + self.complete(&mut job(&[]))?
                }
                _ => {
                    let mut by_ssh = self.here("sh");
                    by_ssh.args(["-c", LOOP, "sh", SMALL]).args(&self.testbed.hosts);
                    self.complete(&mut by_ssh)?
                }
            };
            Ok(vec![Some(seconds)])
        })?;
        Ok((format!("hostname in containers on {} hosts", self.testbed.hosts.len()), table))
    }

    /// Measures copies of an image to hosts that lack it, until their engines have it.
    fn pushes(&self, rounds: usize) -> Result<Measured, LabError> {
        let names = ["push", "save | load", "save | load to one"];
        let mut table = Table::new(names, [Row::new("time", "s", &PUSH_BARS)]);
        let engine = self.start_own_engine()?;
        self.testbed.lab.shape(Some(RATE))?;
        table.measure(Rounds::new(rounds), |turn| {
            let all = self.testbed.hosts.as_slice();
            let hosts = if turn.contender == 2 { &all[..1] } else { all };
            at_once(all, |host| {
                let line = "! docker image inspect \"$1\" >/dev/null 2>&1 || docker rmi \"$1\"";
                self.on(host, "remove an image", line, &[LARGE])
            })?;
            let mut copy = if turn.contender == 0 {
                let mut push = self.with_engine(&engine, self.rlaunch);
                push.env("XDG_CACHE_HOME", self.scratch.0.join("cache"));
                push.args(["push", "-H", &hosts.join(","), "--engine", "docker"]);
                push.arg(format!("image:{LARGE}"));
                push
            } else {
                let mut save = self.with_engine(&engine, "sh");
                save.args(["-c", SAVE, "sh", LARGE]).args(hosts);
                save
            };
            let began = Instant::now();
            run_command(names[turn.contender], &mut copy)?;
            let seconds = began.elapsed().as_secs_f64();
            // A loop of ssh does not tell whether it has worked.
            at_once(hosts, |host| {
                self.on(host, "find an image", "docker image inspect \"$1\"", &[LARGE])
            })?;
            Ok(vec![Some(seconds)])
        })?;
        self.testbed.lab.shape(None)?;
        let hosts = self.testbed.hosts.len();
        Ok((format!("an image of 200 MB to {hosts} hosts over links of {RATE}"), table))
    }

    /// Runs a job, and checks that every host printed its name once. Returns its seconds.
    fn complete(&self, command: &mut Command) -> Result<f64, LabError> {
        let began = Instant::now();
        let out = printed("run hostname", command)?;
        let seconds = began.elapsed().as_secs_f64();
        check_names(&out, &self.testbed.hosts).map(|()| seconds)
    }

    /// Makes a command of the launch node.
    fn here(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.testbed.lab.exec_in(Account::Root, Path::new("/"));
        command.arg(program.as_ref());
        command
    }

    /// Makes a command of the launch node for which its own Docker is the one to ask.
    fn with_engine(&self, engine: &OwnEngine<'_>, program: impl AsRef<Path>) -> Command {
        let mut command = self.here(program);
        command.env("DOCKER_HOST", format!("unix://{}", engine.socket.display()));
        command
    }

    /// Runs a line of a shell on a host, and returns what it prints.
    fn on(
        &self,
        host: &str,
        operation: &str,
        line: &str,
        words: &[&str],
    ) -> Result<String, LabError> {
        let mut command = self.testbed.lab.on(host, Account::Root)?;
        printed(
            &format!("{operation} on {host}"),
            command.args(["sh", "-c", line, "sh"]).args(words),
        )
    }
}
