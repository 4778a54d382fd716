//! The workers of one benchmark, by the cases they have.

use super::report::Report;
use super::step::{self, Counts};
use super::worker::{Run, Started, Worker};
use crate::peers::urcu;
use anyhow::{Context, Result, anyhow};

/// Several workers, asked by case: no two have a case of the same name.
pub(crate) struct Contenders {
    workers: Vec<Worker>,
}

impl Contenders {
    /// Starts the `peers`, which are this program, and liburcu where it is installed.
    pub(crate) fn start(peers: &[&str], report: &mut Report) -> Result<Self> {
        let mut workers = Vec::new();
        for peer in peers {
            let worker = Worker::start(peer, &[])?.map_err(|why| anyhow!("{peer}: {why}"))?;
            workers.push(worker);
        }
        let urcu: Started = urcu::start().unwrap_or_else(|error| Err(format!("{error:#}")));
        match urcu {
            Ok(worker) => workers.push(worker),
            Err(why) => report.say(&format!("peer absent  liburcu: {why}")),
        }
        Ok(Self { workers })
    }

    /// Whether somebody has that case.
    pub(crate) fn has(&self, case: &str) -> bool {
        self.workers.iter().any(|worker| worker.has(case))
    }

    fn with(&mut self, case: &str) -> Result<&mut Worker> {
        let found = self.workers.iter_mut().find(|worker| worker.has(case));
        found.with_context(|| format!("nobody has {case:?}"))
    }

    /// As [`Worker::run`].
    pub(crate) fn run(&mut self, case: &str, threads: usize, n: u64) -> Result<Run> {
        self.with(case)?.run(case, threads, n)
    }

    /// As [`Worker::call`].
    pub(crate) fn call(&mut self, case: &str, numbers: &[u64]) -> Result<Vec<u64>> {
        self.with(case)?.call(case, numbers)
    }

    /// As [`step::count`].
    pub(crate) fn count(&mut self, case: &str, n: u64) -> Result<Counts> {
        step::count(self.with(case)?, case, n)
    }
}
