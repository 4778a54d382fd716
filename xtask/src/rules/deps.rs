//! What a traced program links through `owlet`, with every feature, is on a reviewed list:
//! `xtask/target-deps.txt`, one package a line. Procedural macros run in the compiler and do not count.

use super::root;
use std::collections::BTreeSet;
use std::process::Command;

/// Package names in the output of `cargo tree --prefix none`.
fn linked(tree: &str) -> BTreeSet<String> {
    let packages = tree.lines().filter(|line| !line.contains("(proc-macro)"));
    packages.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn difference(listed: &BTreeSet<String>, linked: &BTreeSet<String>) -> Vec<String> {
    let new = linked.difference(listed).map(|p| format!("{p} is linked but not on the list"));
    let gone = listed.difference(linked).map(|p| format!("{p} is on the list but not linked"));
    new.chain(gone).collect()
}

#[test]
fn target_dependencies_are_reviewed() {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "-p", "owlet", "--all-features", "-e", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--target", "x86_64-unknown-linux-gnu"])
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = std::fs::read_to_string(root().join("xtask/target-deps.txt"))
        .expect("read xtask/target-deps.txt")
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    let found = difference(&listed, &linked(&String::from_utf8_lossy(&output.stdout)));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_new_dependency_is_found() {
    let tree = "owlet v0.1.0\nlibc v0.2.1\nserde_derive v1.0.0 (proc-macro)\nsurprise v1.0.0\n";
    let listed = ["owlet", "libc", "gone"].map(str::to_owned).into();
    assert_eq!(
        difference(&listed, &linked(tree)),
        ["surprise is linked but not on the list", "gone is on the list but not linked"]
    );
}
