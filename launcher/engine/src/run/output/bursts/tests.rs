//! Bursts with a clock of their own.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const BOTH: PerStream<bool> = PerStream { stdout: true, stderr: true };

/// Terminal at which several ranks print.
struct Screen {
    bursts: Bursts,
    now: Instant,
    /// Lines that were shown, behind their ranks.
    lines: Vec<String>,
    rows: Vec<String>,
}

impl Screen {
    fn new(fold: Option<Folding>, ranks: u32) -> Screen {
        Screen::with_rows(fold, ranks, true)
    }

    fn with_rows(fold: Option<Folding>, ranks: u32, has_rows: bool) -> Screen {
        let bursts = Bursts::new(fold, ranks, BOTH, has_rows).unwrap();
        Screen { bursts, now: Instant::now(), lines: Vec::new(), rows: Vec::new() }
    }

    fn print(&mut self, rank: u32, text: &str) {
        self.print_to((Rank(rank), Stream::Stdout), text.as_bytes());
    }

    fn print_to(&mut self, source: StreamId, text: &[u8]) {
        self.bursts.push(self.now, (source, None), text);
        self.look();
    }

    /// Lets time pass, and looks whenever something is due.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.bursts.timeout(self.now).map(|left| self.now + left)
            && due <= until
        {
            self.now = due;
            self.look();
        }
        self.now = until;
    }

    fn look(&mut self) {
        for shown in self.bursts.take(self.now) {
            let (ranks, data) = match shown {
                ShownOutput::Plain { source, data, .. } => (source.0.to_string(), data),
                ShownOutput::Folded { ranks, lines, .. } => {
                    let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
                    (format!("={}", ranks.join(",")), lines)
                }
                ShownOutput::CursorMoves(rank) => (format!("{rank} moves"), b".".to_vec()),
            };
            let text = String::from_utf8_lossy(&data);
            self.lines.extend(text.split_inclusive('\n').map(|line| format!("{ranks} {line}")));
        }
        if let Some(rows) = self.bursts.rows(self.now) {
            self.rows = rows
                .iter()
                .map(|row| format!("{} {}", row.rank.unwrap_or(Rank(0)), row.text))
                .collect();
        }
    }

    fn finish(mut self) -> Vec<String> {
        self.now += WINDOW;
        self.bursts.show_all(self.now);
        self.look();
        assert!(self.rows.is_empty(), "{:?}", self.rows);
        assert_eq!((self.bursts.held, self.bursts.queue.len()), (0, 0));
        self.lines
    }
}

#[test]
fn what_a_rank_prints_within_a_moment_is_shown_in_one_piece() {
    let mut screen = Screen::new(None, 3);
    screen.print(0, "GPU 0\n");
    screen.print(1, "GPU 1\n");
    screen.wait(WINDOW / 2);
    screen.print(0, "41 C\n");
    screen.print(1, "43 C\n");
    assert!(screen.lines.is_empty());
    screen.wait(WINDOW / 2);
    assert_eq!(screen.lines, ["0 GPU 0\n", "0 41 C\n", "1 GPU 1\n", "1 43 C\n"]);
}

#[test]
fn what_is_held_can_be_shown_early_but_for_unfinished_lines() {
    let mut screen = Screen::new(None, 2);
    screen.print(0, "a\n");
    screen.print(1, "10 %");
    screen.bursts.release(screen.now);
    screen.look();
    assert_eq!(screen.lines, ["0 a\n"]);
    assert_eq!(screen.rows, ["1 10 %"]);
}

#[test]
fn equal_bursts_are_shown_once() {
    let mut screen = Screen::new(None, 4);
    (0..3).for_each(|rank| screen.print(rank, "+---+\n| x |\n"));
    screen.print(3, "+---+\n| y |\n");
    screen.wait(WINDOW);
    let shown = ["=0,1,2 +---+\n", "=0,1,2 | x |\n", "3 +---+\n", "3 | y |\n"];
    assert_eq!(screen.finish(), shown);
    let mut screen = Screen::new(Some(Folding::None), 2);
    (0..2).for_each(|rank| screen.print(rank, "same\n"));
    assert_eq!(screen.finish(), ["0 same\n", "1 same\n"]);
}

