//! `owlet doctor`: what this machine can do, and what is in the way.

use crate::agents;
use crate::args::JsonArgs;
use crate::error::{Result, reason, show};
use crate::exit::Exit;
use crate::out::Out;
use crate::sockets;
use crate::text::{escape, plural};
use crate::units::size;
use owlet_percpu::Backend;
use owlet_sys::{clock, membarrier, runtime_dir};
use owlet_uprobe::{ErrorKind, Way};
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value};
use std::fs;
use std::io;

/// One line: what, how it stands, whether it is as good as it gets.
struct Finding {
    name: &'static str,
    text: String,
    good: bool,
}

/// Runs the subcommand. The status is a failure only when nothing can be recorded here.
pub(crate) fn run(args: &JsonArgs) -> Result<Exit> {
    let findings = examine();
    let mut out = Out::new();
    if args.json.on {
        let mut object = Map::new();
        for finding in &findings {
            object.insert(finding.name.into(), Value::String(finding.text.clone()));
        }
        let doubts: Vec<_> = findings.iter().filter(|f| !f.good).map(|f| f.name).collect();
        object.insert("doubts".into(), doubts.into());
        out.json(&Value::Object(object))?;
    } else {
        for Finding { name, text, good } in &findings {
            let (mark, color) = match good {
                true => ("ok  ", anstyle::AnsiColor::Green),
                false => ("note", anstyle::AnsiColor::Yellow),
            };
            let style = if out.color() { color.on_default() } else { anstyle::Style::new() };
            out.line(format_args!("{style}{mark}{style:#} {name:<12} {text}"))?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn examine() -> Vec<Finding> {
    let finding = |name, text: String, good| Finding { name, text, good };
    let backend = match owlet_percpu::backend() {
        Backend::Rseq => "rseq",
        Backend::Portable => "portable",
    };
    let tsc = clock::tsc_usable();
    let which = if tsc.usable { "TSC" } else { "CLOCK_MONOTONIC" };
    let cpus = owlet_percpu::cpus();
    let (barrier, barrier_good) = barrier();
    let (directory, directory_good) = directory();
    let (processes, processes_good) = processes();
    let (uprobes, uprobes_good) = uprobes();
    vec![
        finding(
            "owlet",
            format!("{} (wire version {})", env!("CARGO_PKG_VERSION"), owlet_wire::WIRE_VERSION),
            true,
        ),
        finding("kernel", kernel(), cfg!(target_os = "linux")),
        finding(
            "machine",
            format!("{}, {}", std::env::consts::ARCH, plural(cpus as u64, "possible CPU")),
            true,
        ),
        finding(
            "backend",
            format!("{backend}: {}", owlet_percpu::backend_why()),
            backend == "rseq" && !owlet_percpu::backend_unknown(),
        ),
        finding("clock", format!("{which}: {}", tsc.why), tsc.usable),
        finding("membarrier", barrier, barrier_good),
        finding("memory", memory(cpus), true),
        finding("limits", limits(), true),
        finding("seccomp", seccomp(), true),
        finding("sockets", directory, directory_good),
        finding("processes", processes, processes_good),
        finding("uprobes", uprobes, uprobes_good),
    ]
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    let text = |s: &std::ffi::CStr| escape(s.to_bytes());
    format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine()))
}

fn barrier() -> (String, bool) {
    match membarrier::query() {
        Ok(supported) => {
            let all = [
                ("private expedited", supported.private()),
                ("rseq", supported.rseq()),
                ("sync core", supported.sync_core()),
                ("global expedited", supported.global()),
            ];
            let missing: Vec<_> =
                all.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
            match missing.as_slice() {
                [] => (all.map(|(name, _)| name).join(", "), true),
                missing => (
                    format!("missing: {}; real fences are used instead", missing.join(", ")),
                    false,
                ),
            }
        }
        Err(error) => {
            (format!("{}; real fences are used instead", reason(&io::Error::from(error))), false)
        }
    }
}

/// What a session of default size takes.
fn memory(cpus: usize) -> String {
    let rings = 2 * cpus as u64 * (1 << 20);
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let available =
        available.map_or_else(String::new, |kb| format!(", {} available", size(kb << 10)));
    format!("{} of rings in a session of default size{available}", size(rings))
}

fn limits() -> String {
    let show =
        |value: Option<u64>| value.map_or_else(|| "unlimited".to_string(), |n| n.to_string());
    let files = getrlimit(Resource::Nofile).current;
    let memory = getrlimit(Resource::As).current;
    let locked = getrlimit(Resource::Memlock).current;
    let file_size = getrlimit(Resource::Fsize).current;
    format!(
        "open files {}, address space {}, locked memory {}, file size {}",
        show(files),
        show(memory),
        show(locked),
        show(file_size)
    )
}

fn seccomp() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mode = match field("Seccomp:") {
        Some("0") => "no filter",
        Some("1") => "strict mode",
        Some("2") => "a filter is on",
        _ => "unknown",
    };
    mode.to_string()
}

fn directory() -> (String, bool) {
    let dirs = sockets::own_dirs();
    for dir in &dirs {
        if dir.symlink_metadata().is_ok()
            && let Err(error) = runtime_dir::check(dir)
        {
            let why = reason(&io::Error::from(error));
            return (format!("{} cannot be trusted: {why}", show(dir)), false);
        }
    }
    if !dirs.iter().any(|dir| dir.exists()) {
        let first = show(&runtime_dir::path());
        return (format!("{first} (made by the first process that is traced)"), true);
    }
    let places: Vec<_> = dirs.iter().map(|dir| show(dir)).collect();
    (places.join(", "), true)
}

fn processes() -> (String, bool) {
    match agents::all() {
        Ok(agents) => {
            let answer = plural(agents.clients.len() as u64, "process");
            let silent = agents.troubled.len() as u64;
            match silent {
                0 => (format!("{answer} with an agent"), true),
                _ => (format!("{answer} with an agent, {silent} more could not be asked"), false),
            }
        }
        Err(failure) => (failure.message, false),
    }
}

/// Whether `owlet attach --kernel` works here; that it is for root only is no flaw.
fn uprobes() -> (String, bool) {
    match owlet_uprobe::available() {
        Ok(Way::Multi) => ("one link for all sites of a file (uprobe.multi)".into(), true),
        Ok(Way::Perf) => {
            ("one perf event a site: no uprobe.multi that filters by process".into(), false)
        }
        Err(error) => (error.message, error.kind == ErrorKind::Permission),
    }
}
