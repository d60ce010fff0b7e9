use std::collections::BTreeSet;

use aya::Ebpf;
use nodefence_common::{Addr, BackendEntry, Config, Counter, NodeEntry, PortKey, Reason, port_kinds};

use super::{
    error::Error,
    events::EventStream,
    inject::Injector,
    load,
    lock::PinLock,
    log::CutLog,
    maps::{Maps, owned_nodes},
    names,
    options::Options,
    programs::Programs,
    rescue::Rescues,
    staging::Staged,
    write::{self, Both, WriteReport},
};
use crate::plan::{Delta, LeftOut, Tables};

/// The loaded dataplane. Calls are short and synchronous; all must come from a thread in the network namespace whose
/// devices are meant.
pub struct Dataplane {
    pub(super) options: Options,
    pub(super) programs: Programs,
    pub(super) maps: Maps,
    pub(super) staged: Option<Staged>,
    /// The names last given to [`Dataplane::attach`].
    pub(super) wanted: Vec<String>,
    /// Holds the maps that have no typed handle above, and the programs that are loaded only where they are needed.
    pub(super) ebpf: Ebpf,
    /// The last to go: what is above is closed by then.
    _lock: PinLock,
}

impl Dataplane {
    /// Loads the programs over the maps that are pinned below `options.pin_dir`, making what is missing. What is attached
    /// goes on as it is until [`Dataplane::attach`]. Holds the folder above `options.pin_dir` locked as long as it lives.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] where another process has that folder, and keeps it for some seconds. No BPF filesystem at the pin folder, no privilege, a kernel that refuses the object.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let loaded = load::load(options)?;
        let mut dataplane = Self {
            options: options.clone(),
            programs: loaded.programs,
            maps: loaded.maps,
            staged: loaded.staged,
            wanted: Vec::new(),
            ebpf: loaded.ebpf,
            _lock: loaded.lock,
        };
        dataplane.set_config(options.config)?;
        Ok(dataplane)
    }

    /// Brings these tables into the maps, and into the new ones alone where maps are staged, whatever lies there. A full map is no error: what does not fit is
    /// reported and passes. Every generation that they name must lie in `nodes` before ([`super::NodeWriter`]).
    pub fn write(&mut self, tables: &Tables) -> Result<WriteReport, Error> {
        let Maps { backends, ports, .. } = &mut self.maps;
        let mut both = Both { backends, ports };
        let delta = Delta::between(&write::read(&both)?, &LeftOut::default(), tables);
        let (report, _) = write::write(&mut both, &delta)?;
        self.filled();
        Ok(report)
    }

    /// The maps hold tables ([`Dataplane::table_maps`]): where they are staged, devices may be switched to them.
    pub const fn filled(&mut self) {
        if let Some(staged) = &mut self.staged {
            staged.filled = true;
        }
    }

    /// Whether devices may still read maps of another size, layout or version: until all of them are switched.
    pub fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// Every node index that has or had an owner: verdicts to adopt, and generations to go on from.
    pub fn nodes(&self) -> Result<Vec<(u32, NodeEntry)>, Error> {
        owned_nodes(&self.maps.nodes)
    }

    /// Every backend in the map.
    pub fn backends(&self) -> Result<Vec<(Addr, BackendEntry)>, Error> {
        let mut backends = Vec::new();
        write::each(&self.maps.backends, names::BACKENDS, |addr, entry| backends.push((addr, entry)))?;
        Ok(backends)
    }

    /// What the map keeps, whatever the verdicts say.
    pub fn kept(&self) -> Result<BTreeSet<PortKey>, Error> {
        let mut kept = BTreeSet::new();
        write::each(&self.maps.ports, names::PORTS, |key, _| {
            if key.kind == port_kinds::KEPT {
                kept.insert(key);
            }
        })?;
        Ok(kept)
    }

    /// Packets and bytes since the maps were made, one pair for each reason, summed over the CPUs.
    pub fn counters(&self) -> Result<Vec<(Reason, Counter)>, Error> {
        self.maps.counters()
    }

    /// The records of the kernel programs. Must be called in a tokio runtime.
    pub fn events(&mut self) -> Result<EventStream, Error> {
        let map = self.ebpf.map(names::EVENTS);
        EventStream::new(map.ok_or(Error::Missing { kind: "map", name: names::EVENTS })?)
    }

    /// The packets to rescue; to be called once.
    pub fn rescues(&mut self) -> Result<Rescues, Error> {
        Rescues::take(&mut self.ebpf)
    }

    /// The kernel programs' own log; to be called once, in a tokio runtime, where [`Options::log_cuts`] is set.
    pub fn cut_log(&mut self) -> Result<CutLog, Error> {
        CutLog::open(&mut self.ebpf)
    }

    /// A handle that puts frames in as ingress of a device.
    pub fn injector(&self) -> Result<Injector, Error> {
        Injector::new(&self.programs.inject)
    }

    /// Changes what the kernel programs read of the configuration.
    pub fn set_config(&mut self, config: Config) -> Result<(), Error> {
        self.options.config = config;
        self.maps.set_config(&config)
    }
}
