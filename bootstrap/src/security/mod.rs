//! Secrets of a job, authentication and encryption of connections, and admission of
//! unauthenticated ones.

pub mod admission;
pub mod callback;
pub mod handshake;

use serde::{Deserialize, Serialize};
use std::fmt;

/// Secret that every rank of a job has in its environment, and shows to its agent to prove that it
/// belongs to the job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Parses 32 hexadecimal digits, as formatted by [`Token::reveal`].
    pub fn parse(text: &str) -> Option<Token> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Token(number.to_be_bytes()))
    }

    /// Formats the token as 32 hexadecimal digits, for the environment of ranks.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Secret that all agents of a job have in common. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes a secret from random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_shown_to_ranks_alone() {
        let token = Token([0x0f; 16]);
        assert_eq!(Token::parse(&token.reveal()), Some(token));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for bad in
            ["", "0f", "+0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0", "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0g"]
        {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }
}
