//! `--listen`: answers the scrapes of a Prometheus server. Agents are asked once for each scrape, and never otherwise.

use super::metrics;
use super::source::Source;
use rlaunch_engine::run::live::client::LiveError;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Time limit for a client to send its request, and to take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a request, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// Answers scrapes, one after another, until the job has ended.
pub(super) async fn serve(listener: &TcpListener, source: &mut Source) -> LiveError {
    loop {
        let accepted = tokio::select! {
            ended = source.ended() => return ended,
            accepted = listener.accept() => accepted,
        };
        let client = match accepted {
            Ok((client, _)) => client,
            Err(error) => {
                // Such as too many open files: the next client may come when some are closed.
                tracing::warn!("cannot accept a scrape: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        match answer(client, source).await {
            Ok(()) => {}
            Err(ScrapeError::Job(error)) => return error,
            Err(ScrapeError::Client(error)) => tracing::debug!("a scrape failed: {error}"),
        }
    }
}

enum ScrapeError {
    /// The job cannot be asked any more.
    Job(LiveError),
    Client(io::Error),
}

async fn answer(mut client: TcpStream, source: &mut Source) -> Result<(), ScrapeError> {
    let late = |_| ScrapeError::Client(io::ErrorKind::TimedOut.into());
    let request = timeout(CLIENT_TIMEOUT, read_request(&mut client)).await.map_err(late)?;
    let (status, body) = match request.map_err(ScrapeError::Client)? {
        Target::Metrics => {
            let sample = source.sample().await.map_err(ScrapeError::Job)?;
            ("200 OK", metrics::format(&sample))
        }
        Target::Other => ("404 Not Found", "see /metrics\n".to_owned()),
        Target::Unreadable => ("400 Bad Request", "only GET requests are answered\n".to_owned()),
    };
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
    sent.await.map_err(late)?.map_err(ScrapeError::Client)
}

/// Resource that a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Metrics,
    Other,
    Unreadable,
}

async fn read_request(client: &mut TcpStream) -> io::Result<Target> {
    let mut request = Vec::new();
    loop {
        if let Some(target) = parse(&request) {
            return Ok(target);
        }
        if client.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Parses the request so far. Returns `None` if it is incomplete.
fn parse(request: &[u8]) -> Option<Target> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST => None,
        Ok(httparse::Status::Complete(_)) if parsed.method == Some("GET") => {
            let path = parsed.path.unwrap_or_default();
            let is_metrics = path == "/metrics" || path.starts_with("/metrics?");
            Some(if is_metrics { Target::Metrics } else { Target::Other })
        }
        _ => Some(Target::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        let get = |path: &str| parse(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(get("/metrics"), Some(Target::Metrics));
        assert_eq!(get("/metrics?a=1"), Some(Target::Metrics));
        assert_eq!(get("/"), Some(Target::Other));
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Target::Unreadable));
        assert_eq!(parse(b"\x16\x03\x01"), Some(Target::Unreadable));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), None);
        assert_eq!(parse(&[b'a'; MAX_REQUEST]), Some(Target::Unreadable));
    }
}
