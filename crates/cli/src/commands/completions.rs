//! `owlet completions SHELL` and `owlet man`: both from the tree in [`crate::args`].

use crate::args::{Cli, CompletionsArgs};
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::out::Out;
use clap::CommandFactory as _;

/// Prints the completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "owlet", &mut script);
    print(&script)
}

/// The tree without what is hidden, which the generators would offer.
fn visible() -> clap::Command {
    let cli = Cli::command();
    let shown = cli.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    clap::Command::new("owlet")
        .version(env!("CARGO_PKG_VERSION"))
        .args(cli.get_arguments().cloned())
        .subcommands(shown)
}

/// Prints one man page for the command and all its subcommands.
pub(crate) fn man() -> Result<Exit> {
    let mut cli = Cli::command();
    cli.build();
    let mut page = Vec::new();
    render(&cli, &mut page)
        .map_err(|error| Failure::new(format!("cannot render the man page: {error}")))?;
    print(&page)
}

fn render(cli: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(cli.clone()).render(page)?;
    for sub in cli.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let man = clap_mangen::Man::new(sub.clone());
        page.extend_from_slice(
            format!(".SH \"OWLET {}\"\n", sub.get_name().to_uppercase()).as_bytes(),
        );
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}

fn print(bytes: &[u8]) -> Result<Exit> {
    let mut out = Out::new();
    out.bytes(bytes)?;
    out.finish()?;
    Ok(Exit::Done)
}
