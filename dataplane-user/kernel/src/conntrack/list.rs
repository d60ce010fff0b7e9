//! Listings of conntrack that several waiters may share.
use std::sync::Arc;

use super::{Backends, Conntrack, Dump, Error, Family, Flow, Protocols};

/// A waiter's filter for a listing: it is called for each entry, for some of them twice, and returns whether to keep the entry.
pub type WantedFlow = Box<dyn FnMut(&Flow) -> bool + Send>;

/// A lister of entries: a socket of the caller's own, or one that lists for many callers.
pub trait List {
    /// Lists entries for all of these filters, each of which is for one half of the table (one family). Returns the entries that
    /// each filter kept, in the order of the filters. Blocking.
    ///
    /// # Errors
    /// As [`Conntrack::dump`], and [`Error::Ended`].
    fn list(&mut self, wanted: Vec<(Family, WantedFlow)>) -> Result<Vec<Dump>, Arc<Error>>;
}

impl List for Conntrack {
    fn list(&mut self, wanted: Vec<(Family, WantedFlow)>) -> Result<Vec<Dump>, Arc<Error>> {
        wanted.into_iter().map(|(family, wanted)| Ok(self.dump(family, wanted)?)).collect()
    }
}

/// The filters that keep the flows of these backends over these protocols. A family without backends has no filter.
pub fn of_backends<T: Send + Sync + 'static>(
    backends: &Arc<Backends<T>>,
    which: Option<Protocols>,
) -> Vec<(Family, WantedFlow)> {
    let mut wanted: Vec<(Family, WantedFlow)> = Vec::new();
    for family in [Family::V4, Family::V6] {
        if backends.addresses().any(|addr| Family::of(addr) == family) {
            let backends = Arc::clone(backends);
            let keep = move |flow: &Flow| {
                which.is_none_or(|which| which.includes(flow.orig.protocol))
                    && backends.of_flow(flow).is_some()
            };
            wanted.push((family, Box::new(keep)));
        }
    }
    wanted
}
