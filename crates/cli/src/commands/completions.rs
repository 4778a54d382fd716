//! `owlet completions SHELL` and `owlet man`: both from the tree in [`crate::args`].

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::{Failure, Result, reason};
use crate::exit::Exit;
use crate::out::Out;
use crate::text::escape;
use clap::CommandFactory as _;
use std::path::Path;

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

/// Prints one man page for the command and all its subcommands, or that of one of them; or writes
/// all of them into a directory.
pub(crate) fn man(args: &ManArgs) -> Result<Exit> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let subs = || cli.get_subcommands().filter(|sub| !sub.is_hide_set());
    if let Some(dir) = &args.dir {
        return write(dir, &cli, subs());
    }
    let Some(name) = &args.command else { return print(&main_page(&cli)?) };
    match subs().find(|sub| sub.get_name() == name) {
        Some(sub) => print(&sub_page(sub)?),
        None => {
            let names: Vec<_> = subs().map(clap::Command::get_name).collect();
            let name = escape(name.as_bytes());
            let message = format!("no command '{name}' of owlet has a man page");
            Err(Failure::with(Exit::Usage, message).hint(format!("one of {}", names.join(", "))))
        }
    }
}

fn write<'c>(
    dir: &Path,
    cli: &clap::Command,
    subs: impl Iterator<Item = &'c clap::Command>,
) -> Result<Exit> {
    let failed =
        |path: &Path, error: &std::io::Error| Failure::at("cannot write", path, reason(error));
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, &error))?;
    let mut pages = vec![("owlet.1".to_owned(), main_page(cli)?)];
    for sub in subs {
        pages.push((format!("owlet-{}.1", sub.get_name()), sub_page(sub)?));
    }
    for (name, page) in pages {
        let path = dir.join(name);
        std::fs::write(&path, page).map_err(|error| failed(&path, &error))?;
    }
    Ok(Exit::Done)
}

fn cannot_render(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot render the man page: {error}"))
}

fn sub_page(sub: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(sub.clone()).render(&mut page).map_err(cannot_render)?;
    Ok(page)
}

fn main_page(cli: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    render(cli, &mut page).map_err(cannot_render)?;
    Ok(page)
}

fn render(cli: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(cli.clone()).render(page)?;
    for sub in cli.get_subcommands().filter(|sub| !sub.is_hide_set()) {
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
