//! Attaches the programs to the wanted devices, and detaches them from all others.
use std::{collections::BTreeSet, path::Path, sync::Arc};

use aya::Ebpf;
use nodefence_common::Device;

use super::{
    ahead::{self, ProgramAhead},
    clsact::{self, Filter},
    error::Error,
    events::EventStream,
    folders,
    inject::Injector,
    interfaces::{self, Interface, LinkLayer},
    links,
    lock::PinLock,
    log::CutLog,
    maps::DeviceMap,
    names::{self, Hook},
    netlink::Netlink,
    options::{Options, XdpChoice},
    programs::Programs,
    rescue::Rescues,
    senders::{LeaveBy, Senders},
    staging::Staged,
    tc::{self, TcMode},
    versions::Other,
    xdp::{self, XdpState, XdpStatus},
};

/// What is attached to an interface, and which programs run before ours.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct InterfaceStatus {
    /// The interface's name, as it was requested.
    pub name: String,
    /// The interface's index; 0 where there is no such interface.
    pub ifindex: u32,
    /// What the interface's packets start with.
    pub link_layer: Option<LinkLayer>,
    /// The bridge that the interface is, or is a port of.
    pub bridge: Option<String>,
    /// How the TC programs are attached; `None` where they are not.
    pub tc: Option<TcMode>,
    /// Whether XDP runs, and if not, why.
    pub xdp: XdpStatus,
    /// Programs of others that see packets before ours do.
    pub programs_ahead: Vec<ProgramAhead>,
    /// Why the programs are not attached, or not all of them.
    pub error: Option<String>,
}

/// Programs, and the devices that they are attached to.
pub struct Attach {
    pub(super) options: Options,
    pub(super) programs: Programs,
    /// What the XDP program knows of devices.
    pub(super) devices: DeviceMap,
    /// The devices' source MAC addresses and the VLANs of routes, for all programs.
    pub(super) senders: Senders,
    /// The devices by which routes to backends leave.
    pub(super) leave_by: LeaveBy,
    pub(super) staged: Option<Arc<Staged>>,
    /// The pins of other versions, which are removed once something is attached.
    pub(super) other_versions: Vec<Other>,
    /// The names last given to [`Attach::attach`].
    pub(super) wanted: Vec<String>,
    /// Whether programs still have to be detached from devices that are not among these names.
    pub(super) leaves_others: bool,
    /// The maps that have no handle of their own, and the programs that are loaded only where they are needed.
    pub(super) ebpf: Ebpf,
    /// Dropped last, after the fields above are closed.
    pub(super) _lock: Arc<PinLock>,
}

impl Attach {
    /// Notes the devices by which routes to backends leave. `None` means that they are not known yet: the devices that an earlier agent wrote
    /// stay in force. The next look writes the devices before it attaches to anything. Until this is called a route may leave by any device.
    pub fn routes_leave_by(&mut self, devices: Option<BTreeSet<u32>>) {
        self.leave_by = devices.map_or(LeaveBy::AsPinned, LeaveBy::Devices);
    }

    /// Attaches to the given interfaces and to no other: attaches what is missing, replaces programs in place, and detaches from every other
    /// interface. Returns one status for each name, in order. A failure is in the interface's status and does not stop the others.
    ///
    /// # Errors
    /// Fails if the devices cannot be listed, or if nothing can be pinned. What is attached stays attached.
    pub fn attach(&mut self, wanted: &[String]) -> Result<Vec<InterfaceStatus>, Error> {
        self.wanted = wanted.to_vec();
        self.leaves_others = true;
        reconcile_alone(self)
    }

    /// Indexes of the devices that have a TC program of ours, by tcx or clsact, whichever process attached it.
    pub fn attached(&self) -> Result<BTreeSet<u32>, Error> {
        attached_devices(&self.options.pin_dir)
    }

    /// Looks up the state of the interfaces last given to [`Attach::attach`]. Attaches again to a device that was made anew under its name, or
    /// from which somebody removed our programs.
    ///
    /// # Errors
    /// As [`Attach::attach`].
    pub fn interfaces(&mut self) -> Result<Vec<InterfaceStatus>, Error> {
        reconcile_alone(self)
    }

