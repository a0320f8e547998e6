//! Output of a rank, from its pipe to the launcher: in order, without loss, in whole lines if
//! possible.
//!
//! [`Unsent`] decides what is sent when, a state machine without I/O and without a clock. [`pump`]
//! reads, waits for the turn of the stream and sends.

use crate::network::frames::{FrameSender, WriterTurn};
use crate::ranks::stream_ends::{Output, read_unless_abandoned};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_bootstrap::protocol::line_turn::LineTurn;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::timeout_at;

/// Time after which an unfinished line is sent, so that prompts and progress bars become visible.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// Capacity of the buffer of a stream: a frame, and the byte that stays behind it ([`frame_length`]).
const BUFFER: usize = MAX_OUTPUT + 1;

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
    pipe: impl Output,
    to_launcher: FrameSender,
    abandoned: watch::Receiver<bool>,
) {
    let unsent = Unsent::default();
    let mut source = Source { pipe, abandoned, unsent, stamped, stamp: None };
    // Held from the first frame of a long line until the line ends or has taken too long.
    let mut turn: Option<WriterTurn> = None;
    let mut read = Read::More;
    while read != Read::End {
        read = source.read(source.unsent.deadline()).await;
        while let Some(piece) = source.unsent.ready(now(), read) {
            let held = match turn.take() {
                Some(turn) => turn,
                None => {
                    let begins = source.unsent.line.begins(piece);
                    let is_whole = piece.ends_with(b"\n");
                    let held = to_launcher.writer_turn(begins).await;
                    if is_whole && read != Read::End {
                        // Lines that have come meanwhile go along. Otherwise they would wait for a turn of their own.
                        read = source.read(Some(now())).await;
                    }
                    held
                }
            };
            let began = now();
            let Some(Piece { data, since }) = source.unsent.take_piece(began, read) else { break };
            source.unsent.line.wrote(&data, since, began);
            if !to_launcher.output(rank, stream, source.stamp, data).await {
                // Other streams have to notice it as well.
                drop(held);
                return discard(source.pipe).await;
            }
            source.unsent.line.put_off(now() - began);
            turn = source.unsent.has_turn(now()).then_some(held);
        }
        if !source.unsent.has_turn(now()) {
            turn = None;
        }
    }
    // Empty data marks the end of the stream.
    to_launcher.output(rank, stream, None, Vec::new()).await;
}

/// Returns the time of the clock by which tasks sleep.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the time of this node's clock in microseconds since 1970.
fn time_of_day() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_micros()).ok()
}

/// Outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    More,
    /// The rank has written nothing until the deadline.
    Paused,
    End,
}

/// Stream that is read, with what was read and is not sent yet.
struct Source<P> {
    pipe: P,
    abandoned: watch::Receiver<bool>,
    unsent: Unsent,
    stamped: bool,
    /// Time of day of the last read, if the stream is stamped.
    stamp: Option<u64>,
}

impl<P: Output> Source<P> {
    /// Reads what there is, until this time at most.
    async fn read(&mut self, until: Option<Instant>) -> Read {
        let more = self.read_more();
        let read = match until {
            Some(until) => timeout_at(until.into(), more).await.unwrap_or(Read::Paused),
            None => more.await,
        };
        if read == Read::More {
            self.unsent.has_read(now());
            self.stamp = self.stamped.then(time_of_day).flatten();
        }
        read
    }

    async fn read_more(&mut self) -> Read {
        let abandoned = async {
            // The sender exists as long as the ranks do.
            let _ = self.abandoned.wait_for(|&abandoned| abandoned).await;
        };
        // After an error on a pipe nothing more can come.
        match read_unless_abandoned(&mut self.pipe, self.unsent.space(), abandoned).await {
            Ok(1..) => Read::More,
            _ => Read::End,
        }
    }
}

/// Reads and discards the rest of the stream, so that a rank which is ending does not block on a
/// full pipe.
async fn discard(mut pipe: impl Output) {
    let mut scratch = vec![0; MAX_OUTPUT];
    while !matches!(pipe.read(&mut scratch).await, Ok(0) | Err(_)) {}
}

