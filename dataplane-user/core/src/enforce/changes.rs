/// Counts the changes of what outlives the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// All of them.
    pub(super) all: u64,
    /// As many as there were at the last one that is more than a renewal: that must be saved at once.
    pub(super) urgent: u64,
}

impl Changes {
    /// There is another one.
    pub(super) fn note(&mut self) {
        self.all += 1;
        self.urgent = self.all;
    }

    /// There is another one, a renewal.
    pub(super) fn note_renewal(&mut self) {
        self.all += 1;
    }
}
