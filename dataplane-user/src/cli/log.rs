//! The log of `agent` and `guard`, on standard error. A thread of its own writes the log, so that no other thread waits for its reader. Where
//! lines come faster than they are read, lines that do not fit are lost, and `status` says how many.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _, Write as _},
    panic::{self, PanicHookInfo},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use tracing::{Level, Metadata};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    Layer as _, filter::filter_fn, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

use super::{
    exit::Exit,
    journal::{self, Prefixed},
    output::causes,
    values::LogFormat,
};
use crate::agent::{FilterError, Logging};

/// The largest number of lines that wait to be written.
const MOST: usize = 4096;
/// How long the end of the process waits at most for the last lines: the library's own limits (1.1 s) and a little more.
const LAST_LINES: Duration = Duration::from_millis(1300);

/// The log. Dropping this writes the waiting lines and ends the log.
pub(super) struct Log {
    writer: Prefixed<NonBlocking>,
    format: LogFormat,
    logging: Logging,
    /// Writes the waiting lines when it is dropped.
    worker: Option<WorkerGuard>,
}

impl Log {
    /// Begins the log.
    ///
    /// # Errors
    /// Fails if the value of `RUST_LOG` is no filter.
    pub(super) fn begin(format: LogFormat) -> Result<Self, FilterError> {
        let filter = Logging::first_filter(std::env::var_os("RUST_LOG").as_deref())?;
        let (writer, worker) = NonBlockingBuilder::default()
            .buffered_lines_limit(MOST)
            .lossy(true)
            .thread_name("log-writer")
            .finish(io::stderr());
        let (filter, handle) = reload::Layer::new(filter);
        let logging = Logging::new(writer.error_counter(), handle);
        let writer = Prefixed { to: writer, journal: journal::reads(io::stderr()) };
        // A line that cannot be written is lost. By default the library reports that on standard error, where writing just failed.
        let log = fmt::layer().with_writer(writer.clone()).with_target(false).log_internal_errors(false);
        let log = match format {
            LogFormat::Json => log.json().flatten_event(true).boxed(),
            LogFormat::Text => {
                let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                log.with_ansi(io::stderr().is_terminal() && !plain).boxed()
            }
        };
        let log = log.with_filter(filter_fn(is_written));
        tracing_subscriber::registry().with(filter).with(log).init();
        // The default hook writes to standard error itself. A panicking thread that waits there would never end.
        panic::set_hook(Box::new(panicked));
        Ok(Self { writer, format, logging, worker: Some(worker) })
    }

    /// The handle to read and change the log's settings.
    pub(super) fn logging(&self) -> Logging {
        self.logging.clone()
    }

    /// Logs the error with which the process ends, after all other lines. Returns the exit code.
    pub(super) fn fails(self, error: &anyhow::Error) -> Exit {
        let causes = causes(error);
        match self.format {
            LogFormat::Json if tracing::enabled!(Level::ERROR) => {
                tracing::error!(event = "failed", "{causes}");
            }
            // The filter drops errors. The reason why the process ends is written all the same.
            LogFormat::Json => {
                let time = jiff::Timestamp::now().to_string();
                let line = serde_json::json!({
                    "timestamp": time, "level": "ERROR", "event": "failed", "message": causes
                });
                let _never_fails = self.writer.of(Level::ERROR).write_all(format!("{line}\n").as_bytes());
            }
            // The line has the form of every command's errors, and names its event as other lines of the log do.
            LogFormat::Text => {
                let line = format!("nodefence: {causes} event=\"failed\"\n");
                let _never_fails = self.writer.of(Level::ERROR).write_all(line.as_bytes());
            }
        }
        Exit::of(error)
    }
}

/// kube's crates warn of a watch that failed. The agent's own line `api-server-away` says the same, once.
fn is_written(of: &Metadata<'_>) -> bool {
    !of.target().starts_with("kube_") || *of.level() > Level::WARN
}

impl Drop for Log {
    fn drop(&mut self) {
        let (done, over) = channel::<()>();
        let worker = self.worker.take();
        // The library reports on standard output that its wait failed. Nobody may read that either, so another thread does this.
        let _flushing = thread::Builder::new().name("log-end".to_owned()).spawn(move || {
            drop(worker);
            drop(done);
        });
        let _over_or_late = over.recv_timeout(LAST_LINES);
    }
}

fn panicked(panic: &PanicHookInfo<'_>) {
    tracing::error!(
        event = "panicked",
        thread = thread::current().name(),
        place = panic.location().map(tracing::field::display),
        "panicked: {}",
        panic.payload_as_str().unwrap_or("without a message")
    );
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!(event = "panic-trace", "{trace}");
    }
}
