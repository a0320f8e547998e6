//! Turns of output, which keep a line whole that is longer than a frame. The agent gives turns to the streams of its
//! node, the launcher to those of all nodes: by the same rules, since both see the same pieces.

use super::control::MAX_OUTPUT;
use std::time::{Duration, Instant};

/// Maximum time for which one line keeps the output of other streams waiting.
pub const MAX_TURN: Duration = Duration::from_secs(1);

/// Longest wait, for a reader or for credit, that counts as time of the line. If all of it counted, a reader who pauses
/// would tear every long line; if none did, a slow reader would let a line without end go on.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Returns the part of a wait for a reader or for credit that does not count as time of a line.
pub fn pause(wait: Duration) -> Duration {
    wait.saturating_sub(MAX_WAIT)
}

/// Line that a stream has not finished, and whether the stream has the turn because of it. A state machine without a
/// clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineTurn {
    state: TurnState,
    /// Whether the last byte was a carriage return.
    after_return: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TurnState {
    /// The line is not longer than a frame so far.
    #[default]
    Short,
    /// The stream has the turn until this time.
    Held(Instant),
    /// The line is a progress bar or has taken too long. Others may be written between its pieces.
    Lost,
}

impl LineTurn {
    /// Tells whether the stream takes the turn with this piece, which another stream's turn would keep waiting.
    pub fn begins(&self, piece: &[u8]) -> bool {
        self.state == TurnState::Short
            && piece.len() >= MAX_OUTPUT
            && !ends_line(piece)
            && !self.goes_back(piece)
    }

    /// Takes note of a piece that is written at `now` and has been there since `since`. Empty data ends the line.
    pub fn wrote(&mut self, piece: &[u8], since: Instant, now: Instant) {
        if ends_line(piece) {
            *self = LineTurn::default();
            return;
        }
        let is_full = piece.len() >= MAX_OUTPUT;
        self.state = match self.state {
            _ if self.goes_back(piece) => TurnState::Lost,
            TurnState::Short if is_full => TurnState::Held(now + MAX_TURN),
            // A piece in the middle of a line is not full because its rank has paused. If many ranks do that, each
            // long enough, they must not wait for each other one by one.
            TurnState::Held(until) if !is_full => TurnState::Held(until.min(since + MAX_TURN)),
            state => state,
        };
        self.after_return = piece.ends_with(b"\r");
        self.end_if_over(now);
    }

    /// Returns the time at which the stream loses the turn; `None` if it does not have it.
    pub fn until(&self) -> Option<Instant> {
        match self.state {
            TurnState::Held(until) => Some(until),
            TurnState::Short | TurnState::Lost => None,
        }
    }

    /// Gives the line time for a wait that was not its stream's fault, as far as [`pause`] says.
    pub fn put_off(&mut self, wait: Duration) {
        if let TurnState::Held(until) = &mut self.state {
            *until += pause(wait);
        }
    }

    /// Takes the turn away if its time is over. The rest of the line gets no other turn.
    pub fn end_if_over(&mut self, now: Instant) {
        if self.until().is_some_and(|until| until <= now) {
            self.state = TurnState::Lost;
        }
    }

    /// Tells whether the line returns to its beginning and goes on, as a progress bar does. A carriage return at the
    /// end may still be the first half of a line break.
    fn goes_back(&self, piece: &[u8]) -> bool {
        if !self.after_return && !piece.contains(&b'\r') {
            return false;
        }
        let line = piece.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        let Some(last) = line.iter().rposition(|&byte| byte != b'\r') else { return false };
        let has_begun = self.after_return && line.len() == piece.len();
        has_begun || line[..last].contains(&b'\r')
    }
}

