//! The maps, BTF-typed and pinned by name. Their layout is `nodefence_common`'s; their names are what `bpftool` shows.
#![allow(dead_code)]
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, HashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use nodefence_common::{
    Addr, BackendEntry, Config, Counter, DEFAULT_MAX_BACKENDS, Device, EVENTS_BYTES, Event, Limits, MAX_DEVICES,
    MAX_NODES, MAX_PORTS, NodeEntry, PortKey, Reason,
};

#[btf_map(name = "backends", pin_by_name)]
pub static BACKENDS: HashMap<Addr, BackendEntry, { DEFAULT_MAX_BACKENDS as usize }, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();
#[btf_map(name = "config", pin_by_name)]
pub static CONFIG: Array<Config, 1> = Array::new();
