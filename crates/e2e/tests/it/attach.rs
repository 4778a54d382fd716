//! `owlet attach`, `detach`, `hist` and `list` on a program with traced functions.

use anyhow::{Context, Result, ensure};
use owlet_e2e::{Program, owlet};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A watchdog's patience.
const LATE: Duration = Duration::from_secs(120);

fn start() -> Result<Program> {
    let mut program = Program::start(&mut Command::new(env!("CARGO_BIN_EXE_traced")))?;
    program.wait_for("ready")?;
    Ok(program)
}

fn call(program: &mut Program, what: &str) -> Result<()> {
    program.tell(what)?;
    program.wait_for("done")?;
    Ok(())
}

/// What a run of the command left.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn new(output: &Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    fn json(&self) -> Result<Vec<Value>> {
        self.stdout.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    fn verdict(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

fn run(args: &[&str]) -> Result<Ran> {
    Ok(Ran::new(&owlet()?.args(args).stdin(Stdio::null()).output()?))
}

/// A command that goes on until it is told to end.
struct Running {
    child: Child,
    said: String,
}

impl Running {
    /// Starts it, and waits for the line that says that everything is on.
    fn start(args: &[&str]) -> Result<Self> {
        let mut command = owlet()?;
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut messages = BufReader::new(child.stderr.take().context("messages")?);
        let mut said = String::new();
        loop {
            let before = said.len();
            ensure!(messages.read_line(&mut said)? > 0, "it ended: {said}");
            if ["recording ", "counting ", "running "].iter().any(|w| said[before..].starts_with(w))
            {
                break;
            }
        }
        child.stderr = Some(messages.into_inner());
        Ok(Self { child, said })
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the pid is our child's, which has not been waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    fn stop(self) -> Result<Ran> {
        self.signal(libc::SIGINT);
        self.finish()
    }

    fn finish(self) -> Result<Ran> {
        let mut ran = Ran::new(&self.child.wait_with_output()?);
        ran.stderr = self.said + &ran.stderr;
        Ok(ran)
    }
}

fn trace(dir: &tempfile::TempDir) -> String {
    dir.path().join("trace").to_string_lossy().into_owned()
}

/// Whether anything is attached in a process, as `owlet list` says.
fn is_on(pid: &str) -> Result<bool> {
    let functions = run(&["list", pid, "--json"])?.json()?;
    Ok(functions.iter().any(|f| f["kind"] == "function" && f["programs"] != 0))
}

fn until(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LATE;
    while !done()? {
        ensure!(Instant::now() < end, "not within {LATE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The main path: attach to a running program, latencies in the trace, exact counts, nothing left behind.
#[test]
fn latencies_of_a_running_program_with_exact_counts() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    let args = ["attach", "-p", &pid, "traced::cmd::*", "--latency", "--json", "-o", &trace];
    let attached = Running::start(&args)?;
    assert!(is_on(&pid)?);
    call(&mut program, "get 1000")?;
    call(&mut program, "set 30")?;
    let ran = attached.stop()?;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.verdict().starts_with("recorded 2002 events, lost 0 in "), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("recording 2 traced functions of process "), "{}", ran.stderr);
    let counts: Vec<_> = ran.json()?;
    let of = |name: &str| counts.iter().find(|count| count["name"] == name).cloned();
    let get = of("traced::cmd::get").context("counts")?;
    assert_eq!((&get["calls"], &get["recorded"]), (&Value::from(1000), &Value::from(1000)));
    assert!(!is_on(&pid)?, "gone with the command");

    let stat: Value = serde_json::from_str(&run(&["stat", &trace, "--json"])?.stdout)?;
    let spans = stat["by_span"].as_array().context("spans")?;
    let set = spans.iter().find(|span| span["name"] == "traced::cmd::set").context("set")?;
    assert_eq!((&set["ended"], &set["total"]["count"]), (&1.into(), &1.into()), "{set}");
    let report = run(&["report", &trace, "--json", "--where", "duration > 25ms"])?.json()?;
    assert_eq!(report.len(), 1, "{report:?}");
    assert_eq!(report[0]["fields"]["ret"], 4, "{report:?}");
    let perfetto = dir.path().join("out.pftrace").to_string_lossy().into_owned();
    assert_eq!(run(&["export", "--perfetto", &perfetto, &trace])?.code, 0);
    if owlet_e2e::have("babeltrace2", "babeltrace2") {
        let lines = owlet_e2e::babeltrace(trace.as_ref())?;
        assert_eq!(lines.iter().filter(|line| line.contains("traced::cmd::get")).count(), 2000);
    }
    Ok(())
}

#[test]
fn entries_and_exits_with_a_filter() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    let args = ["attach", "-p", &pid, "*::get", "--entry", "--exit", "--where", "number >= 7"];
    let attached = Running::start(&[&args[..], &["-o", &trace]].concat())?;
    call(&mut program, "get 10")?;
    let ran = attached.stop()?;
    assert!(ran.verdict().starts_with("recorded 6 events, lost 0 in "), "{}", ran.stderr);
    assert_eq!(ran.stdout, format!("{:>12} traced::cmd::get\n", 3));
    let events = run(&["report", &trace, "--json"])?.json()?;
    let ends = events.iter().filter(|event| event["event"] == "traced::cmd::get%return");
    let ends: Vec<_> = ends.map(|event| event["fields"]["ret"].as_u64()).collect();
    assert_eq!(ends, [Some(14), Some(16), Some(18)]);
    Ok(())
}

/// What does not fit into the rings is counted, and the counts of calls stay exact.
#[test]
fn losses_are_shown() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    let args = ["attach", "-p", &pid, "*::get", "--size", "64K", "--json", "-o", &trace];
    let attached = Running::start(&args)?;
    // The reader does not take anything meanwhile.
    attached.signal(libc::SIGSTOP);
    call(&mut program, "threads 4 5000")?;
    attached.signal(libc::SIGCONT);
    let ran = attached.stop()?;
    let counts = &ran.json()?[0];
    assert_eq!(counts["calls"], 20_000, "{}", ran.stderr);
    let recorded = counts["recorded"].as_u64().context("recorded")?;
    assert!(recorded < 20_000);
    let lost = 20_000 - recorded;
    let verdict = format!("recorded {recorded} events, lost {lost} (full {lost}) in ");
    assert!(ran.verdict().starts_with(&verdict), "{} not {verdict}", ran.verdict());
    assert!(ran.stderr.contains("hint: the rings were full: choose larger rings: --size"));
    Ok(())
}

