//! What people write for a launcher: `rlaunch.toml`, files of variables.

use crate::settings::file;
use crate::variables::env_file;
use std::path::Path;

/// What is refused names a line that is there; what is taken has its lines in the file, too.
pub(crate) fn cluster(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count().max(1);
    match file::parse(text, Path::new("/c")) {
        Err(error) => {
            let shown = error.to_string();
            let line = shown.strip_prefix("/c:").and_then(|rest| rest.split(':').next());
            let line: usize = line.and_then(|line| line.parse().ok()).unwrap_or(0);
            assert!((1..=lines).contains(&line), "{shown}");
        }
        Ok(file) => {
            for host in &file.hosts {
                assert!((1..=lines).contains(&host.line) && !host.name.starts_with('-'));
                assert!(!host.bracketed().contains([' ', ',', '/']));
            }
            let of_profiles = file.profiles.iter().flat_map(|(_, settings)| settings);
            for setting in file.defaults.iter().chain(of_profiles).chain(&file.list) {
                let place = setting.place.to_string();
                let line = place.strip_prefix("/c:").and_then(|line| line.parse().ok());
                assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{place}");
            }
        }
    }
}

/// What is refused names a line that is there; names and values can be those of a process.
pub(crate) fn variables(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count();
    match env_file::parse(text) {
        Err((line, reason)) => assert!((1..=lines).contains(&line), "{line}: {reason}"),
        Ok(variables) => {
            for variable in variables {
                assert!((1..=lines).contains(&variable.number));
                assert!(!variable.name.is_empty() && !variable.name.contains(['=', '\0']));
                assert!(!variable.value.unwrap_or_default().contains('\0'));
            }
        }
    }
}

pub(crate) fn cluster_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "[defaults]\ntransport = \"tcp\"\nnp = 0x3\nkill-after = 0.5\ntag-output = true\n\
         oob-if = ['eth0', \"eth1\"]\n[profile.x]\nhca = \"mlx5\"\n",
        "[hosts.titanic]\nssh = \"10.0.0.170\"\nuser = \"me\"\nport = 2222\nslots = 2\n\
         mesh = [\"192.168.100.2\", \"fd00::2\"]\n[hosts.\"a.b\"]\nhosts.c.slot = 1\n",
        "hosts = [\"a\", \"b:2\"] # two\nprofile = { y = { np = +4 } }\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn variables_seeds() -> Vec<Vec<u8>> {
    let text = "\u{feff}# c\nA=1 # x\r\nexport B = 'two\nlines' # y\nC=\"\\n\\\"\\$d\"\nHERE\nD=\n";
    vec![text.as_bytes().to_vec()]
}
