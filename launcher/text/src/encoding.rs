//! Encodings of files that people write.

use std::io::{self, ErrorKind};

/// Decodes a text in UTF-8. The error names the encoding of some editors of Windows, and what converts it.
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    refuse_utf16(&bytes)?;
    let wrong = |_| io::Error::new(ErrorKind::InvalidData, "it is not in UTF-8");
    String::from_utf8(bytes).map_err(wrong)
}

/// Refuses a text in UTF-16. Every second byte of such a text is zero, which no error about a line would show.
pub fn refuse_utf16(bytes: &[u8]) -> io::Result<()> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let cause = "it is in UTF-16: `iconv -f UTF-16 -t UTF-8` converts it";
        return Err(io::Error::other(cause));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_another_encoding_says_what_converts_it() {
        assert_eq!(utf8("ä".into()).unwrap(), "ä");
        for bytes in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a"] {
            let error = utf8(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains("`iconv -f UTF-16 -t UTF-8`"), "{error}");
        }
        assert_eq!(utf8(b"\xe4".to_vec()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
