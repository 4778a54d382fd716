//! Processes whose agent has hung up. Most have ended; one that goes on has executed another program, or
//! closed its agent's connection, and is not recorded any more. Which it is shows a moment later.
//!
//! A program that is executed under `record -- CMD` has the session in its environment and joins by
//! itself if it can; nothing is said there.

use super::LINGER;
use super::session::Target;
use crate::agents;
use crate::procfs;
use std::time::Instant;

/// Processes that are gone, or not.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    waiting: Vec<(Instant, u32, Option<[u64; 3]>)>,
    /// Some go on without being recorded.
    pub(crate) some_go_on: bool,
}

impl Departed {
    /// Takes in processes whose agent has hung up.
    pub(crate) fn add(&mut self, targets: Vec<Target>) {
        let now = Instant::now();
        self.waiting.extend(targets.iter().map(|target| (now, target.client.pid, target.image)));
    }

    /// What is to be said of those that go on. At the `end` it is not waited for those that have hung up
    /// just now. `recorded` are the processes that still are, by another agent or again.
    pub(crate) fn look(&mut self, end: bool, recorded: &[Target]) -> Vec<String> {
        let due = |(since, ..): &mut (Instant, _, _)| end || since.elapsed() >= LINGER;
        let due: Vec<_> = self.waiting.extract_if(.., due).collect();
        let mut said = Vec::new();
        for (since, pid, before) in due {
            if !procfs::runs(pid) || recorded.iter().any(|target| target.client.pid == pid) {
                continue;
            }
            let now = procfs::image(pid);
            if before.is_some() && now.is_some() && now != before {
                let name = agents::name(pid);
                said.push(format!(
                    "process {pid} has executed another program ({name}), which is not recorded"
                ));
            } else if since.elapsed() >= LINGER {
                let who = agents::describe(pid);
                said.push(format!(
                    "{who} has closed its agent's connection, and is not recorded any more"
                ));
            }
        }
        // A process may have several agents.
        said.dedup();
        self.some_go_on |= !said.is_empty();
        said
    }
}
