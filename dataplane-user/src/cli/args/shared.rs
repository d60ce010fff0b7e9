//! What the options of several verbs share.

/// Where the pins are, where nothing else is said.
pub(in crate::cli) const PIN_DIR: &str = "/sys/fs/bpf/nodefence/v3";

/// What stands behind a verb's options in its help.
pub(super) struct Help {
    /// What `--help` says first, and `-h` does not.
    pub(super) facts: &'static str,
    /// What both say: the verb in a few words, and examples.
    pub(super) short: &'static str,
}

impl Help {
    /// What `--help` says.
    pub(super) fn long(&self) -> String {
        [self.facts, self.short].join("\n\n")
    }
}
