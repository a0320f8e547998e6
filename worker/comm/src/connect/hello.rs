//! Handshake of two ranks on a new connection, as a state machine without a socket.
//!
//! ```text
//! dialling rank                                    accepting rank
//!   magic, from, to, nonce           ──────────▶
//!                                    ◀──────────   nonce, HMAC(key, "accepts", all of the above)
//!   HMAC(key, "dials", the same)     ──────────▶
//!                                    ◀──────────   in use
//! ```
//!
//! The key is the accepting rank's key, which only the ranks of the job know. `HMAC` is
//! HMAC-SHA256. Both nonces are fresh random numbers, so recorded messages cannot be replayed. The
//! handshake authenticates both ends. Later messages are not encrypted, as in other message-passing
//! libraries.

use hmac::{Hmac, KeyInit, Mac};
use rlaunch_bootstrap::id::Rank;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::{fmt, io};

/// First bytes of a hello. The last byte changes with every change of the handshake.
const MAGIC: [u8; 8] = *b"rlrank\0\x02";
const NONCE: usize = 32;
const MAC: usize = 32;

/// Length of the dialling rank's first message, in bytes.
pub(super) const HELLO: usize = MAGIC.len() + 4 + 4 + NONCE;
/// Length of the accepting rank's reply, in bytes.
pub(super) const REPLY: usize = NONCE + MAC;
/// Length of the dialling rank's proof, in bytes.
pub(super) const PROOF: usize = MAC;
/// Last message of the accepting rank, which says that the connection is in use.
pub(super) const IN_USE: u8 = 0x2a;

/// Secret key of a rank, which only the ranks of its job know. The key is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankKey([u8; 32]);

impl RankKey {
    pub(super) fn random() -> io::Result<RankKey> {
        random().map(RankKey)
    }

    /// Returns the HMAC of the concatenated `words` under the key.
    #[cfg(feature = "rdma")]
    pub(super) fn proof(&self, words: &[&[u8]]) -> [u8; MAC] {
        self.mac_of(words).finalize().into_bytes().into()
    }

    /// Returns whether `proof` is the HMAC of the concatenated `words` under the key.
    #[cfg(feature = "rdma")]
    pub(super) fn is_proof(&self, words: &[&[u8]], proof: &[u8]) -> bool {
        self.mac_of(words).verify_slice(proof).is_ok()
    }

    #[cfg(feature = "rdma")]
    fn mac_of(&self, words: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC fills keys shorter than a block with zeros.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        words.iter().fold(Hmac::<Sha256>::new(&block.into()), Hmac::chain_update)
    }
}

impl fmt::Debug for RankKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    Ok(bytes)
}

/// Both ranks of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// Rank that dials.
    pub(super) from: Rank,
    /// Rank that accepts.
    pub(super) to: Rank,
}

/// First message of the handshake, which the dialling rank sends.
#[derive(Clone, Debug)]
pub(super) struct Hello([u8; HELLO]);

impl Hello {
    /// Makes a hello with a fresh nonce.
    pub(super) fn new(ends: Ends) -> io::Result<Hello> {
        let mut bytes = [0; HELLO];
        let parts: [&[u8]; 4] =
            [&MAGIC, &ends.from.0.to_le_bytes(), &ends.to.0.to_le_bytes(), &random()?];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Hello(bytes))
    }

    /// Decodes a hello; `None` if the bytes are not a hello of this version.
    pub(super) fn read(bytes: &[u8]) -> Option<(Hello, Ends)> {
        let hello: [u8; HELLO] = bytes.try_into().ok()?;
        let rest = hello.strip_prefix(&MAGIC)?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, _) = rest.split_first_chunk()?;
        let ends =
            Ends { from: Rank(u32::from_le_bytes(*from)), to: Rank(u32::from_le_bytes(*to)) };
        Some((Hello(hello), ends))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Role of a rank in the handshake. Each HMAC covers the role of the rank that computes it, so that
/// the HMAC of one rank cannot be used as that of the other.
#[derive(Clone, Copy, Debug)]
enum Role {
    Dials,
    Accepts,
}

/// Data that the HMACs of both ends authenticate: the hello, and the accepting rank's nonce.
#[derive(Clone, Debug)]
pub(super) struct Challenge {
    hello: Hello,
    nonce: [u8; NONCE],
}

