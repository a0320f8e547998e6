//! Beginning of a connection: the client says which rank it is, and how it encodes messages.

use super::bfrops::{DecodeError, Reader};
use super::status::Status;
use thiserror::Error;

/// Kind of process that a rank is; the others are tools and launchers.
const SIMPLE_CLIENT: u8 = 0;

/// Kind of buffers that do not describe their contents.
const NON_DESC: u8 = 1;

/// First message of a client, as far as the server needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello<'a> {
    /// Name of the job. Only processes of the job know it, so it serves as a password.
    pub(super) namespace: &'a [u8],
    pub(super) rank: u32,
    /// Version of the client's library.
    pub(super) version: Version,
    security: &'a [u8],
    encoding: &'a [u8],
    buffers: u8,
    store: &'a [u8],
}

/// Version of a client's library: major, minor, release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

/// Reason why a first message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum HelloError {
    /// The message is malformed.
    #[error("the first message is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The process is a tool or a launcher.
    #[error("a process of kind {0} is not a rank")]
    NotARank(u8),
}

impl<'a> Hello<'a> {
    /// Decodes a first message. Infos after it are not read.
    ///
    /// The credential is not read either: it contains nothing but a user and a group, which the sender
    /// chooses freely, and which differ between the sides of a container.
    pub(super) fn decode(body: &'a [u8]) -> Result<Hello<'a>, HelloError> {
        let mut rest = body;
        let security = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let credential = reader.u32()?;
        reader.bytes(usize::try_from(credential).map_err(|_| DecodeError::End)?)?;
        let kind = reader.u8()?;
        if kind != SIMPLE_CLIENT {
            return Err(HelloError::NotARank(kind));
        }
        let mut rest = reader.rest();
        let namespace = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let rank = reader.u32()?;
        let mut rest = reader.rest();
        let version = Version::parse(text(&mut rest)?);
        let encoding = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let buffers = reader.u8()?;
        let store = text(&mut reader.rest())?;
        Ok(Hello { namespace, rank, version, security, encoding, buffers, store })
    }

    /// Returns the status for the answer: success if the client does all in the way that
    /// [`super::environment()`] tells it to. The server knows no other.
    pub(super) fn status(&self) -> Status {
        let is_known = matches!(self.security, b"native" | b"none")
            && self.encoding == b"v3"
            && self.buffers == NON_DESC
            && self.store == b"hash";
        if is_known { Status::SUCCESS } else { Status::NOT_SUPPORTED }
    }
}

impl Version {
    /// Returns the version that a text begins with. Missing numbers are zero.
    fn parse(text: &[u8]) -> Version {
        let text = String::from_utf8_lossy(text);
        let mut numbers = text.split('.').map(|number| {
            let end = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
            number.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Version(next(), next(), next())
    }
}

/// Reads a text that ends with a zero byte.
fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let end = rest.iter().position(|&byte| byte == 0).ok_or(DecodeError::End)?;
    let (text, after) = rest.split_at_checked(end).ok_or(DecodeError::End)?;
    *rest = after.get(1..).unwrap_or_default();
    Ok(text)
}

/// Returns the answer to a first message: the status and, if that is success, a number that clients do
/// not use.
pub(super) fn answer(status: Status, number: u32) -> Vec<u8> {
    let mut answer = status.0.to_be_bytes().to_vec();
    if status == Status::SUCCESS {
        answer.extend_from_slice(&number.to_be_bytes());
    }
    answer
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(super) fn is_equal(secret: &[u8], other: &[u8]) -> bool {
    let difference = secret.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    secret.len() == other.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a first message, without header, as Open MPI 5.0.11 sends it.
    pub(in crate::pmix) fn hello(namespace: &str, rank: u32) -> Vec<u8> {
        message("native", 8, 0, namespace, rank, "5.0.11", "v3", 1, "hash")
    }

    #[expect(clippy::too_many_arguments, reason = "each is a field of the message")]
    pub(in crate::pmix) fn message(
        security: &str,
        credential: u32,
        kind: u8,
        namespace: &str,
        rank: u32,
        version: &str,
        encoding: &str,
        buffers: u8,
        store: &str,
    ) -> Vec<u8> {
        let credential_bytes = vec![7; usize::try_from(credential).unwrap()];
        let parts: [&[u8]; 14] = [
            security.as_bytes(),
            &[0],
            &credential.to_be_bytes(),
            &credential_bytes,
            &[kind],
            namespace.as_bytes(),
            &[0],
            &rank.to_be_bytes(),
            version.as_bytes(),
            &[0],
            encoding.as_bytes(),
            &[0, buffers],
            store.as_bytes(),
            &[0],
        ];
        parts.concat()
    }

    #[test]
    fn a_first_message_is_decoded() {
        let bytes = hello("job", 5);
        let hello = Hello::decode(&bytes).unwrap();
        assert_eq!((hello.namespace, hello.rank), (&b"job"[..], 5));
        assert_eq!(hello.version, Version(5, 0, 11));
        assert_eq!(hello.status(), Status::SUCCESS);
        let with_infos = [&bytes[..], b"\0\0\0\x01infos"].concat();
        assert_eq!(Hello::decode(&with_infos), Ok(hello));
        let none = message("none", 0, 0, "job", 5, "3.2.5", "v3", 1, "hash");
        assert_eq!(Hello::decode(&none).unwrap().status(), Status::SUCCESS);
        for length in 0..bytes.len() {
            let error = Hello::decode(&bytes[..length]);
            assert_eq!(error, Err(HelloError::Malformed(DecodeError::End)), "{length} bytes");
        }
    }

    #[test]
    fn tools_are_refused() {
        for kind in 1..=20 {
            let bytes = message("native", 8, kind, "job", 0, "5.0.11", "v3", 1, "hash");
            assert_eq!(Hello::decode(&bytes), Err(HelloError::NotARank(kind)));
        }
    }

    #[test]
    fn what_the_server_cannot_do_is_not_supported() {
        let status = |security, encoding, buffers, store| {
            let bytes = message(security, 0, 0, "job", 0, "5.0.11", encoding, buffers, store);
            Hello::decode(&bytes).unwrap().status()
        };
        assert_eq!(status("native", "v3", 1, "hash"), Status::SUCCESS);
        assert_eq!(status("munge", "v3", 1, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v41", 1, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v3", 2, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v3", 1, "shmem2"), Status::NOT_SUPPORTED);
    }

    #[test]
    fn versions_may_have_suffixes() {
        assert_eq!(Version::parse(b"3.2.5"), Version(3, 2, 5));
        assert_eq!(Version::parse(b"6.1.0rc2"), Version(6, 1, 0));
        assert_eq!(Version::parse(b"7a1"), Version(7, 0, 0));
        assert_eq!(Version::parse(b""), Version(0, 0, 0));
        assert!(Version(4, 2, 3) < Version(4, 2, 4) && Version(4, 9, 9) < Version(5, 0, 0));
    }

    #[test]
    fn secrets_are_compared() {
        assert!(is_equal(b"abc", b"abc"));
        assert!(!is_equal(b"abc", b"abd"));
        assert!(!is_equal(b"abc", b"ab"));
        assert!(!is_equal(b"", b"a"));
        assert!(is_equal(b"", b""));
    }

    #[test]
    fn an_answer_has_a_number_unless_it_is_an_error() {
        assert_eq!(answer(Status::SUCCESS, 3), [0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(answer(Status::NOT_SUPPORTED, 3), [255, 255, 255, 209]);
    }
}
