//! The export as Perfetto's own trace processor reads it.
//!
//! `OWLET_TRACE_PROCESSOR` names a program that takes a trace file and SQL statements, and prints
//! the rows of each. Without it these tests say that they were skipped; with
//! `OWLET_REQUIRE_TOOLS=1` they fail instead.

use crate::{corpus, export, interleavings, scenes};
use owlet_analyze::Trace;
use std::process::Command;

/// Runs SQL on the export of `trace`; `None` without a trace processor.
fn query(trace: &Trace, sql: &[&str]) -> Option<String> {
    let Some(tool) = std::env::var_os("OWLET_TRACE_PROCESSOR") else {
        let required = std::env::var("OWLET_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
        assert!(!required, "OWLET_TRACE_PROCESSOR is not set, and OWLET_REQUIRE_TOOLS=1");
        eprintln!("skipped: set OWLET_TRACE_PROCESSOR to a command that runs `CMD TRACE SQL..`");
        return None;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace.pftrace");
    std::fs::write(&path, export(trace).0).expect("the file is written");
    let output = Command::new(&tool).arg(&path).args(sql).output().expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}\n{errors}", tool.display());
    Some(text)
}

/// No row of the reader's own statistics says that something is wrong or was lost.
const STATS: &str = "select 'bad:' || name || '=' || value as bad from stats \
    where severity in ('error', 'data_loss') and value > 0";

/// Runs one query whose rows are single texts, and the reader's statistics.
fn check(trace: &Trace, sql: &str, expected: &[&str]) {
    let Some(text) = query(trace, &[STATS, sql]) else { return };
    assert!(!text.lines().any(|line| line.starts_with("bad:")), "{text}");
    let (_, answer) = text.split_once(sql).unwrap_or_else(|| panic!("an answer in {text}"));
    let rows: Vec<_> = answer.lines().skip(2).collect();
    assert_eq!(rows, expected, "{text}");
}

#[test]
fn nested_spans_and_instants() {
    let sql = "select s.name || ' ' || s.ts || ' ' || s.dur || ' ' || s.depth || ' ' || t.name || \
        ' ' || t.tid || ' ' || p.name || ' ' || p.pid as row from slice s \
        join thread_track k on s.track_id = k.id join thread t using (utid) \
        join process p using (upid) order by s.ts";
    let rows = [
        "app::server:request 1010 70 0 worker 11 server 10",
        "app::db:query 1030 20 1 worker 11 server 10",
        "demo:tick 1040 0 2 worker 11 server 10",
    ];
    check(&scenes::nested(), sql, &rows);
}

#[test]
fn fields_are_arguments() {
    let sql = "select s.name || ' ' || a.key || ' ' || \
        coalesce(a.string_value, a.int_value) as row from slice s join args a using (arg_set_id) \
        where a.key glob 'debug.*' order by s.ts, a.key";
    let rows = [
        "app::server:request debug.n 100",
        "app::server:request debug.span 1",
        "app::server:request debug.status ok",
        "app::db:query debug.n 200",
        "app::db:query debug.span 2",
        "demo:tick debug.seq 7",
    ];
    check(&scenes::nested(), sql, &rows);
}

#[test]
fn async_spans_are_one_slice_each() {
    let sql = "select s.name || ' ' || s.ts || ' ' || s.dur || ' ' || p.pid as row from slice s \
        join process_track k on s.track_id = k.id join process p using (upid) order by s.ts";
    check(&scenes::interleaved(), sql, &["app:task 1000 80 10", "app:task 1030 60 10"]);
    let sql = "select count(*) || ' of ' || count(distinct track_id) as row from slice";
    check(&scenes::interleaved(), sql, &["2 of 2"]);
}

#[test]
fn follows_from_is_a_flow() {
    let sql = "select o.ts || ' to ' || i.ts as row from flow f join slice o on f.slice_out = o.id \
        join slice i on f.slice_in = i.id";
    check(&scenes::interleaved(), sql, &["1000 to 1030"]);
}

#[test]
fn a_cut_trace_has_no_loose_ends() {
    let sql = "select name || ' ' || ts || ' ' || dur as row from slice order by ts, name";
    let rows = [
        "app:work 1000 100",
        "app:work 1200 200",
        "app:work 1310 90",
        "app:work 1400 0",
        "lost in all 1400 0",
    ];
    check(&scenes::cut(), sql, &rows);
    let sql = "select t.name || ' ' || a.key || ' ' || a.int_value as row from slice s \
        join track t on s.track_id = t.id join args a using (arg_set_id) \
        where s.name = 'lost in all' and a.key glob 'debug.*' order by a.key";
    let rows = [
        "owlet: lost events debug.cause busy 3",
        "owlet: lost events debug.cause full 20",
        "owlet: lost events debug.events 23",
    ];
    check(&scenes::cut(), sql, &rows);
}

/// C4 as the reader shows it.
#[test]
fn c4_values_in_the_reader() {
    let sql = "select a.key || ' ' || coalesce(a.string_value, a.int_value, a.real_value) as row \
        from slice s join args a using (arg_set_id) where a.key glob 'debug.*' order by a.key";
    let rows = [
        "debug.bad x\\xff\\xfey",
        "debug.data 00ff",
        "debug.empty ",
        "debug.half 0.5",
        "debug.inf -Infinity",
        "debug.list[0] 1",
        "debug.list[1] -2",
        "debug.list[2] 3",
        "debug.max 18446744073709551615",
        "debug.min -9223372036854775808",
        "debug.nan NaN",
        "debug.no_items []",
        "debug.nul a\\x00b",
        "debug.state Open",
        "debug.twice 4",
        "debug.twice#2 5",
        "debug.yes 1",
    ];
    check(&scenes::values(), sql, &rows);
    let sql = "select t.name as row from thread t where tid = 11";
    check(&scenes::values(), sql, &["evil\\x1b[2J\\xff"]);
}

#[test]
fn an_arbitrary_interleaving_is_read_without_error() {
    let trace = interleavings::long();
    let (_, summary) = export(&trace);
    let slices = summary.thread_slices + summary.async_slices;
    assert!(summary.thread_slices > 100 && summary.async_slices > 100, "{summary:?}");
    let sql = "select count(*) || ' slices, open ' || sum(dur < 0) as row from slice";
    check(&trace, sql, &[&format!("{slices} slices, open 0")]);
    let sql = "select arg_set_id || key as twice from args group by arg_set_id, key \
        having count(*) > 1 limit 5";
    check(&trace, sql, &[]);
}

#[test]
fn the_corpus_is_read_without_error() {
    for (name, trace) in corpus::traces() {
        let (_, summary) = export(&trace);
        let slices = summary.thread_slices + summary.async_slices + summary.instants;
        let sql = "select count(*) as n from slice where category != 'owlet'";
        eprintln!("{name}");
        check(&trace, sql, &[&slices.to_string()]);
    }
}
