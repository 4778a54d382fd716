//! The command as CI runs it: small sizes, counts gated, lines for programs.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_owlet-bench")).args(args).output().expect("start owlet-bench")
}

/// The JSON lines of a successful run, whose keys are exactly `keys`.
fn lines(args: &[&str], keys: &[&str]) -> Vec<Value> {
    let output = bench(args);
    let (out, text) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}\n{text}", output.status);
    let keys: BTreeSet<&str> = keys.iter().copied().collect();
    let lines = out.lines().map(|line| {
        let value: Value = serde_json::from_str(line).expect("one object a line");
        let found: BTreeSet<&str> =
            value.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(found, keys, "{line}");
        value
    });
    lines.collect()
}

#[test]
fn known_loops_are_counted_exactly() {
    let output = bench(&["counting", "--small"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("two-locked: locked: off from 2 by: 0 "), "{text}");
}

/// 6e's gates: no lock, no system call, no lost wakeup; five times as many rows as variants.
#[test]
fn getuid_trace_counts_hold() {
    let keys = [
        "bench",
        "case",
        "procs",
        "variant",
        "cpu_ns_per_call",
        "wall_ns_per_call",
        "wakeups_per_s",
        "syscalls_per_event",
        "locks_per_event",
        "lost_wakeups",
    ];
    let args = ["getuid-trace", "--small", "--json", "--reps", "1", "--scale", "0.5"];
    let lines = lines(&args, &keys);
    let deferred: Vec<_> = lines.iter().filter(|line| line["variant"] == "deferred").collect();
    let procs: BTreeSet<_> = deferred.iter().filter_map(|line| line["procs"].as_u64()).collect();
    assert_eq!(procs, (1..=5).collect());
    for line in deferred {
        assert_eq!(line["syscalls_per_event"], 0.0, "{line}");
        assert_eq!(line["locks_per_event"], 0.0, "{line}");
        assert_eq!(line["lost_wakeups"], 0, "{line}");
    }
    // The same counters see what the other ways of waking do.
    let of = |variant: &str| lines.iter().find(|l| l["variant"] == variant).expect("a line");
    assert_eq!(of("wake-per-event")["syscalls_per_event"], 1.0);
    assert_eq!(of("before")["locks_per_event"], 1.0);
}

/// TP-07 in numbers: a switched-off site is at most three instructions.
#[test]
fn event_cost_counts_hold() {
    let keys = ["bench", "case", "peer", "threads", "ns", "instructions", "ratio_to_owlet"];
    let args = ["event-cost", "--small", "--json", "--reps", "1", "--scale", "0.5"];
    let lines = lines(&args, &keys);
    let of = |case: &str, peer: &str| {
        let found = lines.iter().find(|l| l["case"] == case && l["peer"] == peer);
        found.unwrap_or_else(|| panic!("no line for {case} of {peer}"))
    };
    assert!(of("disabled", "owlet")["instructions"].as_f64().expect("counted") <= 3.0);
    for peer in ["floor", "owlet", "tracing-fmt"] {
        for case in ["1-field", "3-fields"] {
            assert!(of(case, peer)["ns"].as_f64().expect("measured") > 0.0);
        }
    }
}

/// Readers of the product have no locked instruction; those of the floor are seen to have two.
#[test]
fn rcu_read_counts_hold() {
    let keys =
        ["bench", "case", "threads", "ns", "net_ns", "instructions", "locked", "ratio_to_srcu"];
    let args = ["rcu-read", "--small", "--json", "--reps", "1", "--scale", "0.2"];
    let lines = lines(&args, &keys);
    let of = |case: &str| {
        let found = lines.iter().find(|l| l["case"] == case);
        found.unwrap_or_else(|| panic!("no line for {case}"))
    };
    assert_eq!(of("lock-inc")["locked"], 2.0);
    assert_eq!(of("crossbeam-epoch")["locked"], 1.0);
    for case in ["srcu", "srcu-raw", "qsbr", "tasks-trace"] {
        assert_eq!(of(case)["locked"], 0.0, "{case}");
    }
    let srcu = lines.iter().filter(|l| l["case"] == "srcu").filter_map(|l| l["threads"].as_u64());
    assert_eq!(srcu.collect::<Vec<_>>(), [1, 2, 8]);
}

/// One membarrier and one system call a grace period; `wait_all` of eight domains has one, too.
#[test]
fn rcu_sync_counts_hold() {
    let keys = [
        "bench",
        "case",
        "setting",
        "domains",
        "us",
        "p99_us",
        "slowest_us",
        "in_turn_us",
        "membarriers",
        "syscalls",
    ];
    let args = ["rcu-sync", "--small", "--json", "--reps", "1", "--scale", "0.4"];
    let lines = lines(&args, &keys);
    let of = |case: &str, setting: &str| {
        let found = lines.iter().find(|l| l["case"] == case && l["setting"] == setting);
        found.unwrap_or_else(|| panic!("no line for {case}, {setting}"))
    };
    assert_eq!(of("srcu", "alone")["syscalls"], 1.0);
    assert_eq!(of("qsbr", "alone")["syscalls"], 0.0);
    let all = lines.iter().filter(|l| l["case"] == "wait_all" && l["setting"] == "held");
    assert_eq!(all.filter_map(|l| l["domains"].as_u64()).collect::<Vec<_>>(), [1, 2, 4, 8]);
}

/// Polling is lock-free, and a cookie is true as soon as any grace period has covered it.
#[test]
fn rcu_poll_counts_hold() {
    let keys = ["bench", "case", "ns", "p99_ns", "instructions", "locked", "syscalls"];
    let args = ["rcu-poll", "--small", "--json", "--reps", "1", "--scale", "0.5"];
    let lines = lines(&args, &keys);
    let of = |case: &str| {
        let found = lines.iter().find(|l| l["case"] == case);
        found.unwrap_or_else(|| panic!("no line for {case}"))
    };
    for case in ["srcu-poll", "srcu-poll-false"] {
        assert_eq!(of(case)["locked"], 0.0);
        assert_eq!(of(case)["syscalls"], 0.0);
    }
    assert_eq!(of("srcu-snapshot")["locked"], 1.0, "a full fence is seen");
    assert!(of("srcu-comes-about")["ns"].as_f64().is_some());
}

const DEFER_FREE: [&str; 15] = [
    "bench",
    "setting",
    "variant",
    "seconds",
    "frees_per_s",
    "cpu_ns",
    "grace_periods",
    "peak_rss_mb",
    "mean_rss_mb",
    "footprint_rcuscale_mb",
    "residency_ms",
    "residency_gps",
    "residency_peak_gps",
    "counted_gps",
    "counted_peak_gps",
];

/// KF-13, KF-14: few grace periods, few that an object waits for, and the cap holds; before and after and the
/// peers in one run.
#[test]
fn kf_13_defer_free_counts_hold() {
    let args = ["defer-free", "--small", "--json", "--reps", "1", "--scale", "0.3"];
    let lines = lines(&args, &DEFER_FREE);
    let rows: BTreeSet<_> =
        lines.iter().map(|l| (l["setting"].as_str(), l["variant"].as_str())).collect();
    for variant in
        ["call-offloaded", "two-batches", "domain", "pool", "crossbeam-epoch", "seize", "malloc"]
    {
        assert!(rows.contains(&(Some("rcuscale"), Some(variant))), "no line for {variant}");
    }
    for setting in ["rcuscale-16", "steady", "flood", "flood-readers", "stuck"] {
        assert!(rows.contains(&(Some(setting), Some("domain"))), "no lines for {setting}");
    }
}

/// The knobs of the kernel's rcuscale: they replace those of the setting, and nothing is judged.
#[test]
fn defer_free_by_its_knobs() {
    let knobs = ["defer-free", "--small", "--json", "--reps", "1", "--producers", "3", "--loops"];
    let more = ["2", "--mult", "2", "--reader-hold-us", "1000", "--heads", "30", "--no-offload"];
    let which = ["--variant", "call-offloaded", "--variant", "domain"];
    let args: Vec<&str> = knobs.into_iter().chain(more).chain(which).collect();
    let lines = lines(&args, &DEFER_FREE);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["setting"], "rcuscale");
        let of = |key: &str| line[key].as_f64().expect("a number");
        let freed = of("frees_per_s") * of("seconds");
        // Seconds are told to the millisecond.
        let rounding = of("frees_per_s") * 0.0006;
        assert!((freed - 48_000.0).abs() < 500.0 + rounding, "{line}");
    }
    let output = bench(&["defer-free", "--mult", "3"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("not 1, 2, 4 or 8"), "{text}");
}

