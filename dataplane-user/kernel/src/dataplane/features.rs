//! Finds out what this kernel's BPF offers, by trying. Changes nothing, and leaves nothing behind.
use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{is_map_supported, is_program_supported},
};

use super::sys;

/// The features that the dataplane can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Features {
    /// Classifiers can be loaded. Also false if the privilege is missing.
    pub classifier: bool,
    /// There are tcx links (6.6 and later with CONFIG_NET_XGRESS). Without them clsact filters are used.
    pub tcx: bool,
    /// There are ring buffers (5.8 and later).
    pub ring_buffer: bool,
    /// XDP programs can be loaded.
    pub xdp: bool,
}

/// Tries each feature.
pub fn features() -> Features {
    Features {
        classifier: is_program_supported(ProgramType::SchedClassifier).unwrap_or(false),
        // The loopback device has index 1 in every network namespace (include/net/net_namespace.h).
        tcx: sys::query_tcx(1).is_ok(),
        ring_buffer: is_map_supported(MapType::RingBuf).unwrap_or(false),
        xdp: is_program_supported(ProgramType::Xdp).unwrap_or(false),
    }
}
