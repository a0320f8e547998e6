//! Redaction of secrets in environment variables and command lines.
//!
//! In `NAME=VALUE` the name decides whether the value is a secret. In other text a password is
//! recognised by its position in a URL. In doubt a value is hidden, because records of a job are
//! read by more people than its owner.

use std::ops::Range;

/// Parts of upper-case names that mark the value as a secret.
const STEMS: &[&str] = &[
    "KEY", "SECRET", "PASS", "CRED", "COOKIE", "WEBHOOK", "BEARER", "JWT", "TOKEN", "AUTH", "PWD",
];
/// Parts that mark the value as a secret only as whole words: GITHUB_PAT is a personal access
/// token, but PATH is not.
const WORDS: &[&str] = &["PAT", "DSN"];
/// Names that contain PWD although their values are directories.
const DIRECTORIES: &[&str] = &["PWD", "OLDPWD"];

/// Tells whether the name of a variable or option marks its value as a secret, which must never be
/// printed.
pub fn is_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    if DIRECTORIES.contains(&upper.as_str()) {
        return false;
    }
    let has = |stem: &&str| {
        upper.match_indices(*stem).any(|(at, _)| !is_unrelated_word(stem, &upper[at..]))
    };
    STEMS.iter().any(has) || words(name).any(|word| WORDS.contains(&word.as_str()))
}

/// Tells whether `from`, which begins with `stem`, is an unrelated word such as AUTHOR or
/// TOKENIZER.
fn is_unrelated_word(stem: &str, from: &str) -> bool {
    let rest = from.strip_prefix(stem).unwrap_or_default();
    match stem {
        "AUTH" => rest.starts_with("OR") && !rest.starts_with("ORIZ") && !rest.starts_with("ORIS"),
        "TOKEN" => rest.starts_with("IZ") || rest.starts_with("IS"),
        _ => false,
    }
}

/// Splits a name into upper-case words: `githubPat` and `github-pat` both contain PAT.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::with_capacity(name.len());
    let mut was_lower = false;
    for c in name.chars() {
        if was_lower && c.is_ascii_uppercase() {
            spaced.push('_');
        }
        was_lower = c.is_ascii_lowercase();
        spaced.push(c.to_ascii_uppercase());
    }
    let words: Vec<String> =
        spaced.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_owned).collect();
    words.into_iter()
}

/// Replaces secrets in the value of variable `name`, for printing, logs and records.
pub fn redacted_value(name: &str, value: &str) -> String {
    if is_secret(name) { hidden(value) } else { redacted(value) }
}

/// Replaces secrets in a text, for printing, logs and records: everything after `NAME=` or
/// `"NAME":` if the name marks a secret, and the passwords in URLs.
pub fn redacted(text: &str) -> String {
    let passwords = passwords(text);
    let mut end = secret_value(text).unwrap_or(text.len());
    // If the name of a secret seems to occur inside a password, all of the password is hidden.
    let torn = passwords.iter().find(|password| password.start < end && end < password.end);
    end = torn.map_or(end, |password| password.start);
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for password in passwords.into_iter().take_while(|password| password.end <= end) {
        shown.push_str(&text[at..password.start]);
        shown.push_str(&hidden(&text[password.clone()]));
        at = password.end;
    }
    shown.push_str(&text[at..end]);
    if end < text.len() {
        shown.push_str(&hidden(&text[end..]));
    }
    shown
}

fn hidden(secret: &str) -> String {
    format!("(set, {} chars)", secret.chars().count())
}

/// Finds the first secret that follows its name, as in `NAME=` or in the JSON form `"NAME":`.
/// Returns the index at which the value starts.
fn secret_value(text: &str) -> Option<usize> {
    let is_named = |(at, sign): &(usize, &str)| {
        let before = text[..*at].trim_end();
        let name = match *sign {
            "=" => before,
            _ => before.strip_suffix(['"', '\'']).unwrap_or_default(),
        };
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let name = name.rsplit(|c: char| !is_of_name(c)).next().unwrap_or_default();
        !name.is_empty() && is_secret(name)
    };
    let mut signs = text.match_indices(['=', ':']);
    signs.find(is_named).map(|(at, sign)| at + sign.len())
}

/// Finds the passwords of all URLs in a text, such as `pw` in `pg://u:pw@host`. Returns their byte
/// ranges.
fn passwords(text: &str) -> Vec<Range<usize>> {
    const SEPARATOR: &str = "://";
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(SEPARATOR).map(|at| from + at) {
        let (scheme, start) = (&text[from..at], at + SEPARATOR.len());
        let rest = &text[start..];
        let url = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
        let url = &url[..url.find(SEPARATOR).unwrap_or(url.len())];
        let password = password(scheme, url).map(|own| start + own.start..start + own.end);
        from = password.as_ref().map_or(start, |password| password.end);
        found.extend(password);
    }
    found
}

