//! Listings that more than one may wait for.
use std::sync::Arc;

use super::{Backends, Conntrack, Dump, Error, Family, Flow, Protocols};

/// A waiter's filter for a listing: it is shown each entry, some of them twice, and keeps those for which it returns true.
pub type WantedFlow = Box<dyn FnMut(&Flow) -> bool + Send>;

/// Whoever lists entries: a socket of one's own, or one that lists for many.
pub trait List {
    /// Lists for all of these, each of which is of one half of the table. Gives what each kept, in their order. Blocking.
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

/// The listing that covers the flows of these backends, of these protocols: nothing of a half in which there are none.
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
