//! Lines that a program writes again and again by carriage returns, as progress bars: what is left of them, and the rows
//! that show them below everything else.

use memchr::{memchr, memchr_iter, memrchr};
use rlaunch_bootstrap::id::Rank;
use rlaunch_text::printable::escape_end;
use std::borrow::Cow;
use unicode_width::UnicodeWidthStr;

/// Maximum number of rows. Of more ranks only the slowest and the fastest have one.
const MAX_ROWS: usize = 8;
/// Columns from one tab stop to the next.
const TAB_STOP: usize = 8;

/// Unfinished line of a rank, or a line about such lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) rank: Option<Rank>,
    /// What is to be seen of the line.
    pub(crate) text: String,
}

/// Chooses the rows that are shown, and says how many are not.
pub(super) fn choose(rows: Vec<Row>) -> Vec<Row> {
    if rows.len() <= MAX_ROWS {
        return rows;
    }
    let slowest = rows.iter().min_by_key(|row| percentage(&row.text));
    let fastest = rows.iter().rev().max_by_key(|row| percentage(&row.text));
    let mut shown: Vec<Row> = slowest.into_iter().chain(fastest).cloned().collect();
    let text = format!("slowest and fastest of {} ranks", rows.len());
    shown.push(Row { rank: None, text });
    shown
}

/// Returns the last number with a percent sign in a bar, in hundredths of a percent; 0 if there is none.
fn percentage(text: &str) -> u32 {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut percentages = text.match_indices('%').filter_map(|(at, _)| {
        let before = text[..at].trim_end();
        let number = &before[before.trim_end_matches(is_part).len()..];
        number.parse::<f64>().ok().filter(|number| *number <= 100.0)
    });
    percentages.next_back().map_or(0, |number| (number * 100.0) as u32)
}

/// Replaces each whole line that is written over by what is to be seen of it in the end.
pub(super) fn settle(lines: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\r', lines).is_none() {
        return Cow::Borrowed(lines);
    }
    let mut settled = Vec::with_capacity(lines.len());
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let end = text.iter().rposition(|&byte| byte != b'\r').map_or(0, |last| last + 1);
        if memchr(b'\r', &text[..end]).is_some() {
            settled.extend_from_slice(&flatten(text));
            settled.push(b'\n');
        } else {
            settled.extend_from_slice(line);
        }
    }
    Cow::Owned(settled)
}

/// Shortens an unfinished line to what its end depends on: what is to be seen of it up to the last carriage return, and
/// all behind that.
pub(super) fn shorten(line: &mut Vec<u8>) {
    if let Some(last) = memrchr(b'\r', line) {
        let seen = flatten(&line[..last]);
        drop(line.splice(..last, seen));
    }
}

/// Returns what is to be seen of a line whose parts stand over each other, and the colours that it has there.
pub(super) fn flatten(line: &[u8]) -> Vec<u8> {
    let mut cells = Cells::default();
    let (mut at, mut begin) = (0, 0);
    while at < line.len() {
        let end = match line[at] {
            b'\x1b' => escape_end(line, at),
            byte => (at + character_length(byte)).min(line.len()),
        };
        match &line[at..end] {
            b"\r" => cells.column = 0,
            b"\x08" => cells.column = cells.column.saturating_sub(1),
            b"\x1b[K" | b"\x1b[0K" => cells.all.truncate(cells.column),
            b"\x1b[1K" => cells.blank_up_to_column(),
            b"\x1b[2K" => cells.all.clear(),
            // Others print nothing, and stay in front of the next character.
            [b'\0'..=b'\x1f' | b'\x7f', ..] => {
                if line[at] == b'\t' {
                    cells.column = (cells.column / TAB_STOP + 1) * TAB_STOP;
                }
                at = end;
                continue;
            }
            character => cells.put(&line[begin..end], is_wide(character)),
        }
        (at, begin) = (end, end);
    }
    cells.into_text()
}

/// Characters of a line by their columns, each with the colours in front of it. The second column of a wide character is
/// empty.
#[derive(Default)]
struct Cells<'a> {
    all: Vec<&'a [u8]>,
    column: usize,
}