#[test]
fn lines_of_a_rank_keep_their_order() {
    let mut screen = Screen::new(Some(Folding::Lines), 2);
    screen.print(0, "a\nb\na\n");
    screen.print(1, "b\na\nc\na\n");
    assert_eq!(screen.finish(), ["0 a\n", "=0,1 b\n", "=0,1 a\n", "1 c\n", "1 a\n"]);
}

#[test]
fn the_rank_that_differs_stands_beside_the_others() {
    let mut screen = Screen::new(Some(Folding::Lines), 6);
    for rank in 0..5 {
        screen.print_to((Rank(rank), Stream::Stderr), b"Traceback:\n  lost rank 5\n");
    }
    screen.print_to((Rank(5), Stream::Stderr), b"Traceback:\n  no memory\n");
    let shown = ["=0,1,2,3,4,5 Traceback:\n", "=0,1,2,3,4   lost rank 5\n", "5   no memory\n"];
    assert_eq!(screen.finish(), shown);
}

#[test]
fn numbers_are_shown_as_ranges() {
    let mut screen = Screen::new(Some(Folding::Numbers), 3);
    for (rank, loss) in [(0, "0.18"), (1, "0.19"), (2, "-0.170")] {
        screen.print(rank, &format!("start\nstep 7 loss {loss} of 0x1f\n"));
    }
    let shown = ["=0,1,2 start\n", "=0,1,2 step 7 loss -0.170..0.19 of 0x1f\n"];
    assert_eq!(screen.finish(), shown);
}

#[test]
fn what_is_not_shown_on_a_terminal_is_not_held() {
    let streams = PerStream { stdout: false, stderr: true };
    let mut screen = Screen::new(None, 2);
    screen.bursts = Bursts::new(None, 2, streams, false).unwrap();
    screen.print(0, "x\n");
    screen.print(1, "half");
    assert_eq!(screen.lines, ["0 x\n", "1 half"]);
    assert!(!screen.bursts.has_several());
    assert!(Bursts::new(None, 1, BOTH, true).is_none());
    assert!(Bursts::new(None, 9, PerStream { stdout: false, stderr: false }, false).is_none());
}

#[test]
fn bars_are_rows_and_their_final_states_lines() {
    let mut screen = Screen::new(None, 2);
    screen.print(0, "\r 1%|#  ");
    screen.print(1, "\r 2%|#  ");
    screen.wait(WINDOW);
    assert_eq!(screen.rows, ["0  1%|#  ", "1  2%|#  "]);
    screen.print(0, "\r50%|## \r60%|## ");
    screen.print(1, "between\n");
    screen.wait(WINDOW);
    assert_eq!(screen.rows, ["0 60%|## "]);
    assert_eq!(screen.lines, ["1  2%|#  between\n"]);
    screen.print(0, "\r100%|###\n");
    screen.wait(Duration::ZERO);
    assert_eq!(screen.lines[1..], ["0 100%|###\n"]);
    assert!(screen.finish().len() == 2);
}

#[test]
fn a_bar_that_ends_or_erases_itself_leaves_what_is_to_be_seen() {
    let mut screen = Screen::new(None, 3);
    screen.print(0, "\r100%");
    screen.print(1, "\r100%\r    \r");
    screen.print(2, "half");
    for rank in 0..3 {
        screen.bursts.end(screen.now, (Rank(rank), Stream::Stdout));
    }
    screen.wait(WINDOW);
    assert_eq!(screen.finish(), ["0 100%\n", "2 half\n"]);
}

#[test]
fn without_rows_the_beginning_of_a_line_is_shown_soon() {
    let mut screen = Screen::with_rows(None, 2, false);
    screen.print(1, "x\n");
    screen.print(0, "x\nname? ");
    screen.wait(WINDOW);
    assert_eq!(screen.lines, ["0 x\n", "0 name? ", "1 x\n"]);
    screen.print(0, "me\nx\n");
    screen.wait(WINDOW);
    assert_eq!(screen.lines[3..], ["0 me\n", "0 x\n"]);
}