impl Challenge {
    /// Makes the accepting rank's reply to a hello, with a fresh nonce. `own` is the accepting
    /// rank's key.
    pub(super) fn reply(hello: Hello, own: &RankKey) -> io::Result<(Challenge, [u8; REPLY])> {
        let challenge = Challenge { hello, nonce: random()? };
        let mut reply = [0; REPLY];
        reply[..NONCE].copy_from_slice(&challenge.nonce);
        let mac = challenge.mac(own, Role::Accepts)?.finalize().into_bytes();
        reply[NONCE..].copy_from_slice(&mac);
        Ok((challenge, reply))
    }

    /// Makes the dialling rank's proof from the accepting rank's `reply`. `key` is the accepting
    /// rank's key. Returns `None` if the reply was made with another key.
    pub(super) fn prove(
        hello: &Hello,
        reply: &[u8],
        key: &RankKey,
    ) -> io::Result<Option<[u8; PROOF]>> {
        let Some((nonce, mac)) = reply.split_first_chunk() else { return Ok(None) };
        let challenge = Challenge { hello: hello.clone(), nonce: *nonce };
        if challenge.mac(key, Role::Accepts)?.verify_slice(mac).is_err() {
            return Ok(None);
        }
        Ok(Some(challenge.mac(key, Role::Dials)?.finalize().into_bytes().into()))
    }

    /// Returns whether `proof` shows that the dialling rank has the key.
    pub(super) fn verify_proof(&self, proof: &[u8], own: &RankKey) -> bool {
        self.mac(own, Role::Dials).is_ok_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn mac(&self, key: &RankKey, role: Role) -> io::Result<Hmac<Sha256>> {
        let mac = Hmac::<Sha256>::new_from_slice(&key.0);
        let mac = mac.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let role: &[u8] = match role {
            Role::Dials => b"dials  ",
            Role::Accepts => b"accepts",
        };
        Ok(mac.chain_update(role).chain_update(self.hello.bytes()).chain_update(self.nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends { from: Rank(3), to: Rank(70_000) };

    #[test]
    fn two_with_the_key_believe_each_other() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        let (received, ends) = Hello::read(hello.bytes()).unwrap();
        assert_eq!(ends, ENDS);
        let (challenge, reply) = Challenge::reply(received, &key).unwrap();
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        assert!(challenge.verify_proof(&proof, &key));
    }

    #[test]
    fn nobody_without_the_key_is_believed() {
        let (key, other) = (RankKey::random().unwrap(), RankKey::random().unwrap());
        let hello = Hello::new(ENDS).unwrap();
        let (challenge, reply) = Challenge::reply(hello.clone(), &key).unwrap();
        assert_eq!(Challenge::prove(&hello, &reply, &other).unwrap(), None);
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        assert!(!challenge.verify_proof(&proof, &other));
        // The HMAC of the accepting rank is not accepted as a proof.
        assert!(!challenge.verify_proof(&reply[NONCE..], &key));
        assert!(!challenge.verify_proof(&[], &key));
    }

    #[test]
    fn what_was_said_once_proves_nothing_later() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        let (_, reply) = Challenge::reply(hello.clone(), &key).unwrap();
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        let (again, _) = Challenge::reply(hello, &key).unwrap();
        assert!(!again.verify_proof(&proof, &key));
        let another = Hello::new(ENDS).unwrap();
        assert_eq!(Challenge::prove(&another, &reply, &key).unwrap(), None);
    }

    #[test]
    fn a_proof_for_one_connection_is_none_for_another() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        for at in MAGIC.len()..HELLO {
            let mut other = hello.clone();
            other.0[at] ^= 1;
            let (_, reply) = Challenge::reply(other, &key).unwrap();
            assert_eq!(Challenge::prove(&hello, &reply, &key).unwrap(), None, "byte {at}");
        }
    }

    #[test]
    fn what_is_no_hello_is_not_read() {
        let hello = Hello::new(ENDS).unwrap();
        assert!(Hello::read(&hello.bytes()[1..]).is_none());
        let mut bytes = hello.bytes().to_vec();
        bytes[0] ^= 1;
        assert!(Hello::read(&bytes).is_none());
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", RankKey([77; 32])), "Key(..)");
    }
}
