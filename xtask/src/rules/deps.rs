//! What a traced program links through `owlet`, with every feature, is on a reviewed list:
//! `xtask/target-deps.txt`, one package a line.

use super::root;
use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};

/// Everything reachable from `start` in `edges`, without `start` itself.
fn reachable(edges: &BTreeMap<String, Vec<String>>, start: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![start.to_owned()];
    while let Some(package) = todo.pop() {
        for next in edges.get(&package).into_iter().flatten() {
            if seen.insert(next.clone()) {
                todo.push(next.clone());
            }
        }
    }
    seen
}

fn difference(listed: &BTreeSet<String>, linked: &BTreeSet<String>) -> Vec<String> {
    let new = linked.difference(listed).map(|p| format!("{p} is linked but not on the list"));
    let gone = listed.difference(linked).map(|p| format!("{p} is on the list but not linked"));
    new.chain(gone).collect()
}

#[test]
fn target_dependencies_are_reviewed() {
    let metadata = MetadataCommand::new()
        .features(CargoOpt::AllFeatures)
        .other_options(["--filter-platform".into(), "x86_64-unknown-linux-gnu".into()])
        .exec()
        .expect("cargo metadata");
    let names: BTreeMap<_, _> =
        metadata.packages.iter().map(|p| (p.id.clone(), p.name.to_string())).collect();
    let mut edges = BTreeMap::new();
    for node in metadata.resolve.expect("a resolved graph").nodes {
        let linked = node.deps.iter().filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        });
        edges.insert(
            names[&node.id].clone(),
            linked.map(|dependency| names[&dependency.pkg].clone()).collect(),
        );
    }
    let listed = std::fs::read_to_string(root().join("xtask/target-deps.txt"))
        .expect("read xtask/target-deps.txt")
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    let found = difference(&listed, &reachable(&edges, "owlet"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_new_dependency_is_found() {
    let edges = BTreeMap::from([
        ("owlet".to_owned(), vec!["libc".to_owned(), "serde".to_owned()]),
        ("serde".to_owned(), vec!["surprise".to_owned()]),
    ]);
    let listed = ["libc", "serde", "gone"].map(str::to_owned).into();
    assert_eq!(
        difference(&listed, &reachable(&edges, "owlet")),
        ["surprise is linked but not on the list", "gone is on the list but not linked"]
    );
}