/// RW-04: a shared hold has no locked instruction and no system call; a slow one has two and none.
#[test]
fn rw_04_rwlock_read_counts_hold() {
    let keys = ["bench", "variant", "threads", "reader_ns", "instructions", "locked", "syscalls"];
    let args = ["rwlock-read", "--small", "--json", "--reps", "1", "--scale", "0.2"];
    let lines = lines(&args, &keys);
    let of = |variant: &str| {
        let found = lines.iter().find(|l| l["variant"] == variant);
        found.unwrap_or_else(|| panic!("no line for {variant}"))
    };
    for (variant, locked) in [("owlet", 0.0), ("owlet-raw", 0.0), ("owlet-slow", 2.0), ("std", 2.0)]
    {
        assert_eq!(of(variant)["locked"], locked, "{variant}");
        assert_eq!(of(variant)["syscalls"], 0.0, "{variant}");
    }
}

/// A burst of writers waits for one grace period, whatever the policy says about readers.
#[test]
fn rwlock_write_counts_hold() {
    let keys = [
        "bench",
        "variant",
        "writer_ns",
        "reads_per_s",
        "writes_per_s",
        "writer_p50_us",
        "writer_p99_us",
        "crowd_reads_per_write",
    ];
    let args = ["rwlock-write", "--small", "--json", "--reps", "1", "--scale", "0.2"];
    assert_eq!(lines(&args, &keys).len(), 7);
}

