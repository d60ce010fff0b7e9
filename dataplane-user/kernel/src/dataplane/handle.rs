use std::sync::Arc;

use super::{
    attach::Attach,
    error::Error,
    load,
    maps::{Counters, Maps, Switches},
    options::Options,
    senders::LeaveBy,
    table_maps::TableMaps,
    write::WriteReport,
};
use nodefence_core::plan::{Delta, LeftOut, Tables};

/// The loaded dataplane, in parts that may have different owners: no part waits for another one. Calls are synchronous. Calls about devices
/// must come from a thread in the network namespace of these devices. The folder above the pins is locked as long as `devices` or `tables`
/// live.
pub struct Dataplane {
    /// Programs, and where they are attached.
    pub devices: Attach,
    /// The maps that tables are written into.
    pub tables: TableMaps,
    /// What the kernel programs counted.
    pub counters: Counters,
    /// The configuration that the kernel programs read.
    pub switches: Switches,
}

impl Dataplane {
    /// Loads the programs over the maps that are pinned below `options.pin_dir`, and makes the missing maps. What is attached goes on as it
    /// is until [`Attach::attach`].
    ///
    /// # Errors
    /// [`Error::Busy`] if another process holds that folder for some seconds. Also fails if there is no BPF filesystem at the pin folder,
    /// if the privilege is missing, or if the kernel refuses the object.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let loaded = load::load(options)?;
        let lock = Arc::new(loaded.lock);
        let Maps { backends, ports, nodes, devices, senders, counters, mut switches } = loaded.maps;
        switches.set(&options.config)?;
        let staged = loaded.staged.map(Arc::new);
        let still_staged = staged.as_ref().map(Arc::downgrade).unwrap_or_default();
        Ok(Self {
            tables: TableMaps { backends, ports, nodes, still_staged, _lock: Arc::clone(&lock) },
            devices: Attach {
                options: options.clone(),
                programs: loaded.programs,
                devices,
                senders,
                leave_by: LeaveBy::Any,
                staged,
                other_versions: loaded.other_versions,
                wanted: Vec::new(),
                leaves_others: false,
                ebpf: loaded.ebpf,
                _lock: lock,
            },
            counters,
            switches,
        })
    }

    /// Brings the maps to the content of these tables, whatever the maps contain ([`TableMaps::write`]). A full map is no error: entries
    /// that do not fit are reported, and their packets pass. Every generation that the tables name must be in `nodes` before
    /// ([`super::NodeWriter`]).
    pub fn write(&mut self, tables: &Tables) -> Result<WriteReport, Error> {
        let delta = Delta::between(&self.tables.read()?, &LeftOut::default(), tables);
        let (report, _) = self.tables.write(&delta)?;
        Ok(report)
    }
}
