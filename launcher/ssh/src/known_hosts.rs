//! Known-hosts files in the format of sshd(8): reading, searching, and adding keys.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ring::hmac;
use russh::keys::ssh_key::known_hosts::{HostPatterns, Marker};
use russh::keys::ssh_key::{self, public::KeyData};
use russh::keys::{Algorithm, HashAlg, PublicKey};
use thiserror::Error;

use crate::config::DEFAULT_PORT;
use crate::files;
use rlaunch_text::glob::matches;

/// Maximum size of a file, in bytes.
const LONGEST: u64 = 256 << 20;
/// Maximum length of a line that is parsed, in bytes. The limit bounds the depth to which the decoder
/// recurses.
const LONGEST_LINE: usize = 32 << 10;

/// Error in reading or extending a known-hosts file.
#[derive(Debug, Error)]
pub enum KnownHostsError {
    #[error("read known hosts {}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("create directory {}", dir.display())]
    CreateDir { dir: PathBuf, source: io::Error },
    #[error("open known hosts {} to add {name}", file.display())]
    Open { file: PathBuf, name: String, source: io::Error },
    #[error("add {name} to known hosts {}", file.display())]
    Write { file: PathBuf, name: String, source: io::Error },
    #[error("encode the host key of {name}")]
    Encode { name: String, source: ssh_key::Error },
    #[error("`{name}` cannot be written to a known hosts file")]
    Name { name: String },
}

impl KnownHostsError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { file, source } => files::hint(file, source),
            Self::CreateDir { .. } | Self::Open { .. } | Self::Write { .. } => Some(
                "make it writable, or name another file as UserKnownHostsFile in ~/.ssh/config"
                    .into(),
            ),
            Self::Encode { .. } => None,
            Self::Name { .. } => Some("set HostKeyAlias for this host in ~/.ssh/config".into()),
        }
    }
}

/// Result of looking up a host key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The key is recorded for this host.
    Known,
    /// No key is recorded for this host.
    Unknown,
    /// Only other keys are recorded for this host.
    Changed {
        /// Known-hosts file that has another key of the host.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Fingerprint of the key on that line.
        recorded_fingerprint: String,
    },
    /// The key is marked as revoked.
    Revoked {
        /// Known-hosts file that marks the key as revoked.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
}

/// Key of a host for which no known-hosts file has a key.
#[derive(Clone, Debug)]
pub struct NewHostKey {
    pub(crate) key: PublicKey,
    /// Name of the host in known-hosts files.
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Known-hosts file to which the key is added when accepted; `None` if the key is not recorded.
    pub(crate) file: Option<PathBuf>,
}

impl NewHostKey {
    /// Returns the fingerprint in the form of `ssh-keygen -l`.
    pub fn fingerprint(&self) -> String {
        fingerprint(self.key.key_data())
    }

    /// Adds the key to its known-hosts file, so that from now on the host must have this key.
    pub fn accept(&self) -> Result<(), KnownHostsError> {
        self.file
            .as_ref()
            .map_or(Ok(()), |file| KnownHosts::append(file, &self.name, self.port, &self.key))
    }

    /// Tells whether accepting the key leaves no record, because no file or /dev/null is configured.
    pub(crate) fn is_unrecorded(&self) -> bool {
        self.file.as_deref().is_none_or(|file| file == Path::new("/dev/null"))
    }

    pub(crate) fn place(&self) -> String {
        let NewHostKey { name, port, .. } = self;
        if *port == DEFAULT_PORT { name.clone() } else { format!("[{name}]:{port}") }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self.key.algorithm() {
            Algorithm::Ed25519 => "ED25519",
            Algorithm::Ecdsa { .. } => "ECDSA",
            Algorithm::Rsa { .. } => "RSA",
            Algorithm::SkEd25519 => "ED25519-SK",
            Algorithm::SkEcdsaSha2NistP256 => "ECDSA-SK",
            _ => "host",
        }
    }
}

/// Entries of known-hosts files, in order.
#[derive(Debug, Default)]
pub struct KnownHosts {
    entries: Vec<Entry>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    file: Arc<Path>,
    line: usize,
    marker: Option<Marker>,
    hosts: Hosts,
    key: PublicKey,
}

#[derive(Debug)]
enum Hosts {
    /// Host name patterns in lower case.
    Patterns(Vec<String>),
    /// HMAC-SHA1 of a single host name, keyed with the salt of the line.
    Hashed { key: hmac::Key, hash: [u8; 20] },
}

