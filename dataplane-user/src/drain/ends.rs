use std::io;

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

/// The signals that ask for a guard's end. They end nothing by themselves: the guard looks for them.
#[derive(Debug)]
pub struct Ends {
    signals: SignalFd,
    told: Option<&'static str>,
}

impl Ends {
    /// Holds the signals from now on. Call it before the process has another thread: the kernel gives a signal to any thread that does not
    /// block it, and that ends the process.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn hold() -> io::Result<Self> {
        let mut ends = SigSet::empty();
        ends.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        ends.thread_block()?;
        let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { signals, told: None })
    }

    /// The first signal that came, if any.
    pub(super) fn told(&mut self) -> Option<&'static str> {
        if self.told.is_none()
            && let Ok(Some(info)) = self.signals.read_signal()
        {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            let signal = signal.map_or("a signal", Signal::as_str);
            tracing::info!(
                event = "guard-told-to-end",
                signal,
                "the guard was told to end, and ends once nothing is left to be restored"
            );
            self.told = Some(signal);
        }
        self.told
    }
}