/// What was read of a stream and is not sent yet.
#[derive(Default)]
struct Unsent {
    /// A frame takes everything but the beginning of the last line, so little is copied twice.
    buffer: Vec<u8>,
    /// Time at which the first byte of `buffer` was read; `None` if the buffer is empty.
    since: Option<Instant>,
    /// Time of the last read.
    latest: Option<Instant>,
    /// Line of which a part was sent.
    line: LineTurn,
}

/// Output that goes into a frame, and the time at which its first byte was read.
struct Piece {
    data: Vec<u8>,
    since: Instant,
}

impl Unsent {
    /// Returns the buffer, with space at its end.
    fn space(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve_exact(BUFFER.saturating_sub(self.buffer.len()).max(1));
        &mut self.buffer
    }

    /// Takes note that bytes were added to the buffer.
    fn has_read(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.latest = Some(now);
    }

    /// Returns the next piece to be sent, which stays in the buffer. Returns `None` if the beginning of a
    /// line has to wait for its end.
    fn ready(&self, now: Instant, read: Read) -> Option<&[u8]> {
        let since = self.since?;
        let is_due = match read {
            Read::More => false,
            Read::Paused => since + FLUSH_AFTER <= now,
            Read::End => true,
        };
        frame_length(&self.buffer, is_due).map(|length| &self.buffer[..length])
    }

    /// Takes the piece of [`Unsent::ready`] out of the buffer.
    fn take_piece(&mut self, now: Instant, read: Read) -> Option<Piece> {
        let (length, since) = (self.ready(now, read)?.len(), self.since?);
        let data = split_off_front(&mut self.buffer, length);
        self.since = self.latest.filter(|_| !self.buffer.is_empty());
        Some(Piece { data, since })
    }

    /// Returns the time at which something happens though nothing is read.
    fn deadline(&self) -> Option<Instant> {
        let flush = self.since.map(|since| since + FLUSH_AFTER);
        flush.into_iter().chain(self.line.until()).min()
    }

    fn has_turn(&mut self, now: Instant) -> bool {
        self.line.end_if_over(now);
        self.line.until().is_some()
    }
}

/// Returns how many bytes of `buffer` go into the next frame. Whole lines are sent together if they
/// fit. A full frame is sent of a line that is longer, if a byte is left of it: a frame that is not
/// full thus follows when the rank pauses, which tells the launcher so ([`LineTurn`]). An
/// incomplete line is sent if it is due.
fn frame_length(buffer: &[u8], is_due: bool) -> Option<usize> {
    let window = &buffer[..buffer.len().min(MAX_OUTPUT)];
    if let Some(end) = window.iter().rposition(|&byte| byte == b'\n') {
        return Some(end + 1);
    }
    if buffer.len() > MAX_OUTPUT {
        return Some(MAX_OUTPUT);
    }
    let rest = window.len().min(MAX_OUTPUT - 1);
    (is_due && rest > 0).then_some(rest)
}

