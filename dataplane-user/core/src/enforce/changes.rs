/// Counts the changes of the saved state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// All changes.
    pub(super) all: u64,
    /// The number of the last change that is more than a renewal: such a change must be saved at once.
    pub(super) urgent: u64,
}

impl Changes {
    /// Counts a change.
    pub(super) fn note(&mut self) {
        self.all += 1;
        self.urgent = self.all;
    }

    /// Counts a change that is a renewal.
    pub(super) fn note_renewal(&mut self) {
        self.all += 1;
    }
}
