//! Logins to all hosts: by key if possible, otherwise by a password that the user types.

use super::error::SetupError;
use super::{TargetHost, on_hosts};
use rlaunch_console::messages;
use rlaunch_ssh::prompt::Prompter;
use rlaunch_ssh::{Connection, KeyLogin, Password, PasswordLogin, Ssh};
use rlaunch_text::text;
use std::io;
use std::sync::Arc;

/// Number of passwords that may be typed for one host.
const TRIES: usize = 3;

/// Connection of a login, or the reason why it failed.
pub(super) type LoginResult = Result<Connection, SetupError>;

/// Logs in to all hosts: first to those that accept a key, all at once, then to the others. Results are in the order of
/// the hosts.
pub(super) async fn log_in(ssh: &Arc<Ssh>, hosts: &[Arc<TargetHost>]) -> Vec<LoginResult> {
    let logins = hosts.iter().map(|host| {
        let (ssh, host) = (ssh.clone(), host.clone());
        (host.name.clone(), async move { log_in_by_key(&ssh, &host).await })
    });
    let mut results = on_hosts("logging in", logins.collect()).await;
    while let Some(at) = results.iter().position(Option::is_none) {
        log_in_by_password(ssh, hosts, at, &mut results).await;
    }
    results.into_iter().flatten().collect()
}

/// Logs in by key; returns `None` if a password is needed.
async fn log_in_by_key(ssh: &Ssh, host: &TargetHost) -> Option<LoginResult> {
    match ssh.log_in_by_key(&host.config).await {
        Ok(KeyLogin::Open(connection)) => Some(Ok(connection)),
        Ok(KeyLogin::Refused { takes_passwords: true, .. }) => None,
        Ok(KeyLogin::Refused { takes_passwords: false, .. }) => Some(Err(host.closed())),
        Err(error) => Some(Err(error.into())),
    }
}

/// Asks for the password for the host with index `at`, and tries it on all hosts that need a password for the same user
/// name, since users often have the same password on all of them. `results` of hosts that refuse the password remain
/// `None`, so that the user is asked for each of these hosts.
async fn log_in_by_password(
    ssh: &Arc<Ssh>,
    hosts: &[Arc<TargetHost>],
    at: usize,
    results: &mut [Option<LoginResult>],
) {
    let host = &hosts[at];
    let user = host.user.clone();
    let Some(prompter) = Prompter::open() else {
        results[at] = Some(Err(SetupError::NoTerminal { user }));
        return;
    };
    let needs_password = |other: &usize| *other != at && results[*other].is_none();
    let others: Vec<usize> = (0..hosts.len())
        .filter(needs_password)
        .filter(|&other| hosts[other].user == user)
        .collect();
    let names: Vec<&str> = others.iter().map(|&other| hosts[other].name.as_str()).collect();
    let also = match names.is_empty() {
        true => String::new(),
        false => format!(" (also tried on {})", text::list(&names)),
    };
    let question = format!("password of {user}@{}{also}: ", host.host.name);
    results[at] = Some(Err(SetupError::WrongPassword { user }));
    for _ in 0..TRIES {
        let password = match password(&prompter, &question).await {
            Ok(password) => Arc::new(password),
            Err(error) => {
                results[at] = Some(Err(error));
                return;
            }
        };
        match ssh.log_in_by_password(&host.config, &password).await {
            Ok(PasswordLogin::Open(connection)) => {
                results[at] = Some(Ok(*connection));
                return try_password(ssh, hosts, &others, &password, results).await;
            }
            Ok(PasswordLogin::Wrong) => {
                messages::info(&format!("{} does not accept it", host.name));
            }
            Err(error) => {
                results[at] = Some(Err(error.into()));
                return;
            }
        }
    }
}

/// Tries a password on several hosts at once. Those that refuse it get `None` in `results`.
async fn try_password(
    ssh: &Arc<Ssh>,
    hosts: &[Arc<TargetHost>],
    others: &[usize],
    password: &Arc<Password>,
    results: &mut [Option<LoginResult>],
) {
    let logins = others.iter().map(|&other| {
        let (ssh, host, password) = (ssh.clone(), hosts[other].clone(), password.clone());
        let login = async move { ssh.log_in_by_password(&host.config, &password).await };
        (hosts[other].name.clone(), login)
    });
    let login_results = on_hosts("logging in", logins.collect()).await;
    for (&other, login_result) in others.iter().zip(login_results) {
        results[other] = match login_result {
            Ok(PasswordLogin::Open(connection)) => Some(Ok(*connection)),
            Ok(PasswordLogin::Wrong) => None,
            Err(error) => Some(Err(error.into())),
        };
    }
}

/// Asks for a password, which is not shown.
async fn password(prompter: &Prompter, question: &str) -> Result<Password, SetupError> {
    let no_answer = || SetupError::NoAnswer(io::ErrorKind::UnexpectedEof.into());
    prompter.ask(question).await.map(Password::new).ok_or_else(no_answer)
}