impl Hosts {
    fn parse(text: &str) -> Result<Self, ssh_key::Error> {
        Ok(match text.parse()? {
            HostPatterns::Patterns(patterns) => {
                Self::Patterns(patterns.iter().map(|p| p.to_ascii_lowercase()).collect())
            }
            HostPatterns::HashedName { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
                Self::Hashed { key, hash }
            }
        })
    }

    fn holds(&self, name: &str) -> bool {
        let patterns = match self {
            Self::Patterns(patterns) => patterns,
            Self::Hashed { key, hash } => return hmac::verify(key, name.as_bytes(), hash).is_ok(),
        };
        let mut held = false;
        for pattern in patterns {
            match pattern.strip_prefix('!') {
                Some(pattern) if matches_pattern(pattern, name) => return false,
                Some(_) => {}
                None => held |= matches_pattern(pattern, name),
            }
        }
        held
    }
}

/// Tells whether a name matches a pattern. Compares the two as plain text first, because most patterns have
/// no wildcard, and jobs with many hosts call this often.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    pattern == name || (pattern.contains(['*', '?']) && matches(pattern, name))
}

impl Entry {
    /// Parses `[@marker] hosts algorithm base64 [comment]`.
    fn parse(text: &str, file: &Arc<Path>, line: usize) -> Result<Self, String> {
        let mut fields = text.split_ascii_whitespace().peekable();
        let marker = match fields.next_if(|field| field.starts_with('@')) {
            Some(name) => Some(name.parse().map_err(|_| format!("unknown marker {name}"))?),
            None => None,
        };
        let (Some(hosts), Some(algorithm), Some(base64)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err("host names, an algorithm and a key are expected".into());
        };
        let hosts = Hosts::parse(hosts).map_err(|e| format!("host names: {e}"))?;
        let key = PublicKey::from_openssh(&format!("{algorithm} {base64}"))
            .map_err(|e| format!("{algorithm} key: {e}"))?;
        Ok(Self { file: Arc::clone(file), line, marker, hosts, key })
    }
}

impl KnownHosts {
    /// Reads the files in `paths`; missing ones are skipped.
    pub fn load(paths: &[PathBuf]) -> Result<Self, KnownHostsError> {
        let mut known = Self::default();
        for file in paths {
            match files::read(file, LONGEST) {
                Ok(content) => known.add(&String::from_utf8_lossy(&content.bytes), file),
                Err(error) if files::is_missing(&error) => {}
                Err(source) => return Err(KnownHostsError::Read { file: file.clone(), source }),
            }
        }
        Ok(known)
    }

