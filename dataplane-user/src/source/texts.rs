//! Texts that many objects have: names of nodes, zones, pools and Services.

use std::{collections::HashSet, sync::Arc};

/// How many texts are kept. A cluster of 5,000 nodes and 10,000 Services has 20,000 at a time, and names of what is gone are kept too.
const MOST_TEXTS: usize = 65_536;

/// Texts that occur in many objects, each once.
#[derive(Debug, Default)]
pub(crate) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// The one copy of a text.
    pub(crate) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        if self.0.len() >= MOST_TEXTS {
            self.0.clear();
        }
        let new: Arc<str> = text.into();
        self.0.insert(Arc::clone(&new));
        new
    }

    /// The same, of a text that is not empty.
    pub(crate) fn shared_or_none(&mut self, text: Option<&String>) -> Option<Arc<str>> {
        text.filter(|text| !text.is_empty()).map(|text| self.shared(text))
    }
}
