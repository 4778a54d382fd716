//! A barrier of a cross-thread argument has a letter. A module's header holds a table of letters
//! (`//! | [A] | ...`); a comment `// [A] ...` stands where the barrier is, in the same crate; what a
//! comment pairs with (`pairs with [B]`) is a letter of
//! a table of the crate.

use super::{all_crates, split_header};
use regex::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

static IN_A_TABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^//! \| `?\[([A-Z]\d?)\]").expect("a pattern"));
static IN_A_COMMENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:^|[\s(,])`?\[([A-Z]\d?)\](?:[^(\w\]]|$)").expect("a pattern"));

fn letters(pattern: &Regex, text: &str) -> BTreeSet<String> {
    pattern.captures_iter(text).map(|c| c[1].to_owned()).collect()
}

fn table(text: &str) -> BTreeSet<String> {
    letters(&IN_A_TABLE, &split_header(text).0)
}

/// Letters that comments name, outside code.
fn named(text: &str) -> BTreeSet<String> {
    let comments: Vec<_> = text.lines().filter_map(|line| line.split_once("//")).collect();
    comments.iter().flat_map(|(_, comment)| letters(&IN_A_COMMENT, comment)).collect()
}

fn check(files: &[String]) -> Vec<String> {
    let tables: BTreeSet<String> = files.iter().flat_map(|text| table(text)).collect();
    if tables.is_empty() {
        return Vec::new();
    }
    let marked: BTreeSet<String> =
        files.iter().flat_map(|text| named(&split_header(text).1)).collect();
    let mut found = Vec::new();
    for letter in tables.difference(&marked) {
        found.push(format!("barrier [{letter}] is in a table but marks no line"));
    }
    let named: BTreeSet<String> = files.iter().flat_map(|text| named(text)).collect();
    for letter in named.difference(&tables) {
        found.push(format!("barrier [{letter}] is named but in no table"));
    }
    found
}

#[test]
fn every_barrier_letter_is_in_its_table_and_used() {
    all_crates(check);
}

#[test]
fn a_stray_letter_is_found() {
    let text = "//! | [A] | Release | pairs with [C] |\n//! | [B] | Acquire | |\n\
                fn f() {\n // [A] Release: pairs with [C]\n}";
    assert_eq!(
        check(&[text.to_owned()]),
        ["barrier [B] is in a table but marks no line", "barrier [C] is named but in no table"]
    );
}