    /// Adds the entries in `text`, the content of `file`. Lines that cannot be parsed become warnings.
    pub fn add(&mut self, text: &str, file: &Path) {
        let file = Arc::from(file);
        for (text, line) in text.lines().map(str::trim).zip(1..) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let entry = match text.len() {
                ..=LONGEST_LINE => Entry::parse(text, &file, line),
                longer => Err(format!("{longer} bytes are too many for a line")),
            };
            match entry {
                Ok(entry) => self.entries.push(entry),
                Err(reason) => self.warnings.push(format!("{}:{line}: {reason}", file.display())),
            }
        }
    }

    /// Returns a message for each line that was skipped: file, line number and reason.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Looks up `key`, which the host with these `names` has sent on `port`. A `HostKeyAlias` is looked up
    /// as the only name, with port 22.
    pub fn check(&self, names: &[&str], port: u16, key: &PublicKey) -> Verdict {
        let full = written_names(names, port);
        let plain = written_names(names, DEFAULT_PORT);
        let is_key = |entry: &&Entry| entry.key.key_data() == key.key_data();

        if let Some(entry) = self.marked(Marker::Revoked, names, port, key.key_data()) {
            return Verdict::Revoked { file: entry.file.to_path_buf(), line: entry.line };
        }
        let recorded: Vec<&Entry> = self.plain_entries(&full).collect();
        if recorded.iter().any(is_key) {
            return Verdict::Known;
        }
        let same_algorithm = |e: &&&Entry| e.key.algorithm() == key.algorithm();
        if let Some(entry) = recorded.iter().find(same_algorithm).or(recorded.first()) {
            return Verdict::Changed {
                file: entry.file.to_path_buf(),
                line: entry.line,
                recorded_fingerprint: fingerprint(entry.key.key_data()),
            };
        }
        // As in OpenSSH, a key that is recorded without a port is valid for every port.
        if self.plain_entries(&plain).any(|e| is_key(&e)) {
            return Verdict::Known;
        }
        Verdict::Unknown
    }

    /// Lists the signature algorithms of a host's recorded keys, in the order of the files. These
    /// algorithms are negotiated first, so that the host sends a key that can be compared.
    pub fn algorithms(&self, names: &[&str], port: u16) -> Vec<Algorithm> {
        let mut algorithms = Vec::new();
        for entry in self.plain_entries(&written_names(names, port)) {
            let signed = match entry.key.algorithm() {
                // An RSA key signs with either hash; SHA-1 is obsolete.
                Algorithm::Rsa { .. } => [HashAlg::Sha512, HashAlg::Sha256]
                    .map(|hash| Algorithm::Rsa { hash: Some(hash) })
                    .to_vec(),
                other => vec![other],
            };
            for algorithm in signed {
                if !algorithms.contains(&algorithm) {
                    algorithms.push(algorithm);
                }
            }
        }
        algorithms
    }

    /// Adds a host's key to `file`. The file and its directory are created if they are missing.
    pub fn append(
        file: &Path,
        name: &str,
        port: u16,
        key: &PublicKey,
    ) -> Result<(), KnownHostsError> {
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "*?!,#@|".contains(c)) {
            return Err(KnownHostsError::Name { name: name.into() });
        }
        let key = PublicKey::new(key.key_data().clone(), "");
        let key = key
            .to_openssh()
            .map_err(|source| KnownHostsError::Encode { name: name.into(), source })?;
        append_line(file, name, &format!("{} {}\n", written_name(name, port), key.trim_end()))
    }

    /// Looks up `key`, the key of the authority that has signed a host's certificate. Returns
    /// [`Verdict::Revoked`] if this key is revoked, [`Verdict::Known`] if the authority is trusted for this
    /// host, and otherwise [`Verdict::Unknown`].
    pub fn check_authority(&self, names: &[&str], port: u16, key: &KeyData) -> Verdict {
        if let Some(entry) = self.marked(Marker::Revoked, names, port, key) {
            return Verdict::Revoked { file: entry.file.to_path_buf(), line: entry.line };
        }
        match self.marked(Marker::CertAuthority, names, port, key) {
            Some(_) => Verdict::Known,
            None => Verdict::Unknown,
        }
    }

    /// Tells whether any certificate authority is trusted for a host.
    pub fn has_authority(&self, names: &[&str], port: u16) -> bool {
        let (full, plain) = (written_names(names, port), written_names(names, DEFAULT_PORT));
        let is_for = |e: &Entry| holds_any(e, &full) || holds_any(e, &plain);
        let authority = Some(Marker::CertAuthority);
        self.entries.iter().any(|e| e.marker == authority && is_for(e))
    }

    fn marked(&self, marker: Marker, names: &[&str], port: u16, key: &KeyData) -> Option<&Entry> {
        let (full, plain) = (written_names(names, port), written_names(names, DEFAULT_PORT));
        let marker = Some(marker);
        let marked = self.entries.iter().filter(|e| e.marker == marker);
        let mut marked = marked.filter(|e| e.key.key_data() == key);
        marked.find(|e| holds_any(e, &full) || holds_any(e, &plain))
    }

    /// Returns the entries that match any of `names` and have no marker such as `@revoked` or
    /// `@cert-authority`.
    fn plain_entries(&self, names: &[String]) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.marker.is_none() && holds_any(e, names))
    }
}

fn holds_any(entry: &Entry, names: &[String]) -> bool {
    names.iter().any(|name| entry.hosts.holds(name))
}

fn written_names(names: &[&str], port: u16) -> Vec<String> {
    names.iter().map(|name| written_name(name, port)).collect()
}

/// Returns the name of a host as known-hosts files have it.
pub(crate) fn written_name(name: &str, port: u16) -> String {
    let name = name.to_ascii_lowercase();
    if port == DEFAULT_PORT { name } else { format!("[{name}]:{port}") }
}

