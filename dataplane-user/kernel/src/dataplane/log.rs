//! The kernel programs' own log, for debugging. It has only sampled cuts, and only if [`super::Options::log_cuts`] asks for it.
#![expect(unsafe_code, reason = "registering a descriptor with tokio")]
use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

use super::error::Error;

/// Reads aya-log's records and hands them to this process's log.
pub struct CutLog {
    logger: AsyncFd<EbpfLogger<Cuts>>,
}

/// Gives each record the key `event`, which every line of the log has. This process's log decides what is written.
struct Cuts;

impl ::log::Log for Cuts {
    fn enabled(&self, _: &::log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &::log::Record<'_>) {
        tracing::info!(event = "cut", "{}", record.args());
    }

    fn flush(&self) {}
}

impl CutLog {
    /// Must be called in a tokio runtime, and only once, since it takes the map.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let logger =
            EbpfLogger::init_with_logger(ebpf, Cuts).map_err(|error| Error::Log(error.to_string()))?;
        // SAFETY: the logger owns its descriptor, and gives the same one until it is dropped. It is dropped together with `AsyncFd`.
        let logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
        Ok(Self { logger: logger.map_err(|error| Error::call("wait on the log map")(error.into()))? })
    }

    /// Logs the records that come, for as long as it is polled.
    pub async fn follow(&mut self) -> Result<(), Error> {
        loop {
            let mut guard = self.logger.readable_mut().await.map_err(Error::call("wait on the log map"))?;
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    }
}