#[test]
fn histograms_hold_every_call() -> Result<()> {
    let mut program = start()?;
    let pid = program.pid().to_string();
    let args = ["hist", "-p", &pid, "*::get", "--field", "number", "--json"];
    let (json, text) = (Running::start(&args)?, Running::start(&args[..6])?);
    let by = Running::start(&["hist", "-p", &pid, "*::get", "--field", "ret", "--by", "key"])?;
    let latency = Running::start(&["hist", "-p", &pid, "*::set", "--json"])?;
    call(&mut program, "get 1000")?;
    call(&mut program, "nothing")?;
    call(&mut program, "set 20")?;
    let ran = json.stop()?;
    let found = &ran.json()?[0];
    let values = ["count", "sum", "mean", "without"].map(|name| found[name].as_u64().unwrap_or(9));
    assert_eq!(values, [1001, 999 * 500, 499, 0], "{found}");
    let buckets = found["buckets"].as_array().context("buckets")?;
    let expected = [2, 1, 2, 4, 8, 16, 32, 64, 128, 256, 488];
    let counts: Vec<_> = buckets.iter().filter_map(|bucket| bucket["count"].as_u64()).collect();
    assert_eq!(counts, expected);
    assert_eq!((&buckets[10]["from"], &buckets[10]["to"]), (&512.into(), &1023.into()));
    let drawn = text.stop()?.stdout;
    assert!(drawn.starts_with("traced::cmd::get: 1,001 values, mean 499\n"), "{drawn}");
    assert!(drawn.contains(&format!("512 .. 1,023 {:>19} |{}\n", 488, "#".repeat(40))), "{drawn}");
    let keyed = by.stop()?.stdout;
    assert!(keyed.contains("apple: 1,000 values, mean 999\n"), "{keyed}");
    assert!(keyed.contains("nothing: 0 values, 1 call without the field\n"), "{keyed}");
    let slept = &latency.stop()?.json()?[0];
    assert!(slept["count"] == 1 && slept["sum"].as_u64() >= Some(20_000_000), "{slept}");
    assert!(!is_on(&pid)?);
    Ok(())
}

