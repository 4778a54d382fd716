use super::*;
use owlet_wire::schema::Kind;

fn point(name: &str, level: Level) -> TracepointInfo {
    TracepointInfo {
        name: name.into(),
        kind: Kind::Event,
        level,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: Vec::new(),
        enabled: false,
        hits: 0,
    }
}

fn check(patterns: &[&str], level: Level) -> Option<(String, String)> {
    let points = [
        point("demo:tick", Level::Info),
        point("demo:tock", Level::Debug),
        point("http:get", Level::Trace),
    ];
    let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
    let failure = nothing_selected(&rules(&patterns), level, &points, "process 1 (x)")?;
    assert_eq!(failure.exit, Exit::Nothing);
    Some((failure.message, failure.hint.unwrap()))
}

#[test]
fn the_last_match_wins() {
    let rules = rules(&["demo:*".into(), "!demo:to*".into(), "demo:tock".into()]);
    for (name, on) in
        [("demo:tick", true), ("demo:tock", true), ("demo:toast", false), ("http:get", false)]
    {
        assert_eq!(selects(&rules, name), on, "{name}");
    }
    let all_but = super::rules(&["!http:*".into()]);
    assert!(selects(&all_but, "demo:tick") && !selects(&all_but, "http:get"));
    assert!(selects(&super::rules(&[]), "anything"));
}

#[test]
fn u1_a_pattern_that_matches_nothing_names_the_closest() {
    let (message, hint) = check(&["demo:tik"], Level::Trace).unwrap();
    assert_eq!(message, "no trace point of process 1 (x) matches 'demo:tik'");
    assert_eq!(hint, "the closest names: demo:tick, demo:tock");
    let (_, hint) = check(&["zzzzzzzzzzzz"], Level::Trace).unwrap();
    assert!(hint.contains("owlet list"), "{hint}");
    assert_eq!(check(&["demo:tik", "demo:*"], Level::Trace), None);
}

/// `::*` is what paths end in; a name has one colon there.
#[test]
fn u1_a_pattern_with_a_colon_too_many_says_so() {
    let names = ["nu::db:store", "nu::db:main.rs:20", "nu:run", "number:one", "cache:lookup"];
    let hints = |pattern: &str| advice(&[pattern], names.into_iter());
    let why = |meant: &str| format!("between target and name stands one `:`; try '{meant}'");
    for (pattern, meant) in [
        ("nu::db::*", "nu::db*"),
        ("nu::db::store", "nu::db:store"),
        ("cache::*", "cache*"),
        // `n*` would be other targets, too.
        ("n?::*", "n?:*"),
    ] {
        assert_eq!(hints(pattern).first(), Some(&why(meant)), "{pattern}");
    }
    let both = [why("nu::db*"), "the closest names: nu::db:main.rs:20, nu::db:store".into()];
    assert_eq!(hints("nu::db::*"), both);
    assert_eq!(hints("cach:*"), ["the closest names: cache:lookup"]);
    for other in ["nothing::*", "zzzzzzzz"] {
        assert_eq!(hints(other), [""; 0], "{other}");
    }
}

#[test]
fn u1_a_level_that_leaves_nothing_says_so() {
    let (message, hint) = check(&["demo:*"], Level::Warn).unwrap();
    assert_eq!(
        message,
        "2 trace points of process 1 (x) would match, but none is of level warn or more severe"
    );
    assert_eq!(hint, "the most severe of them is of level info: use --level info");
    assert_eq!(check(&["demo:*"], Level::Info), None);
}

#[test]
fn u1_a_program_without_trace_points_says_so() {
    let failure = nothing_selected(&rules(&[]), Level::Trace, &[], "process 1 (x)").unwrap();
    assert_eq!(failure.message, "process 1 (x) has no trace points yet");
}

#[test]
fn u1_a_filter_that_can_never_hold_names_the_fields() {
    use owlet_wire::schema::{Field, Scalar, Type};
    let mut tick = point("demo:tick", Level::Info);
    tick.fields = vec![Field { name: "seq".into(), ty: Type::Scalar(Scalar::U64) }];
    let points = [tick, point("other:event", Level::Info)];
    let nothing = |text: &str| {
        let filter = Filter::parse(text).unwrap();
        nothing_passes(&rules(&["demo:*".into()]), &filter, &points)
    };
    assert!(nothing("seq > 5").is_none());
    let failure = nothing("sqe > 5").unwrap();
    assert_eq!(failure.exit, Exit::Nothing);
    let want = "--where can hold for no event of the 1 trace point that would be recorded";
    assert!(failure.message.starts_with(want), "{}", failure.message);
    let hint = "no event has a field `sqe`; closest: `seq`\ntheir fields are: seq";
    assert_eq!(failure.hint.as_deref(), Some(hint));
    let failure = nothing("seq == \"5\"").unwrap();
    assert!(failure.message.ends_with("that would be recorded"), "{}", failure.message);
    let hint = "`seq` is a number in every event that has it: it is compared with a number\n";
    assert!(failure.hint.unwrap().starts_with(hint));
}

#[test]
fn a_filter_on_how_long_a_span_took_can_hold() {
    let mut span = point("app:work", Level::Info);
    span.kind = Kind::SpanNew;
    span.fields = schemas(&span)[0].fields.clone();
    let points = [span, point("app:event", Level::Info)];
    let refused = |pattern: &str, text: &str| {
        let filter = Filter::parse(text).unwrap();
        nothing_passes(&rules(&[pattern.into()]), &filter, &points).is_some()
    };
    for text in ["duration > 1us", "duration_ns > 5", "span == 1", "parent == 0", "follows == 2"] {
        assert!(!refused("app:*", text), "{text}");
        assert!(refused("app:event", text), "{text}");
    }
    assert!(refused("app:*", "durations > 5"));
}
