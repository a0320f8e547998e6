//! Authentication and encryption of connections, and admission of unauthenticated ones.

pub mod admission;
pub mod callback;
pub mod handshake;
