//! Authentication and encryption of connections, and admission of those that have not authenticated
//! yet.

pub mod admission;
pub mod callback;
pub mod handshake;
