//! `rlaunch pack`: writes a launcher that carries the files for hosts.

use clap::Parser;
use rlaunch_console::messages;
use rlaunch_engine::connect::agent::bundle;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::path::PathBuf;

/// Write a copy of rlaunch that carries the files for hosts
///
/// Agents, provers, the program of `rlaunch bench` and the libraries for ranks are appended to the executable as a zip
/// archive, so that nothing needs to lie beside it. Files beside rlaunch and those of --agent are still used first.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch pack -o ~/bin/rlaunch       what lies in lib/rlaunch beside this rlaunch
  unzip -l ~/bin/rlaunch              list what it carries; rlaunch version -v, with digests")]
pub(crate) struct PackArgs {
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Directory that has lib/rlaunch/TRIPLE; by default that of this rlaunch
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) files: Option<PathBuf>,

    /// Launcher to copy, perhaps for another architecture; by default this one
    #[arg(long, value_name = "FILE")]
    pub(crate) launcher: Option<PathBuf>,
}

/// Writes the launcher, and prints what it carries.
pub(in crate::commands) fn run(args: PackArgs) -> Result<Exit, Failed> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failed::new(Exit::BUG, format!("where is rlaunch? {error}")))?;
    let launcher = args.launcher.unwrap_or_else(|| own.clone());
    let files = args.files.or_else(|| own.parent().map(PathBuf::from)).unwrap_or_default();
    let packed = bundle::pack(&launcher, &files, &args.output);
    let index =
        packed.map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
    let size = std::fs::metadata(&args.output).map_or(0, |found| found.len());
    let programs = text::count(index.programs.len(), "program");
    let libraries: Vec<&String> = index.libraries.keys().collect();
    let libraries = match libraries[..] {
        [] => "no library for ranks".to_owned(),
        _ => format!("the library for ranks on {}", text::list(&libraries)),
    };
    let output = args.output.display();
    messages::info(&format!("{output} ({}) carries {programs}, {libraries}", text::mib(size)));
    Ok(Exit::SUCCESS)
}
