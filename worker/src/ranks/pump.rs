//! Forwarding of a rank's output to the launcher: in order, without loss, in whole lines if
//! possible.

use crate::network::outbox::{Outbox, WriterTurn};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Time after which an unfinished line is sent, so that prompts and progress bars become visible.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// Time without output after which a stream in the middle of a long line gives up its
/// [`WriterTurn`]. The launcher uses the same limit.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without output after which a stream counts as ended, once no process of the job is left.
const ABANDONED_AFTER: Duration = Duration::from_millis(50);

/// Output stream of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankStream {
    pub(crate) rank: Rank,
    pub(crate) stream: Stream,
    /// Whether frames of this stream carry the time at which they were read.
    pub(crate) stamped: bool,
}

/// Forwards one stream of a rank until its end.
///
/// `abandoned` becomes true when no process of the job is left. The pipe then contains all
/// remaining output, even if a process outside the job keeps the pipe open.
pub(crate) async fn pump(
    RankStream { rank, stream, stamped }: RankStream,
    mut pipe: pipe::Receiver,
    outbox: Outbox,
    mut abandoned: watch::Receiver<bool>,
) {
    // A frame takes everything but the beginning of the last line, so little is copied twice.
    let mut buffer = Vec::with_capacity(MAX_OUTPUT);
    let mut stamp = None;
    let mut open = true;
    // Held from the first frame of a long line to its last.
    let mut turn: Option<WriterTurn> = None;
    // Time until which the buffer may wait for the end of its line.
    let mut due = None;
    while open {
        let until = due.or_else(|| turn.is_some().then(|| Instant::now() + TURN_TIMEOUT));
        let more = read_more(&mut pipe, &mut buffer, &mut abandoned);
        let read = match until {
            Some(until) => timeout_at(until, more).await.unwrap_or(Read::Paused),
            None => more.await,
        };
        open = read != Read::End;
        if stamped && read == Read::More {
            stamp = now();
        }
        if read == Read::Paused && buffer.is_empty() {
            turn = None;
        }
        while let Some(length) = ready(&buffer, read) {
            let data = take(&mut buffer, length);
            let goes_on = data.last() != Some(&b'\n');
            let is_long = length == MAX_OUTPUT || turn.is_some();
            let held = match turn.take() {
                Some(turn) => turn,
                None => outbox.writer_turn().await,
            };
            if !outbox.output((rank, stream), stamp, data).await {
                return discard(pipe).await;
            }
            turn = (is_long && goes_on).then_some(held);
            due = None;
        }
        if !buffer.is_empty() {
            due = due.or_else(|| Some(Instant::now() + FLUSH_AFTER));
        }
        buffer.reserve_exact(MAX_OUTPUT - buffer.len());
    }
    // Empty data marks the end of the stream.
    outbox.output((rank, stream), None, Vec::new()).await;
}

/// Returns the time of this node's clock in microseconds since 1970.
fn now() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_micros()).ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    More,
    Paused,
    End,
}

async fn read_more(
    pipe: &mut pipe::Receiver,
    buffer: &mut Vec<u8>,
    abandoned: &mut watch::Receiver<bool>,
) -> Read {
    let silence = async {
        // The sender exists as long as the ranks do.
        let _ = abandoned.wait_for(|&abandoned| abandoned).await;
        tokio::time::sleep(ABANDONED_AFTER).await;
    };
    tokio::select! {
        biased;
        // After an error on a pipe nothing more can come.
        read = pipe.read_buf(buffer) => match read {
            Ok(1..) => Read::More,
            _ => Read::End,
        },
        () = silence => Read::End,
    }
}

/// Returns how many bytes of `buffer` go into the next frame. Whole lines are sent together if they
/// fit. A full frame is sent of a line that is longer than a frame, and an incomplete line if the
/// writer has paused or ended. Returns `None` if the beginning of a line has to wait for its end.
fn ready(buffer: &[u8], read: Read) -> Option<usize> {
    let window = &buffer[..buffer.len().min(MAX_OUTPUT)];
    if let Some(end) = window.iter().rposition(|&byte| byte == b'\n') {
        return Some(end + 1);
    }
    let whole_frame = window.len() == MAX_OUTPUT;
    (whole_frame || (read != Read::More && !window.is_empty())).then_some(window.len())
}

fn take(buffer: &mut Vec<u8>, length: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(MAX_OUTPUT.max(buffer.len() - length));
    rest.extend_from_slice(&buffer[length..]);
    buffer.truncate(length);
    std::mem::replace(buffer, rest)
}

/// Reads and discards the rest of the stream, so that a rank which is ending does not block on a
/// full pipe.
async fn discard(mut pipe: pipe::Receiver) {
    let mut scratch = vec![0; MAX_OUTPUT];
    while !matches!(pipe.read(&mut scratch).await, Ok(0) | Err(_)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_end_at_line_ends() {
        assert_eq!(ready(b"one\ntwo\nthr", Read::More), Some(8));
        assert_eq!(ready(b"thr", Read::More), None);
        assert_eq!(ready(b"thr", Read::Paused), Some(3));
        assert_eq!(ready(b"thr", Read::End), Some(3));
        assert_eq!(ready(b"", Read::End), None);
    }

    #[test]
    fn a_line_longer_than_a_frame_goes_in_pieces() {
        let mut line = vec![b'x'; MAX_OUTPUT + 10];
        line.push(b'\n');
        assert_eq!(ready(&line, Read::More), Some(MAX_OUTPUT));
        take(&mut line, MAX_OUTPUT);
        assert_eq!(ready(&line, Read::More), Some(11));
    }
}
