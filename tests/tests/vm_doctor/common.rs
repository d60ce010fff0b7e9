//! Facts about this machine that do not come from nodefence.

use anyhow::{Context as _, Result};
use nodefence_tests::{
    Netns,
    kernel::{self, Version},
};

/// The first version in which conntrack entries can be deleted by filter (1ef7f50ccc6e).
const BY_FILTER: Version = (6, 12);
/// The first version in which a filter also matches equal IPv6 addresses: 7.2.13 does not, and 7.3.4 does. So does 6.12.117, a series that still gets fixes.
const BY_FILTER_V6: Version = (7, 3);
/// The first version in which conntrack translates an ACK from far in the past.
const FAR_PAST: Version = (6, 1);

/// A kernel's release, and what follows from it.
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) version: Version,
}

impl Kernel {
    pub(super) fn here() -> Result<Self> {
        Ok(Self { release: kernel::release()?, version: kernel::version()? })
    }

    pub(super) fn attaches_by(&self) -> &'static str {
        if self.version >= kernel::TCX { "tcx" } else { "clsact" }
    }

    pub(super) fn translates_the_past(&self) -> bool {
        self.version >= FAR_PAST
    }

    /// The number of IP versions whose entries this kernel deletes by filter.
    pub(super) fn families_by_filter(&self) -> u32 {
        u32::from(self.version >= BY_FILTER) + u32::from(self.filters_v6())
    }

    /// Whether a filter matches equal IPv6 addresses. Of the kernels in the test matrix before [`BY_FILTER_V6`] only 6.12 has that.
    fn filters_v6(&self) -> bool {
        self.version >= BY_FILTER_V6 || self.version == BY_FILTER
    }

    pub(super) fn deletes(&self) -> &'static str {
        match self.version {
            _ if self.filters_v6() => "by filter",
            version if version >= BY_FILTER => "by filter over IPv4, one by one over IPv6",
            _ => "one by one",
        }
    }

    /// Whether IPVS translates a RST that was made in place. Of the kernels in the test matrix only Debian 11's lacks de2c211868b9.
    pub(super) fn ipvs_translates(&self) -> bool {
        self.version != (5, 10)
    }
}

/// The number in a file below `/proc/sys/net`.
pub(super) fn number(ns: &Netns, key: &str) -> Result<u32> {
    let path = format!("/proc/sys/net/{key}");
    let text = ns.run(move || std::fs::read_to_string(path)).context(key.to_owned())?;
    Ok(text.trim().parse()?)
}
