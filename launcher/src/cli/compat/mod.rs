//! Options of mpirun, mpiexec, torchrun and horovodrun as options of rlaunch.
//!
//! | file | subject |
//! |---|---|
//! | `translate` | a command line, option by option |
//! | `words` | table of other launchers' options |
//! | `values` | options whose value decides what they stand for: `--bind-to`, `--map-by` |
//! | `mca` | `--mca NAME VALUE` of Open MPI and PRRTE |

mod mca;
#[cfg(test)]
mod tests;
pub(crate) mod translate;
mod values;
mod words;
