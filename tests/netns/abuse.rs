//! Abuse: files, hosts, programs and other users that do harm on purpose or by accident. A job does
//! what its user asked for, or reports why it does not; files of another user are never executed,
//! and nothing is left behind.

mod cache;
mod config;
mod ending;
mod ranks;
mod services;
mod ssh;
