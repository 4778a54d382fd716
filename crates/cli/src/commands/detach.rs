//! `owlet detach`: takes traced functions away from the commands that attached to them.

use super::functions;
use crate::agents;
use crate::args::DetachArgs;
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::out::note;
use crate::text::plural;

/// Runs the subcommand.
pub(crate) fn run(args: &DetachArgs) -> Result<Exit> {
    let (client, functions) = functions::of(args.pid)?;
    let whose = agents::describe(args.pid);
    let all = ["*".to_owned()];
    let patterns = if args.patterns.is_empty() { &all[..] } else { &args.patterns };
    functions::matching(patterns, &functions, &whose)?;
    let (mut matched, mut links) = (0, 0);
    for pattern in patterns {
        let answer = client.detach_functions(pattern);
        let (of_pattern, taken) = answer.map_err(|e| agents::explain(args.pid, &e))?;
        matched += of_pattern;
        links += taken;
    }
    if links == 0 {
        let n = plural(matched.into(), "traced function");
        return Err(Failure::with(
            Exit::Nothing,
            format!("no command is attached to the {n} of {whose} that match"),
        ));
    }
    note!("detached {} of {whose}", plural(links.into(), "attachment"));
    Ok(Exit::Done)
}
