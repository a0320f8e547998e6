//! ECDSA keys on P-256 whose private number takes fewer than 32 bytes, which is so for one key in 512. OpenSSH writes the
//! number without zeros in front, and ssh-key, which reads all other keys, then finds the length invalid.

use data_encoding::BASE64;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::encoding::Decode;
use russh::keys::ssh_key::private::EcdsaKeypair;
use russh::keys::ssh_key::public::{EcdsaPublicKey, KeyData};
use russh::keys::ssh_key::{Cipher, Kdf};
use zeroize::Zeroizing;

/// Reads a key file in OpenSSH's own format, as its PROTOCOL.key describes it; none if it has another key, or the passphrase is
/// missing or wrong. Blocks for as long as the key derivation takes.
pub(super) fn decode(text: &str, passphrase: Option<&str>) -> Option<PrivateKey> {
    let block = text.lines().skip_while(|line| *line != "-----BEGIN OPENSSH PRIVATE KEY-----");
    // A string that grows would leave pieces of the key behind.
    let mut body = Zeroizing::new(String::with_capacity(text.len()));
    block
        .skip(1)
        .take_while(|line| !line.starts_with("-----END "))
        .for_each(|line| body.push_str(line));
    let bytes = Zeroizing::new(BASE64.decode(body.as_bytes()).ok()?);
    let mut rest = bytes.strip_prefix(b"openssh-key-v1\0")?;
    let (cipher, kdf) = (Cipher::decode(&mut rest).ok()?, Kdf::decode(&mut rest).ok()?);
    let keys = u32::decode(&mut rest).ok()?;
    let public = Vec::<u8>::decode(&mut rest).ok()?;
    let public = KeyData::decode(&mut &public[..]).ok()?;
    let mut private = Zeroizing::new(Vec::<u8>::decode(&mut rest).ok()?);
    if cipher.is_some() {
        let (key, iv) = kdf.derive_key_and_iv(cipher, passphrase?).ok()?;
        // Ciphers that authenticate have a tag after the private part.
        cipher.decrypt(&key, &iv, &mut private, rest.try_into().ok()).ok()?;
    }
    // Only some ciphers authenticate, so the public key in front may be another one.
    let is_its_own = |key: &PrivateKey| keys == 1 && *key.public_key().key_data() == public;
    decode_private(&private).filter(is_its_own)
}

fn decode_private(mut rest: &[u8]) -> Option<PrivateKey> {
    // Two random numbers that are equal unless the passphrase is wrong.
    let checks = [u32::decode(&mut rest).ok()?, u32::decode(&mut rest).ok()?];
    let names = [String::decode(&mut rest).ok()?, String::decode(&mut rest).ok()?];
    if checks[0] != checks[1] || names != ["ecdsa-sha2-nistp256", "nistp256"] {
        return None;
    }
    let point = Vec::<u8>::decode(&mut rest).ok()?;
    let EcdsaPublicKey::NistP256(public) = EcdsaPublicKey::from_sec1_bytes(&point).ok()? else {
        return None;
    };
    let number = Zeroizing::new(Vec::<u8>::decode(&mut rest).ok()?);
    let comment = String::decode(&mut rest).ok()?;
    let is_padded = rest.iter().zip(1..=u8::MAX).all(|(byte, expected)| *byte == expected);
    let mut whole = Zeroizing::new([0; 32]);
    let zeros = whole.len().checked_sub(number.len()).filter(|_| is_padded)?;
    whole[zeros..].copy_from_slice(&number);
    let pair = EcdsaKeypair::NistP256 { public, private: (*whole).into() };
    PrivateKey::new(pair.into(), comment).ok()
}
