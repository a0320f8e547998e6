//! Trials of what people have reported about launchers: each test is a report, and what must come.
//!
//! | file | reports about |
//! |---|---|
//! | `addresses` | networks that a trial has changed |
//! | `connections` | addresses, servers, and what they do not answer |
//! | `hosts` | hosts that are set up differently |
//! | `output` | ranks that keep others from being read; readers that have left, and disks that are full |
//! | `pipes` | programs that hold up who reads their pipes |
//! | `signals` | whatever ends a job, or tells it something |
//! | `terminal` | jobs that people ask about while they run, and afterwards |
//! | `trials` | the log of all: what takes one line to try, and names of the tests of the rest |
//! | `words` | programs, directories, names and numbers as people write them |

mod addresses;
mod connections;
mod hosts;
mod output;
mod pipes;
mod signals;
mod terminal;
mod trials;
mod words;
