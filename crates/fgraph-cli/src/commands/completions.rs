//! `fgraph completions`: completions for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::error::Error;
use crate::output::Out;

/// Write the completions of a shell to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph completions bash > ~/.local/share/bash-completion/completions/fgraph
  fgraph completions fish > ~/.config/fish/completions/fgraph.fish")]
pub(crate) struct Args {
    shell: Shell,
}

/// Prints them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let (mut out, mut text) = (Out::new(), Vec::new());
    let mut command = super::Cli::command();
    clap_complete::generate(args.shell, &mut command, "fgraph", &mut text);
    out.text(&String::from_utf8_lossy(&text))?;
    out.finish()
}
