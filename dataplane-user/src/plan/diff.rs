use super::tables::Tables;

/// How far two states lie apart, for the log and `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Diff {
    /// Entries of all tables that only the new state has.
    pub added: usize,
    /// Entries that both have, with other values.
    pub changed: usize,
    /// Entries that only the old state has.
    pub removed: usize,
}

impl Diff {
    /// What it takes to get from `old` to `new`.
    pub fn between(old: &Tables, new: &Tables) -> Self {
        let mut diff = Self::default();
        macro_rules! compare {
            ($($map:ident),+) => {$(
                for (key, value) in &new.$map {
                    match old.$map.get(key) {
                        None => diff.added += 1,
                        Some(before) if before != value => diff.changed += 1,
                        Some(_) => {}
                    }
                }
                diff.removed += old.$map.keys().filter(|key| !new.$map.contains_key(key)).count();
            )+};
        }
        compare!(backends, ports, nodes);
        diff
    }

    /// Whether the two states are one.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
