//! Finds the programs of others that see a packet before ours does. Such a program hides packets from ours where it returns anything but
//! "next". nodefence reports it and leaves it alone.
use super::{
    clsact::{self, Filter},
    error::Error,
    links,
    names::Hook,
    netlink::Netlink,
    sys,
    tc::TcMode,
};
use std::path::Path;

/// A program or filter that runs before ours.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProgramAhead {
    /// The program's id; 0 for a filter that is no BPF program.
    pub id: u32,
    /// The program's name, or the filter's name or kind.
    pub name: String,
    /// Where the program sits, such as `tcx egress` or `clsact egress prio 1`.
    pub r#where: String,
}

/// What is attached to a device's egress.
pub(super) struct View {
    pub(super) ahead: Vec<ProgramAhead>,
    /// Whether our program is attached.
    pub(super) present: bool,
}

pub(super) fn view(netlink: &mut Netlink, pin_dir: &Path, ifindex: u32, mode: TcMode) -> Result<View, Error> {
    let hook = Hook::Egress;
    // A kernel without tcx refuses the query, and nothing can be attached by tcx there.
    let tcx = sys::query_tcx(ifindex).unwrap_or_default();
    let ours = match mode {
        TcMode::Tcx => links::open(pin_dir, ifindex, hook)?.map(|link| link.info.program),
        TcMode::Clsact => None,
    };
    let place = ours.and_then(|id| tcx.iter().position(|program| *program == id));
    let mut ahead: Vec<_> = tcx[..place.unwrap_or(tcx.len())]
        .iter()
        .map(|id| ProgramAhead {
            id: *id,
            name: sys::program_name(*id),
            r#where: format!("tcx {}", hook.name()),
        })
        .collect();
    if mode == TcMode::Tcx {
        return Ok(View { ahead, present: place.is_some() });
    }
    // clsact filters run after every tcx program, in the order in which the kernel lists them.
    let filters = clsact::filters(netlink, ifindex, hook)?;
    let place = filters.iter().position(Filter::ours);
    let before = filters[..place.unwrap_or(0)].iter().filter(|filter| filter.in_first_chain());
    ahead.extend(before.map(|filter| ProgramAhead {
        id: filter.program,
        name: match (&filter.name[..], filter.program) {
            ("", 0) => filter.kind.clone(),
            ("", id) => sys::program_name(id),
            (name, _) => name.to_owned(),
        },
        r#where: format!("clsact {} prio {}", hook.name(), filter.priority),
    }));
    Ok(View { ahead, present: place.is_some() })
}
