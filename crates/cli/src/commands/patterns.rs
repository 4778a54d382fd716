//! Patterns on the command line against the trace points that are there.

use super::doubts;
use crate::error::Failure;
use crate::exit::Exit;
use crate::text::{escape, near, plural};
use owlet_wire::config::{Rule, glob};
use owlet_wire::control::TracepointInfo;
use owlet_wire::filter::{Filter, Verdict};
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};

/// The rules that patterns of `-e` stand for; `!` in front leaves out.
pub(crate) fn rules(patterns: &[String]) -> Vec<Rule> {
    let rule = |text: &str| match text.strip_prefix('!') {
        Some(pattern) => Rule { pattern: pattern.into(), enable: false },
        None => Rule { pattern: text.into(), enable: true },
    };
    let mut rules: Vec<_> = patterns.iter().map(|text| rule(text)).collect();
    // "All but these" needs an all.
    if rules.iter().all(|rule| !rule.enable) {
        rules.insert(0, rule("*"));
    }
    rules
}

/// Whether the rules switch a name on: the last match wins.
pub(crate) fn selects(rules: &[Rule], name: &str) -> bool {
    rules.iter().rev().find(|rule| glob(&rule.pattern, name)).is_some_and(|rule| rule.enable)
}

/// What to do when patterns with `!` have the last word.
const LAST_WINS: &str = "the last match wins: put the patterns to record after those with `!`";

/// Why the rules can switch nothing on, whatever there is, or `None` when they can.
pub(crate) fn nothing_ever(rules: &[Rule]) -> Option<Failure> {
    let last = rules.iter().rev().take_while(|rule| !rule.enable);
    let all = last.into_iter().find(|rule| rule.pattern.bytes().all(|b| b == b'*'))?;
    let message =
        format!("'!{}' leaves out every trace point: nothing would be recorded", all.pattern);
    Some(Failure::with(Exit::Usage, message).hint(LAST_WINS))
}

/// Rules that match none of `points` yet, each with what may have been meant.
pub(crate) fn unmatched_yet<'a>(
    rules: &'a [Rule],
    points: &'a [TracepointInfo],
) -> impl Iterator<Item = (&'a Rule, Vec<String>)> {
    let names = || points.iter().map(|point| point.name.as_str());
    let missing = move |rule: &&Rule| !names().any(|name| glob(&rule.pattern, name));
    rules.iter().filter(missing).map(move |rule| (rule, advice(&[&rule.pattern], names())))
}

/// A rule as `-e` has it, in quotes.
pub(crate) fn given(rule: &Rule) -> String {
    let not = if rule.enable { "" } else { "!" };
    format!("'{not}{}'", escape(rule.pattern.as_bytes()))
}

/// How often those of `points` that would be recorded were hit, in all sessions together.
pub(crate) fn hits(rules: &[Rule], level: Level, points: &[TracepointInfo]) -> u64 {
    let ours = |point: &&TracepointInfo| point.level <= level && selects(rules, &point.name);
    points.iter().filter(ours).fold(0, |sum, point| sum.saturating_add(point.hits))
}

/// What may have been meant by patterns that match none of `names`, one hint a line; none when nothing
/// is near.
fn advice<'a>(patterns: &[&str], names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let one_colon = patterns.iter().filter_map(|pattern| one_colon(pattern, names.clone()));
    let try_it = |meant: String| {
        let meant = escape(meant.as_bytes());
        format!("between target and name stands one `:`; try '{meant}'")
    };
    let mut hints: Vec<_> = one_colon.map(try_it).collect();
    let mut closest: Vec<&str> = Vec::new();
    for name in patterns.iter().flat_map(|pattern| near(pattern, names.clone())) {
        if !closest.contains(&name) {
            closest.push(name);
        }
    }
    closest.truncate(3);
    if !closest.is_empty() {
        let closest: Vec<_> = closest.iter().map(|name| escape(name.as_bytes())).collect();
        hints.push(format!("the closest names: {}", closest.join(", ")));
    }
    hints
}

/// The pattern with `:` in place of its last `::`, if that matches; `TARGET*` for all of a target.
fn one_colon<'a>(pattern: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let (target, name) = pattern.rsplit_once("::")?;
    let matched = |pattern: &str| names.clone().filter(|name| glob(pattern, name)).count();
    let (narrow, wide) = (format!("{target}:{name}"), format!("{target}*"));
    match matched(&narrow) {
        0 => None,
        n if name == "*" && matched(&wide) == n => Some(wide),
        _ => Some(narrow),
    }
}

