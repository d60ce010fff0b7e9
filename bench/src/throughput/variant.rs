//! The variants: the programs or rules in the router's path. There are none, ours, and those of peers.
use std::net::Ipv4Addr;

use anyhow::Context as _;
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap},
    programs::{
        LinkOrder, SchedClassifier, TcAttach, TcAttachType,
        tc::{SchedClassifierLinkId, qdisc_add_clsact},
    },
    util::KernelVersion,
};
use nodefence_common::Verdict;
use nodefence_tests::Netns;

use super::path::{Path3, UPLINK};
use crate::{cost::REFERENCE, tables};

pub(super) const BARE: &str = "nothing";
pub(super) const OURS: &str = "nodefence";
/// A program that does nothing. It is no peer: it shows which part of the loss the hooks themselves cause.
pub(super) const EMPTY: &str = "empty program";

/// A variant. `on` and `off` switch only the hook. The set stays loaded.
pub(super) enum Variant {
    Bare,
    Ours(Box<Hooked>),
    Empty(Box<Hooked>),
    NftEgress { hook: String },
    NftForward { hook: String },
    IpsetIptables { set: String },
}

/// A program that is attached to the uplink's egress while it is switched on.
pub(super) struct Hooked {
    ebpf: Ebpf,
    pins: std::path::PathBuf,
    program: &'static str,
    link: Option<SchedClassifierLinkId>,
}

const PROGRAM: &str = "nf_egress_l2";
const NO_PROGRAM: &str = "b_empty";

impl Variant {
    /// All variants, switched off.
    pub(super) fn all(path: &Path3, addresses: u32) -> anyhow::Result<Vec<Self>> {
        Ok(vec![
            Self::Bare,
            Self::Ours(Box::new(Hooked::ours(addresses)?)),
            Self::Empty(Box::new(Hooked::empty(addresses)?)),
            nft_egress(&path.router, addresses)?,
            nft_forward(&path.router, addresses)?,
            ipset(&path.router, addresses)?,
        ])
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Bare => BARE,
            Self::Ours(_) => OURS,
            Self::Empty(_) => EMPTY,
            Self::NftEgress { .. } => "nftables, netdev egress",
            Self::NftForward { .. } => "nftables, forward",
            Self::IpsetIptables { .. } => "ipset + iptables",
        }
    }

    /// The destination of the traffic. With our programs it is a healthy backend, whose lookup costs more. With a peer it is outside of the peer's
    /// set.
    pub(super) fn target(&self) -> Ipv4Addr {
        match self {
            Self::Ours(_) | Self::Empty(_) => tables::backend(0),
            _ => tables::stranger(0),
        }
    }

    pub(super) fn on(&mut self, path: &Path3) -> anyhow::Result<()> {
        match self {
            Self::Bare => Ok(()),
            Self::Ours(hooked) | Self::Empty(hooked) => path.router.within(|| hooked.attach()),
            Self::NftEgress { hook } | Self::NftForward { hook } => nft(&path.router, hook),
            Self::IpsetIptables { set } => iptables(&path.router, "-A", set),
        }
    }

    pub(super) fn off(&mut self, path: &Path3) -> anyhow::Result<()> {
        match self {
            Self::Bare => Ok(()),
            Self::Ours(hooked) | Self::Empty(hooked) => path.router.within(|| hooked.detach()),
            Self::NftEgress { .. } => nft(&path.router, "delete chain netdev bench way\n"),
            Self::NftForward { .. } => nft(&path.router, "delete chain ip bench way\n"),
            Self::IpsetIptables { set } => iptables(&path.router, "-D", set),
        }
    }

    /// Unloads the set, so that the next size can be loaded.
    pub(super) fn remove(self, path: &Path3) -> anyhow::Result<()> {
        match self {
            Self::Bare => Ok(()),
            Self::Ours(hooked) | Self::Empty(hooked) => Ok(std::fs::remove_dir_all(&hooked.pins)?),
            Self::NftEgress { .. } => nft(&path.router, "delete table netdev bench\n"),
            Self::NftForward { .. } => nft(&path.router, "delete table ip bench\n"),
            Self::IpsetIptables { set } => path.router.exec(&format!("ipset destroy {set}")).map(drop),
        }
    }
}

impl Hooked {
    /// Our programs with `addresses` healthy backends.
    fn ours(addresses: u32) -> anyhow::Result<Self> {
        let mut hooked =
            Self::load(nodefence::DATAPLANE_OBJECT, PROGRAM, &format!("throughput-{addresses}"))?;
        let ebpf = &mut hooked.ebpf;
        let backends = ebpf.map_mut("backends").context("no map `backends`")?;
        tables::fill_backends(&mut HashMap::try_from(backends)?, addresses)?;
        let nodes = ebpf.map_mut("nodes").context("no map `nodes`")?;
        tables::fill_nodes(&mut Array::try_from(nodes)?, addresses, Verdict::Healthy)?;
        Ok(hooked)
    }