impl<'a> Cells<'a> {
    fn put(&mut self, cell: &'a [u8], is_wide: bool) {
        let begin = self.column;
        self.column += if is_wide { 2 } else { 1 };
        if self.all.len() < self.column {
            self.all.resize(self.column, b" ");
        }
        // Of a wide character that is half written over, nothing is to be seen.
        if self.all[begin].is_empty() && begin > 0 {
            self.all[begin - 1] = b" ";
        }
        if let Some(behind) = self.all.get_mut(self.column).filter(|cell| cell.is_empty()) {
            *behind = b" ";
        }
        self.all[begin] = cell;
        self.all[begin + 1..self.column].fill(b"");
    }

    fn blank_up_to_column(&mut self) {
        let end = self.all.len().min(self.column + 1);
        self.all[..end].fill(b" ");
    }

    fn into_text(self) -> Vec<u8> {
        let (mut text, mut is_coloured) = (Vec::new(), false);
        for cell in self.all {
            let mut at = 0;
            while let Some(&byte @ (b'\x1b' | b'\t')) = cell.get(at) {
                // A tab has chosen the column.
                let end = if byte == b'\t' { at + 1 } else { escape_end(cell, at) };
                if cell[at..end].starts_with(b"\x1b[") && cell[end - 1] == b'm' {
                    text.extend_from_slice(&cell[at..end]);
                    is_coloured = true;
                }
                at = end;
            }
            text.extend_from_slice(&cell[at..]);
        }
        if is_coloured {
            text.extend_from_slice(b"\x1b[0m");
        }
        text
    }
}