/// Returns a key's SHA-256 fingerprint as `ssh-keygen -l` shows it.
pub fn fingerprint(key: &KeyData) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn append_line(path: &Path, name: &str, line: &str) -> Result<(), KnownHostsError> {
    // No other thread may write between the check of the last byte and the new line.
    static APPENDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = APPENDING.lock().unwrap_or_else(PoisonError::into_inner);

    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        created.map_err(|source| KnownHostsError::CreateDir { dir: dir.into(), source })?;
    }
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(
            |source| KnownHostsError::Open { file: path.into(), name: name.into(), source },
        )?;
    let mut write = || -> io::Result<()> {
        let mut last = [b'\n'];
        if let Some(end) = file.metadata()?.len().checked_sub(1) {
            file.read_exact_at(&mut last, end)?;
        }
        // A single write, so that lines which other programs append at the same time stay whole.
        let separator = if last == *b"\n" { "" } else { "\n" };
        file.write_all(format!("{separator}{line}").as_bytes())
    };
    write().map_err(|source| KnownHostsError::Write {
        file: path.into(),
        name: name.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::thread;

    use super::*;

    const A: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const B: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILIG2T/B0l0gaqj3puu510tu9N1OkQ4znY3LYuEm5zCF";
    const ECDSA: &str = "ecdsa-sha2-nistp256 \
        AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBBmZks/Vd+0hxzr5WD\
        vt+rHLBOb4CzbGqNIv2zm+1+N8sS2ZB02eOCeinDIktsiviTS/wcp6wf7BeXVHKMIHlO8=";
    const RSA: &str = "ssh-rsa \
        AAAAB3NzaC1yc2EAAAADAQABAAAAgQC4a8lakjIle0ggT0HkNzT+iLvL+RZF2oB3sVV8LH\
        6NnfdfZsLYhXioX6TH2vUWWnr7R0R/+xsLaMCejSP1KtEqe/KlisgrCWH17d9+1rTEewwy\
        gYIGwEjN+UazuPKjHEb6oO3I6pv41DbV7tK9ZoPkjY4645QIphkT3Lbez1lVcQ==";

    fn key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).unwrap()
    }

    fn known(text: &str) -> KnownHosts {
        let mut known = KnownHosts::default();
        known.add(text, Path::new("/kh"));
        known
    }

    fn changed(line: usize, recorded: &str) -> Verdict {
        let recorded_fingerprint = fingerprint(key(recorded).key_data());
        Verdict::Changed { file: "/kh".into(), line, recorded_fingerprint }
    }

    #[test]
    fn verdicts() {
        let text = format!(
            "# comment\n\n  node1,10.0.0.1\t{A}  a comment # here\n*.Example,!bad.example {A}\n\
             [node1]:2222 {B}\n[fe80::1]:2222 {A}\nn? {ECDSA}\nn2 {A}\n\
             @cert-authority ca {A}\n@revoked * {RSA}\ngate {RSA}\n"
        );
        let known = known(&text);
        assert!(known.warnings().is_empty(), "{:?}", known.warnings());
        let revoked = || Verdict::Revoked { file: "/kh".into(), line: 10 };
        let table = [
            (&["node1"][..], 22, A, Verdict::Known),
            (&["NODE1"], 22, A, Verdict::Known),
            (&["other", "10.0.0.1"], 22, A, Verdict::Known),
            (&["node1"], 22, B, changed(3, A)),
            (&["node1"], 22, ECDSA, changed(3, A)),
            (&["node1"], 2222, B, Verdict::Known),
            (&["node1"], 2222, A, changed(5, B)),
            // A key that is recorded without a port is valid on every port, but another key on another port
            // is not a changed one.
            (&["10.0.0.1"], 2222, A, Verdict::Known),
            (&["10.0.0.1"], 2222, B, Verdict::Unknown),
            (&["fe80::1"], 2222, A, Verdict::Known),
            (&["a.example"], 22, A, Verdict::Known),
            (&["a.example"], 22, B, changed(4, A)),
            (&["bad.example"], 22, A, Verdict::Unknown),
            // The reported entry is the one whose key has the same algorithm.
            (&["n2"], 22, B, changed(8, A)),
            (&["n2"], 22, ECDSA, Verdict::Known),
            (&["n3"], 22, A, changed(7, ECDSA)),
            (&["ca"], 22, A, Verdict::Unknown),
            (&["gate"], 22, RSA, revoked()),
            (&["anyone"], 99, RSA, revoked()),
            (&[], 22, A, Verdict::Unknown),
        ];
        for (names, port, shown, verdict) in table {
            assert_eq!(known.check(names, port, &key(shown)), verdict, "{names:?} {port}");
        }
    }

    #[test]
    fn authorities_vouch_for_the_hosts_they_are_for() {
        let known = known(&format!("@cert-authority *.ex,[q]:9 {A}\n@revoked * {B}\nx.ex {ECDSA}"));
        let ask = |name, port, by| {
            let verdict = known.check_authority(&[name], port, key(by).key_data());
            (known.has_authority(&[name], port), verdict)
        };
        assert_eq!(ask("n.ex", 22, A), (true, Verdict::Known));
        assert_eq!(ask("N.ex", 2222, A), (true, Verdict::Known));
        assert_eq!(ask("q", 9, A), (true, Verdict::Known));
        assert_eq!(ask("q", 22, A), (false, Verdict::Unknown));
        assert_eq!(ask("x.ex", 22, ECDSA), (true, Verdict::Unknown));
        let revoked = Verdict::Revoked { file: "/kh".into(), line: 2 };
        assert_eq!(ask("n.ex", 22, B), (true, revoked));
    }

    #[test]
    fn algorithms_in_file_order() {
        let known = known(&format!("n {RSA}\nn {A}\nn {B}\n@revoked n {ECDSA}\n"));
        let names: Vec<_> =
            known.algorithms(&["n"], 22).iter().map(|a| a.as_str().to_owned()).collect();
        assert_eq!(names, ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"]);
        assert!(known.algorithms(&["n"], 23).is_empty());
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let known = known(&format!(
            "n\nn ssh-ed25519\nn ssh-ed25519 AAAA\n@odd n {A}\n|1|x {A}\n@revoked\nn ssh-rsa {}\n\
             n 1024 35 123456\n|1|!!|!! {A}\nn {A}",
            A.split(' ').next_back().unwrap()
        ));
        assert_eq!(known.warnings().len(), 9, "{:#?}", known.warnings());
        assert_eq!(known.warnings()[3], "/kh:4: unknown marker @odd");
        assert_eq!(known.check(&["n"], 22, &key(A)), Verdict::Known);
    }

    #[test]
    fn hashed_names() {
        let hash = "|1|O33ESRMWPVkMYIwJ1Uw+n877jTo=|nuuC5vEqXlEZ/8BXQR7m619W6Ak=";
        let known = known(&format!("{hash} {B}\n"));
        assert_eq!(known.check(&["Example.com"], 22, &key(B)), Verdict::Known);
        assert_eq!(known.check(&["example.com"], 22, &key(A)), changed(1, B));
        assert_eq!(known.check(&["example.org"], 22, &key(B)), Verdict::Unknown);
    }

    #[test]
    fn names_hashed_by_ssh_keygen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        fs::write(&file, format!("node1,10.0.0.1 {A}\n[node2]:2222 {B}\n")).unwrap();
        let keygen = Command::new("ssh-keygen").arg("-H").arg("-f").arg(&file).output();
        let Ok(output) = keygen else {
            println!("skipped: no ssh-keygen");
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read_to_string(&file).unwrap().lines().all(|line| line.starts_with("|1|")));
        let known = KnownHosts::load(&[dir.path().join("missing"), file]).unwrap();
        for (name, port, shown) in [("node1", 22, A), ("10.0.0.1", 22, A), ("node2", 2222, B)] {
            assert_eq!(known.check(&[name], port, &key(shown)), Verdict::Known, "{name}");
        }
        assert_eq!(known.check(&["node2"], 22, &key(B)), Verdict::Unknown);
    }

    #[test]
    fn appended_keys_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/ssh/known_hosts");
        KnownHosts::append(&file, "Node1", 22, &key(&format!("{A} comment"))).unwrap();
        KnownHosts::append(&file, "fe80::1", 2222, &key(B)).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, format!("node1 {A}\n[fe80::1]:2222 {B}\n"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));

        fs::write(&file, format!("x {A}")).unwrap();
        let append = |n: usize| KnownHosts::append(&file, &format!("t{n}"), 22, &key(B)).unwrap();
        thread::scope(|scope| (0..8).for_each(|n| drop(scope.spawn(move || append(n)))));
        let known = KnownHosts::load(std::slice::from_ref(&file)).unwrap();
        assert!(known.warnings().is_empty());
        assert_eq!(known.entries.len(), 9);
        assert_eq!(known.check(&["t7"], 22, &key(B)), Verdict::Known);

        KnownHosts::append(Path::new("/dev/null"), "n", 22, &key(A)).unwrap();
        for bad in ["", "a b", "a\nb", "*", "a,b", "|1|x", "#a"] {
            assert!(KnownHosts::append(&file, bad, 22, &key(A)).is_err(), "{bad}");
        }
        let error = KnownHosts::append(dir.path(), "n", 22, &key(A)).unwrap_err();
        assert!(error.to_string().starts_with("open known hosts") && error.hint().is_some());
        assert!(KnownHosts::load(&[dir.path().into()]).is_err());
    }
}
