//! `owlet attach --kernel`: a program that does not know of Owlet, seen through the kernel's probes, and
//! counted exactly. Only where this process may do that; elsewhere it is said, and the test passes.

use anyhow::{Context, Result, ensure};
use owlet_e2e::{Program, babeltrace, have, owlet};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const THREADS: u64 = 3;
const CALLS: u64 = 400;

/// Whether the kernel lets us; what is in the way is said.
fn may() -> bool {
    match owlet_uprobe::available() {
        Ok(owlet_uprobe::Way::Multi) => true,
        Ok(owlet_uprobe::Way::Perf) => {
            eprintln!("skipped: this kernel has no uprobe.multi that filters by process");
            false
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// The program under test. Killed when dropped.
struct Probed {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

/// What it says it has done.
#[derive(Debug)]
struct Did {
    sum: u64,
    /// How often the probe was passed with its semaphore raised.
    raised: u64,
    begin: i64,
    end: i64,
}

impl Probed {
    fn start(threads: u64, calls: u64) -> Result<Self> {
        Self::start_with(threads, calls, &[])
    }

    /// One that never panics.
    fn calm(threads: u64, calls: u64) -> Result<Self> {
        Self::start_with(threads, calls, &["calm"])
    }

    fn start_with(threads: u64, calls: u64, more: &[&str]) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_probed"))
            .args([threads.to_string(), calls.to_string()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let mut this = Self { child, input, output };
        ensure!(this.line()?.trim() == "ready");
        Ok(this)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "it has ended");
        Ok(line)
    }

    /// Lets it do its work.
    fn work(&mut self) -> Result<Did> {
        self.input.as_mut().context("its input")?.write_all(b"\n")?;
        let line = self.line()?;
        let numbers: Vec<i64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let [sum, raised, begin, end] = numbers[..] else { anyhow::bail!("said {line:?}") };
        Ok(Did { sum: sum.cast_unsigned(), raised: raised.cast_unsigned(), begin, end })
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// `owlet attach --kernel` as a child, and its directory.
struct Attached {
    child: Option<Child>,
    dir: tempfile::TempDir,
    /// What it said until then.
    said: String,
}

struct Ended {
    dir: tempfile::TempDir,
    said: String,
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

impl Attached {
    /// Starts it and waits until every site is on.
    fn start(args: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut child = owlet()?
            .args(["attach", "--kernel", "--json", "-o"])
            .arg(dir.path().join("trace"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut messages = BufReader::new(child.stderr.take().context("its messages")?);
        let mut said = String::new();
        while !said.contains("recording ") {
            ensure!(messages.read_line(&mut said)? > 0, "it ended: {said}");
        }
        child.stderr = Some(messages.into_inner());
        Ok(Self { child: Some(child), dir, said })
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = self.child.as_ref().map_or(0, Child::id);
        // SAFETY: the pid is our child's, which has not been waited for.
        unsafe { libc::kill(pid.cast_signed(), signal) };
    }

    fn stop(self) -> Result<Ended> {
        self.signal(libc::SIGINT);
        self.finish()
    }

    fn finish(mut self) -> Result<Ended> {
        let output = self.child.take().context("it runs")?.wait_with_output()?;
        Ok(Ended {
            dir: self.dir,
            said: self.said,
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
            code: output.status.code(),
        })
    }
}

impl Ended {
    /// Hits by name, from stdout.
    fn hits(&self, name: &str) -> u64 {
        let lines = self.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut lines = lines.filter(|line| line["name"].as_str() == Some(name));
        lines.next().and_then(|line| line["hits"].as_u64()).unwrap_or(0)
    }

    fn events(&self) -> Result<Vec<Value>> {
        let trace = self.dir.path().join("trace");
        // Of losses it speaks on stderr.
        let output = owlet()?.args(["report", "--json"]).arg(trace).output()?;
        ensure!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"].as_str() == Some(name)).collect()
}

fn field(event: &Value, name: &str) -> i64 {
    // What leads a span's record stands beside its fields.
    event["fields"][name].as_i64().or(event[name].as_i64()).unwrap_or(i64::MIN)
}

#[test]
fn every_call_of_every_thread_is_recorded_once_and_in_order() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::start(THREADS, CALLS)?;
    let mut other = Probed::start(1, CALLS)?;
    let attached = Attached::start(&["-p", &probed.pid(), "probed::work::*"])?;
    let did = probed.work()?;
    // It runs the same file, and is nobody's business.
    other.work()?;
    let ended = attached.stop()?;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (events, all) = (ended.events()?, THREADS * CALLS);
    let deep = THREADS * CALLS.div_ceil(16);
    // A panic leaves the last one, and disturbs nobody.
    for (name, calls) in [("step", all), ("leaf", all), ("deep", 4 * deep), ("fall", deep)] {
        let name = format!("probed:probed::work::{name}");
        assert_eq!(ended.hits(&name), calls, "{name}: {}", ended.stdout);
        assert_eq!(named(&events, &name).len() as u64, calls, "{name}");
    }
    assert_eq!(arguments(&events, "probed:probed::work::step"), numbers(all));
    // They have ended long since.
    assert!(events.iter().all(|event| event["comm"].as_str() == Some("worker")), "{}", events[0]);
    // The trace's clock is the program's, and time never goes back.
    let times: Vec<i64> = events.iter().filter_map(|event| event["time_ns"].as_i64()).collect();
    assert!(times.is_sorted() && times.len() == events.len());
    // The machine's clock may be slewed meanwhile, by a 2,000th at most.
    let slack = 5_000_000;
    let (first, last) = (times[0], times[times.len() - 1]);
    assert!(first >= did.begin - slack && last <= did.end + slack, "{first} {last} {did:?}");
    if have("babeltrace2", "babeltrace2") {
        let lines = babeltrace(&ended.dir.path().join("trace"))?;
        let ours = lines.iter().filter(|line| line.contains("probed::work::")).count();
        assert_eq!(ours, named_like(&events, "probed:probed::work::"));
    }
    Ok(())
}

fn numbers(to: u64) -> Vec<i64> {
    (0..to.cast_signed()).collect()
}

/// The first argument of all events of that name, sorted.
fn arguments(events: &[Value], name: &str) -> Vec<i64> {
    let mut all: Vec<_> = named(events, name).iter().map(|event| field(event, "arg0")).collect();
    all.sort_unstable();
    all
}

fn named_like(events: &[Value], prefix: &str) -> usize {
    let like = |event: &&Value| event["event"].as_str().is_some_and(|n| n.starts_with(prefix));
    events.iter().filter(like).count()
}

#[test]
fn returns_of_a_program_that_can_unwind_are_refused_unless_allowed() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::calm(THREADS, CALLS)?;
    let pid = probed.pid();
    for option in ["--exit", "--latency"] {
        let dir = tempfile::tempdir()?;
        let mut command = owlet()?;
        command.args(["attach", "--kernel", "-p", &pid, "*::step", option, "--for", "1s"]);
        command.current_dir(&dir);
        let output = command.output()?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.starts_with("error: watching returns may abort the program: "), "{said}");
        assert_eq!(std::fs::read_dir(&dir)?.count(), 0, "nothing is left");
    }
    let args = ["-p", &pid, "*::work::step", "--entry", "--exit", "--allow-abort"];
    let attached = Attached::start(&args)?;
    let did = probed.work()?;
    let ended = attached.stop()?;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = ended.events()?;
    assert_eq!(arguments(&events, "probed:probed::work::step"), numbers(THREADS * CALLS));
    let returned = named(&events, "probed:probed::work::step%return");
    let sum: i64 = returned.iter().map(|event| field(event, "ret")).sum();
    let deep = THREADS * CALLS.div_ceil(16);
    assert_eq!(sum.cast_unsigned() + 3 * deep, did.sum);
    assert_eq!(returned.len() as u64, THREADS * CALLS);
    Ok(())
}

#[test]
fn calls_become_spans_inside_one_another() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::calm(THREADS, CALLS)?;
    let pid = probed.pid();
    let args = ["-p", &pid, "--latency", "--allow-abort", "probed::work::s*", "*::deep"];
    let attached = Attached::start(&args)?;
    probed.work()?;
    let ended = attached.stop()?;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = ended.events()?;
    let of = |name: &str, kind: &str| {
        let name = format!("probed:probed::work::{name}");
        let events = named(&events, &name).into_iter();
        events.filter(|event| event["kind"].as_str() == Some(kind)).collect::<Vec<_>>()
    };
    let (all, deep) = ((THREADS * CALLS) as usize, (THREADS * CALLS.div_ceil(16)) as usize);
    assert_eq!((of("step", "span_new").len(), of("step", "span_close").len()), (all, all));
    let (new, close) = (of("deep", "span_new"), of("deep", "span_close"));
    assert_eq!((new.len(), close.len()), (4 * deep, 4 * deep));
    // A call that calls itself: each inside the one before.
    assert_eq!(new.iter().filter(|event| field(event, "parent") != 0).count(), 3 * deep);
    // Results are those of their own call.
    let begun: HashMap<i64, i64> =
        of("step", "span_new").iter().map(|new| (field(new, "span"), field(new, "arg0"))).collect();
    for close in of("step", "span_close") {
        assert_eq!(field(close, "ret"), 3 * begun[&field(close, "span")] + 1);
    }
    Ok(())
}

#[test]
fn a_usdt_probe_tells_its_arguments_and_its_semaphore_is_raised() -> Result<()> {
    if !may() || !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let mut probed = Probed::start(THREADS, CALLS)?;
    assert_eq!(probed.work()?.raised, 0);
    let attached = Attached::start(&["-p", &probed.pid(), "usdt:probed:pass"])?;
    let raised = probed.work()?.raised;
    let ended = attached.stop()?;
    assert_eq!(raised, THREADS * CALLS, "{}", ended.stderr);
    // Lowered again.
    assert_eq!(probed.work()?.raised, raised);
    let events = ended.events()?;
    assert_eq!(events.len() as u64, THREADS * CALLS);
    let mut seqs = Vec::new();
    for event in &events {
        let seq = field(event, "arg0");
        let half = -(seq % CALLS.cast_signed());
        let rest = (field(event, "arg1"), field(event, "arg2"), field(event, "arg3"));
        assert_eq!(rest, (half, 2 * seq, -3), "{event}");
        seqs.push(seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (0..(THREADS * CALLS).cast_signed()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn what_the_kernel_cannot_probe_is_named_and_left_out() -> Result<()> {
    if !may() || !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let mut probed = Probed::start(1, CALLS)?;
    let pid = probed.pid();
    let attached = Attached::start(&["-p", &pid, "owlet_probed_*", "probed::work::*"])?;
    probed.work()?;
    let ended = attached.stop()?;
    // And what begins with a locked instruction, as compilers do it.
    let left_out = "warning: probed:owlet_probed_trap is left out: the kernel cannot probe the ";
    assert!(ended.said.contains(left_out), "{}", ended.said);
    assert_eq!(ended.hits("probed:owlet_probed_pass"), CALLS);
    assert_eq!(ended.hits("probed:probed::work::leaf"), CALLS);
    // Alone, there is nothing to attach to.
    let dir = tempfile::tempdir()?;
    let args = ["attach", "--kernel", "-p", &pid, "owlet_probed_trap", "--for", "1s"];
    let output = owlet()?.args(args).current_dir(&dir).output()?;
    let said = String::from_utf8(output.stderr)?;
    assert!(said.starts_with("error: the kernel refuses every site"), "{said}");
    assert_eq!((output.status.code(), std::fs::read_dir(&dir)?.count()), (Some(1), 0));
    Ok(())
}

/// Each is counted exactly, or left out with a reason; they do what they did in any case, or the program
/// would have ended.
#[test]
fn a2_a_lone_return_a_jump_and_odd_first_instructions_are_right_or_refused() -> Result<()> {
    if !may() || !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    const HITS: [(&str, u64); 4] = [("ret", 1), ("tail", 1), ("rip", 2), ("endbr", 1)];
    let mut probed = Probed::calm(THREADS, CALLS)?;
    let pid = probed.pid();
    let ways: [&[&str]; 2] = [&[], &["--latency", "--allow-abort"]];
    for way in ways {
        let attached = Attached::start(&[&["-p", &pid, "owlet_short_*"], way].concat())?;
        probed.work()?;
        let ended = attached.stop()?;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for (name, times) in HITS {
            let name = format!("probed:owlet_short_{name}");
            let left_out = format!("warning: {name} is left out: the kernel ");
            let expected = if ended.said.contains(&left_out) { 0 } else { times * THREADS * CALLS };
            assert_eq!(ended.hits(&name), expected, "{name}: {} {}", ended.said, ended.stdout);
        }
        // At least what begins with what any function may begin with.
        assert_ne!(ended.hits("probed:owlet_short_endbr"), 0, "{}", ended.said);
    }
    probed.work()?;
    Ok(())
}

/// The first byte of a function in the process' memory, and in its file.
fn bytes(probed: &Probed) -> Result<(u8, u8)> {
    let list = ["attach", "--kernel", "--list", "--json", "-p", &probed.pid(), "*::work::step"];
    let output = owlet()?.args(list).output()?;
    let site: Value = serde_json::from_slice(&output.stdout)?;
    let offset = site["offset"].as_u64().context("its offset")?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", probed.pid()))?;
    let address = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (range, rights, from) = (words.next()?, words.next()?, words.next()?);
        let (begin, end) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (begin, end, from) = (hex(begin)?, hex(end)?, hex(from)?);
        let inside = (from..from + (end - begin)).contains(&offset);
        (inside && rights.contains('x') && line.ends_with("probed")).then(|| begin + offset - from)
    });
    let (mut now, mut file) = ([0], [0]);
    let memory = std::fs::File::open(format!("/proc/{}/mem", probed.pid()))?;
    memory.read_exact_at(&mut now, address.context("where it is mapped")?)?;
    std::fs::File::open(env!("CARGO_BIN_EXE_probed"))?.read_exact_at(&mut file, offset)?;
    Ok((now[0], file[0]))
}

#[test]
fn a_killed_recorder_leaves_the_program_as_it_was() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::start(1, CALLS)?;
    let (before, file) = bytes(&probed)?;
    assert_eq!(before, file);
    let attached = Attached::start(&["-p", &probed.pid(), "probed::work::*"])?;
    probed.work()?;
    assert_ne!(bytes(&probed)?.0, file, "the breakpoint is there");
    attached.signal(libc::SIGKILL);
    let ended = attached.finish()?;
    assert_eq!(ended.code, None);
    // The kernel closes what was open some time after the parent is told.
    let end = Instant::now() + Duration::from_secs(60);
    while bytes(&probed)?.0 != file {
        ensure!(Instant::now() < end, "the breakpoint stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    probed.work()?;
    Ok(())
}

#[test]
fn it_ends_with_the_process_and_says_so() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::start(1, CALLS)?;
    let attached = Attached::start(&["-p", &probed.pid(), "*::leaf", "--where", "arg0 < 10"])?;
    probed.work()?;
    // The end of its input ends it.
    probed.input = None;
    probed.child.wait()?;
    let ended = attached.finish()?;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(" has ended\n"), "{}", ended.stderr);
    assert_eq!((ended.events()?.len(), ended.hits("probed:probed::work::leaf")), (10, CALLS));
    Ok(())
}

#[test]
fn what_finds_the_ring_full_is_counted() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::start(2, 20_000)?;
    let pid = probed.pid();
    let attached = Attached::start(&["-p", &pid, "*::leaf", "--size", "4K"])?;
    // Stopped, it does not read.
    attached.signal(libc::SIGSTOP);
    probed.work()?;
    attached.signal(libc::SIGCONT);
    let ended = attached.stop()?;
    let recorded = ended.events()?.len() as u64;
    let stat = owlet()?.args(["stat", "--json"]).arg(ended.dir.path().join("trace")).output()?;
    let last = ended.stderr.lines().last().unwrap_or_default();
    let lost =
        last.split("lost ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert_eq!(recorded + lost.context("its losses")?, 40_000, "{}", ended.stderr);
    assert!(recorded >= 4096 / 128 && last.contains("(full "), "{last}");
    let stat: Value = serde_json::from_slice(&stat.stdout)?;
    assert!(stat.to_string().contains("\"full\""), "the trace tells, too: {stat}");
    Ok(())
}

#[test]
fn every_process_that_runs_a_file_is_probed_when_none_is_named() -> Result<()> {
    if !may() {
        return Ok(());
    }
    let (mut one, mut other) = (Probed::start(1, CALLS)?, Probed::start(1, CALLS)?);
    let pattern = format!("{}:*::leaf", env!("CARGO_BIN_EXE_probed"));
    let attached = Attached::start(&[&pattern])?;
    one.work()?;
    other.work()?;
    let ended = attached.stop()?;
    let events = ended.events()?;
    for probed in [&one, &other] {
        let pid = i64::from(probed.child.id());
        let ours = events.iter().filter(|event| event["pid"].as_i64() == Some(pid)).count();
        // Other tests' programs may run meanwhile.
        assert_eq!(ours as u64, CALLS);
    }
    Ok(())
}

#[test]
fn perf_events_do_the_same_one_by_one() -> Result<()> {
    use owlet_uprobe::{Attachment, Events, Moments, Options, Pattern, Scope, Way, find};
    if !may() {
        return Ok(());
    }
    let mut probed = Probed::calm(THREADS, CALLS)?;
    let scope = Scope::Process(probed.child.id());
    let patterns = [Pattern::parse("*::leaf")?, Pattern::parse("usdt:probed:pass")?];
    let found = find(scope, &patterns).map_err(|nothing| nothing.error)?;
    let way = Some(Way::Perf);
    let (moments, ring_bytes, allow_abort) = (Moments::Latency, 1 << 20, true);
    let options = Options { scope, moments, ring_bytes, way, allow_abort };
    let mut attachment = Attachment::new(&found, &options)?;
    let raised = probed.work()?.raised;
    let mut hits = Vec::new();
    attachment.finish(&mut hits);
    let all = THREADS * CALLS;
    assert_eq!(raised, if cfg!(target_arch = "x86_64") { all } else { 0 });
    let (mut events, mut records) =
        (Events::new(&found.sites, moments, attachment.since()), Vec::new());
    hits.iter().for_each(|hit| events.push(hit, &mut records));
    assert_eq!(events.counts(), [all, all]);
    assert_eq!((events.running(), events.paired()), (0, owlet_uprobe::Paired::default()));
    assert!(hits.is_sorted_by_key(|hit| hit.time));
    Ok(())
}

#[test]
fn nobody_else_may() -> Result<()> {
    // SAFETY: takes nothing, always succeeds.
    if unsafe { libc::geteuid() } != 0 || !have("setpriv", "util-linux") {
        return Ok(());
    }
    let mut program = Command::new("sleep");
    let program = Program::start(program.arg("60"))?;
    let dir = tempfile::tempdir()?;
    // Where that user may run it.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let command = dir.path().join("owlet");
    std::fs::copy(owlet()?.get_program(), &command)?;
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&command)
        .args(["attach", "--kernel", "-p", &program.pid().to_string(), "main"])
        .current_dir("/")
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.starts_with(
        "error: the kernel lets nobody probe without CAP_BPF and CAP_PERFMON\nhint: "
    ));
    Ok(())
}
