//! What this machine is, as others than nodefence say.

use anyhow::{Context as _, Result};
use nodefence_tests::{
    Netns,
    kernel::{self, Version},
};

/// Before it a filter takes no conntrack entry away (1ef7f50ccc6e).
const BY_FILTER: Version = (6, 12);
/// Before it a filter passes over IPv6 addresses that are equal: so does 7.2.13, and 7.3.4 does not. Nor does 6.12.117, of a series that is still mended.
const BY_FILTER_V6: Version = (7, 3);
/// Before it conntrack does not translate an ACK from far in the past.
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

    /// IP versions whose entries it deletes by filter.
    pub(super) fn families_by_filter(&self) -> u32 {
        u32::from(self.version >= BY_FILTER) + u32::from(self.filters_v6())
    }

    /// Of the matrix 6.12 alone has it before its version.
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

    /// Of the matrix Debian 11's alone lacks de2c211868b9.
    pub(super) fn ipvs_translates(&self) -> bool {
        self.version != (5, 10)
    }
}

/// A number below `/proc/sys/net`.
pub(super) fn number(ns: &Netns, key: &str) -> Result<u32> {
    let path = format!("/proc/sys/net/{key}");
    let text = ns.run(move || std::fs::read_to_string(path)).context(key.to_owned())?;
    Ok(text.trim().parse()?)
}
