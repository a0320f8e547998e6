//! `--listen`: samples in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), and answers to its scrapes. Agents are asked for a
//! scrape, and never otherwise.

use super::sample::{HostSample, Sample, Source, cpu_ms};
use nix::unistd::gethostname;
use rlaunch_bootstrap::inventory::traffic::{GpuUsage, HostCounters, Traffic};
use rlaunch_engine::run::live::client::LiveError;
use rlaunch_engine::run::live::messages::{JobStatus, RankSpeed};
use std::collections::VecDeque;
use std::fmt::Write;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::timeout;

/// Labels of a value: names and values.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// Kind of a metric, which Prometheus calls its type.
#[derive(Clone, Copy, strum::Display)]
#[strum(serialize_all = "lowercase")]
enum Kind {
    /// Total that only grows.
    Counter,
    /// Value that may also fall.
    Gauge,
}

/// Metric with its values.
struct Metric {
    name: String,
    kind: Kind,
    help: &'static str,
    lines: String,
}

/// Metrics by name, in the order in which their first values were added.
#[derive(Default)]
struct Metrics(Vec<Metric>);

/// Formats a sample. Returns the body of the answer.
fn format(sample: &Sample) -> String {
    let mut metrics = Metrics::default();
    let job = sample.job.as_ref();
    if let Some(job) = job {
        metrics.add_job(job);
    }
    let job = job.map(|job| job.job.as_str());
    sample.hosts.iter().for_each(|host| metrics.add_host(job, host));
    let mut text = String::new();
    for Metric { name, kind, help, lines } in metrics.0 {
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
    text
}

impl Metrics {
    fn add(&mut self, name: &str, kind: Kind, help: &'static str, labels: Labels<'_>, value: f64) {
        let at = self.0.iter().position(|metric| metric.name == name);
        let at = at.unwrap_or_else(|| {
            self.0.push(Metric { name: name.to_owned(), kind, help, lines: String::new() });
            self.0.len() - 1
        });
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0[at].lines, "{name}{{{}}} {value}", labels.join(","));
    }

    fn gauge(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: f64) {
        self.add(name, Kind::Gauge, help, labels, value);
    }

    fn counter(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: f64) {
        self.add(name, Kind::Counter, help, labels, value);
    }

    fn add_job(&mut self, job: &JobStatus) {
        let id = ("job", job.job.as_str());
        let program = job.program.join(" ");
        self.gauge(
            "rlaunch_job_info",
            "Job with its program and phase; always 1.",
            &[id, ("program", &program), ("phase", job.phase.word())],
            1.0,
        );
        self.gauge("rlaunch_job_start_time_seconds", "Start, since 1970.", &[id], job.started);
        self.gauge("rlaunch_job_ranks", "Number of ranks.", &[id], f64::from(job.ranks));
        let running = job.ranks_started.saturating_sub(job.ranks_ended);
        self.gauge("rlaunch_job_ranks_running", "Ranks that run.", &[id], f64::from(running));
        if let Some(output) = job.last_output {
            let help = "Time since a rank has printed something.";
            self.gauge("rlaunch_job_output_age_seconds", help, &[id], output.seconds_ago);
        }
        for RankSpeed { rank, speed, .. } in &job.speeds {
            let labels = [id, ("rank", &rank.to_string()), ("unit", &speed.unit)];
            let help = "Speed that the rank has printed last, in the unit that it printed.";
            self.gauge("rlaunch_rank_speed", help, &labels, speed.value);
        }
    }

    fn add_host(&mut self, job: Option<&str>, host: &HostSample) {
        let name = ("host", host.host.as_str());
        let of_job: Vec<(&str, &str)> =
            job.map(|job| ("job", job)).into_iter().chain([name]).collect();
        let answers = f64::from(u8::from(host.counters.is_some()));
        self.gauge("rlaunch_host_up", "Whether the host has answered.", &of_job, answers);
        for usage in &host.ranks {
            let rank = usage.rank.to_string();
            let labels: Vec<_> = of_job.iter().copied().chain([("rank", rank.as_str())]).collect();
            let (cpu, resident) = (cpu_ms(usage) as f64 / 1e3, usage.resident as f64);
            let help = "CPU time of the rank's processes.";
            self.counter("rlaunch_rank_cpu_seconds_total", help, &labels, cpu);
            let help = "Resident memory of the rank's processes.";
            self.gauge("rlaunch_rank_resident_bytes", help, &labels, resident);
            if let Some(waited) = usage.waited_ms {
                let help = "Time that the rank has waited for others in rlaunch's communicator.";
                let seconds = waited as f64 / 1e3;
                self.counter("rlaunch_rank_wait_seconds_total", help, &labels, seconds);
            }
            let help = "Number of the rank's processes.";
            self.gauge("rlaunch_rank_processes", help, &labels, f64::from(usage.processes));
        }
        if let Some(counters) = &host.counters {
            self.add_counters(&of_job, host, counters);
        }
    }

    fn add_counters(&mut self, labels: Labels<'_>, host: &HostSample, counters: &HostCounters) {
        if let Some(cpu) = counters.cpu {
            let busy = cpu.busy_ms as f64 / 1e3;
            self.gauge("rlaunch_host_cpus", "Number of CPUs.", labels, f64::from(cpu.cpus));
            let help = "Time in which CPUs were busy, all together.";
            self.counter("rlaunch_host_cpu_busy_seconds_total", help, labels, busy);
        }
        let memory = [
            ("rlaunch_host_memory_bytes", "Memory of the host.", counters.memory),
            (
                "rlaunch_host_memory_available_bytes", "Memory that programs can still get.",
                counters.memory_available,
            ),
        ];
        for (name, help, value) in memory {
            value.into_iter().for_each(|value| self.gauge(name, help, labels, value as f64));
        }
        for port in &counters.rdma_ports {
            let number = port.port.to_string();
            let own = [("device", port.device.as_str()), ("port", number.as_str())];
            let labels: Vec<_> = labels.iter().copied().chain(own).collect();
            self.traffic("rlaunch_port_rcv", &labels, port.received);
            self.traffic("rlaunch_port_xmit", &labels, port.sent);
            // The names and labels of erdma-exporter, so that dashboards for it work unchanged.
            if port.device.starts_with("erdma") {
                let labels = [("device", port.device.as_str()), ("node", host.host.as_str())];
                self.traffic("erdma_hw_rx", &labels, port.received);
                self.traffic("erdma_hw_tx", &labels, port.sent);
            }
        }
        for gpu in &counters.gpus {
            self.add_gpu(labels, gpu);
        }
        for interface in &counters.interfaces {
            let own = [("interface", interface.name.as_str())];
            let labels: Vec<_> = labels.iter().copied().chain(own).collect();
            self.traffic("rlaunch_interface_receive", &labels, interface.received);
            self.traffic("rlaunch_interface_transmit", &labels, interface.sent);
        }
    }

    fn add_gpu(&mut self, labels: Labels<'_>, gpu: &GpuUsage) {
        let index = gpu.index.to_string();
        let labels: Vec<_> = labels.iter().copied().chain([("gpu", index.as_str())]).collect();
        let busy = gpu.busy_percent.map(|share| f64::from(share) / 100.0);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let values = [
            ("busy_ratio", "Share of the last sample period in which a kernel ran, 0 to 1.", busy),
            ("memory_used_bytes", "Memory in use.", bytes(gpu.memory_used)),
            ("memory_bytes", "Memory of the GPU.", bytes(gpu.memory)),
            (
                "power_watts",
                "Power that the GPU draws.",
                gpu.power_mw.map(|power| power as f64 / 1e3),
            ),
            ("temperature_celsius", "Temperature of the GPU.", gpu.temperature.map(f64::from)),
        ];
        for (name, help, value) in values {
            value.into_iter().for_each(|value| {
                self.gauge(&format!("rlaunch_gpu_{name}"), help, &labels, value);
            });
        }
    }

    fn traffic(&mut self, prefix: &str, labels: Labels<'_>, traffic: Traffic) {
        let values = [("bytes", "Bytes.", traffic.bytes), ("packets", "Packets.", traffic.packets)];
        for (what, help, value) in values {
            if let Some(value) = value {
                self.counter(&format!("{prefix}_{what}_total"), help, labels, value as f64);
            }
        }
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Time limit for a client to send its request, and to take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of clients at a time, but for those that wait for a sample. One more takes the place of the oldest.
const MAX_CLIENTS: usize = 32;
/// Maximum size of a request, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// Clients that send their request or take their answer. Each has a task, so that one that is silent delays no other.
#[derive(Default)]
struct Clients {
    /// Returns the client if it asks for metrics.
    receiving: JoinSet<io::Result<Option<TcpStream>>>,
    answering: JoinSet<io::Result<()>>,
    /// Tasks of both, oldest first.
    tasks: VecDeque<AbortHandle>,
}

impl Clients {
    fn receive(&mut self, client: TcpStream, own: Arc<[String]>) {
        let task = self.receiving.spawn(receive(client, own));
        self.add(task);
    }

    fn answer(&mut self, mut client: TcpStream, text: Arc<str>) {
        let task = self.answering.spawn(async move { answer(&mut client, "200 OK", &text).await });
        self.add(task);
    }

    /// Ends the oldest task if there are too many: it has had the longest time for its client to send or to read.
    fn add(&mut self, task: AbortHandle) {
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= MAX_CLIENTS
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        self.tasks.push_back(task);
    }
}

/// Answers scrapes until the job has ended.
pub(super) async fn serve(listener: &TcpListener, source: &mut Source) -> LiveError {
    let own: Arc<[String]> = own_names().into();
    let mut clients = Clients::default();
    loop {
        tokio::select! {
            ended = source.ended() => return ended,
            Some(received) = clients.receiving.join_next() => {
                let Some(first) = served(received).flatten() else { continue };
                let text: Arc<str> = match source.sample().await {
                    Ok(sample) => format(&sample).into(),
                    Err(error) => return error,
                };
                clients.answer(first, text.clone());
                // Those that have asked while it was taken get it as well.
                while let Some(received) = clients.receiving.try_join_next() {
                    if let Some(next) = served(received).flatten() {
                        clients.answer(next, text.clone());
                    }
                }
            }
            Some(answered) = clients.answering.join_next() => {
                served(answered);
            }
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    clients.receive(client, own.clone());
                    // Many may connect at once: a request that has come is read before its client is the oldest.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    // Such as too many open files: the next client may come when some are closed.
                    tracing::warn!("cannot accept a scrape: {error}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            },
        }
    }
}

/// Returns the result of a client's task; `None` if it failed, or was ended.
fn served<T>(task: Result<io::Result<T>, JoinError>) -> Option<T> {
    let result = task.ok()?;
    result.inspect_err(|error| tracing::debug!("a scrape failed: {error}")).ok()
}

/// Reads the request of a client, and returns the client if it asks for metrics. Others are answered. `own` are the names
/// of this machine.
async fn receive(mut client: TcpStream, own: Arc<[String]>) -> io::Result<Option<TcpStream>> {
    let request = timeout(CLIENT_TIMEOUT, read_request(&mut client, &own)).await;
    let (status, body) = match request.map_err(|_| late())?? {
        Target::Metrics => return Ok(Some(client)),
        Target::Other => ("404 Not Found", "see /metrics\n".to_owned()),
        Target::Unreadable => ("400 Bad Request", "only GET requests are answered\n".to_owned()),
        Target::Misdirected => {
            let names = format!("use an IP address, localhost or {} in the URL\n", own.join(", "));
            ("421 Misdirected Request", names)
        }
    };
    answer(&mut client, status, &body).await?;
    Ok(None)
}

async fn answer(client: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let sent = timeout(CLIENT_TIMEOUT, async {
        client.write_all(head.as_bytes()).await?;
        client.write_all(body.as_bytes()).await?;
        client.shutdown().await
    });
    sent.await.map_err(|_| late())?
}

fn late() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Resource that a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Metrics,
    Other,
    /// The request is for a host of another name.
    Misdirected,
    Unreadable,
}

async fn read_request(client: &mut TcpStream, own: &[String]) -> io::Result<Target> {
    let mut request = Vec::new();
    loop {
        if let Some(target) = parse_request(&request, own) {
            return Ok(target);
        }
        if client.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Parses the request so far; `own` are the names of this machine. Returns `None` if it is incomplete.
fn parse_request(request: &[u8], own: &[String]) -> Option<Target> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST => None,
        Ok(httparse::Status::Complete(_)) if parsed.method == Some("GET") => {
            let path = parsed.path.unwrap_or_default();
            let is_metrics = path == "/metrics" || path.starts_with("/metrics?");
            let mut hosts = parsed.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("host"));
            Some(match (hosts.next(), hosts.next()) {
                (_, Some(_)) => Target::Unreadable,
                (Some(host), None) if !is_name_of(own, host.value) => Target::Misdirected,
                _ if is_metrics => Target::Metrics,
                _ => Target::Other,
            })
        }
        _ => Some(Target::Unreadable),
    }
}

/// Returns the names of this machine: what it calls itself, without its domain, and in the domains in which it looks for
/// names.
fn own_names() -> Vec<String> {
    let own = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    names_in(&own, &resolver)
}

fn names_in(own: &str, resolver: &str) -> Vec<String> {
    let short = own.split('.').next().unwrap_or_default();
    let domains = resolver
        .lines()
        .filter_map(|line| line.strip_prefix("search ").or_else(|| line.strip_prefix("domain ")));
    let in_domains =
        domains.flat_map(str::split_whitespace).map(|domain| format!("{short}.{domain}"));
    let mut names: Vec<String> =
        [own.to_owned(), short.to_owned()].into_iter().chain(in_domains).collect();
    names.retain(|name| !name.is_empty() && !name.starts_with('.'));
    names.sort_unstable();
    names.dedup();
    names
}

/// Tells whether the header `Host` is one of the names `own`. Any IP address does, but not any name: a page that a browser
/// has loaded under a name whose DNS entry then changes to this machine's address could read the answer.
fn is_name_of(own: &[String], host: &[u8]) -> bool {
    let host = String::from_utf8_lossy(host);
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is = |known: &str| name.trim_end_matches('.').eq_ignore_ascii_case(known);
    let mut known = own.iter().map(String::as_str).chain(["localhost"]);
    name.parse::<IpAddr>().is_ok() || known.any(is)
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{job, samples};
    use super::*;

    #[test]
    fn every_value_is_below_its_type() {
        let [_, mut sample] = samples();
        sample.job = Some(job());
        let text = format(&sample);
        for line in [
            r#"rlaunch_job_info{job="019a",program="sh -c echo \"a\\\nb\"",phase="running"} 1"#,
            r#"rlaunch_job_ranks_running{job="019a"} 1"#,
            r#"rlaunch_rank_cpu_seconds_total{job="019a",host="a",rank="0"} 3"#,
            r#"rlaunch_rank_wait_seconds_total{job="019a",host="a",rank="0"} 1.5"#,
            r#"rlaunch_rank_speed{job="019a",rank="1",unit="images/s"} 812.5"#,
            r#"rlaunch_host_up{job="019a",host="b"} 0"#,
            r#"rlaunch_port_rcv_bytes_total{job="019a",host="a",device="erdma_0",port="1"} 2826000"#,
            r#"erdma_hw_rx_packets_total{device="erdma_0",node="a"} 2000"#,
            r#"rlaunch_gpu_busy_ratio{job="019a",host="a",gpu="1"} 0.97"#,
            r#"rlaunch_gpu_power_watts{job="019a",host="a",gpu="1"} 612.34"#,
            "# TYPE erdma_hw_tx_bytes_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        // A metric's values stand together, and it has one type.
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut once = types.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(types.len(), once.len());
        assert!(!text.contains("rxe0\",port=\"1\"} 0"));
    }

    fn parse(request: &[u8]) -> Option<Target> {
        parse_request(request, &names_in("n1.cluster", ""))
    }

    #[test]
    fn only_metrics_are_served() {
        let get = |path: &str| parse(format!("GET {path} HTTP/1.1\r\nHost: n1\r\n\r\n").as_bytes());
        assert_eq!(get("/metrics"), Some(Target::Metrics));
        assert_eq!(get("/metrics?a=1"), Some(Target::Metrics));
        assert_eq!(get("/"), Some(Target::Other));
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Target::Unreadable));
        assert_eq!(parse(b"\x16\x03\x01"), Some(Target::Unreadable));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), None);
        assert_eq!(parse(&[b'a'; MAX_REQUEST]), Some(Target::Unreadable));
    }

    #[test]
    fn only_requests_for_this_machine_are_answered() {
        let get = |host: &str| parse(format!("GET /metrics HTTP/1.1\r\n{host}\r\n").as_bytes());
        for own in [
            "Host: 127.0.0.1:9101\r\n", "host: [fd00::1]:9101\r\n", "Host: 10.0.0.1\r\n",
            "Host: localhost:9101\r\n", "Host: N1.cluster:9101\r\n", "Host: n1.\r\n", "",
        ] {
            assert_eq!(get(own), Some(Target::Metrics), "{own}");
        }
        for other in ["attacker.example:9101", "n1.attacker.example", "127.0.0.1.attacker.example"]
        {
            let asked = get(&format!("Host: {other}\r\n"));
            assert_eq!(asked, Some(Target::Misdirected), "{other}");
        }
        assert_eq!(get("Host: n1\r\nHost: attacker.example\r\n"), Some(Target::Unreadable));
        let resolver = "nameserver 10.0.0.1\nsearch cluster.example example\n";
        assert_eq!(names_in("n1", resolver), ["n1", "n1.cluster.example", "n1.example"]);
        assert_eq!(names_in("", resolver), [""; 0]);
    }

    #[tokio::test]
    async fn silent_clients_delay_no_scrape() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scrapes = async {
            let mut silent = Vec::new();
            for _ in 0..2 * MAX_CLIENTS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let mut client = TcpStream::connect(address).await.unwrap();
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let mut source = Source::Hosts(Vec::new());
        let answer = tokio::select! {
            _ = serve(&listener, &mut source) => panic!("it has ended"),
            answer = timeout(CLIENT_TIMEOUT / 2, scrapes) => answer.unwrap(),
        };
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}
