//! A barrier of a cross-thread argument has a letter. Its module's header holds a table of the
//! letters (`//! | [A] | ...`); a comment `// [A] ...` stands where the barrier is; what a comment
//! pairs with (`pairs with [B]`) is a letter of that table.

use super::{all_sources, split_header};
use regex::Regex;
use std::collections::BTreeSet;

fn check(text: &str) -> Vec<String> {
    let (header, body) = split_header(text);
    let row = Regex::new(r"(?m)^//! \| (?:`?)\[([A-Z]\d?)\]").expect("a pattern");
    let mark =
        Regex::new(r"// (?:(?:\[[A-Z]\d?\](?:, | and |/| ))*)\[([A-Z]\d?)\]").expect("a pattern");
    let marks_line = Regex::new(r"//[^\n]*").expect("a pattern");
    let letter = Regex::new(r"\[([A-Z]\d?)\](?:[^(\w]|$)").expect("a pattern");
    let table: BTreeSet<String> = row.captures_iter(&header).map(|c| c[1].to_owned()).collect();
    if table.is_empty() {
        return Vec::new();
    }
    let used: BTreeSet<String> = mark.captures_iter(&body).map(|c| c[1].to_owned()).collect();
    let mut named = BTreeSet::new();
    for line in marks_line.find_iter(text) {
        named.extend(letter.captures_iter(line.as_str()).map(|c| c[1].to_owned()));
    }
    let mut found = Vec::new();
    for letter in table.difference(&used) {
        found.push(format!("barrier [{letter}] is in the table but marks no line"));
    }
    for letter in named.difference(&table) {
        found.push(format!("barrier [{letter}] is named but not in the header's table"));
    }
    found
}

#[test]
fn every_barrier_letter_is_in_its_table_and_used() {
    all_sources(check);
}

#[test]
fn a_stray_letter_is_found() {
    let text = "//! | [A] | Release | pairs with [C] |\n//! | [B] | Acquire | |\n\
                fn f() {\n // [A] Release: pairs with [B]\n}";
    assert_eq!(
        check(text),
        [
            "barrier [B] is in the table but marks no line",
            "barrier [C] is named but not in the header's table"
        ]
    );
}