/// U1, and what may have been meant.
#[test]
fn u1_nothing_matches_nothing_is_called_nobody_is_there() -> Result<()> {
    let (program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    for command in [&["attach", "-o", &trace][..], &["hist"], &["detach"]] {
        let ran = run(&[command, &["-p", &pid, "traced::cmd::gett"]].concat())?;
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains("no traced function of process"), "{}", ran.stderr);
        assert!(ran.stderr.contains("the closest names: traced::cmd::get"), "{}", ran.stderr);
        // Pids are below 2^22.
        let ran = run(&[command, &["-p", "4194304", "*"]].concat())?;
        assert_eq!((ran.code, ran.stderr.contains("no process 4194304")), (3, true));
    }
    let ran = run(&["attach", "-p", &pid, "*::get", "--duration", "50ms", "-o", &trace])?;
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("no event was recorded: 1 function on, calls 0"), "{}", ran.stderr);
    let ran = run(&["hist", "-p", &pid, "*::get", "--duration", "50ms"])?;
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("no call was counted"), "{}", ran.stderr);
    let ran = run(&["hist", "-p", &pid, "*::get", "--field", "numbr"])?;
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("their fields are: key, number"), "{}", ran.stderr);
    let ran = run(&["detach", "-p", &pid])?;
    assert!(ran.code == 3 && ran.stderr.contains("no command is attached"), "{}", ran.stderr);
    let ran = run(&["attach", "*::get"])?;
    assert!(ran.code == 2 && ran.stderr.contains("--pid"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn the_program_exits_meanwhile() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    let attached = Running::start(&["attach", "-p", &pid, "*::get", "--json", "-o", &trace])?;
    let counting = Running::start(&["hist", "-p", &pid, "*::get", "--field", "number"])?;
    call(&mut program, "get 500")?;
    program.tell("exit")?;
    assert!(program.wait(LATE)?.success());
    let ran = attached.finish()?;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.verdict().starts_with("recorded 500 events, lost 0 in "), "{}", ran.stderr);
    let counts = &ran.json()?[0];
    assert_eq!((&counts["calls"], &counts["recorded"]), (&Value::Null, &500.into()));
    assert!(counting.finish()?.stderr.contains("has ended"));
    Ok(())
}

#[test]
fn a_recorder_that_is_killed_leaves_nothing_attached() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let (pid, trace) = (program.pid().to_string(), trace(&dir));
    let attached = Running::start(&["attach", "-p", &pid, "*", "--latency", "-o", &trace])?;
    call(&mut program, "busy")?;
    assert!(is_on(&pid)?);
    attached.signal(libc::SIGKILL);
    attached.finish()?;
    until(|| Ok(!is_on(&pid)?))?;
    call(&mut program, "get 1")?;
    Ok(())
}

#[test]
fn two_recorders_at_once_and_one_that_detaches() -> Result<()> {
    let (mut program, dir) = (start()?, tempfile::tempdir()?);
    let pid = program.pid().to_string();
    let paths = ["one", "two"].map(|name| dir.path().join(name).to_string_lossy().into_owned());
    let one = Running::start(&["attach", "-p", &pid, "*::get", "--latency", "-o", &paths[0]])?;
    let two = Running::start(&["attach", "-p", &pid, "*", "--exit", "-o", &paths[1]])?;
    call(&mut program, "get 100")?;
    let ran = run(&["detach", "-p", &pid, "*::get"])?;
    assert_eq!((ran.code, ran.stderr.starts_with("detached 2 attachments of ")), (0, true));
    call(&mut program, "get 100")?;
    call(&mut program, "set 1")?;
    let (one, two) = (one.stop()?, two.stop()?);
    assert!(one.verdict().starts_with("recorded 200 events, lost 0 in "), "{}", one.stderr);
    assert!(two.verdict().starts_with("recorded 101 events, lost 0 in "), "{}", two.stderr);
    assert!(two.stderr.contains("note: somebody has detached 1 function meanwhile"));
    Ok(())
}

#[test]
fn list_shows_traced_functions() -> Result<()> {
    let program = start()?;
    let pid = program.pid().to_string();
    let ran = run(&["list", &pid])?;
    assert!(
        ran.stdout.contains("off              0 traced::cmd::get(key, number)  crates/e2e/"),
        "{}",
        ran.stdout
    );
    let ran = run(&["list", "-p", &pid, "*::set", "--json"])?;
    let functions = ran.json()?;
    assert_eq!(functions.len(), 1, "{}", ran.stdout);
    assert_eq!(functions[0]["params"], serde_json::json!(["key", "ms"]));
    assert_eq!(functions[0]["pid"], program.pid());
    Ok(())
}