/// Finds the byte range of the password in `url`, the part of a URL after `://`. In HTTP URLs a
/// user name without a password counts as a password, because tokens are passed in this form.
fn password(scheme: &str, url: &str) -> Option<Range<usize>> {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let colon = authority.find(':').filter(|_| !authority.starts_with('['));
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let password = match (colon, authority.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => colon + 1..url.rfind('@')?,
        (_, Some(at)) => {
            let scheme = scheme.rsplit(|c: char| !c.is_ascii_alphanumeric()).next();
            if !matches!(scheme, Some("http" | "https")) {
                return None;
            }
            0..at
        }
        // A password may contain unescaped characters such as `/`, but a path may contain `@` as
        // well.
        (Some(colon), None) if !is_port(&authority[colon + 1..]) => colon + 1..url.rfind('@')?,
        (_, None) => return None,
    };
    (!password.is_empty()).then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_secrets_are_known() {
        let names = "\
            WANDB_API_KEY hf_token HTTP_AUTH OAUTH2 Authorization MYSQL_PWD dbPwd GITHUB_PAT \
            githubPat github-pat SENTRY_DSN SESSION_COOKIE AWS_CREDENTIALS PGPASSWORD \
            SLACK_WEBHOOK_URL --db-password";
        for name in names.split(' ') {
            assert!(is_secret(name), "{name}");
        }
        let names = "\
            PATH LD_LIBRARY_PATH PYTHONPATH PATTERN PWD OLDPWD GIT_AUTHOR_NAME XAUTHORITY \
            TOKENIZERS_PARALLELISM NCCL_DEBUG DSNAME RANK";
        for name in names.split(' ').chain([""]) {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_show_their_length_only() {
        assert_eq!(redacted_value("WANDB_API_KEY", "abc"), "(set, 3 chars)");
        assert_eq!(redacted_value("hf_token", "ä"), "(set, 1 chars)");
        assert_eq!(redacted_value("NCCL_DEBUG", "INFO"), "INFO");
        assert_eq!(redacted("--password=a=b"), "--password=(set, 3 chars)");
        assert_eq!(redacted("{\"api_key\": \"abc\"}"), "{\"api_key\":(set, 7 chars)");
        assert_eq!(
            redacted("AccountName=x;AccountKey=abc"),
            "AccountName=x;AccountKey=(set, 3 chars)"
        );
    }

    #[test]
    fn passwords_of_urls_are_hidden() {
        let hidden = "(set, 2 chars)";
        for (url, expected) in [
            ("pg://u:pw@d/x", format!("pg://u:{hidden}@d/x")),
            ("redis://:pw@d", format!("redis://:{hidden}@d")),
            ("pg://u:p/w@d", "pg://u:(set, 3 chars)@d".to_owned()),
            ("pg://u:p@w@d", "pg://u:(set, 3 chars)@d".to_owned()),
            (
                "a http://u:pw@d,http://v:pq@e b",
                format!("a http://u:{hidden}@d,http://v:{hidden}@e b"),
            ),
            ("git+https://pw@github.com/x", format!("git+https://{hidden}@github.com/x")),
        ] {
            assert_eq!(redacted(url), expected, "{url}");
        }
        assert_eq!(redacted("pg://u:x_key=pw@d A"), "pg://u:(set, 12 chars)");
        for url in [
            "https://h:80/a", "ssh://git@h/x", "docker://h:5000/image@sha256:00",
            "tcp://[::1]:80/a@b", "https://h/a:b@c", "see http://a:1 mail me@x", "://", "a://",
        ] {
            assert_eq!(redacted(url), url);
        }
    }

    proptest! {
        #[test]
        fn no_secret_is_shown(
            head in "[a-zA-Z_]{0,6}",
            stem in prop::sample::select(vec![
                "_AUTH", "_PWD", "_PAT", "_DSN", "COOKIE", "CREDENTIAL", "TOKEN", "SECRET", "PASSWORD",
            ]),
            secret in "[!-~]{0,6}hunter2[!-~]{0,6}",
            before in "[ -~]{0,12}",
        ) {
            let name = format!("{head}{stem}");
            let texts = [
                redacted_value(&name, &secret),
                redacted(&format!("{name}={secret}")),
                redacted(&format!("-x{name}={secret}")),
                redacted(&format!("{before} --{}={secret}", name.to_lowercase())),
            ];
            for text in texts {
                prop_assert!(!text.contains("hunter2"), "{}", text);
            }
        }

        #[test]
        fn no_password_of_a_url_is_shown(
            name in "[A-Z]{0,4}",
            user in "[a-z]{0,4}",
            // Leading digits or a slash would make it a port or a path.
            secret in "[a-z!@#$%^&*()/?:]{1}[!-.0-9;-~]{0,6}hunter2[!-.0-9;-~]{0,4}",
            behind in "[ a-z/:.]{0,8}",
        ) {
            let text = redacted_value(&name, &format!("{behind} pg://{user}:{secret}@host{behind}"));
            prop_assert!(!text.contains("hunter2"), "{}", text);
        }

        #[test]
        fn a_text_without_any_stays(text in "[a-zA-Z0-9 _./,-]{0,40}") {
            prop_assert_eq!(redacted(&text), text);
        }
    }
}