/// RS-04: two thousand write sections wait for three grace periods at most, four thousand without.
#[test]
fn rs_04_toggle_counts_hold() {
    let keys = [
        "bench",
        "part",
        "variant",
        "iterations",
        "gp_us",
        "work_us",
        "readers",
        "blocking_gps",
        "membarriers",
        "seconds",
        "reader_ns",
        "reader_p99_ns",
        "writer_p99_us",
    ];
    // Grace periods so long that a writer which is not scheduled for a while is still one of a burst.
    let small = ["toggle-1000", "--small", "--json", "--reps", "1", "--iterations", "5"];
    let lines = lines(&[&small[..], &["--gp-us", "20000", "--work-us", "0"]].concat(), &keys);
    let blocking = |variant: &str| {
        let found = lines.iter().find(|l| l["variant"] == variant);
        found.and_then(|l| l["blocking_gps"].as_f64()).expect("counted")
    };
    assert!(blocking("normal") >= 20.0);
    assert!(blocking("rcu_sync") <= 3.0);
    assert_eq!(blocking("hold_slow"), 0.0);
    assert!(lines.iter().any(|l| l["part"] == "tracepoint"));
}

/// Every variant hands all messages and all events on, in threads and in processes.
#[test]
fn tp_hackbench_counts_hold() {
    let keys = [
        "bench",
        "mode",
        "variant",
        "events_per_message",
        "cpu_s_mean",
        "cpu_s_median",
        "cpu_s_sd",
        "wall_s_median",
        "ratio_to_none",
        "event_ns",
        "event_instructions",
    ];
    let args = ["tp-hackbench", "--small", "--json", "--reps", "1", "-l", "10", "-e", "6.5"];
    let lines = lines(&args, &keys);
    for mode in ["threads", "processes"] {
        let variants = lines.iter().filter(|l| l["mode"] == mode && l["events_per_message"] == 6.5);
        assert!(variants.count() >= 7);
    }
    let disabled = lines.iter().find(|l| l["variant"] == "disabled").expect("a line");
    assert!(disabled["event_instructions"].as_f64().expect("counted") <= 3.0);
}

/// TR-02, TR-03: no grace period for an attach and one for a detach, however many functions; one pass.
#[test]
fn tr_02_batch_attach_counts_hold() {
    let keys = [
        "bench",
        "part",
        "variant",
        "n",
        "programs",
        "gp_ms",
        "attach_ms",
        "detach_ms",
        "first_hit_us",
        "grace_periods",
        "detach_grace_periods",
        "membarriers",
        "detach_membarriers",
        "mprotects",
        "writes",
        "cpu_us",
        "detach_cpu_us",
        "cycles",
        "detach_cycles",
    ];
    let args = ["batch-attach", "--small", "--json", "--reps", "1"];
    let lines = lines(&args, &keys);
    let of = |variant: &str, n: u64, key: &str| {
        let found = lines.iter().find(|l| l["variant"] == variant && l["n"] == n);
        found.and_then(|l| l[key].as_u64()).unwrap_or_else(|| panic!("no {key} of {variant}, {n}"))
    };
    // What the counters see where every program waits.
    assert!(of("before", 16, "grace_periods") >= 16);
    assert_eq!(of("source", 16, "grace_periods"), 1);
    assert_eq!(of("singly", 128, "detach_grace_periods"), 128);
    assert_eq!(of("singly", 128, "membarriers"), 128);
    for n in [1, 16, 128, 1024, 10_000] {
        assert_eq!(of("ours", n, "grace_periods"), 0);
        assert_eq!(of("ours", n, "detach_grace_periods"), 1);
        assert_eq!(of("ours", n, "membarriers"), 1);
        assert_eq!(of("ours", n, "writes"), n);
    }
}

/// A function that is off costs an instruction or two; programs no lock and no system call.
#[test]
fn hit_cost_counts_hold() {
    let keys = ["bench", "case", "ns", "instructions", "locked", "syscalls"];
    let args = ["hit-cost", "--small", "--json", "--reps", "1", "--scale", "0.5"];
    let lines = lines(&args, &keys);
    let of = |case: &str| {
        let found = lines.iter().find(|l| l["case"] == case);
        found.unwrap_or_else(|| panic!("no line for {case}"))
    };
    assert!(of("off")["instructions"].as_f64().expect("counted") <= 2.0);
    assert_eq!(of("session")["syscalls"], 0.0);
    assert_eq!(of("ebpf-map-atomic")["locked"], 1.0, "one is seen");
}

#[test]
fn a_wrong_name_is_an_error_of_use() {
    assert_eq!(bench(&["no-such-benchmark"]).status.code(), Some(2));
}