#[test]
fn a_program_that_moves_the_cursor_is_left_alone() {
    let mut screen = Screen::new(None, 2);
    screen.print(0, "\r5%");
    screen.wait(WINDOW);
    assert_eq!(screen.rows, ["0 5%"]);
    screen.print(1, "\u{1b}[2J\u{1b}[Hfull");
    screen.wait(WINDOW);
    assert!(screen.rows.is_empty());
    let shown = ["1 moves .", "0 \r5%", "1 \u{1b}[2J\u{1b}[Hfull"];
    assert_eq!(screen.finish(), shown);
}

#[test]
fn a_flood_is_shown_in_big_pieces_and_holds_nobody_up() {
    let mut screen = Screen::new(None, 300);
    let chunk = "flood\n".repeat(5000);
    screen.print(1, "short\n");
    for _ in 0..30 {
        screen.bursts.push(screen.now, ((Rank(0), Stream::Stdout), None), chunk.as_bytes());
        assert!(screen.bursts.held <= MAX_HELD);
        screen.now += WINDOW / 10;
        let pieces = screen.bursts.take(screen.now);
        let sizes = pieces.iter().filter_map(|shown| match shown {
            ShownOutput::Plain { source, data, .. } if source.0 == Rank(0) => Some(data.len()),
            _ => None,
        });
        assert!(sizes.min().is_none_or(|least| least >= MAX_BURST));
    }
    assert!(!screen.bursts.bursts.contains_key(&Rank(1)));
    // Lines that never end are shown too.
    for rank in 0..300 {
        screen.print(rank, &"x".repeat(30 << 10));
        let rows: usize = screen.bursts.unfinished.values().map(|line| line.text.len()).sum();
        assert!(screen.bursts.held + rows <= 2 * MAX_HELD);
    }
}

proptest! {
    /// Every rank's output is on the screen once and in its order, whatever was folded, and nobody waits for long.
    #[test]
    fn no_line_is_lost_torn_late_or_reordered(
        steps in prop::collection::vec((0..4_u32, 0..9_usize, any::<bool>(), 0..5_u32), 0..60),
        fold in prop::sample::select(&[None, Some(Folding::Lines), Some(Folding::None)]),
    ) {
        let flood = "flood\n".repeat(5000);
        let pieces =
            ["a\n", "b\n", "a\nb\n", "n 1\n", "half ", "\r10%", "\r20%\n", "\u{fffd}\r", &flood[..]];
        let mut screen = Screen::new(fold, 4);
        let mut printed: HashMap<StreamId, String> = HashMap::new();
        // Times at which bytes came of which nothing was seen then.
        let mut waiting: HashMap<u32, Instant> = HashMap::new();
        for (rank, piece, is_error, wait) in steps {
            // Stdout and stderr of a rank have no order. Here each rank has one of them.
            let rank = rank / 2 * 2 + u32::from(is_error);
            let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
            let source = (Rank(rank), stream);
            printed.entry(source).or_default().push_str(pieces[piece]);
            screen.print_to(source, pieces[piece].as_bytes());
            let is_held = |screen: &Screen, rank: u32| {
                screen.bursts.bursts.contains_key(&Rank(rank))
            };
            if is_held(&screen, rank) {
                waiting.entry(rank).or_insert(screen.now);
            }
            screen.wait(WINDOW * wait / 4);
            waiting.retain(|rank, _| is_held(&screen, *rank));
            for since in waiting.values() {
                prop_assert!(screen.now - *since <= WINDOW);
            }
            prop_assert!(screen.bursts.timeout(screen.now).is_none_or(|left| left <= WINDOW));
            prop_assert!(screen.bursts.held <= MAX_HELD);
        }
        let mut shown: HashMap<u32, String> = HashMap::new();
        for line in screen.finish() {
            let (ranks, text) = line.split_once(' ').unwrap();
            for rank in ranks.trim_start_matches('=').split(',') {
                shown.entry(rank.parse().unwrap()).or_default().push_str(text);
            }
        }
        for ((rank, _), text) in printed {
            let end = if text.ends_with('\n') { "" } else { "\n" };
            let lines = format!("{text}{end}");
            let seen = rows::settle(lines.as_bytes());
            let seen = String::from_utf8_lossy(&seen);
            let shown = shown.remove(&rank.0).unwrap_or_default();
            // The returns at the end of a line are not to be seen.
            prop_assert_eq!(shown.replace('\r', ""), seen.replace('\r', ""));
        }
    }
}
