//! The command `rlaunch`, see [`rlaunch_launcher`].

use std::process::ExitCode;

fn main() -> ExitCode {
    rlaunch_launcher::main()
}
