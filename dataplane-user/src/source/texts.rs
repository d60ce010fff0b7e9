//! Texts that many objects have: names of nodes, zones, pools and Services. And the ports that many slices have.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// How many texts are kept. A cluster of 5,000 nodes and 10,000 Services has 20,000 at a time, and names of what is gone are kept too.
const MOST_TEXTS: usize = 65_536;
/// How many sets of ports are kept. Most clusters have some dozens, since Services are alike.
const MOST_PORTS: usize = 4_096;

/// Ports of endpoints by the names of the Service's.
type Ports = BTreeMap<String, u16>;

/// Texts and ports that occur in many objects, each once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    texts: HashSet<Arc<str>>,
    ports: HashSet<Arc<Ports>>,
}

impl Texts {
    /// The one copy of a text.
    pub(crate) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() >= MOST_TEXTS {
            self.texts.clear();
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    /// The one copy of these ports.
    pub(crate) fn shared_ports(&mut self, ports: Ports) -> Arc<Ports> {
        if let Some(known) = self.ports.get(&ports) {
            return Arc::clone(known);
        }
        if self.ports.len() >= MOST_PORTS {
            self.ports.clear();
        }
        let new = Arc::new(ports);
        self.ports.insert(Arc::clone(&new));
        new
    }

    /// As [`Texts::shared`], of a text that is not empty.
    pub(crate) fn shared_or_none(&mut self, text: Option<&String>) -> Option<Arc<str>> {
        text.filter(|text| !text.is_empty()).map(|text| self.shared(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(name: &str, number: u16) -> Ports {
        [(name.to_owned(), number)].into()
    }

    #[test]
    fn equal_texts_and_ports_are_shared() {
        let mut texts = Texts::default();
        let [one, same, other] = ["a", "a", "b"].map(|text| texts.shared(text));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        let [one, same, other] = [80, 80, 81].map(|number| texts.shared_ports(ports("http", number)));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!((&*one, &*other), (&ports("http", 80), &ports("http", 81)));
    }

    #[test]
    fn not_all_that_ever_was_is_kept() {
        let mut texts = Texts::default();
        for number in 0..=u16::try_from(MOST_PORTS).expect("small") {
            texts.shared_ports(ports("", number));
        }
        assert_eq!(texts.ports.len(), 1);
    }
}
