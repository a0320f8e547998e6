//! Rectangles, texts and lines with their places in pixels.

/// Width of a letter of 12 pixels: that of the widest common fonts, on average.
const LETTER: i32 = 7;
/// Height of a text's area.
pub(super) const TEXT_HEIGHT: i32 = 14;

/// Rectangle from its upper left to its lower right corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

/// Part of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Frame {
        area: Area,
        look: Look,
    },
    Text {
        area: Area,
        text: String,
        size: TextSize,
    },
    /// White text on black: ranks that use a device.
    Label {
        area: Area,
        text: String,
    },
    /// Number of the network at a port.
    Pin {
        area: Area,
        network: usize,
    },
    Line {
        from: (i32, i32),
        to: (i32, i32),
        network: usize,
    },
    /// Point at which a port's line meets that of the network.
    Dot {
        at: (i32, i32),
        network: usize,
    },
}

/// Look of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Host,
    Section,
    /// Grey field of devices below one PCIe switch.
    Switch,
    Device,
    /// Device that ranks use.
    Used,
    /// Port without a carrier.
    Down,
    Rank,
}

/// Size of letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextSize {
    Title,
    Heading,
    Plain,
}

impl TextSize {
    /// Returns the height of letters in pixels.
    pub(super) fn pixels(self) -> f64 {
        match self {
            TextSize::Title => 17.0,
            TextSize::Heading => 14.0,
            TextSize::Plain => 12.0,
        }
    }
}

impl Area {
    /// Returns an area of this size whose left edge has its middle at `(x, y)`.
    pub(super) fn at(x: i32, y: i32, width: i32, height: i32) -> Area {
        let top = y - height / 2;
        Area { left: x, top, right: x + width, bottom: top + height }
    }

    pub(super) fn middle(self) -> (i32, i32) {
        (i32::midpoint(self.left, self.right), i32::midpoint(self.top, self.bottom))
    }

    #[cfg(test)]
    pub(super) fn overlaps(self, other: Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    #[cfg(test)]
    pub(super) fn contains(self, other: Area) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }
}

impl Shape {
    /// Returns a text whose left edge has its middle at `(x, y)`, shortened to `width` pixels.
    pub(super) fn text(x: i32, y: i32, text: &str, size: TextSize, width: i32) -> Shape {
        let text = shortened(text, letters_in(width, size));
        let area = Area::at(x, y, text_width(&text, size), TEXT_HEIGHT);
        Shape::Text { area, text, size }
    }
}

/// Returns the width of a text in pixels.
pub(super) fn text_width(text: &str, size: TextSize) -> i32 {
    let letters = i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 100);
    (f64::from(letters * LETTER) * size.pixels() / TextSize::Plain.pixels()).ceil() as i32
}

/// Returns the number of letters that have room in `width` pixels.
pub(super) fn letters_in(width: i32, size: TextSize) -> usize {
    let letters = f64::from(width) * TextSize::Plain.pixels() / size.pixels() / f64::from(LETTER);
    letters.max(0.0) as usize
}

/// Shortens a text to its first letters, with `…` in place of the others.
fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}
