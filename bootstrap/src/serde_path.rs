//! Serialisation of paths as bytes, for `#[serde(with = "…")]`. serde's own form rejects paths that
//! are not UTF-8. For a UTF-8 path both forms have the same bytes on the wire.

use serde::{Deserialize, Deserializer, Serializer};
use serde_bytes::ByteBuf;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(path.as_os_str().as_bytes())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    ByteBuf::deserialize(deserializer).map(path_of)
}

fn path_of(bytes: ByteBuf) -> PathBuf {
    OsString::from_vec(bytes.into_vec()).into()
}

/// Serialisation of `Option<PathBuf>`.
pub(crate) mod optional {
    use super::path_of;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_bytes::{ByteBuf, Bytes};
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    #[expect(clippy::ref_option, reason = "serde hands a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| Bytes::new(path.as_os_str().as_bytes()));
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<ByteBuf>::deserialize(deserializer)?.map(path_of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Bytes {
        #[serde(with = "super")]
        path: PathBuf,
        #[serde(with = "super::optional")]
        more: Option<PathBuf>,
    }

    #[derive(Serialize)]
    struct Text {
        path: PathBuf,
        more: Option<PathBuf>,
    }

    #[test]
    fn a_path_crosses_whatever_its_bytes_are() {
        let odd = || PathBuf::from(OsString::from_vec(b"/d\xff/\x80".to_vec()));
        for paths in
            [Bytes { path: odd(), more: Some(odd()) }, Bytes { path: PathBuf::new(), more: None }]
        {
            let wire = postcard::to_extend(&paths, Vec::new()).unwrap();
            assert_eq!(postcard::from_bytes::<Bytes>(&wire).unwrap(), paths);
        }
    }

    #[test]
    fn utf_8_looks_on_the_wire_as_serde_has_it() {
        let (path, more) = (PathBuf::from("/für"), Some(PathBuf::from("b")));
        let text = Text { path: path.clone(), more: more.clone() };
        let wire = postcard::to_extend(&Bytes { path, more }, Vec::new()).unwrap();
        assert_eq!(wire, postcard::to_extend(&text, Vec::new()).unwrap());
    }
}
