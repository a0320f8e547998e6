//! Tables that test programs print, as far as reports need them.

/// Parser of the output of a test program, line by line.
pub(crate) trait TableParser: Send {
    /// Reads a line, without the newline.
    fn line(&mut self, line: &str) -> ProgramLine;

    /// Returns what the lines so far tell about the measurement.
    fn facts(&self) -> TableFacts<'_>;

    /// Returns a sentence if results were wrong.
    fn wrong(&self) -> Option<String>;

    /// Returns a sentence if the table is not whole.
    fn incomplete(&self) -> Option<String> {
        None
    }
}

/// Meaning of a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgramLine {
    /// Header of the table. A second one is that of another process, which has run alone.
    Header,
    Row(ProgramRow),
    /// Another line of the test program.
    Comment,
    /// Line that does not belong to the table, such as one of a library's log.
    Foreign,
}

/// Row of a table, for one size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProgramRow {
    /// Size as the program prints it; 0 for a barrier.
    pub(crate) bytes: u64,
    pub(crate) elements: Option<u64>,
    /// Average time of a message or call, in microseconds.
    pub(crate) average_us: Option<f64>,
    /// Lowest average of a rank.
    pub(crate) min_us: Option<f64>,
    /// Highest average of a rank.
    pub(crate) max_us: Option<f64>,
    /// Average time of the operation in place.
    pub(crate) in_place_us: Option<f64>,
    /// Measured bandwidth, in 10^9 bytes per second.
    pub(crate) gb_per_s: Option<f64>,
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) iterations: Option<u64>,
    /// Number of wrong values; `None` if they were not checked, or not counted.
    pub(crate) wrong: Option<u64>,
}

/// Facts that a program prints about its measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableFacts<'a> {
    pub(crate) version: Option<&'a str>,
    /// Version of NCCL.
    pub(crate) nccl: Option<&'a str>,
    /// Type of elements.
    pub(crate) element: Option<&'a str>,
    /// Operation of a reduction.
    pub(crate) op: Option<&'a str>,
    /// Number of ranks of the library, which differs from that of processes if a process has several GPUs.
    pub(crate) ranks: Option<usize>,
}

/// Reads a number that a time in microseconds or a rate can be.
pub(super) fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number| (0.0..1e15).contains(number))
}