/// Records of a ring buffer are shown as they come, from both ends of the calls; what found no room is counted.
#[test]
fn an_ebpf_program_sends_records_and_they_are_shown() -> Result<()> {
    let mut program = start()?;
    let pid = program.pid().to_string();
    let object = format!("{}/../ebpf/testdata/records.o", env!("CARGO_MANIFEST_DIR"));
    for json in [true, false] {
        let mut args = vec!["attach", "-p", &pid, "*::get", "--prog", &object];
        args.extend(json.then_some("--json"));
        let running = Running::start(&args)?;
        // A little at a time: the buffer has 4096 bytes and is emptied every now and then.
        for _ in 0..10 {
            call(&mut program, "get 10")?;
            std::thread::sleep(Duration::from_millis(200));
        }
        let ran = running.stop()?;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(!ran.stderr.contains("no room"), "{}", ran.stderr);
        if !json {
            let records = ran.stdout.lines().filter(|line| line.starts_with("records: "));
            // All returns, half of the entries.
            assert_eq!(records.count(), 150, "{}", ran.stdout);
            continue;
        }
        let lines = ran.json()?;
        let records = lines.iter().filter(|line| line["map"] == "records");
        let words: Vec<Vec<u64>> = records
            .map(|line| {
                assert_eq!(line["kind"], "ringbuf");
                serde_json::from_value(line["words"].clone()).expect("whole words")
            })
            .collect();
        let ends = words.iter().filter(|words| words.len() == 2).map(|words| words[0]);
        assert!(ends.eq(0..100), "{}", ran.stdout);
        let begins = words.iter().filter(|words| words.len() == 7).map(|words| words[0]);
        assert!(begins.eq((0..100).step_by(2)), "{}", ran.stdout);
        // The other map is shown at the end.
        assert!(lines.last().is_some_and(|line| line["map"] == ".bss"), "{}", ran.stdout);
    }
    // All at once: some records are lost, and that is said.
    let running = Running::start(&["attach", "-p", &pid, "*::get", "--prog", &object])?;
    call(&mut program, "get 100000")?;
    let ran = running.stop()?;
    assert!(ran.stderr.contains("note: map records had no room"), "{}", ran.stderr);
    Ok(())
}

/// The object is loaded and verified by the command, and runs in the program.
#[test]
fn an_ebpf_program_counts_calls_and_its_map_is_shown() -> Result<()> {
    let mut program = start()?;
    let pid = program.pid().to_string();
    let object = |name: &str| format!("{}/../ebpf/testdata/{name}.o", env!("CARGO_MANIFEST_DIR"));
    let args = ["attach", "-p", &pid, "*::step", "--json", "--prog", &object("count")];
    let running = Running::start(&args)?;
    call(&mut program, "step 400")?;
    call(&mut program, "get 5")?;
    let ran = running.stop()?;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let entries = ran.json()?;
    let counts = entries.iter().filter(|entry| entry["map"] == "counts");
    let counts: Vec<_> = counts.filter_map(|entry| entry["words"][0].as_u64()).collect();
    // The program adds three a call.
    assert_eq!(counts, [300; 4], "{}", ran.stdout);
    assert!(ran.verdict().starts_with("ran 400 times ("), "{}", ran.stderr);
    for (name, why) in [
        ("bad_null", "check the result"),
        ("bad_loop", "the loop is not proved to end"),
        ("bad_bounds", "bad_bounds.bpf.c:11: table[index] += 1;"),
        ("bad_read", "stack content is not numeric"),
        ("bad_helper", "helper 58 does not exist here"),
        ("bad_leak", "hint: end every record with bpf_ringbuf_submit"),
        ("none", "No such"),
    ] {
        let ran = run(&["attach", "-p", &pid, "*::get", "--prog", &object(name)])?;
        assert_ne!(ran.code, 0, "{name}");
        assert!(ran.stderr.to_lowercase().contains(&why.to_lowercase()), "{name}: {}", ran.stderr);
    }
    // What has no end, and what is no file.
    for path in ["/dev/zero", "/proc"] {
        let ran = run(&["attach", "-p", &pid, "*::get", "--prog", path])?;
        assert_ne!(ran.code, 0, "{path}");
        assert!(ran.stderr.contains("it is no regular file"), "{path}: {}", ran.stderr);
    }
    assert!(!is_on(&pid)?);
    Ok(())
}
