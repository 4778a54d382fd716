//! Every loom model has a twin `.._must_fail`, marked `should_panic`, with a barrier removed: a model
//! that cannot fail proves nothing. A twin's name begins with the model's, or with its first two words.
//! Models are in `tests/loom.rs` and in `tests/loom/`.

use super::sources;
use regex::Regex;
use std::collections::BTreeSet;

fn unpaired(text: &str) -> Vec<String> {
    let test = Regex::new(r"(?m)#\[test\]\s*((?:#\[[^\n]*\]\s*)*)fn (\w+)").expect("a pattern");
    let mut models = BTreeSet::new();
    let mut twins = BTreeSet::new();
    let mut found = Vec::new();
    for capture in test.captures_iter(text) {
        let name = capture[2].to_owned();
        if name.ends_with("must_fail") {
            if !capture[1].contains("should_panic") {
                found.push(format!("{name} is not marked should_panic"));
            }
            twins.insert(name);
        } else {
            models.insert(name);
        }
    }
    for model in models {
        let words: Vec<_> = model.split('_').collect();
        let stem = words.iter().take(2).copied().collect::<Vec<_>>().join("_");
        if !twins.iter().any(|twin| twin.starts_with(&format!("{stem}_"))) {
            found.push(format!("{model} has no twin {model}_.._must_fail"));
        }
    }
    found
}

#[test]
fn every_model_has_a_twin_that_must_fail() {
    let mut models = 0;
    let mut found = Vec::new();
    for (path, text) in sources() {
        if path.ends_with("tests/loom.rs")
            || path.parent().is_some_and(|p| p.ends_with("tests/loom"))
        {
            models += 1;
            found.extend(unpaired(&text).into_iter().map(|m| format!("{}: {m}", path.display())));
        }
    }
    assert!(models >= 2, "found {models} files of models");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_model_without_twin_is_found() {
    let text = "#[test]\nfn wake() {}\n#[test]\n#[should_panic]\nfn wake_no_fence_must_fail() {}\n\
                #[test]\nfn push() {}\n#[test]\nfn flip_must_fail() {}";
    assert_eq!(
        unpaired(text),
        ["flip_must_fail is not marked should_panic", "push has no twin push_.._must_fail"]
    );
}
