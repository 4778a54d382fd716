//! Patterns over function names.

/// Whether `pattern` matches `name`: `*` any run, `?` one character, everything else itself.
///
/// At most `pattern.len() * name.len()` steps; allocates nothing.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    // Most patterns name most of a path: the end decides quickly.
    let tail = pattern.rsplit(['*', '?']).next().unwrap_or_default();
    if !name.ends_with(tail) {
        return false;
    }
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // After the last `*`: the rest of the pattern, and where in the name it was tried last.
    let mut back: Option<(core::str::Chars<'_>, core::str::Chars<'_>)> = None;
    loop {
        let at = name.clone();
        match (pattern.next(), name.next()) {
            (Some('*'), _) => {
                back = Some((pattern.clone(), at.clone()));
                name = at;
            }
            (None, None) => return true,
            (Some('?'), Some(_)) => {}
            (Some(p), Some(n)) if p == n => {}
            (_, None) => return false,
            _ => {
                let Some((after, mut from)) = back.take() else { return false };
                from.next();
                back = Some((after.clone(), from.clone()));
                (pattern, name) = (after, from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("a::b", "a::b", true),
            ("a::b", "a::bc", false),
            ("a::*", "a::b", true),
            ("*", "", true),
            ("*b*", "a::b::c", true),
            ("a?b", "aéb", true),
            ("a?b", "ab", false),
            ("*ab", "aab", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