    /// Whether devices may still read maps of another size, because not all of them are switched to the new maps.
    pub fn is_staged(&self) -> bool {
        self.staged.is_some()
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

    /// A handle that injects frames as ingress of a device.
    pub fn injector(&self) -> Result<Injector, Error> {
        Injector::new(&self.programs.inject)
    }
}

/// Does [`reconcile`]. Once something of ours is attached, detaches what other versions have attached.
fn reconcile_alone(ours: &mut Attach) -> Result<Vec<InterfaceStatus>, Error> {
    let statuses = reconcile(ours)?;
    if statuses.iter().any(|status| status.error.is_none()) && detach_other_versions(ours) {
        // A device runs only one XDP program, and other versions' programs no longer run ahead of ours.
        return reconcile(ours);
    }
    Ok(statuses)
}

/// Attaches to every wanted interface, and pins staged maps in the old ones' place once every device uses them. Where `leaves_others` is
/// set, also detaches from every other interface.
fn reconcile(ours: &mut Attach) -> Result<Vec<InterfaceStatus>, Error> {
    let wanted = ours.wanted.clone();
    let mut netlink = Netlink::open()?;
    // Somebody may have removed the folders while the agent ran; without them nothing can be pinned.
    folders::make_folders(&ours.options.pin_dir)?;
    let interfaces = interfaces::list()?;
    // The senders come first, because a program passes packets of senders that it does not know. A failure here stops no device.
    let known = ours.senders.write(&interfaces, &ours.leave_by);
    let statuses = wanted.iter().map(|name| one(ours, &mut netlink, &interfaces, name));
    let statuses = statuses.collect::<Result<Vec<_>, Error>>()?;
    // A missing device may have another name by now. Our programs are detached from it, since no status would say that it still cuts.
    ours.leaves_others |= statuses.iter().any(|status| status.ifindex == 0);
    let existing: Vec<u32> = interfaces.iter().map(|interface| interface.ifindex).collect();
    let keep = match ours.leaves_others {
        true => statuses.iter().map(|status| status.ifindex).collect(),
        false => existing.clone(),
    };
    let left = leave(ours, &mut netlink, &keep);
    match left.and_then(|()| clsact::forget_qdiscs(&ours.options.pin_dir, &existing)) {
        Ok(()) => ours.leaves_others = false,
        Err(error) => {
            tracing::warn!(
                event = "detach-incomplete",
                %error,
                "could not detach from every interface that is no longer wanted; it is tried again"
            );
        }
    }
    let mut switched = true;
    for status in statuses.iter().filter(|status| status.error.is_some() && status.ifindex != 0) {
        if let Some(interface) = interfaces.iter().find(|interface| interface.ifindex == status.ifindex) {
            // The device's old programs may still run on the old maps. The old maps are written too until the device is switched.
            switched &= !attached(ours, &mut netlink, interface).unwrap_or(true);
        }
    }
    if switched {
        commit_staged(ours);
    }
    known.map(|()| statuses)
}

/// Attaches to one interface. Returns an error only where no descriptor is left, since that says nothing about the device.
fn one(
    ours: &mut Attach,
    netlink: &mut Netlink,
    interfaces: &[Interface],
    name: &str,
) -> Result<InterfaceStatus, Error> {
    let mut status = InterfaceStatus { name: name.to_owned(), ..InterfaceStatus::default() };
    let Some(interface) = interfaces.iter().find(|interface| interface.name == name) else {
        status.error = Some(format!("there is no interface named {name} in this network namespace"));
        return Ok(status);
    };
    status.ifindex = interface.ifindex;
    let bridge = interfaces.iter().find(|other| {
        other.bridge && (other.ifindex == interface.ifindex || Some(other.ifindex) == interface.master)
    });
    status.bridge = bridge.map(|bridge| bridge.name.clone());
    let layer = match interface.link_layer() {
        Ok(layer) => layer,
        Err(reason) => {
            status.error = Some(reason);
            return Ok(status);
        }
    };
    status.link_layer = Some(layer);
    match attach(ours, netlink, interface, layer, &mut status) {
        Err(error) if error.lacks_descriptors() => return Err(error),
        Err(error) => status.error = Some(error.to_string()),
        Ok(()) => {}
    }
    Ok(status)
}

/// The devices on which a TC program of ours runs.
fn attached_devices(pin_dir: &Path) -> Result<BTreeSet<u32>, Error> {
    let mut netlink = Netlink::open()?;
    let linked = links::list(pin_dir)?.into_iter().filter(|(_, hook)| Hook::TC.contains(hook));
    let mut devices: BTreeSet<u32> = linked.map(|(ifindex, _)| ifindex).collect();
    for ifindex in clsact::devices(&mut netlink)? {
        for hook in Hook::TC {
            if clsact::filters(&mut netlink, ifindex, hook)?.iter().any(Filter::ours) {
                devices.insert(ifindex);
            }
        }
    }
    Ok(devices)
}

/// Whether a program of an earlier agent runs on a device's egress.
fn attached(ours: &Attach, netlink: &mut Netlink, interface: &Interface) -> Result<bool, Error> {
    let ifindex = interface.ifindex;
    Ok(links::open(&ours.options.pin_dir, ifindex, Hook::Egress)?.is_some()
        || clsact::filters(netlink, ifindex, Hook::Egress)?.iter().any(Filter::ours))
}

fn attach(
    ours: &mut Attach,
    netlink: &mut Netlink,
    interface: &Interface,
    layer: LinkLayer,
    status: &mut InterfaceStatus,
) -> Result<(), Error> {
    let Attach { options, programs, devices, ebpf, .. } = ours;
    let pin_dir = &options.pin_dir;
    let ifindex = interface.ifindex;
    let mode = tc::ensure(netlink, pin_dir, ifindex, programs.egress(ebpf, layer)?, options.tc)?;
    let view = ahead::view(netlink, pin_dir, ifindex, mode)?;
    if view.present {
        status.tc = Some(mode);
    } else {
        status.error = Some("our egress program is not on the interface".to_owned());
    }
    status.programs_ahead.extend(view.ahead);
    // The XDP program passes all packets of a device that it does not know, so the device's address is written first.
    let device = |generic| {
        let mac = interface.mac.filter(|_| options.xdp != XdpChoice::Off)?;
        Some(Device { mac, vlans: u8::from(interface.vlans), generic: u8::from(generic) })
    };
    // While XDP programs are exchanged, the old or the new one may run. Where either may run on skbs, neither may answer.
    if let Some(device) = device(options.xdp == XdpChoice::Generic || xdp::is_generic(interface)) {
        devices.set(ifindex, device)?;
    }
    status.xdp = xdp::ensure(pin_dir, interface, options.xdp, programs.xdp.as_ref())?;
    match (status.xdp.state, device(false)) {
        (XdpState::Native, Some(device)) => devices.set(ifindex, device)?,
        (XdpState::Off, _) => devices.remove(ifindex),
        _ => {}
    }
    Ok(())
}

/// Detaches from every device that is not in `keep`, and removes the pins of devices that are gone.
fn leave(ours: &mut Attach, netlink: &mut Netlink, keep: &[u32]) -> Result<(), Error> {
    let Attach { options, devices, .. } = ours;
    let pin_dir = &options.pin_dir;
    for (ifindex, hook) in links::list(pin_dir)? {
        if !keep.contains(&ifindex) {
            links::remove(pin_dir, ifindex, hook)?;
            devices.remove(ifindex);
        }
    }
    for ifindex in clsact::devices(netlink)? {
        if !keep.contains(&ifindex) {
            // The qdisc stays until a detach (see `clsact::remove_qdisc`).
            for hook in Hook::TC {
                clsact::remove(netlink, ifindex, hook)?;
            }
        }
    }
    Ok(())
}

/// Pins the new maps in the old ones' place. The caller has seen that every device was switched to them. After a failure the next look
/// tries again.
fn commit_staged(ours: &mut Attach) {
    let Some(staged) = &ours.staged else { return };
    match staged.commit() {
        Ok(()) => ours.staged = None,
        Err(error) => {
            tracing::warn!(
                event = "pins-not-replaced",
                %error,
                "the new maps are in use, and cannot be pinned in the old ones' place; it is tried again"
            );
        }
    }
}

/// Detaches what other versions have attached, and returns whether a version is gone. The next look tries again what could not be detached.
fn detach_other_versions(ours: &mut Attach) -> bool {
    let pin_dir = &ours.options.pin_dir;
    let before = ours.other_versions.len();
    ours.other_versions.retain_mut(|other| !other.detach(pin_dir));
    ours.other_versions.len() < before
}
