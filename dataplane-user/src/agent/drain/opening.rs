//! Opens the tables for the thread that drains.
use std::sync::Arc;

use crate::{
    agent::{beat::Beat, reader::Reader, rescue_state::RescueState},
    conntrack::{Dump, Error, Family as Half, List, WantedFlow},
    drain::{Kernel, Known, Reopened},
    flags::monotonic_ns,
    ipvs,
};

/// The parts of the agent that opening the tables needs.
#[derive(Clone)]
pub(super) struct Opening {
    /// Deleted flows are remembered there, for packets on their way.
    pub(super) rescue: Arc<RescueState>,
    /// Lists conntrack.
    pub(super) reader: Reader,
    /// Told that the thread `drain` lives.
    pub(super) beat: Arc<Beat>,
}

impl Opening {
    /// # Errors
    /// As [`Kernel::open`].
    pub(super) fn open(&self) -> Result<Kernel, ipvs::Error> {
        Kernel::open(self.known(), self.reader.zone(), Some(Box::new(self.clone())))
    }

    /// Opens the tables once more, after they did not answer.
    pub(super) fn again(&self, error: &ipvs::Error) -> Reopened<Kernel> {
        match self.open() {
            Ok(kernel) => Reopened::Tables(kernel),
            Err(ipvs::Error::NotLoaded) => Reopened::Gone,
            Err(again) => {
                tracing::debug!(event = "ipvs-not-reopened", %error, %again, "IPVS cannot be opened again");
                Reopened::NotYet
            }
        }
    }

    /// Remembers flows before their entries are deleted. A packet that is handed over at this moment is rescued by its entry, or by what
    /// is remembered of the entry.
    fn known(&self) -> Known {
        let rescue = Arc::clone(&self.rescue);
        Box::new(move |flows| {
            if rescue.takes() {
                rescue.remember(flows);
            }
        })
    }
}

impl List for Opening {
    fn list(&mut self, wanted: Vec<(Half, WantedFlow)>) -> Result<Vec<Dump>, Arc<Error>> {
        // A large table is listed for seconds.
        self.reader.list_while(wanted, || self.beat.drain_lives(monotonic_ns()))
    }
}