    fn empty(addresses: u32) -> anyhow::Result<Self> {
        Self::load(REFERENCE, NO_PROGRAM, &format!("throughput-empty-{addresses}"))
    }

    fn load(object: &[u8], name: &'static str, pins: &str) -> anyhow::Result<Self> {
        let pins = std::path::Path::new("/sys/fs/bpf").join(pins);
        std::fs::create_dir_all(&pins)?;
        let mut ebpf = EbpfLoader::new()
            .default_map_pin_directory(&pins)
            .load(object)
            .with_context(|| format!("cannot load the object of {name}"))?;
        program(&mut ebpf, name)?.load().with_context(|| format!("cannot load program {name}"))?;
        Ok(Self { ebpf, pins, program: name, link: None })
    }

    /// Attaches as the agent does: as the first program of tcx from Linux 6.6 on, by clsact before.
    fn attach(&mut self) -> anyhow::Result<()> {
        let device = nix::net::if_::if_nametoindex(UPLINK)?;
        let tcx = KernelVersion::current()? >= KernelVersion::new(6, 6, 0);
        if !tcx {
            // An error is ignored: the qdisc may be there from the round before. If it is missing, the attach fails.
            let _ = qdisc_add_clsact(device);
        }
        let attach_type = TcAttachType::Egress;
        let way = match tcx {
            true => TcAttach::Tcx { attach_type, order: LinkOrder::first() },
            false => TcAttach::Auto(attach_type),
        };
        let link = program(&mut self.ebpf, self.program)?
            .attach(device, way)
            .with_context(|| format!("cannot attach program {} to {UPLINK}", self.program))?;
        self.link = Some(link);
        Ok(())
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        if let Some(link) = self.link.take() {
            program(&mut self.ebpf, self.program)?.detach(link)?;
        }
        Ok(())
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut SchedClassifier> {
    Ok(ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

fn nft_egress(router: &Netns, addresses: u32) -> anyhow::Result<Variant> {
    nft(router, &nft_set("netdev", addresses))?;
    let hook = format!(
        "add chain netdev bench way {{ type filter hook egress device \"{UPLINK}\" priority 0; }}\n\
         add rule netdev bench way ip daddr @flagged drop\n"
    );
    Ok(Variant::NftEgress { hook })
}

fn nft_forward(router: &Netns, addresses: u32) -> anyhow::Result<Variant> {
    nft(router, &nft_set("ip", addresses))?;
    let hook = "add chain ip bench way { type filter hook forward priority 0; }\n\
                add rule ip bench way ip daddr @flagged drop\n";
    Ok(Variant::NftForward { hook: hook.into() })
}

fn nft_set(family: &str, addresses: u32) -> String {
    let mut script = format!(
        "add table {family} bench\nadd set {family} bench flagged {{ type ipv4_addr; size 262144; }}\n"
    );
    let all: Vec<u32> = (0..addresses).collect();
    for chunk in all.chunks(1000) {
        let elements: Vec<String> = chunk.iter().map(|index| tables::backend(*index).to_string()).collect();
        script += &format!("add element {family} bench flagged {{ {} }}\n", elements.join(", "));
    }
    script
}

fn nft(router: &Netns, script: &str) -> anyhow::Result<()> {
    router.feed("nft -f -", script).map(drop)
}

fn ipset(router: &Netns, addresses: u32) -> anyhow::Result<Variant> {
    let set = "flagged".to_owned();
    let mut script = format!("create {set} hash:ip maxelem 262144 hashsize 65536\n");
    for i in 0..addresses {
        script += &format!("add {set} {}\n", tables::backend(i));
    }
    router.feed("ipset restore", &script)?;
    Ok(Variant::IpsetIptables { set })
}

/// Uses the legacy tables where they exist: without nftables' compatibility layer the peer is at its fastest.
fn iptables(router: &Netns, act: &str, set: &str) -> anyhow::Result<()> {
    let rule = format!("-w {act} FORWARD -m set --match-set {set} dst -j DROP");
    match router.exec(&format!("iptables-legacy {rule}")) {
        Ok(_) => Ok(()),
        Err(legacy) => router
            .exec(&format!("iptables {rule}"))
            .map(drop)
            .with_context(|| format!("neither iptables-legacy ({legacy}) nor iptables takes the rule")),
    }
}
