//! The command line. This tree is the only source of flags: `--help`, completions and the man page
//! come from it.

use crate::error::Result;
use crate::exit::Exit;
use crate::out::Out;
use crate::units::{parse_duration, parse_ring_size};
use clap::builder::{PossibleValue, StyledStr, ValueHint};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use owlet_wire::filter::{Filter, Side};
use owlet_wire::schema::Level;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Turn trace points on and off in running programs, record them, read them back.
#[derive(Debug, Parser)]
#[command(name = "owlet", version, max_term_width = 100, after_long_help = crate::exit::help(), subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One variant a subcommand; each has its module under `commands`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show processes that can be traced, or the trace points of some.
    ///
    /// Without an argument: one line a process. With a PID: the trace points of that process. With a
    /// pattern: the trace points of all processes, or of those of --pid, whose name it matches.
    List(ListArgs),
    /// Record trace points of running processes, or of a command, into a trace directory.
    ///
    /// Ends by Ctrl-C, after --duration, or when the processes have ended. The last line on stderr
    /// always says how many events were recorded and how many were lost, and why.
    #[command(after_long_help = filter_help(), override_usage = "owlet record [OPTIONS] --pid <PID>...\n       owlet record [OPTIONS] -- <CMD>...")]
    Record(RecordArgs),
    /// Switch trace points on in the running recordings of processes.
    Enable(ToggleArgs),
    /// Switch trace points off in the running recordings of processes.
    Disable(ToggleArgs),
    /// Record functions of a process while it runs: traced ones, or through the kernel any.
    ///
    /// Without --kernel: functions with `#[owlet::traced]` of a process that links Owlet, with their arguments
    /// and results as fields; a recorded entry costs it some 50 ns, an exit or a span 150.
    ///
    /// With --kernel: functions and USDT probes of a process that does not. The kernel puts breakpoints on
    /// what the patterns match and takes them off when this ends, however it ends. A hit costs the program
    /// about a microsecond.
    ///
    /// Ends by Ctrl-C, after --duration, or when
    /// the process has ended; stdout then says how often each was hit. The trace directory is that of
    /// `owlet record`: `owlet report`, `stat` and `export` read it.
    #[command(after_long_help = attach_help(), override_usage = "owlet attach [OPTIONS] --pid <PID> <PATTERN>...\n       owlet attach --kernel [OPTIONS] --pid <PID> <PATTERN>...\n       owlet attach --kernel [OPTIONS] <PATTERN with a path>...")]
    Attach(AttachArgs),
    /// Take traced functions away from the commands that are attached to them.
    ///
    /// They go on without these functions. What a command attached goes with the command anyway, however it
    /// ends.
    Detach(DetachArgs),
    /// Count calls of traced functions in histograms, by powers of two.
    ///
    /// Counted in the process, every call, without a trace: the latency, or the values of a field (of text its
    /// length). Ends by Ctrl-C or after --duration.
    #[command(after_long_help = filter_help())]
    Hist(HistArgs),
    /// Print a trace's events, merged by time.
    ///
    /// ` (N lost before)` at the end of a line: so many events were lost between this packet of the
    /// stream, whose first event it is, and the one before. When something of the trace is missing or
    /// damaged, the rest is printed and the status is 6.
    #[command(after_long_help = filter_help())]
    Report(ReportArgs),
    /// Print counts, rates and span latencies of a trace.
    ///
    /// When something of the trace is missing or damaged, the rest is counted and the status is 6.
    Stat(StatArgs),
    /// Convert a trace for another tool.
    Export(ExportArgs),
    /// Repair a trace whose recorder was killed, so that strict readers accept it.
    ///
    /// Cuts what is no whole packet and keeps it beside, in files called .cut-NAME. A packet that was
    /// being written at the end of a file is what a killed recorder leaves; when anything else was
    /// cut, or something cannot be repaired, the status is 6. A trace that is being recorded is left
    /// alone.
    Recover(RecoverArgs),
    /// Say what this machine can do, and what is in the way.
    Doctor(JsonArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the man page, or that of one subcommand, as roff source.
    ///
    /// To read it: owlet man record | man -l -
    Man(ManArgs),
    /// Start an instrumented server, record it live, and show the result.
    Demo(DemoArgs),
    /// The server that `demo` starts.
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// A process, or a pattern over trace points' names (`*` and `?` match any characters).
    #[arg(value_name = "PID|PATTERN", long_help = pattern_help("A process, or a pattern over trace points' names."))]
    pub(crate) what: Option<String>,
    /// Only the trace points of these processes.
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The trace directory to create; default: owlet-trace-NAME-TIME here.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Record trace points whose name matches (`*`, `?`); with `!` in front, leave them out.
    /// May be given several times, the last match wins; default: all.
    #[arg(short, long = "event", value_name = "PATTERN", value_parser = parse_pattern, long_help = pattern_help(
        "Record trace points whose name matches; with `!` in front, leave them out. May be given several \
         times, the last match wins; default: all."
    ))]
    pub(crate) events: Vec<String>,
    /// Only events this severe or more so.
    #[arg(long, value_name = "LEVEL", default_value = "trace", ignore_case = true)]
    pub(crate) level: LevelArg,
    /// Only events for which this holds; decided inside the traced process.
    #[arg(long = "where", value_name = "EXPR", value_parser = parse_target_filter)]
    pub(crate) filter: Option<String>,
    /// Size of the ring of each CPU, as in 4M; rounded up to a power of two.
    #[arg(long, value_name = "N", value_parser = parse_ring_size, default_value = "1M")]
    pub(crate) size: u64,
    /// Stop after this time, as in 5s, 500ms or 2m.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Go on when a pattern matches no trace point yet: it may appear later.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Show progress even when stderr is no terminal, one line a second.
    #[arg(long)]
    pub(crate) progress: bool,
    /// Processes to record.
    #[arg(short, long = "pid", value_name = "PID", num_args = 1.., value_delimiter = ',', required_unless_present = "command", conflicts_with = "command", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// A command to start and record from its first event to its end.
    #[arg(last = true, value_name = "CMD", num_args = 1.., value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ToggleArgs {
    /// Trace points by name; `*` and `?` match any characters.
    #[arg(required = true, value_name = "PATTERN", value_parser = parse_pattern, long_help = pattern_help(
        "Trace points by name. What the recording's --level or --where leaves out stays out."
    ))]
    pub(crate) patterns: Vec<String>,
    /// Only in these processes; default: all of this user.
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// What to attach to: traced functions by name; with --kernel `[OBJECT:]FUNCTION` or
    /// `usdt:[OBJECT:]PROVIDER:NAME`; `*` and `?` match any characters.
    #[arg(required = true, value_name = "PATTERN", long_help = ATTACH_PATTERNS)]
    pub(crate) patterns: Vec<String>,
    /// The process; with --kernel and without it, every process that runs the files which the patterns
    /// name by their paths.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Through the kernel: needs nothing of the process, but root, or CAP_BPF and CAP_PERFMON.
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Record when functions are entered (the default), with their arguments.
    #[arg(long)]
    pub(crate) entry: bool,
    /// Record when functions return, with their result.
    #[arg(long)]
    pub(crate) exit: bool,
    /// Record calls as spans with their durations; `owlet stat` shows the latencies.
    #[arg(long, conflicts_with_all = ["entry", "exit"])]
    pub(crate) latency: bool,
    /// Watch returns even of a program that can unwind: a panic or an exception that passes a watched call
    /// then aborts the program, since the kernel replaces return addresses on its stack.
    #[arg(long)]
    pub(crate) allow_abort: bool,
    /// Run an eBPF program of an object file that clang made on every call, instead of recording; with
    /// several in the file, say which: FILE.o:NAME. It is verified here; records of its ring
    /// buffers are shown as they come, its other maps at the end.
    #[arg(long, value_name = "FILE[:PROGRAM]", conflicts_with_all = ["kernel", "entry", "exit", "latency", "output"])]
    pub(crate) prog: Option<String>,
    /// Only events for which this holds; of traced functions: only calls, decided inside the process.
    #[arg(long = "where", value_name = "EXPR", value_parser = parse_target_filter)]
    pub(crate) filter: Option<String>,
    /// Show what the patterns match, and attach to nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// The trace directory to create; default: owlet-trace-NAME-TIME here.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Size of the ring of each CPU, or of the one between kernel and recorder, as in 16M; rounded up to a
    /// power of two.
    #[arg(long, value_name = "N", value_parser = parse_ring_size, default_value = "4M")]
    pub(crate) size: u64,
    /// Stop after this time, as in 5s, 500ms or 2m.
    #[arg(long, visible_alias = "for", value_name = "T", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Show progress even when stderr is no terminal, one line a second.
    #[arg(long)]
    pub(crate) progress: bool,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// Traced functions by name (`*` and `?` match any characters); default: all.
    #[arg(value_name = "PATTERN")]
    pub(crate) patterns: Vec<String>,
    /// The process.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,
}