fn ends_line(piece: &[u8]) -> bool {
    piece.last().is_none_or(|&last| last == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long(byte: u8) -> Vec<u8> {
        vec![byte; MAX_OUTPUT]
    }

    /// A stream whose pieces are written as soon as they are there.
    struct Writer {
        turn: LineTurn,
        now: Instant,
    }

    impl Writer {
        fn new() -> Writer {
            Writer { turn: LineTurn::default(), now: Instant::now() }
        }

        /// Writes the pieces, and tells whether the stream has the turn then.
        fn writes(&mut self, pieces: &[&[u8]]) -> bool {
            for piece in pieces {
                self.turn.wrote(piece, self.now, self.now);
            }
            self.turn.until().is_some()
        }

        fn after(&mut self, time: Duration) -> bool {
            self.now += time;
            self.turn.end_if_over(self.now);
            self.turn.until().is_some()
        }
    }

    #[test]
    fn a_line_longer_than_a_frame_has_the_turn_until_it_ends() {
        let mut writer = Writer::new();
        assert!(!writer.writes(&[b"whole\n", b"half"]));
        assert!(writer.writes(&[&long(b'x'), b"more"]));
        assert!(!writer.writes(&[b"end\n"]));
        assert!(!writer.writes(&[&[long(b'x'), b"\n".to_vec()].concat()]));
        assert!(writer.writes(&[&long(b'x')]));
        assert!(!writer.writes(&[b""]));
    }

    #[test]
    fn a_line_that_takes_too_long_has_no_other_turn() {
        let mut writer = Writer::new();
        assert!(writer.writes(&[&long(b'x')]));
        assert!(writer.after(MAX_TURN / 2));
        assert!(writer.writes(&[&long(b'x')]));
        assert!(!writer.after(MAX_TURN / 2));
        assert!(!writer.writes(&[&long(b'x'), &long(b'x')]));
        assert!(writer.writes(&[b"end\n", &long(b'x')]));
    }

    #[test]
    fn a_progress_bar_never_has_the_turn() {
        let (bar, long) = (b"\r 10%".repeat(MAX_OUTPUT), long(b'='));
        let lines: [&[&[u8]]; 4] = [
            &[&bar[..MAX_OUTPUT]],
            &[b"5%\r", &long],
            &[&long, b"\r", b"\r6%"],
            &[b"text\r\n\rmore", &long],
        ];
        for pieces in lines {
            assert!(!Writer::new().writes(pieces), "{} pieces", pieces.len());
        }
        let mut windows = long;
        windows[MAX_OUTPUT - 1] = b'\r';
        let mut writer = Writer::new();
        assert!(writer.writes(&[&windows]));
        assert!(!writer.writes(&[b"\n"]));
        assert!(writer.writes(&[b"a\r\nb", &windows]));
    }

    /// Ranks that all write half of a long line at the same time and pause wait for the first of them only.
    #[test]
    fn a_pause_counts_even_while_the_line_waits() {
        let mut writer = Writer::new();
        let since = writer.now;
        writer.now += MAX_TURN;
        writer.turn.wrote(&long(b'x'), since, writer.now);
        assert!(writer.turn.until().is_some());
        writer.turn.wrote(b"more", since, writer.now);
        assert!(writer.turn.until().is_none());
    }

    #[test]
    fn a_reader_who_pauses_takes_no_turn_away() {
        let mut writer = Writer::new();
        writer.writes(&[&long(b'x')]);
        writer.turn.put_off(MAX_WAIT + 60 * MAX_TURN);
        assert!(writer.after(60 * MAX_TURN));
        writer.turn.put_off(MAX_WAIT);
        assert!(!writer.after(MAX_TURN));
    }

    proptest! {
        /// No way of writing holds others up for longer, and a line with a carriage return in it has no turn.
        #[test]
        fn no_line_has_the_turn_for_longer(
            steps in prop::collection::vec((0..7_usize, 0..500_u64), 0..60),
        ) {
            let full = long(b'x');
            let pieces = [&full[..], b"half", b"\r50%", b"\r", b"\n", b"\r\n", b""];
            let mut writer = Writer::new();
            // A few bytes of each piece are enough here.
            let (mut line, mut is_long, mut began) = (Vec::<u8>::new(), false, None);
            for (piece, wait) in steps {
                let has_turn = writer.writes(&[pieces[piece]]);
                line.extend(pieces[piece].iter().take(4));
                is_long |= piece == 0;
                if ends_line(pieces[piece]) {
                    (line, is_long, began) = (Vec::new(), false, None);
                }
                let returns = line.iter().position(|&byte| byte == b'\r');
                let is_bar = returns.is_some_and(|at| line[at..].iter().any(|&byte| byte != b'\r'));
                if has_turn {
                    let began = *began.get_or_insert(writer.now);
                    prop_assert!(writer.now < began + MAX_TURN);
                    prop_assert!(is_long && !is_bar);
                }
                writer.after(Duration::from_millis(wait));
            }
        }
    }
}
