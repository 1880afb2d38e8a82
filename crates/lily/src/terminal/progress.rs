//! How far a transfer is: a bar when stderr is a terminal, otherwise a line now and then. How far a measurement is, which
//! only a person wants to know.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::note;
use crate::flags;

/// Between lines when there is no bar.
const LINES_APART: Duration = Duration::from_secs(15);

/// Takes what happens during a transfer.
pub trait Report {
    /// A line for people.
    fn note(&self, line: &str);
    /// `here` of `total` bytes are there.
    fn start(&self, here: u64, total: u64);
    /// A file begins, or goes on.
    fn file(&self, name: &str, size: u64);
    /// Bytes came.
    fn advance(&self, bytes: u64);
    /// Bytes that were there must come again.
    fn lose(&self, bytes: u64);
    /// All came.
    fn end(&self);
}

/// Reports to stderr.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: Cell<u64>,
    done: Cell<u64>,
    /// When the last line was printed, and what was done then.
    line: Cell<(Instant, u64)>,
}

impl Progress {
    /// With a bar if a person watches.
    pub fn new() -> Self {
        let person = std::io::stderr().is_terminal() && !flags::plain_output();
        let bar = person.then(|| {
            let shape = "{wide_msg} {bar:24} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        Self { bar, total: Cell::new(0), done: Cell::new(0), line: Cell::new((Instant::now(), 0)) }
    }

    fn line_now_and_then(&self) {
        let (at, before) = self.line.get();
        let apart = at.elapsed();
        if self.bar.is_some() || apart < LINES_APART {
            return;
        }
        let (done, total) = (self.done.get(), self.total.get());
        let percent = done as f64 / total.max(1) as f64 * 100.0;
        let speed = (done.saturating_sub(before) as f64 / apart.as_secs_f64()) as u64;
        let [done_words, total_words, speed] = [done, total, speed].map(human_bytes);
        note(format_args!("{done_words} of {total_words} ({percent:.0} %), {speed}/s"));
        self.line.set((Instant::now(), done));
    }
}

impl Report for Progress {
    fn note(&self, line: &str) {
        match &self.bar {
            // Before the start there is nothing to draw.
            Some(bar) if self.total.get() > 0 => bar.suspend(|| note(line)),
            Some(_) | None => note(line),
        }
    }

    fn start(&self, here: u64, total: u64) {
        self.total.set(total);
        self.done.set(here);
        self.line.set((Instant::now(), here));
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(here);
            bar.reset_eta(); // what was there did not come fast
            bar.enable_steady_tick(Duration::from_millis(250));
        }
    }

    fn file(&self, name: &str, size: u64) {
        match &self.bar {
            Some(bar) => bar.set_message(name.to_owned()),
            None => note(format_args!("{name} ({})", human_bytes(size))),
        }
    }

    fn advance(&self, bytes: u64) {
        self.done.set(self.done.get() + bytes);
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
        self.line_now_and_then();
    }

    fn lose(&self, bytes: u64) {
        self.done.set(self.done.get().saturating_sub(bytes));
        if let Some(bar) = &self.bar {
            bar.set_position(self.done.get());
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Tells a person at the terminal which round of a measurement runs; a pipe hears nothing.
pub struct Rounds {
    watched: bool,
    bar: Option<ProgressBar>,
}

impl Rounds {
    /// `total` rounds are to come.
    pub fn new(total: u64) -> Self {
        let watched = std::io::stderr().is_terminal();
        let bar = (watched && !flags::plain_output()).then(|| {
            let style = ProgressStyle::with_template("{wide_msg} {bar:24} {pos}/{len} {eta}");
            // No steady tick: a thread that draws would take part in the measurement.
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { watched, bar }
    }

    /// A round begins, of what kind in words.
    pub fn begin(&self, words: String) {
        match &self.bar {
            Some(bar) => bar.set_message(words),
            None if self.watched => note(words),
            None => {}
        }
    }

    /// It ended.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

/// However a measurement ends, the line is free for what comes.
impl Drop for Rounds {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Ends the line in which a bar may stand, for a program that ends without one.
pub fn leave_bar() {
    if std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr());
    }
}

/// A size in decimal units with three digits or so, as disks and downloads count.
pub fn human_bytes(bytes: u64) -> String {
    let scaled = |unit: f64| bytes as f64 / unit;
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.0} kB", scaled(1e3)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", scaled(1e6)),
        _ => format!("{:.2} GB", scaled(1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal() {
        let sizes = [0, 999, 1_000, 12_345_678, 19_500_000_000];
        assert_eq!(sizes.map(human_bytes), ["0 bytes", "999 bytes", "1 kB", "12.3 MB", "19.50 GB"]);
    }
}
