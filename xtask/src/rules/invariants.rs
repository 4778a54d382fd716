//! A comment that cites `Invariant 3` stands in a file whose header numbers that invariant, as
//! `Invariant 3` or as item 3 of a list under a heading `Invariants`.

use super::{all_sources, split_header};
use regex::Regex;
use std::collections::BTreeSet;

fn check(text: &str) -> Vec<String> {
    let (header, body) = split_header(text);
    let cite = Regex::new(r"(?i)//[^\n]*\binvariants? (\d+)").expect("a pattern");
    let item = Regex::new(r"(?m)^//! (\d+)\. ").expect("a pattern");
    let listed: BTreeSet<String> = match header.find("# Invariants") {
        Some(at) => item.captures_iter(&header[at..]).map(|c| c[1].to_owned()).collect(),
        None => BTreeSet::new(),
    };
    let cited: BTreeSet<String> = cite.captures_iter(&body).map(|c| c[1].to_owned()).collect();
    cited
        .difference(&listed)
        .map(|number| format!("invariant {number} is cited but not in the header's list"))
        .collect()
}

#[test]
fn every_cited_invariant_exists() {
    all_sources(check);
}

#[test]
fn a_missing_invariant_is_found() {
    let text = "//! # Invariants\n//! 1. One.\n\n// SAFETY: invariant 1\n// SAFETY: by invariant 2";
    assert_eq!(check(text), ["invariant 2 is cited but not in the header's list"]);
}
