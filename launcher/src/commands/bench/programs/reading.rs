//! Output of a test program while it runs: rows are printed as they come, and other programs' lines pass through.

use super::parser::{ProgramLine, ProgramRow, TableParser};
use super::suite::{Suite, Test};
use super::table::Measurement;
use crate::commands::bench::records::LineReader;
use crate::commands::bench::table::Summary;
use crate::commands::bench::{ResultArgs, Unit};
use crate::commands::report::nccl_tests::ONE_JOB;
use rlaunch_console::stdout;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io::{self, Write};
use std::path::Path;

/// Reader of a test program's output.
pub(super) struct ProgramReader {
    suite: Suite,
    test: &'static Test,
    /// Name of the program in messages.
    name: String,
    unit: Unit,
    /// Whether rows are printed as they come.
    is_shown: bool,
    parser: Box<dyn TableParser>,
    /// Number of headers of tables.
    headers: usize,
    /// Known from the first row on.
    measurement: Option<Measurement>,
    rows: Vec<ProgramRow>,
}

/// Reason why a table is not a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TableFault {
    /// Ranks did not find each other, so each has measured alone.
    Alone,
    /// Sentence about wrong results.
    Wrong(String),
}

impl ProgramReader {
    pub(super) fn new(
        (suite, test): (Suite, &'static Test),
        program: &Path,
        results: &ResultArgs,
    ) -> ProgramReader {
        let name = program.file_name().unwrap_or(program.as_os_str());
        ProgramReader {
            suite,
            test,
            name: name.to_string_lossy().into_owned(),
            unit: results.report,
            is_shown: !results.json,
            parser: suite.parser(),
            headers: 0,
            measurement: None,
            rows: Vec::new(),
        }
    }

    /// Summarizes the rows. Returns `None` if there are none, or if they are not a measurement of all ranks.
    pub(super) fn summary<'a>(&'a self, facts: &'a StartFacts) -> Option<Summary<'a>> {
        let measurement = self.measurement.as_ref().filter(|_| self.headers < 2)?;
        let rows = self.rows.iter().map(|row| measurement.summary(row)).collect();
        Summary::of_program(measurement.program.clone(), &measurement.header, rows, facts)
    }

    pub(super) fn fault(&self) -> Option<TableFault> {
        match self.headers {
            0 | 1 => self.parser.wrong().map(TableFault::Wrong),
            _ => Some(TableFault::Alone),
        }
    }

    /// Returns a sentence if rows are missing.
    pub(super) fn incomplete(&self) -> Option<String> {
        self.parser.incomplete().filter(|_| self.headers < 2 && !self.rows.is_empty())
    }

    /// Returns the result of the measurement, whose job has `ended`.
    pub(super) fn verdict(&self, ended: Result<Exit, Failed>) -> Result<Exit, Failed> {
        let name = &self.name;
        match (self.fault(), ended) {
            (Some(TableFault::Alone), _) => {
                let failed = format!("each rank of {name} has printed a table: each ran alone");
                let hint = match self.suite {
                    Suite::NcclTests => ONE_JOB,
                    Suite::Osu => {
                        "`rlaunch help programs` lists the MPI libraries that ranks find each other by"
                    }
                };
                Err(Failed::new(Exit::SINGLETON, failed).hint(Some(hint)))
            }
            (Some(TableFault::Wrong(what)), ended) => {
                // The program may have failed because of this.
                let of_rank = ended.err().filter(|failed| failed.by_rank);
                let exit = of_rank.map_or(Exit::ABORTED, |failed| failed.exit);
                let hint = "`rlaunch doctor -H … --probe` looks for links with errors";
                Err(Failed::new(exit, format!("{name}: {what}")).hint(Some(hint)))
            }
            (None, Ok(Exit::SUCCESS)) if self.rows.is_empty() => {
                let failed = format!("{name} has printed no table of {}", self.suite.name());
                let hint = "arguments after -- may change its form; a line for each size is read";
                Err(Failed::new(Exit::FILES, failed).hint(Some(hint)))
            }
            (None, ended) => ended,
        }
    }

    /// Prints a row, after the lines above the rows if it is the first.
    fn show(&mut self, row: &ProgramRow, facts: &StartFacts) -> io::Result<()> {
        let mut text = String::new();
        let measurement = self.measurement.get_or_insert_with(|| {
            let processes = facts.table.world_size();
            let program = (self.suite, self.test, self.name.as_str());
            let measurement = Measurement::new(program, &self.parser.facts(), processes);
            text = measurement.begin(row, facts, self.unit);
            measurement
        });
        text += &measurement.line(row, self.unit);
        if self.is_shown { stdout::try_print(&text) } else { Ok(()) }
    }
}

impl LineReader for ProgramReader {
    fn take(&mut self, line: &[u8], facts: Option<&StartFacts>) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        match self.parser.line(text.trim_end_matches(['\n', '\r'])) {
            ProgramLine::Header => {
                self.headers += 1;
                // There is nothing to measure if ranks run alone.
                if self.headers < 2 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
            }
            ProgramLine::Row(row) => {
                let shown = facts.map_or(Ok(()), |facts| self.show(&row, facts));
                self.rows.push(row);
                shown
            }
            ProgramLine::Comment => Ok(()),
            ProgramLine::Foreign => {
                // If nothing reads stderr, the measurement goes on.
                let _ = io::stderr().lock().write_all(line);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::selection::{Plan, PortOptions};
    use rlaunch_plan::testing;

    const NCCL_LOG: &str = include_str!("../../../../fixtures/nccl-tests-mpi.log");
    const REDUCTION: &str = "# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_INT.\n\
        # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
        4                      11.69             10.01             12.50        1000\n\
        1048576               120.00            118.00            121.50         100\n";

    fn reader(suite: Suite, test: &str) -> ProgramReader {
        let test = suite.test(test).unwrap();
        let results =
            ResultArgs { report: Unit::Gigabytes, plot: None, with: Vec::new(), json: true };
        ProgramReader::new((suite, test), Path::new(test.program), &results)
    }

    fn take(reader: &mut ProgramReader, text: &str, facts: Option<&StartFacts>) -> io::Result<()> {
        text.split_inclusive('\n').try_for_each(|line| reader.take(line.as_bytes(), facts))
    }

    /// Returns the facts of a job with a rank on each of three hosts, between which there are cables.
    fn triangle() -> StartFacts {
        let inventories = testing::triangle();
        let plan = Plan::new(&inventories, &PortOptions::default());
        let table = testing::table_of(&inventories, 1, &plan);
        StartFacts { table, inventories: inventories.into() }
    }

    #[test]
    fn a_table_is_reported_like_that_of_rlaunchs_own_program() {
        let facts = triangle();
        let mut reader = reader(Suite::Osu, "all_reduce");
        take(&mut reader, REDUCTION, Some(&facts)).unwrap();
        let measurement = reader.measurement.as_ref().unwrap();
        let begin = measurement.begin(&reader.rows[0], &facts, Unit::Gigabytes);
        let lines = reader.rows.iter().map(|row| measurement.line(row, Unit::Gigabytes));
        let summary = reader.summary(&facts).unwrap();
        let text = begin + &lines.collect::<String>() + &summary.end();
        testing::is_golden("bench-mpi", &text);
        let json = summary.json();
        assert_eq!((&json["ranks"], &json["op"]), (&3.into(), &"sum".into()));
        assert!(json["limit"]["percent_of_usable"].as_f64().is_some_and(|share| share > 0.0));
        assert!(reader.verdict(Ok(Exit::SUCCESS)).is_ok());
    }

    #[test]
    fn ranks_that_run_alone_end_the_job() {
        let mut reader = reader(Suite::NcclTests, "all_reduce");
        take(&mut reader, NCCL_LOG, Some(&triangle())).unwrap();
        assert!(reader.fault().is_none());
        take(&mut reader, NCCL_LOG, Some(&triangle())).unwrap_err();
        assert_eq!(reader.fault(), Some(TableFault::Alone));
        assert!(reader.summary(&triangle()).is_none());
        let failed = reader.verdict(Err(Failed::new(Exit::READER_GONE, ""))).unwrap_err();
        assert_eq!(failed.exit, Exit::SINGLETON);
        assert!(failed.message.contains("each ran alone"), "{failed:?}");
    }

    #[test]
    fn wrong_results_are_an_error() {
        let mut reader = reader(Suite::NcclTests, "all_reduce");
        take(&mut reader, &NCCL_LOG.replace("values : 0 OK", "values : 3 FAILED"), None).unwrap();
        let failed = reader.verdict(Ok(Exit::SUCCESS)).unwrap_err();
        let sentence = "all_reduce_perf: 3 values were wrong: do not trust this network";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::ABORTED, sentence));
        let of_rank = Failed { by_rank: true, ..Failed::new(Exit(3), "rank 0 exited with 3") };
        let failed = reader.verdict(Err(of_rank)).unwrap_err();
        assert_eq!((failed.exit, failed.message.as_str()), (Exit(3), sentence));
    }

    #[test]
    fn a_program_without_a_table_has_failed() {
        let mut reader = reader(Suite::Osu, "lat");
        take(&mut reader, "# OSU MPI Latency Test v7.4\nhello\n", None).unwrap();
        let failed = reader.verdict(Ok(Exit::SUCCESS)).unwrap_err();
        let sentence = "osu_latency has printed no table of OSU Micro-Benchmarks";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::FILES, sentence));
        let failed = reader.verdict(Err(Failed::new(Exit::TIMEOUT, "late"))).unwrap_err();
        assert_eq!(failed.exit, Exit::TIMEOUT);
        assert_eq!(reader.incomplete(), None);
    }
}