/// Takes the first bytes out of a buffer, which gets new memory: they need not be copied.
fn split_off_front(buffer: &mut Vec<u8>, length: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(BUFFER.max(buffer.len() - length));
    rest.extend_from_slice(&buffer[length..]);
    buffer.truncate(length);
    std::mem::replace(buffer, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::frames::Queue;
    use rlaunch_bootstrap::protocol::control::{FrameReader, FromAgent};
    use rlaunch_bootstrap::protocol::line_turn::MAX_TURN;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    #[test]
    fn frames_end_at_line_ends() {
        assert_eq!(frame_length(b"one\ntwo\nthr", false), Some(8));
        assert_eq!(frame_length(b"thr", false), None);
        assert_eq!(frame_length(b"thr", true), Some(3));
        assert_eq!(frame_length(b"", true), None);
    }

    #[test]
    fn a_line_longer_than_a_frame_goes_in_pieces() {
        let mut line = vec![b'x'; MAX_OUTPUT + 10];
        line.push(b'\n');
        assert_eq!(frame_length(&line, false), Some(MAX_OUTPUT));
        split_off_front(&mut line, MAX_OUTPUT);
        assert_eq!(frame_length(&line, false), Some(11));
    }

    #[test]
    fn a_rank_that_pauses_behind_a_full_frame_is_seen_to_pause() {
        let (began, mut unsent) = (now(), Unsent::default());
        unsent.space().extend_from_slice(&[b'x'; MAX_OUTPUT]);
        unsent.has_read(began);
        assert!(unsent.take_piece(began, Read::More).is_none());
        let due = unsent.deadline().unwrap();
        assert_eq!(due, began + FLUSH_AFTER);
        assert!(unsent.take_piece(due - Duration::from_millis(1), Read::Paused).is_none());
        let lengths: Vec<usize> = std::iter::from_fn(|| unsent.take_piece(due, Read::Paused))
            .map(|p| p.data.len())
            .collect();
        assert_eq!(lengths, [MAX_OUTPUT - 1, 1]);
        assert!(unsent.take_piece(due, Read::End).is_none() && unsent.deadline().is_none());
    }

    /// Time that ranks write for.
    const RUN: Duration = Duration::from_secs(2);
    /// Time that the launcher takes for a frame.
    const PER_FRAME: Duration = Duration::from_millis(5);
    /// Credit at the start, as with a few nodes.
    const WINDOW: u32 = 256 << 10;
    /// Ranks of the node; the first two print lines.
    const RANKS: u32 = 5;

    /// Generator whose numbers depend only on its seed (SplitMix64).
    struct Dice(u64);

    impl Dice {
        fn draw(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = self.0;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        }

        fn below(&mut self, of: usize) -> usize {
            usize::try_from(self.draw() % of as u64).unwrap()
        }
    }

    /// How a rank writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Habit {
        Lines,
        LongLines,
        Bar,
        Half,
        Flood,
        Binary,
        Silence,
    }

    const HABITS: [Habit; 7] = [
        Habit::Flood,
        Habit::Half,
        Habit::Bar,
        Habit::LongLines,
        Habit::Binary,
        Habit::Lines,
        Habit::Silence,
    ];

    impl Habit {
        /// Returns what is written next, and the milliseconds until the rank goes on.
        fn next(self, dice: &mut Dice) -> (Vec<u8>, usize) {
            match self {
                Habit::Lines => (format!("{}\n", dice.draw()).into_bytes(), dice.below(150)),
                Habit::LongLines => {
                    let line = vec![b'l'; dice.below(200 << 10)];
                    ([line, b"\n".to_vec()].concat(), dice.below(300))
                }
                Habit::Bar => (format!("\r{:>300}%", dice.below(100)).into_bytes(), 20),
                Habit::Half => (vec![b'h'; dice.below(3 * MAX_OUTPUT)], dice.below(3000)),
                Habit::Flood => (vec![b'f'; dice.below(48 << 10)], 20 + dice.below(20)),
                Habit::Binary => {
                    let length = dice.below(5000);
                    ((0..length).map(|_| dice.draw().to_le_bytes()[0]).collect(), dice.below(100))
                }
                Habit::Silence => (Vec::new(), 500),
            }
        }
    }

    /// Writes like a rank, and returns every piece with the time at which it was in the pipe.
    async fn write(habit: Habit, seed: u64, mut pipe: DuplexStream) -> Vec<(Instant, Vec<u8>)> {
        let (end, mut dice, mut written) = (now() + RUN, Dice(seed), Vec::new());
        while now() < end {
            let (piece, pause) = habit.next(&mut dice);
            pipe.write_all(&piece).await.unwrap();
            written.push((now(), piece));
            tokio::time::sleep(Duration::from_millis(pause as u64)).await;
        }
        written
    }

    /// Frame that has arrived at the launcher.
    struct Arrival {
        at: Instant,
        rank: Rank,
        data: Vec<u8>,
    }

    /// Receives output until all ranks have ended, and pays for it as the launcher does.
    async fn receive(mut queue: Queue, to_launcher: &FrameSender) -> Vec<Arrival> {
        to_launcher.grant(WINDOW);
        let (mut arrived, mut open) = (Vec::new(), RANKS);
        while open > 0 {
            let mut reader = FrameReader::default();
            reader.push(&queue.next_output().await.unwrap());
            let Some(FromAgent::Output { rank, data, .. }) = reader.next_frame().unwrap() else {
                panic!("only output is sent");
            };
            assert!(data.len() <= MAX_OUTPUT);
            tokio::time::sleep(PER_FRAME).await;
            to_launcher.grant(u32::try_from(data.len()).unwrap());
            open -= u32::from(data.is_empty());
            arrived.push(Arrival { at: now(), rank, data });
        }
        arrived
    }

    /// Returns the longest time from a piece's being written to its arrival.
    fn longest_delay(written: &[(Instant, Vec<u8>)], arrived: &[&Arrival]) -> Duration {
        let mut arrivals = arrived.iter();
        let (mut wanted, mut got, mut at) = (0, 0, written[0].0);
        let mut longest = Duration::ZERO;
        for (when, piece) in written {
            wanted += piece.len();
            while got < wanted {
                let arrival = arrivals.next().unwrap();
                got += arrival.data.len();
                at = arrival.at;
            }
            longest = longest.max(at.saturating_duration_since(*when));
        }
        longest
    }

    /// Asserts that there is no other output between the pieces of a long line that was quick.
    fn assert_whole(arrived: &[Arrival], rank: Rank, seed: u64) {
        let mut begun = None;
        for (index, piece) in arrived.iter().enumerate().filter(|(_, piece)| piece.rank == rank) {
            let first = *begun.get_or_insert(index);
            if piece.data.last().is_none_or(|&last| last == b'\n') {
                begun = None;
            }
            let line = &arrived[first..=index];
            let is_quick = piece.at - line[0].at < MAX_TURN / 2;
            if line[0].data.len() == MAX_OUTPUT && is_quick {
                assert!(line.iter().all(|piece| piece.rank == rank), "seed {seed}: {rank} torn");
            }
        }
    }

    /// Tokio's clock is paused, and advances only when all tasks wait. In the place of rank 2 is
    /// each kind of writer in turn, in those of the later ones any.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long_and_every_byte_is_sent_in_order() {
        for seed in 0..21 {
            let (mut dice, mut writers) = (Dice(seed), Vec::new());
            let (to_launcher, queue) = FrameSender::new();
            let (_ranks, abandoned) = watch::channel(false);
            for rank in 0..RANKS {
                let habit = match rank {
                    0 | 1 => Habit::Lines,
                    2 => HABITS[usize::try_from(seed).unwrap() % HABITS.len()],
                    _ => HABITS[dice.below(HABITS.len())],
                };
                let (pipe, output) = duplex(64 << 10);
                let stream = Stream::Stdout;
                let source = RankStream { rank: Rank(rank), stream, stamped: false };
                tokio::spawn(pump(source, output, to_launcher.clone(), abandoned.clone()));
                writers.push((habit, tokio::spawn(write(habit, dice.draw(), pipe))));
            }
            let arrived = receive(queue, &to_launcher).await;
            for (rank, (habit, writer)) in (0..).map(Rank).zip(writers) {
                let written = writer.await.unwrap();
                let own: Vec<&Arrival> =
                    arrived.iter().filter(|piece| piece.rank == rank).collect();
                let sent: Vec<&[u8]> = written.iter().map(|(_, piece)| &piece[..]).collect();
                let got: Vec<&[u8]> = own.iter().map(|piece| &piece.data[..]).collect();
                assert!(sent.concat() == got.concat(), "seed {seed}: rank {rank}, {habit:?}");
                match habit {
                    Habit::Lines => {
                        let delay = longest_delay(&written, &own);
                        let limit = MAX_TURN + Duration::from_millis(300);
                        assert!(delay <= limit, "seed {seed}: rank {rank} after {delay:?}");
                    }
                    Habit::LongLines => assert_whole(&arrived, rank, seed),
                    _ => {}
                }
            }
        }
    }
}
