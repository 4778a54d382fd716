//! What the commands about traced functions have in common.

use crate::agents;
use crate::client::{Client, ClientError};
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::text::{escape, near, plural};
use owlet_wire::config::glob;
use owlet_wire::functions::FunctionInfo;

/// The agent of a process, and its traced functions.
pub(super) fn of(pid: u32) -> Result<(Client, Vec<FunctionInfo>)> {
    let client = agents::of(&[pid])?.into_iter().next();
    let client = client.ok_or_else(agents::none)?;
    let functions = client.functions("*").map_err(|error| agents::explain(pid, &error))?;
    if functions.is_empty() {
        let whose = agents::describe(pid);
        return Err(Failure::with(Exit::Nothing, format!("{whose} has no traced functions"))
            .hint("write #[owlet::traced] on functions, or attach through the kernel: `owlet attach --kernel`"));
    }
    Ok((client, functions))
}

/// The functions that patterns match, once each; every pattern must match one.
pub(super) fn matching<'f>(
    patterns: &[String],
    functions: &'f [FunctionInfo],
    whose: &str,
) -> Result<Vec<&'f FunctionInfo>> {
    let matches = |pattern: &String| functions.iter().any(|f| glob(pattern, &f.name));
    let missing: Vec<_> = patterns.iter().filter(|pattern| !matches(pattern)).collect();
    if missing.is_empty() {
        let any = |f: &&FunctionInfo| patterns.iter().any(|pattern| glob(pattern, &f.name));
        return Ok(functions.iter().filter(any).collect());
    }
    let shown: Vec<_> =
        missing.iter().map(|pattern| format!("'{}'", escape(pattern.as_bytes()))).collect();
    let mut closest: Vec<&str> = Vec::new();
    for pattern in missing {
        let names = functions.iter().map(|f| f.name.as_str());
        for name in near(pattern, names) {
            if !closest.contains(&name) {
                closest.push(name);
            }
        }
    }
    closest.truncate(3);
    let message = format!("no traced function of {whose} matches {}", shown.join(", "));
    let closest: Vec<_> = closest.iter().map(|name| escape(name.as_bytes())).collect();
    Err(Failure::with(Exit::Nothing, message).hint(match closest.as_slice() {
        [] => {
            let n = plural(functions.len() as u64, "traced function");
            format!("`owlet list PID` shows its {n}; `*` matches any characters")
        }
        closest => format!("the closest names: {}", closest.join(", ")),
    }))
}

/// Why an agent did not do what it was asked about functions. What it refuses because of the command line
/// is said without its name.
pub(super) fn refused(pid: u32, error: &ClientError) -> Failure {
    match error {
        ClientError::Refused { message, hint } if hint.contains("their fields are") => {
            let message = escape(message.as_bytes());
            Failure::with(Exit::Nothing, message).hint(escape(hint.as_bytes()))
        }
        error => agents::explain(pid, error),
    }
}