/// Why nothing of `points` would be recorded, or `None` when something would. `whose` reads like
/// "process 12 (server)".
pub(crate) fn nothing_selected(
    rules: &[Rule],
    level: Level,
    points: &[TracepointInfo],
    whose: &str,
) -> Option<Failure> {
    let chosen: Vec<_> = points.iter().filter(|point| selects(rules, &point.name)).collect();
    if chosen.iter().any(|point| point.level <= level) {
        return None;
    }
    if points.is_empty() {
        return Some(
            Failure::with(Exit::Nothing, format!("{whose} has no trace points yet"))
                .hint("trace points appear when their code is first reached; use --wait to record them then"),
        );
    }
    if !chosen.is_empty() {
        let most = chosen.iter().map(|point| point.level).min().unwrap_or(Level::Trace);
        let (most, level) = (crate::names::level(most), crate::names::level(level));
        let n = plural(chosen.len() as u64, "trace point");
        return Some(
            Failure::with(
                Exit::Nothing,
                format!("{n} of {whose} would match, but none is of level {level} or more severe"),
            )
            .hint(format!("the most severe of them is of level {most}: use --level {most}")),
        );
    }
    let matches = |rule: &Rule| points.iter().any(|point| glob(&rule.pattern, &point.name));
    if rules.iter().any(|rule| rule.enable && matches(rule)) {
        let out = rules.iter().filter(|rule| !rule.enable && matches(rule));
        let out: Vec<_> = out.map(given).collect();
        let all = rules.iter().any(|rule| rule.enable && rule.pattern == "*");
        let that = if all { "" } else { " that matches" };
        let message =
            format!("every trace point of {whose}{that} is left out by {}", out.join(", "));
        return Some(Failure::with(Exit::Nothing, message).hint(LAST_WINS));
    }
    Some(unmatched(&wanted(rules), points.iter().map(|point| point.name.as_str()), whose))
}

/// Why no event of the selected trace points could pass the filter, or `None` when one could: most
/// often a field's name is misspelt.
pub(crate) fn nothing_passes(
    rules: &[Rule],
    filter: &Filter,
    points: &[TracepointInfo],
) -> Option<Failure> {
    let chosen: Vec<_> = points.iter().filter(|point| selects(rules, &point.name)).collect();
    let mut warnings = Vec::new();
    let schemas: Vec<_> = chosen.iter().flat_map(|point| schemas(point)).collect();
    for schema in &schemas {
        let bound = filter.bind(schema);
        if bound.verdict() != Verdict::Never {
            return None;
        }
        warnings.extend(bound.warnings().iter().cloned());
    }
    let mut fields: Vec<_> =
        schemas.iter().flat_map(|schema| &schema.fields).map(|f| f.name.as_str()).collect();
    fields.sort_unstable();
    fields.dedup();
    fields.truncate(12);
    let fields: Vec<_> = fields.iter().map(|name| escape(name.as_bytes())).collect();
    let mut hints = doubts::of(filter, &schemas);
    hints.push(format!("their fields are: {}", fields.join(", ")));
    let n = plural(chosen.len() as u64, "trace point");
    let message = format!("--where can hold for no event of the {n} that would be recorded");
    let message = match warnings.first().filter(|_| hints.len() == 1) {
        Some(warning) => format!("{message}: {}", escape(warning.as_bytes())),
        None => message,
    };
    Some(Failure::with(Exit::Nothing, message).hint(hints.join("\n")))
}

/// What the filter asks for that none of the selected trace points has.
pub(crate) fn doubts(rules: &[Rule], filter: &Filter, points: &[TracepointInfo]) -> Vec<String> {
    let chosen = points.iter().filter(|point| selects(rules, &point.name));
    doubts::of(filter, &chosen.flat_map(schemas).collect::<Vec<_>>())
}

/// The kinds of records that one span leaves, of which a process lists the first only.
const SPAN: [Kind; 7] = [
    Kind::SpanNew,
    Kind::SpanEnter,
    Kind::SpanExit,
    Kind::SpanClose,
    Kind::SpanFollows,
    Kind::SpanRecord,
    Kind::SpanEvent,
];

/// What records of the point may look like: for a span, each kind with its leading fields.
fn schemas(point: &TracepointInfo) -> Vec<Schema> {
    let schema = |kind: Kind, fields: Vec<Field>| Schema {
        name: point.name.clone(),
        kind,
        level: point.level,
        file: point.file.clone(),
        line: point.line,
        doc: String::new(),
        fields,
    };
    if point.kind == Kind::Event {
        return vec![schema(Kind::Event, point.fields.clone())];
    }
    let leading = point.kind.leading();
    let listed = |field: &&Field| !leading.contains(&field.name.as_str());
    let own: Vec<_> = point.fields.iter().filter(listed).cloned().collect();
    let word = |name: &&str| Field { name: (*name).into(), ty: Type::Scalar(Scalar::U64) };
    let of = |kind: Kind| {
        schema(kind, kind.leading().iter().map(word).chain(own.iter().cloned()).collect())
    };
    SPAN.map(of).into()
}

/// The failure for patterns that match no name, with the nearest names.
pub(crate) fn unmatched<'a>(
    patterns: &[&str],
    names: impl Iterator<Item = &'a str> + Clone,
    whose: &str,
) -> Failure {
    let shown: Vec<_> =
        patterns.iter().map(|pattern| format!("'{}'", escape(pattern.as_bytes()))).collect();
    let failure = Failure::with(
        Exit::Nothing,
        format!("no trace point of {whose} matches {}", shown.join(", ")),
    );
    match advice(patterns, names).join("\n") {
        hints if hints.is_empty() => failure
            .hint("`owlet list PID` shows the trace points there are; `*` matches any characters"),
        hints => failure.hint(hints),
    }
}

fn wanted(rules: &[Rule]) -> Vec<&str> {
    rules.iter().filter(|rule| rule.enable).map(|rule| rule.pattern.as_str()).collect()
}

#[cfg(test)]
#[path = "patterns_tests.rs"]
mod tests;
