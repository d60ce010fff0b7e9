//! Shows progress while a benchmark runs.
use std::{
    io::{IsTerminal as _, Write as _},
    time::Instant,
};

/// A line of progress on stderr. On a terminal it is rewritten in place. Elsewhere it is printed once, at the end.
pub(crate) struct Progress {
    label: String,
    done: u32,
    of: u32,
    started: Instant,
    terminal: bool,
}

impl Progress {
    pub(crate) fn start(label: &str, of: u32) -> Self {
        let made = Self {
            label: label.to_owned(),
            done: 0,
            of,
            started: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
        };
        made.show();
        made
    }

    pub(crate) fn step(&mut self) {
        self.at(self.done + 1);
    }

    /// Sets the number of steps that are done.
    pub(crate) fn at(&mut self, done: u32) {
        let done = done.min(self.of);
        if done != self.done {
            self.done = done;
            self.show();
        }
    }

    fn show(&self) {
        if self.terminal {
            eprint!("\r\x1b[K{}  {}/{}", self.label, self.done, self.of);
            // An error is ignored: nothing depends on the line.
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let lead = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{lead}{}  {:.1} s", self.label, self.started.elapsed().as_secs_f64());
    }
}
