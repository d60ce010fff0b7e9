//! Parts that the options of several verbs share.

/// The default folder of the pins.
pub(in crate::cli) const PIN_DIR: &str = "/sys/fs/bpf/nodefence/v3";

/// The part of a verb's help that stands behind its options.
pub(super) struct Help {
    /// The text that only `--help` shows, first.
    pub(super) facts: &'static str,
    /// The text that `--help` and `-h` show: the verb in a few words, and examples.
    pub(super) short: &'static str,
}

impl Help {
    /// The whole text, as `--help` shows it.
    pub(super) fn long(&self) -> String {
        [self.facts, self.short].join("\n\n")
    }
}
