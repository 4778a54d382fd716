//! A comment that cites `invariant 3` stands in a crate in which a module's header numbers that
//! invariant: item 3 of the list under a heading `Invariants`.

use super::{all_crates, split_header};
use regex::Regex;
use std::collections::BTreeSet;

fn numbers(pattern: &str, text: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).expect("a pattern");
    pattern.captures_iter(text).map(|c| c[1].to_owned()).collect()
}

fn check(files: &[String]) -> Vec<String> {
    let mut listed = BTreeSet::new();
    let mut cited = BTreeSet::new();
    for text in files {
        let (header, body) = split_header(text);
        if let Some(at) = header.find("# Invariants") {
            listed.extend(numbers(r"(?m)^//! (\d+)\. ", &header[at..]));
        }
        cited.extend(numbers(r"(?i)//[^\n]*\binvariants? (\d+)", &body));
    }
    cited
        .difference(&listed)
        .map(|number| format!("invariant {number} is cited but in no header's list"))
        .collect()
}

#[test]
fn every_cited_invariant_exists() {
    all_crates(check);
}

#[test]
fn a_missing_invariant_is_found() {
    let text = "//! # Invariants\n//! 1. One.\n\n// SAFETY: invariant 1\n// SAFETY: by invariant 2";
    assert_eq!(check(&[text.to_owned()]), ["invariant 2 is cited but in no header's list"]);
}
