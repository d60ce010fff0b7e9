//! The log of `agent` and `guard`, at standard error. A thread of its own writes it: no other one waits for whoever reads it. Where lines come faster than they are
//! read, those are lost that do not fit, and `status` says how many.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _, Write as _},
    panic::{self, PanicHookInfo},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use tracing::Level;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer as _, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

use super::{
    exit::Exit,
    journal::{self, Prefixed},
    output::causes,
    values::LogFormat,
};
use crate::agent::Logging;

/// Lines that wait to be written at most.
const MOST: usize = 4096;
/// How long the end waits at most until they are: the library's own limits (1.1 s) and a little more.
const LAST_LINES: Duration = Duration::from_millis(1300);

/// The log, for as long as the process has something to say.
pub(super) struct Log {
    writer: Prefixed<NonBlocking>,
    format: LogFormat,
    logging: Logging,
    /// Has what waits written where it is dropped.
    worker: Option<WorkerGuard>,
}

impl Log {
    /// Begins it.
    pub(super) fn begin(format: LogFormat) -> Self {
        let (writer, worker) = NonBlockingBuilder::default()
            .buffered_lines_limit(MOST)
            .lossy(true)
            .thread_name("log-writer")
            .finish(io::stderr());
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let (filter, handle) = reload::Layer::new(filter);
        let logging = Logging::new(writer.error_counter(), handle);
        let writer = Prefixed { to: writer, journal: journal::reads(io::stderr()) };
        // What cannot be written is lost. By default that is told at standard error, which is what cannot be written to.
        let log = fmt::layer().with_writer(writer.clone()).with_target(false).log_internal_errors(false);
        let log = match format {
            LogFormat::Json => log.json().flatten_event(true).boxed(),
            LogFormat::Text => {
                let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                log.with_ansi(io::stderr().is_terminal() && !plain).boxed()
            }
        };
        tracing_subscriber::registry().with(filter).with(log).init();
        // The default hook writes to standard error itself, and a thread that waits there never falls.
        panic::set_hook(Box::new(panicked));
        Self { writer, format, logging, worker: Some(worker) }
    }

    /// What of it can be asked and changed.
    pub(super) fn logging(&self) -> Logging {
        self.logging.clone()
    }

    /// Says what the process ends with, after all other lines, and gives its exit code.
    pub(super) fn fails(self, error: &anyhow::Error) -> Exit {
        let causes = causes(error);
        match self.format {
            LogFormat::Json => tracing::error!(event = "failed", "{causes}"),
            // As every command does.
            LogFormat::Text => {
                let line = format!("nodefence: {causes}\n");
                let _never_fails = self.writer.of(Level::ERROR).write_all(line.as_bytes());
            }
        }
        Exit::of(error)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (done, over) = channel::<()>();
        let worker = self.worker.take();
        // The library tells at standard output that it has waited in vain, and nobody may read that either.
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
