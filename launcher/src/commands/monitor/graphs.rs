//! Bars and sparklines, in the characters and colours that the terminal has.

use anstream::{AutoStream, ColorChoice};
use ratatui::style::Style;
use rlaunch_console::process_env::ProcessEnv;
use std::io;
use std::iter::repeat_n;

/// Parts of a block, from one eighth on, for the end of a bar.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
/// Heights of a sparkline.
const UNICODE_LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_LEVELS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
/// Share from which on a memory is shown as nearly full.
const NEARLY_FULL: f64 = 0.9;

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) has_colours: bool,
    pub(super) is_unicode: bool,
}

impl Look {
    /// Returns what this process's stdout can show.
    pub(super) fn of_stdout(env: &ProcessEnv) -> Look {
        let has_colours = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        Look { has_colours, is_unicode: is_utf8(env) }
    }

    /// Draws a bar of `width` characters, of which `share` are filled.
    pub(super) fn bar(self, share: f64, width: usize) -> String {
        let (block, rest, steps) = if self.is_unicode { ('█', '░', 8) } else { ('#', '.', 1) };
        let filled = (share.clamp(0.0, 1.0) * (width * steps) as f64).round() as usize;
        let part = (filled % steps).checked_sub(1).map(|eighth| EIGHTHS[eighth]);
        let mut bar: String = repeat_n(block, filled / steps).chain(part).collect();
        let left = width.saturating_sub(bar.chars().count());
        bar.extend(repeat_n(rest, left));
        bar
    }

    /// Draws values as heights, from 0 to the highest of them. Unknown values are blank.
    pub(super) fn sparkline(self, values: &[Option<f64>]) -> String {
        let levels = if self.is_unicode { UNICODE_LEVELS } else { ASCII_LEVELS };
        let highest = values.iter().flatten().copied().fold(0.0, f64::max);
        let level = |value: f64| {
            let height = if highest > 0.0 { (8.0 * value / highest).ceil() as usize } else { 0 };
            levels[height.saturating_sub(1).min(levels.len() - 1)]
        };
        values.iter().map(|value| value.map_or(' ', level)).collect()
    }

    /// Returns the text, without characters that the terminal lacks.
    pub(super) fn text(self, text: &str) -> String {
        let ascii = |c| match c {
            '↑' => Some('^'),
            '↓' => Some('v'),
            '…' => Some('~'),
            '°' => None,
            c => Some(if c.is_ascii() { c } else { '?' }),
        };
        if self.is_unicode { text.to_owned() } else { text.chars().filter_map(ascii).collect() }
    }

    pub(super) fn bar_style(self) -> Style {
        if self.has_colours { Style::new().green() } else { Style::new() }
    }

    /// Returns the style of a bar that is better not full.
    pub(super) fn memory_style(self, share: Option<f64>) -> Style {
        let is_nearly_full = share.is_some_and(|share| share >= NEARLY_FULL);
        if self.has_colours && is_nearly_full { Style::new().red() } else { self.bar_style() }
    }

    pub(super) fn sparkline_style(self) -> Style {
        if self.has_colours { Style::new().cyan() } else { Style::new() }
    }

    /// Returns the style of what stands out. Yellow text could not be read on a light background.
    pub(super) fn striking_style(self) -> Style {
        if self.has_colours { Style::new().black().on_yellow() } else { Style::new().bold() }
    }
}

/// Tells whether the locale's characters are in UTF-8.
fn is_utf8(env: &ProcessEnv) -> bool {
    // The first one that is set decides, as in setlocale(3).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| env.variable(name));
    let locale = locale.map(|locale| locale.to_string_lossy().to_ascii_lowercase());
    locale.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNICODE: Look = Look { has_colours: true, is_unicode: true };
    const ASCII: Look = Look { has_colours: false, is_unicode: false };

    #[test]
    fn a_bar_has_its_width() {
        let bars = [0.0, 0.31, 0.5, 1.0, 7.0, f64::NAN].map(|share| UNICODE.bar(share, 4));
        assert_eq!(bars, ["░░░░", "█▎░░", "██░░", "████", "████", "░░░░"]);
        assert_eq!([0.0, 0.4, 1.0].map(|share| ASCII.bar(share, 4)), ["....", "##..", "####"]);
        assert_eq!(UNICODE.bar(0.5, 0), "");
    }

    #[test]
    fn a_sparkline_goes_from_nothing_to_its_highest_value() {
        let values = [None, Some(0.0), Some(1.0), Some(50.0), Some(100.0)];
        assert_eq!(UNICODE.sparkline(&values), " ▁▁▄█");
        assert_eq!(ASCII.sparkline(&values), " __-#");
        assert_eq!(UNICODE.sparkline(&[Some(0.0); 3]), "▁▁▁");
    }

    #[test]
    fn without_colours_what_stands_out_is_bold() {
        assert_eq!(ASCII.striking_style(), Style::new().bold());
        let plain = [ASCII.bar_style(), ASCII.memory_style(Some(1.0)), ASCII.sparkline_style()];
        assert_eq!(plain, [Style::new(); 3]);
        assert_ne!(UNICODE.memory_style(Some(0.95)), UNICODE.memory_style(Some(0.5)));
    }

    #[test]
    fn the_locale_tells_whether_blocks_can_be_shown() {
        let is_unicode = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
            is_utf8(&ProcessEnv { variables: variables.collect(), ..ProcessEnv::default() })
        };
        assert!(is_unicode(&[("LANG", "en_US.UTF-8")]) && is_unicode(&[("LC_ALL", "C.utf8")]));
        assert!(!is_unicode(&[]) && !is_unicode(&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")]));
        assert!(is_unicode(&[("LANG", "C"), ("LC_CTYPE", "C.UTF-8"), ("LC_ALL", "")]));
        assert_eq!(ASCII.text("↑↓ 60 °C a…é"), "^v 60 C a~?");
    }
}
