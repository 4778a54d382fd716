//! A crate's side says where its code runs: `target` (inside a traced program), `outside` (in the
//! command), `both`, or `tool`. A crate may use its own side and `both`; a tool may use everything.

use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeMap;

/// The one crossing: the command carries the server of its demonstration, because one `cargo run`
/// builds one program; it runs it as a process of its own.
const CROSSING: (&str, &str) = ("owlet-cli", "owlet-demo");

/// May code of side `user` link code of side `used`?
fn allowed(user: &str, used: &str) -> bool {
    user == "tool" || used == "both" || user == used
}

fn violations(sides: &BTreeMap<String, String>, uses: &[(String, String)]) -> Vec<String> {
    uses.iter()
        .filter(|(user, used)| (user.as_str(), used.as_str()) != CROSSING)
        .filter_map(|(user, used)| {
            let (a, b) = (sides.get(user)?, sides.get(used)?);
            (!allowed(a, b)).then(|| format!("{user} ({a}) uses {used} ({b})"))
        })
        .collect()
}

#[test]
fn every_crate_keeps_its_side() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    let mut sides = BTreeMap::new();
    let mut uses = Vec::new();
    for package in metadata.workspace_packages() {
        let side = package.metadata["owlet"]["side"].as_str().unwrap_or_default().to_owned();
        assert!(
            ["target", "outside", "both", "tool"].contains(&side.as_str()),
            "{} has no side in [package.metadata.owlet]",
            package.name
        );
        sides.insert(package.name.to_string(), side);
        for dependency in &package.dependencies {
            // What a test uses is not linked into what runs on the crate's side.
            if dependency.kind != DependencyKind::Development {
                uses.push((package.name.to_string(), dependency.name.clone()));
            }
        }
    }
    let found = violations(&sides, &uses);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_crossing_is_found() {
    let sides = [("cli", "outside"), ("rcu", "target"), ("sys", "both")]
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .into();
    let uses = [("cli", "rcu"), ("cli", "sys"), ("rcu", "sys")];
    let uses = uses.map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(violations(&sides, &uses), ["cli (outside) uses rcu (target)"]);
}
