//! What a recording shows while it runs: one line that is rewritten on a terminal; nothing
//! elsewhere, unless asked for, and then one line a second.

use crate::out::note;
use crate::text::count;
use crate::units::{clock, rate, size};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// How a recording stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) events: u64,
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
    pub(crate) processes: usize,
}

enum Style {
    Silent,
    Bar(ProgressBar),
    Lines,
}

/// The line.
pub(crate) struct Progress {
    style: Style,
    begin: Instant,
    shown: Instant,
    events: u64,
}

impl Progress {
    /// `wanted` shows progress even where nobody rewrites lines.
    pub(crate) fn new(wanted: bool) -> Self {
        let style = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            bar.set_style(
                ProgressStyle::with_template("{msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            Style::Bar(bar)
        } else if wanted {
            Style::Lines
        } else {
            Style::Silent
        };
        let now = Instant::now();
        Self { style, begin: now, shown: now, events: 0 }
    }

    /// Shows how things stand, as often as the style wants it.
    pub(crate) fn show(&mut self, standing: &Standing) {
        self.show_with(standing, String::new);
    }

    /// As [`Self::show`], with something more at the end of the line.
    pub(crate) fn show_with(&mut self, standing: &Standing, more: impl FnOnce() -> String) {
        let every = match self.style {
            Style::Silent => return,
            Style::Bar(_) => Duration::from_millis(200),
            Style::Lines => Duration::from_secs(1),
        };
        let now = Instant::now();
        let since = now - self.shown;
        if since < every {
            return;
        }
        let per_second = standing.events.saturating_sub(self.events) as f64 / since.as_secs_f64();
        let line = format!(
            "recording {}  {} events  {}/s  lost {}  {}  processes {}{}",
            clock(now - self.begin),
            count(standing.events),
            rate(per_second),
            count(standing.lost),
            size(standing.bytes),
            standing.processes,
            more(),
        );
        self.shown = now;
        self.events = standing.events;
        match &self.style {
            Style::Bar(bar) => bar.set_message(line),
            Style::Lines => note!("{line}"),
            Style::Silent => {}
        }
    }

    /// A line that stays, above the one that is rewritten.
    pub(crate) fn note(&self, line: &str) {
        match &self.style {
            Style::Bar(bar) => bar.suspend(|| note!("{line}")),
            Style::Lines | Style::Silent => note!("{line}"),
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}