/// Returns the length of the UTF-8 character that begins with this byte; 1 if none does.
fn character_length(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

/// Tells whether a character takes two columns.
fn is_wide(character: &[u8]) -> bool {
    !character.is_ascii() && std::str::from_utf8(character).is_ok_and(|text| text.width() == 2)
}

/// Tells whether output moves the cursor otherwise than by line breaks, or takes the whole screen.
pub(super) fn moves_cursor(data: &[u8]) -> bool {
    memchr_iter(b'\x1b', data).any(|start| match &data[start..escape_end(data, start)] {
        [_, b'[', parameters @ .., b'h'] => {
            matches!(parameters, b"?47" | b"?1047" | b"?1049")
        }
        [_, b'[', .., last] => b"@ABCDEFGHJLMPSTXdfrsu".contains(last),
        [_, second] => b"78DEMc".contains(second),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flat(line: &str) -> String {
        String::from_utf8(flatten(line.as_bytes())).unwrap()
    }

    #[test]
    fn later_text_stands_over_earlier_text() {
        assert_eq!(flat("10%|#  \r20%|## "), "20%|## ");
        assert_eq!(flat("abcdef\rxy"), "xycdef");
        assert_eq!(flat("abcdef\r\u{1b}[Kxy"), "xy");
        assert_eq!(flat("abc\r\u{1b}[2Kx"), "x");
        assert_eq!(flat("äöü\rx"), "xöü");
        assert_eq!(flat("50%\r"), "50%");
        assert_eq!(flat("1\x082"), "2");
    }

    #[test]
    fn colours_stay_and_end() {
        let red = "\u{1b}[31m5%\u{1b}[0m done\r\u{1b}[31m6%";
        assert_eq!(flat(red), "\u{1b}[31m6%\u{1b}[0m done\u{1b}[0m");
        assert_eq!(flat("\u{1b}[?25l\u{1b}]0;title\u{7}x"), "x");
    }

    #[test]
    fn text_behind_sequences_for_the_terminal_stays() {
        let link =
            "RANK 50%\r\u{1b}]8;;http://h/x\u{1b}\\LINK\u{1b}]8;;\u{1b}\\ loss 0.5 IMPORTANT";
        assert_eq!(flat(link), "LINK loss 0.5 IMPORTANT");
        assert_eq!(flat("a\rok\u{1b}(B\u{1b}[m done"), "ok\u{1b}[m done\u{1b}[0m");
        for kind in ["]0;", "P1$q", "_G", "^", "X"] {
            for end in ["\u{7}", "\u{1b}\\"] {
                assert_eq!(flat(&format!("a\r\u{1b}{kind}inside{end}ok")), "ok", "{kind:?}");
            }
            // One that is not whole takes nothing of the text.
            let seen = flat(&format!("a\r\u{1b}{kind}0 of 9"));
            assert_eq!(seen, format!("{}0 of 9", &kind[1..]));
            assert!(flat(&format!("\u{1b}{kind}old text\rnew\u{7}")).contains("new"), "{kind:?}");
        }
        assert_eq!(flat("a\r\u{1b}[1;äb"), "äb");
        assert_eq!(flat("abc\u{1b}\rx"), "xbc");
    }

    #[test]
    fn tabs_and_wide_characters_take_their_columns() {
        assert_eq!(flat("10%\rloss\t0.5"), "loss    0.5");
        assert_eq!(flat("abcdefgh 1\r\t-2"), "abcdefgh-2");
        assert_eq!(flat("\r\u{1b}[31m\tred"), "        \u{1b}[31mred\u{1b}[0m");
        assert_eq!(flat("学習 10%\r学習 20%"), "学習 20%");
        assert_eq!(flat("学習 10%\rabcd"), "abcd 10%");
        // Half of a wide character is none.
        assert_eq!(flat("学習\rab\u{8}c"), "ac習");
        assert_eq!(flat("学習\ra"), "a 習");
        assert_eq!(flat("ab学\r 習"), " 習 ");
        assert_eq!(flat("学\u{8}x"), " x");
    }

    #[test]
    fn whole_lines_keep_their_final_state_and_others_their_bytes() {
        assert_eq!(
            &*settle(b"1%\r2%\r\nplain\r\n\x1b[1mx\x1b[0m\n"),
            b"2%\nplain\r\n\x1b[1mx\x1b[0m\n"
        );
        assert!(matches!(settle(b"plain\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn cursors_that_leave_the_line_are_noticed() {
        let moves = |text: &str| moves_cursor(text.as_bytes());
        assert!(moves("\u{1b}[2J") && moves("x\u{1b}[12;4H") && moves("\n\u{1b}[A"));
        assert!(moves("\u{1b}[?1049h") && moves("\u{1b}7"));
        assert!(!moves("\u{1b}[1;31mred\u{1b}[0m\u{1b}[K\u{1b}[?25l\u{1b}[") && !moves("\u{1b}"));
    }

    #[test]
    fn of_many_bars_the_slowest_and_the_fastest_are_shown() {
        let row = |rank: u32| Row {
            rank: Some(Rank(rank)),
            text: format!("  {}%|##  | 3/7", rank * 5 % 45),
        };
        assert_eq!(choose((0..8).map(row).collect()).len(), 8);
        let shown = choose((1..10).map(row).collect());
        let ranks: Vec<Option<u32>> = shown.iter().map(|row| row.rank.map(|rank| rank.0)).collect();
        assert_eq!(ranks, [Some(9), Some(8), None]);
        assert_eq!(shown[2].text, "slowest and fastest of 9 ranks");
        assert_eq!(percentage("epoch 3 12.5% of 7"), 1250);
    }

    proptest! {
        /// However often it is shortened, a line looks the same in the end.
        #[test]
        fn a_shortened_line_looks_the_same(text in "[ab学\t\r]{0,40}", cut in 1_usize..9) {
            let mut line = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                line.extend_from_slice(piece);
                shorten(&mut line);
            }
            prop_assert_eq!(flatten(&line), flatten(text.as_bytes()));
        }

        #[test]
        fn any_bytes_are_flattened(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut line = text.clone();
            shorten(&mut line);
            let is_plain = !text.iter().any(|byte| b"\x1b\t".contains(byte));
            prop_assert!(flatten(&text).len() <= text.len() + 4 || !is_plain);
            moves_cursor(&text);
        }
    }
}