#[derive(Debug, Args)]
pub(crate) struct HistArgs {
    /// Traced functions by name; `*` and `?` match any characters.
    #[arg(required = true, value_name = "PATTERN")]
    pub(crate) patterns: Vec<String>,
    /// The process.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,
    /// Count this instead of the latency: a parameter, or `ret`.
    #[arg(long, value_name = "F")]
    pub(crate) field: Option<String>,
    /// A histogram for each value of this field, instead of each function.
    #[arg(long, value_name = "F")]
    pub(crate) by: Option<String>,
    /// Only calls for which this holds.
    #[arg(long = "where", value_name = "EXPR", value_parser = parse_target_filter)]
    pub(crate) filter: Option<String>,
    /// Stop after this time, as in 5s, 500ms or 2m.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The trace directory.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Only events for which this holds.
    #[arg(long = "where", value_name = "EXPR", value_parser = parse_reader_filter)]
    pub(crate) filter: Option<String>,
    /// List the trace's event types and their fields instead of the events.
    #[arg(long)]
    pub(crate) fields: bool,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// The trace directory.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Write a Perfetto trace to FILE (`-` for stdout), for <https://ui.perfetto.dev>. A pipe or device
    /// is written to; a file is replaced when the export is whole, links are followed.
    #[arg(long, value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) perfetto: PathBuf,
    /// The trace directory.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The trace directory; repaired in place.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// A subcommand, as in `owlet man record`; default: owlet itself with all of them.
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Write every page into this directory instead, as owlet.1, owlet-record.1 and so on.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How long to record.
    #[arg(long, value_name = "T", value_parser = parse_duration, default_value = "4s")]
    pub(crate) duration: Duration,
    /// Where to leave the trace and the Perfetto file; default: owlet-demo-TIME here.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoServerArgs {
    /// Client threads.
    #[arg(long, default_value_t = 2)]
    pub(crate) clients: u32,
    /// Requests a second of each client.
    #[arg(long, default_value_t = 400)]
    pub(crate) rate: u32,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

#[derive(Debug, Args)]
pub(crate) struct JsonFlag {
    /// Print JSON, one object a line.
    #[arg(long = "json")]
    pub(crate) on: bool,
}

/// A level as an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelArg(pub(crate) Level);

impl ValueEnum for LevelArg {
    fn value_variants<'a>() -> &'a [Self] {
        use Level::{Debug, Error, Info, Trace, Warn};
        &[Self(Error), Self(Warn), Self(Info), Self(Debug), Self(Trace)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(crate::names::level(self.0)))
    }
}

fn parse_pattern(text: &str) -> std::result::Result<String, String> {
    let pattern = text.strip_prefix('!').unwrap_or(text);
    if pattern.is_empty() {
        Err("a pattern cannot be empty; `*` matches everything".into())
    } else if pattern.chars().any(char::is_control) {
        Err("trace points have no control characters in their names".into())
    } else {
        Ok(text.into())
    }
}

fn parse_target_filter(text: &str) -> std::result::Result<String, String> {
    check_filter(text, Side::Target)
}

fn parse_reader_filter(text: &str) -> std::result::Result<String, String> {
    check_filter(text, Side::Reader)
}

fn check_filter(text: &str, side: Side) -> std::result::Result<String, String> {
    let checked = Filter::parse(text).and_then(|filter| filter.validate(side));
    checked.map(|()| text.to_string()).map_err(|error| match error.hint.as_str() {
        "" => error.to_string(),
        hint => format!("{error}\nhint: {hint}"),
    })
}

/// What a pattern is matched with.
const NAMES: &str = "\
A name is TARGET:NAME, with one `:` between them; `*` and `?` match any characters, `:` included.
`app::db*` is all of a module and what lies below it, `app::db:*` the module alone.
  span          app::db:query        the module, and what the span is called
  event         app::db:store.rs:42  the module, file and line, or the name it was given
  trace point   cache:lookup         the provider, and the event of `tracepoint!`";

fn pattern_help(what: &str) -> String {
    format!("{what}\n\n{NAMES}")
}

/// What `attach` takes.
const ATTACH_PATTERNS: &str = "\
What to attach to. `*` and `?` match any characters; names are demangled, Rust's without their hash, C++'s \
with or without parameters. OBJECT is the name of a file that the process runs, or its path.
  dict*                      functions of the program itself
  libssl*:SSL_read           of a library
  mycrate::cmd::*            a Rust module and what lies below it
  usdt:postgresql:query*     USDT probes, PROVIDER:NAME, of any file of the process
  usdt:/usr/sbin/server:p:*  of that file; without --pid: in every process that runs it";

fn attach_help() -> String {
    format!(
        "Fields of traced functions' events: their parameters by name; at the exit also ret, phase (return, unwind, \
         drop) and duration_ns.\nFields through the kernel: arg0 to arg5 are what the argument registers hold, ret is the result \
         register;\na USDT probe's arg0, .. have the widths that it declares.\n\n{}",
        filter_help()
    )
}

fn filter_help() -> String {
    format!("{}\n\n{}", owlet_wire::filter::HELP.trim_end(), crate::exit::help())
}

/// Longer values are cut in messages about them.
const SHOWN: usize = 80;

/// Prints what clap says. Help and versions are data: they go to stdout, and fail where it does.
pub(crate) fn answer(error: clap::Error) -> Result<Exit> {
    if error.use_stderr() {
        error.exit();
    }
    let mut out = Out::new();
    out.bytes(error.render().ansi().to_string().as_bytes())?;
    out.finish()?;
    Ok(Exit::Done)
}

/// What clap says of a bad command line, made fit to be read: values that are too long are cut, the
/// closest subcommand comes first, and `owlet record CMD` is told what it lacks.
pub(crate) fn told(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.chars().count() > SHOWN
    {
        let start: String = value.chars().take(SHOWN).collect();
        error.insert(ContextKind::InvalidValue, ContextValue::String(format!("{start}..")));
    }
    if let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand)
    {
        let mut names = names.clone();
        names.sort_by_key(|name| strsim::damerau_levenshtein(wrong, name));
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    let recording = std::env::args_os().nth(1).is_some_and(|word| word == "record");
    if recording
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && !word.starts_with('-')
    {
        let word = crate::text::escape(word.as_bytes());
        let tip = format!("to record a command, put `--` in front of it: owlet record -- {word}");
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}
