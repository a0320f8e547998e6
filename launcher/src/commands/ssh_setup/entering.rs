//! Logging in everywhere: by keys where they work, by passwords where somebody types them.

use super::error::SetupError;
use super::{Way, ask, at_once};
use rlaunch_console::{messages, text};
use rlaunch_ssh::prompt::Prompter;
use rlaunch_ssh::{Connection, Ssh};
use rlaunch_ssh::{KeyLogin, Password, PasswordLogin};
use std::sync::Arc;

/// How often a wrong password may be typed for one host.
const TRIES: usize = 3;

/// A login, or why there is none.
pub(super) type Entered = Result<Connection, SetupError>;

/// Logs in on every host, those at once that a key opens. Results are in the order of the hosts.
pub(super) async fn enter(ssh: &Arc<Ssh>, ways: &[Arc<Way>]) -> Vec<Entered> {
    let logins = ways.iter().map(|way| {
        let (ssh, way) = (ssh.clone(), way.clone());
        (way.name.clone(), async move { by_key(&ssh, &way).await })
    });
    let mut entered = at_once("logging in", logins.collect()).await;
    while let Some(at) = entered.iter().position(Option::is_none) {
        ask_for(ssh, ways, at, &mut entered).await;
    }
    entered.into_iter().flatten().collect()
}

/// `None` where a password is needed.
async fn by_key(ssh: &Ssh, way: &Way) -> Option<Entered> {
    match ssh.log_in_by_key(&way.config).await {
        Ok(KeyLogin::Open(connection)) => Some(Ok(connection)),
        Ok(KeyLogin::Refused { takes_passwords: true, .. }) => None,
        Ok(KeyLogin::Refused { takes_passwords: false, .. }) => Some(Err(way.closed())),
        Err(error) => Some(Err(error.into())),
    }
}

/// Asks for the password of one host, and tries it on the others that wait for one of the same
/// name: people have the same everywhere. Those that do not take it are asked for in their turn.
async fn ask_for(ssh: &Arc<Ssh>, ways: &[Arc<Way>], at: usize, entered: &mut [Option<Entered>]) {
    let way = &ways[at];
    let user = way.user.clone();
    let Some(prompter) = Prompter::open() else {
        entered[at] = Some(Err(SetupError::Nobody { user }));
        return;
    };
    let waits = |other: &usize| *other != at && entered[*other].is_none();
    let others: Vec<usize> =
        (0..ways.len()).filter(waits).filter(|&other| ways[other].user == user).collect();
    let names: Vec<&str> = others.iter().map(|&other| ways[other].name.as_str()).collect();
    let also = match names.is_empty() {
        true => String::new(),
        false => format!(" (also tried on {})", text::list(&names)),
    };
    let question = format!("password of {user}@{}{also}: ", way.host.name);
    entered[at] = Some(Err(SetupError::Wrong { user }));
    for _ in 0..TRIES {
        let password = match ask::password(&prompter, &question).await {
            Ok(password) => Arc::new(password),
            Err(error) => {
                entered[at] = Some(Err(error));
                return;
            }
        };
        match ssh.log_in_by_password(&way.config, &password).await {
            Ok(PasswordLogin::Open(connection)) => {
                entered[at] = Some(Ok(*connection));
                return try_on(ssh, ways, &others, &password, entered).await;
            }
            Ok(PasswordLogin::Wrong) => messages::info(&format!("{} does not take it", way.name)),
            Err(error) => {
                entered[at] = Some(Err(error.into()));
                return;
            }
        }
    }
}

async fn try_on(
    ssh: &Arc<Ssh>,
    ways: &[Arc<Way>],
    others: &[usize],
    password: &Arc<Password>,
    entered: &mut [Option<Entered>],
) {
    let tries = others.iter().map(|&other| {
        let (ssh, way, password) = (ssh.clone(), ways[other].clone(), password.clone());
        let login = async move { ssh.log_in_by_password(&way.config, &password).await };
        (ways[other].name.clone(), login)
    });
    let tried = at_once("logging in", tries.collect()).await;
    for (&other, tried) in others.iter().zip(tried) {
        entered[other] = match tried {
            Ok(PasswordLogin::Open(connection)) => Some(Ok(*connection)),
            Ok(PasswordLogin::Wrong) => None,
            Err(error) => Some(Err(error.into())),
        };
    }
}
