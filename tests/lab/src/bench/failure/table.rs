//! Table of the failure bench: one row for each quantity, one column for each launcher.

use std::time::Duration;

use crate::bench::Series;

/// Quantity that was measured for every launcher.
pub(super) struct FailureRow {
    what: String,
    /// Maximum of the first launcher's median in seconds.
    bar: f64,
    /// Results by launcher.
    pub(super) cells: Vec<Cell>,
}

impl FailureRow {
    pub(super) fn new(what: &str, bar: f64, limit: Duration, launchers: usize) -> FailureRow {
        let cell = || Cell { times: Series::default(), late: 0, left: 0, limit };
        FailureRow { what: what.into(), bar, cells: (0..launchers).map(|_| cell()).collect() }
    }

    fn is_met(&self) -> bool {
        self.cells.first().is_none_or(|own| {
            own.late == 0 && own.times.median().is_none_or(|median| median <= self.bar)
        })
    }
}

/// Results of one launcher.
pub(super) struct Cell {
    times: Series,
    /// Number of rounds in which the launcher took longer than the limit.
    late: usize,
    /// Maximum number of ranks left in those rounds.
    left: usize,
    limit: Duration,
}

impl Cell {
    pub(super) fn push(&mut self, time: Option<Duration>, left: usize) {
        match time {
            Some(time) => self.times.push(time.as_secs_f64()),
            None => {
                self.late += 1;
                self.left = self.left.max(left);
            }
        }
    }

    /// Formats `0.030 (0.021–0.052)`, or how often the limit was exceeded and how many ranks were
    /// left.
    fn summary(&self) -> String {
        let limit = self.limit.as_secs();
        let left = if self.left > 0 { format!(", {} left", self.left) } else { String::new() };
        match (self.late, self.times.count()) {
            (0, _) => self.times.summary_to(3),
            (_, 0) => format!("> {limit} (never{left})"),
            (late, in_time) => {
                format!(
                    "{}, {late} of {} > {limit}{left}",
                    self.times.summary_to(3),
                    late + in_time
                )
            }
        }
    }
}

/// Prints the table; returns whether every bar is met.
pub(super) fn print(launchers: &[&str], rows: &[FailureRow]) -> bool {
    print!("{:<46}", "");
    launchers.iter().for_each(|name| print!("{name:>24}"));
    println!("   bar for {}", launchers.first().unwrap_or(&""));
    for row in rows {
        print!("{:<46}", row.what);
        row.cells.iter().for_each(|cell| print!("{:>24}", cell.summary()));
        let verdict = if row.is_met() { "met" } else { "MISSED" };
        println!("   ≤ {} {verdict}", row.bar);
    }
    rows.iter().all(FailureRow::is_met)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(times: &[Option<f64>]) -> FailureRow {
        let mut row = FailureRow::new("it ends", 0.15, Duration::from_secs(5), 1);
        for time in times {
            row.cells[0].push(time.map(Duration::from_secs_f64), 2);
        }
        row
    }

    #[test]
    fn what_came_late_is_counted() {
        assert_eq!(row(&[Some(0.1), Some(0.2)]).cells[0].summary(), "0.150 (0.100–0.200)");
        assert_eq!(row(&[None, None]).cells[0].summary(), "> 5 (never, 2 left)");
        assert_eq!(
            row(&[Some(0.1), None]).cells[0].summary(),
            "0.100 (0.100–0.100), 1 of 2 > 5, 2 left"
        );
    }

    #[test]
    fn a_bar_is_missed_by_the_median_or_by_not_ending() {
        assert!(row(&[Some(0.1), Some(0.11), Some(2.0)]).is_met());
        assert!(!row(&[Some(0.1), Some(0.21)]).is_met());
        assert!(!row(&[Some(0.1), Some(0.1), None]).is_met());
    }
}
