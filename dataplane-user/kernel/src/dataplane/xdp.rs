//! Attaches XDP in the mode that was asked for, or not at all.
use std::{fmt, io, os::fd::AsFd, path::Path};

use super::{
    error::Error,
    interfaces::{Interface, LinkLayer},
    links,
    names::Hook,
    options::XdpChoice,
    programs::Program,
    sys,
};

/// Whether the XDP program runs on a device, and why not.
#[derive(
    Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct XdpStatus {
    /// How the program runs.
    pub state: XdpState,
    /// Why the program does not run although it was requested, or what it cannot do. `None` if there is nothing to say.
    pub reason: Option<String>,
}

/// How the XDP program runs on a device.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum XdpState {
    /// The program does not run.
    #[default]
    Off,
    /// The program runs in the driver.
    Native,
    /// The program runs in the network stack, after the driver.
    Generic,
}

impl fmt::Display for XdpStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            XdpState::Off => "off",
            XdpState::Native => "native",
            XdpState::Generic => "generic",
        };
        match &self.reason {
            None => f.write_str(state),
            Some(reason) => write!(f, "{state} ({reason})"),
        }
    }
}

impl XdpStatus {
    fn off(reason: impl Into<String>) -> Self {
        Self { state: XdpState::Off, reason: Some(reason.into()) }
    }
}

/// `IFLA_XDP_ATTACHED` values.
const ATTACHED_DRV: u8 = 1;
const ATTACHED_SKB: u8 = 2;

/// Whether any program, ours or another, is attached in generic mode.
pub(super) fn is_generic(interface: &Interface) -> bool {
    interface.xdp.is_some_and(|(mode, _)| mode == ATTACHED_SKB)
}

/// Makes sure that XDP runs on the device as chosen: attaches it, replaces it in place, or removes it. XDP is off, and the status says why,
/// if others occupy the hook, if the device cannot run XDP, or if the MTU is too large.
pub(super) fn ensure(
    pin_dir: &Path,
    interface: &Interface,
    choice: XdpChoice,
    program: Option<&Program>,
) -> Result<XdpStatus, Error> {
    let ifindex = interface.ifindex;
    let (state, flags, attached) = match choice {
        XdpChoice::Off => {
            links::remove(pin_dir, ifindex, Hook::Xdp)?;
            return Ok(XdpStatus::default());
        }
        XdpChoice::Native => (XdpState::Native, sys::XDP_DRV, ATTACHED_DRV),
        XdpChoice::Generic => (XdpState::Generic, sys::XDP_SKB, ATTACHED_SKB),
    };
    let Some(program) = program else {
        return Ok(XdpStatus::off("the XDP program could not be loaded"));
    };
    if interface.link_layer() != Ok(LinkLayer::L2) {
        return Ok(XdpStatus::off("the interface has no Ethernet header"));
    }
    let mut occupied = interface.xdp;
    if let Some(link) = links::open(pin_dir, ifindex, Hook::Xdp)? {
        // The link may be that of a device with this index in another network namespace. Such a link differs only in its program.
        if interface.xdp == Some((attached, link.info.program)) {
            if link.info.program != program.id {
                let what = || format!("replace the XDP program of interface {ifindex}");
                link.update(program.fd.as_fd()).map_err(|error| Error::call(what())(error))?;
            }
            return Ok(running(interface, state));
        }
        // The link is in another mode, or on a device elsewhere. Without it no cut is lost: TC egress makes the same decision later on the
        // packet's way.
        let program = link.info.program;
        drop(link);
        links::remove(pin_dir, ifindex, Hook::Xdp)?;
        occupied = occupied.filter(|(_, id)| *id != program);
    }
    if let Some((_, id)) = occupied {
        let name = sys::program_name(id);
        return Ok(XdpStatus::off(format!("the hook is occupied by program {id} ({name})")));
    }
    match sys::link_create(program.fd.as_fd(), ifindex, sys::BPF_XDP, flags) {
        Ok(link) => {
            links::pin(pin_dir, ifindex, Hook::Xdp, &link)?;
            Ok(running(interface, state))
        }
        Err(e) => Ok(XdpStatus::off(refusal(&e, interface))),
    }
}

fn running(interface: &Interface, state: XdpState) -> XdpStatus {
    // veth_xdp_xmit (drivers/net/veth.c) needs NAPI at the peer. NAPI is on if the peer has an XDP program or GRO.
    let lost = interface.veth && state == XdpState::Native;
    let reason = lost.then(|| "on a veth device answers are lost unless its peer runs XDP too".to_owned());
    XdpStatus { state, reason }
}

/// Puts the driver's error number into words. The kernel's own text does not reach the caller of bpf(2).
fn refusal(error: &io::Error, interface: &Interface) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => "the hook is occupied".into(),
        Some(libc::EOPNOTSUPP) => {
            "the driver has no native XDP; `--xdp generic` would work on every driver".into()
        }
        Some(libc::ERANGE | libc::EMSGSIZE) => {
            format!("the MTU ({}) is too large for XDP on this driver", interface.mtu)
        }
        Some(libc::EINVAL) => format!(
            "the driver refused it ({error}); most often the MTU ({}) is too large or an offload such as LRO is on",
            interface.mtu
        ),
        _ => format!("the kernel refused it: {error}"),
    }
}
