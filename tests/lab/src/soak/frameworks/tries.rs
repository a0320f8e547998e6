//! How lines of frameworks end, and how long they take beside the frameworks' own ways.

use crate::bench::Series;

/// Ratio to the time of a framework's own way, in the median, above which rlaunch is slow: steps always, and a line if it was
/// slower in each round.
pub(super) const SLOW: f64 = 1.05;

/// How a line ended.
pub(super) struct Try {
    pub(super) seconds: f64,
    /// What was wrong; none if it did what was wanted.
    pub(super) wrong: Option<String>,
    /// Whether it failed as its own way does.
    pub(super) is_excused: bool,
}

impl Try {
    pub(super) fn result(&self) -> &'static str {
        match self.wrong {
            Some(_) => "WRONG",
            None if self.is_excused => "fails by its own way, too",
            None => "right",
        }
    }

    pub(super) fn show(&self, what: &str) {
        println!("{what}: {} {:.1} s", self.result(), self.seconds);
        if let Some(wrong) = &self.wrong {
            println!("        {}", wrong.trim().replace('\n', "\n        "));
        }
    }
}

/// All runs of a line.
#[derive(Default)]
pub(super) struct Tries {
    /// Of the right ones.
    pub(super) seconds: Series,
    /// What was wrong in the last wrong one.
    pub(super) wrong: Option<String>,
}

impl Tries {
    pub(super) fn push(&mut self, run: Try) {
        self.seconds.push(run.wrong.is_none().then_some(run.seconds));
        self.wrong = run.wrong.or(self.wrong.take());
    }
}

/// Runs of a line by rlaunch, and of its framework's own way.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) ours: Tries,
    pub(super) own: Tries,
}

impl Beside {
    pub(super) fn ratios(&self) -> Series {
        self.ours.seconds.ratios_to(&self.own.seconds)
    }

    pub(super) fn is_slow(&self) -> bool {
        let ratios = self.ratios();
        let [Some(median), Some(least)] = [0.5, 0.0].map(|part| ratios.quantile(part)) else {
            return false;
        };
        // A connection that is tried again a second later, as JAX's is, makes single rounds differ.
        median > SLOW && least > 1.0
    }

    pub(super) fn result(&self) -> &'static str {
        match self.ours.wrong {
            Some(_) => "WRONG",
            None if self.is_slow() => "SLOW",
            None => "right",
        }
    }
}
