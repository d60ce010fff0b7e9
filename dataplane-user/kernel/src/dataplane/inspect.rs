//! Reads what is attached to devices, without an open [`super::Dataplane`]. The doctor uses this. Attaches and detaches nothing.
use std::path::Path;

use super::{
    ahead,
    attach::InterfaceStatus,
    error::Error,
    interfaces, links,
    names::Hook,
    netlink::Netlink,
    tc::TcMode,
    xdp::{XdpState, XdpStatus},
};

/// The value of `IFLA_XDP_ATTACHED` for a program in the driver.
const ATTACHED_DRV: u8 = 1;

/// The state of the named interfaces. If none is named, the state of all interfaces but the loopback device.
///
/// # Errors
/// Fails if the kernel's lists cannot be read. What fails for one interface is in its status.
pub fn inspect(pin_dir: &Path, names: &[String]) -> Result<Vec<InterfaceStatus>, Error> {
    let mut netlink = Netlink::open()?;
    let there = interfaces::list()?;
    let all: Vec<String> =
        there.iter().map(|interface| interface.name.clone()).filter(|name| name != "lo").collect();
    let names = if names.is_empty() { &all } else { names };
    let look = |name: &String| {
        let mut status = InterfaceStatus { name: name.clone(), ..InterfaceStatus::default() };
        let Some(interface) = there.iter().find(|interface| interface.name == *name) else {
            status.error = Some(format!("there is no interface named {name} in this network namespace"));
            return status;
        };
        status.ifindex = interface.ifindex;
        match interface.link_layer() {
            Ok(layer) => status.link_layer = Some(layer),
            Err(why) => status.error = Some(why),
        }
        if let Err(error) = egress(&mut netlink, pin_dir, &mut status) {
            status.error = Some(error.to_string());
        }
        if let Some((mode, id)) = interface.xdp {
            let ours = links::open(pin_dir, interface.ifindex, Hook::Xdp).ok().flatten();
            status.xdp = if ours.is_some_and(|link| link.info.program == id) {
                let state = if mode == ATTACHED_DRV { XdpState::Native } else { XdpState::Generic };
                XdpStatus { state, reason: None }
            } else {
                let reason =
                    format!("the hook is occupied by program {id} ({})", super::sys::program_name(id));
                XdpStatus { state: XdpState::Off, reason: Some(reason) }
            };
        }
        status
    };
    Ok(names.iter().map(look).collect())
}

fn egress(netlink: &mut Netlink, pin_dir: &Path, status: &mut InterfaceStatus) -> Result<(), Error> {
    let mode = match links::open(pin_dir, status.ifindex, Hook::Egress)? {
        Some(_) => TcMode::Tcx,
        None => TcMode::Clsact,
    };
    let view = ahead::view(netlink, pin_dir, status.ifindex, mode)?;
    if view.present {
        status.programs_ahead.extend(view.ahead);
        status.tc = Some(mode);
    }
    Ok(())
}
