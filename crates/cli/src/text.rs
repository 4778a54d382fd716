//! Text that others chose (programs, file names, thread names) made safe for a terminal, and
//! numbers made readable.

/// Escapes everything a terminal could act on, and everything that hides or reorders text.
/// See [`owlet_analyze::escape`].
pub(crate) fn escape(bytes: &[u8]) -> String {
    owlet_analyze::escape::escaped(bytes)
}

/// A command line as `/proc` gives it (each argument ended by a NUL), for people.
pub(crate) fn command_line(args: &[u8]) -> String {
    let args = args.strip_suffix(b"\0").unwrap_or(args);
    let words: Vec<_> = args.split(|&b| b == 0).map(escape).collect();
    words.join(" ")
}

/// The last component of an executable's path.
pub(crate) fn program(exe: &[u8]) -> String {
    escape(exe.rsplit(|&b| b == b'/').next().unwrap_or(exe))
}

/// Digits in groups of three.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 event`, `2 events`.
pub(crate) fn plural(n: u64, noun: &str) -> String {
    let s = match (n, noun) {
        (1, _) => "",
        (_, noun) if noun.ends_with("ss") => "es",
        _ => "s",
    };
    format!("{} {noun}{s}", count(n))
}

/// The names closest to `wanted`, best first, at most three, and none that is far off. A pattern that
/// ends in `*` may mean a whole target.
pub(crate) fn near<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let group = wanted.strip_suffix('*').map(|group| group.trim_end_matches([':', '*']));
    let wanted = wanted.trim_matches('*');
    let mut scored: Vec<(f64, &str)> = names
        .map(|name| {
            let lower = name.to_lowercase();
            let tail = lower.rsplit(':').next().unwrap_or_default();
            let whole = strsim::normalized_damerau_levenshtein(wanted, &lower);
            let tail = strsim::normalized_damerau_levenshtein(wanted, tail);
            let part = if !wanted.is_empty() && lower.contains(wanted) { 0.9 } else { 0.0 };
            let head = group.zip(target(&lower)).map_or(0.0, |(group, target)| {
                strsim::normalized_damerau_levenshtein(group, target)
            });
            (whole.max(tail).max(part).max(head), name)
        })
        .filter(|(score, _)| *score >= 0.5)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.truncate(3);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// What stands before the one `:` of a trace point's name; `::` is part of it.
fn target(name: &str) -> Option<&str> {
    name.get(..name.replace("::", "..").find(':')?)
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
