//! Rules of the code base, as tests: each on this tree, and on a text that breaks it.
//!
//! | module | rule |
//! |---|---|
//! | [`sides`] | a crate uses crates of its own side and of `both` only |
//! | [`deps`] | what a traced program links is on a reviewed list |
//! | [`barriers`] | every barrier letter is in its module's table, used, and paired |
//! | [`invariants`] | every invariant that a comment cites is numbered in its module's header |
//! | [`models`] | every loom model has a twin that must fail |

mod barriers;
mod deps;
mod invariants;
mod models;
mod sides;

use std::path::{Path, PathBuf};

/// The workspace root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Every Rust file of the workspace's crates, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(dir).expect("read a source folder") {
            let path = entry.expect("read a source folder").path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    walk(&path, out);
                }
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).expect("read a source file");
                out.push((path, text));
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join("crates"), &mut out);
    assert!(out.len() > 20, "the walk found the tree");
    out
}

/// The files of each crate, by the crate's folder.
fn crates() -> Vec<(String, Vec<String>)> {
    let mut crates = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (path, text) in sources() {
        let inside = path.strip_prefix(root().join("crates")).expect("a file of a crate");
        let folder = inside.components().next().expect("its folder");
        crates.entry(folder.as_os_str().to_string_lossy().into_owned()).or_default().push(text);
    }
    crates.into_iter().collect()
}

/// Runs `check` on the files of every crate and fails with all that it says.
fn all_crates(check: impl Fn(&[String]) -> Vec<String>) {
    let mut found = Vec::new();
    for (name, files) in crates() {
        found.extend(check(&files).into_iter().map(|message| format!("{name}: {message}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The `//!` lines of a file, and everything else.
fn split_header(text: &str) -> (String, String) {
    let mut header = String::new();
    let mut body = String::new();
    for line in text.lines() {
        let part = if line.trim_start().starts_with("//!") { &mut header } else { &mut body };
        part.push_str(line);
        part.push('\n');
    }
    (header, body)
}
