//! The measuring side of a worker. The protocol is in [`serve`](super::serve).

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What one thread of a run took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// CPU time, user and system.
    pub(crate) cpu_ns: u64,
    /// Time on the wall.
    pub(crate) wall_ns: u64,
}

/// What a run took, thread by thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// In the order the threads were started.
    pub(crate) threads: Vec<Spent>,
}

impl Run {
    /// Mean CPU time of a thread.
    pub(crate) fn cpu_ns(&self) -> f64 {
        self.mean(|t| t.cpu_ns)
    }

    /// Mean wall time of a thread.
    pub(crate) fn wall_ns(&self) -> f64 {
        self.mean(|t| t.wall_ns)
    }

    /// The smallest share of a CPU any thread got.
    pub(crate) fn utilisation(&self) -> f64 {
        let share = |t: &Spent| t.cpu_ns as f64 / t.wall_ns.max(1) as f64;
        self.threads.iter().map(share).fold(f64::INFINITY, f64::min)
    }

    fn mean(&self, of: impl Fn(&Spent) -> u64) -> f64 {
        let sum: u64 = self.threads.iter().map(of).sum();
        sum as f64 / self.threads.len().max(1) as f64
    }
}

/// A worker process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    cases: Vec<String>,
}

/// A worker, or why there is none: a peer that is not installed is no error.
pub(crate) type Started = std::result::Result<Worker, String>;

impl Worker {
    /// Starts this program as a worker for `peer` with more environment.
    pub(crate) fn start(peer: &str, env: &[(&str, String)]) -> Result<Started> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["worker", peer]).envs(env.iter().map(|(k, v)| (k, v)));
        Self::start_program(command).with_context(|| format!("start the worker {peer}"))
    }

    /// Starts any program that speaks the protocol.
    pub(crate) fn start_program(mut command: Command) -> Result<Started> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut worker = Self { child, input, output, cases: Vec::new() };
        let hello = worker.line()?;
        if let Some(why) = hello.strip_prefix("absent ") {
            return Ok(Err(why.to_owned()));
        }
        let cases = hello.strip_prefix("ready ").with_context(|| format!("it says {hello:?}"))?;
        worker.cases = cases.split(' ').map(str::to_owned).collect();
        Ok(Ok(worker))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    /// Whether it has a case of that name.
    pub(crate) fn has(&self, case: &str) -> bool {
        self.cases.iter().any(|c| c == case)
    }

    /// Runs `case` with `n` iterations in each of `threads` threads and waits for it.
    pub(crate) fn run(&mut self, case: &str, threads: usize, n: u64) -> Result<Run> {
        self.ask_run(case, threads, 0, n)?;
        self.end_run()
    }

    /// Starts a run, the first thread on `cpu`, and does not wait.
    pub(crate) fn ask_run(&mut self, case: &str, threads: usize, cpu: usize, n: u64) -> Result<()> {
        self.ask(&format!("run {case} {threads} {cpu} {n}"))
    }

    /// Waits for the run's end.
    pub(crate) fn end_run(&mut self) -> Result<Run> {
        let numbers = self.answer()?;
        let threads = numbers.as_chunks::<2>().0.iter();
        Ok(Run { threads: threads.map(|&[cpu_ns, wall_ns]| Spent { cpu_ns, wall_ns }).collect() })
    }

    /// What `case` answers to `numbers`.
    pub(crate) fn call(&mut self, case: &str, numbers: &[u64]) -> Result<Vec<u64>> {
        let numbers: String = numbers.iter().map(|n| format!(" {n}")).collect();
        self.ask(&format!("call {case}{numbers}"))?;
        self.answer().with_context(|| format!("call {case}{numbers}"))
    }

    /// Sends a request.
    pub(crate) fn ask(&mut self, request: &str) -> Result<()> {
        let input = self.input.as_mut().context("the worker was told to end")?;
        writeln!(input, "{request}").with_context(|| format!("ask the worker to {request}"))
    }

    /// The numbers of the answer.
    pub(crate) fn answer(&mut self) -> Result<Vec<u64>> {
        let line = self.line()?;
        let Some(numbers) = line.strip_prefix("ok") else { bail!("the worker says {line:?}") };
        let parse = |n: &str| n.parse().with_context(|| format!("the worker says {line:?}"));
        numbers.split_ascii_whitespace().map(parse).collect()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the worker ended without an answer ({})", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.input = None;
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if !ended {
            // It ends at the end of its input; a stopped or stuck one must not hold us up.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_that_of_the_worst_thread() {
        let spent = |cpu_ns, wall_ns| Spent { cpu_ns, wall_ns };
        let run = Run { threads: vec![spent(90, 100), spent(30, 100)] };
        assert_eq!(run.utilisation(), 0.3);
        assert_eq!(run.cpu_ns(), 60.0);
    }
}
