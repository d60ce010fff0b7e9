//! What this machine is, as others than nodefence say.

use anyhow::{Context as _, Result};
use nodefence_tests::{Cluster, Netns, Options, Proxy};

/// Before it a filter takes no conntrack entry away (1ef7f50ccc6e).
const BY_FILTER: (u32, u32) = (6, 12);
/// Before it a filter passes over IPv6 addresses that are equal: so does 7.2.13, and 7.3.4 does not.
const BY_FILTER_V6: (u32, u32) = (7, 3);
/// Before it conntrack does not translate an ACK from far in the past.
const FAR_PAST: (u32, u32) = (6, 1);
/// Before it programs are attached by clsact.
const TCX: (u32, u32) = (6, 6);

/// A kernel's release, and what follows from it.
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) version: (u32, u32),
}

impl Kernel {
    pub(super) fn here() -> Result<Self> {
        let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
        let mut next = || numbers.next().flatten().with_context(|| release.clone());
        let version = (next()?, next()?);
        Ok(Self { release, version })
    }

    pub(super) fn attaches_by(&self) -> &'static str {
        if self.version >= TCX { "tcx" } else { "clsact" }
    }

    pub(super) fn translates_the_past(&self) -> bool {
        self.version >= FAR_PAST
    }

    /// IP versions whose entries it deletes by filter.
    pub(super) fn families_by_filter(&self) -> u32 {
        u32::from(self.version >= BY_FILTER) + u32::from(self.version >= BY_FILTER_V6)
    }

    pub(super) fn deletes(&self) -> &'static str {
        match self.version {
            version if version >= BY_FILTER_V6 => "by filter",
            version if version >= BY_FILTER => "by filter over IPv4, one by one over IPv6",
            _ => "one by one",
        }
    }

    /// Of the matrix Debian 11's alone lacks de2c211868b9.
    pub(super) fn ipvs_translates(&self) -> bool {
        self.version != (5, 10)
    }
}

/// A cluster behind IPVS, set as kube-proxy sets it.
pub(super) fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(Options { proxy: Proxy::Ipvs, ..Options::default() })?;
    cluster.a.ns.sysctl("ipv4/vs/expire_nodest_conn", "1")?;
    cluster.a.ns.sysctl("ipv4/vs/expire_quiescent_template", "1")?;
    Ok(cluster)
}

/// A number below `/proc/sys/net`.
pub(super) fn number(ns: &Netns, key: &str) -> Result<u32> {
    let path = format!("/proc/sys/net/{key}");
    let text = ns.run(move || std::fs::read_to_string(path)).context(key.to_owned())?;
    Ok(text.trim().parse()?)
}
