//! Abuse: files, hosts, programs and neighbours that mean harm, or act as if they did. A job does
//! what its user asked for, or says why not; a stranger's files run nothing, and nothing is left.

mod cache;
mod config;
mod ending;
mod ranks;
mod services;
mod ssh;
