//! The kernel programs on node A without an agent, and how they treat real packets.

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, PerCpuArray},
    programs::{SchedClassifier, TcAttachType, Xdp, XdpMode, tc},
};
use nodefence::dataplane::{Interface, interfaces, route_vlans};
use nodefence_common::{
    Addr, BackendEntry, Config, Counter, MacKey, NodeEntry, PortKey, Reason, RouteVlan, Verdict, config_flags,
};

use crate::{
    Cluster, Family, Netns, Node, Options, Place,
    checks::{Case, Fence},
    cut,
    load::steady::Load,
};

/// The loaded and attached programs, with the cluster's backends in their maps. Programs and maps end when this is dropped.
#[derive(Debug)]
pub struct Bare {
    ebpf: Ebpf,
}

impl Bare {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// Fails if the kernel refuses a program.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_on(cluster, &cluster.interfaces())
    }

    /// Same as [`Bare::start`], on these devices of node A.
    ///
    /// # Errors
    /// Fails as [`Bare::start`] does.
    pub fn start_on(cluster: &Cluster, interfaces: &[&'static str]) -> Result<Self> {
        let interfaces = interfaces.to_vec();
        let (ebpf, devices) = cluster.a.ns.run(move || -> Result<_> {
            let ebpf = load(&interfaces)?;
            Ok((ebpf, interfaces::list()?))
        })?;
        let mut this = Self { ebpf };
        this.senders(&devices)?;
        for node in [&cluster.b, &cluster.c] {
            this.add(node).with_context(|| format!("maps for {}", node.name))?;
        }
        let config = Config { flags: 0, icmp_per_second: 1000, samples_per_second: 0, zero: 0 };
        Array::<_, Config>::try_from(this.ebpf.map_mut("config").context("config")?)?.set(0, &config, 0)?;
        Ok(this)
    }

    /// Writes the MAC addresses of all devices, and the VLANs of all of them as VLANs that routes may use.
    fn senders(&mut self, devices: &[Interface]) -> Result<()> {
        let mut map: HashMap<_, MacKey, u32> = self.ebpf.map_mut("macs").context("macs")?.try_into()?;
        let macs = devices.iter().filter_map(|device| device.mac);
        macs.map(MacKey::new).try_for_each(|mac| map.insert(&mac, &1, 0))?;
        let vlans = route_vlans(devices, &devices.iter().map(|device| device.ifindex).collect());
        let mut map: HashMap<_, RouteVlan, MacKey> =
            self.ebpf.map_mut("route_vlans").context("route_vlans")?.try_into()?;
        Ok(vlans.iter().try_for_each(|(vlan, mac)| map.insert(vlan, mac, 0))?)
    }

    fn add(&mut self, node: &Node) -> Result<()> {
        self.verdict(node.name, Verdict::Healthy)?;
        let (backends, ports) = cut::backends_of(node, node.index.into());
        let mut map: HashMap<_, Addr, BackendEntry> =
            self.ebpf.map_mut("backends").context("backends")?.try_into()?;
        backends.iter().try_for_each(|(addr, entry)| map.insert(addr, entry, 0))?;
        let mut map: HashMap<_, PortKey, u32> = self.ebpf.map_mut("ports").context("ports")?.try_into()?;
        ports.iter().try_for_each(|(key, flags)| map.insert(key, flags, 0))?;
        Ok(())
    }

    fn verdict(&mut self, node: &str, verdict: Verdict) -> Result<()> {
        let index = if node == "node-b" { 2 } else { 3 };
        let entry = cut::entry(verdict, 600);
        Ok(Array::<_, NodeEntry>::try_from(self.ebpf.map_mut("nodes").context("nodes")?)?
            .set(index, &entry, 0)?)
    }
}

impl Fence for Bare {
    fn flag(&mut self, node: &str) -> Result<()> {
        self.verdict(node, Verdict::Flagged)
    }

    fn unflag(&mut self, node: &str) -> Result<()> {
        self.verdict(node, Verdict::Healthy)
    }

    fn counter(&mut self, reason: Reason) -> Result<u64> {
        let map: PerCpuArray<_, Counter> = self.ebpf.map("counters").context("counters")?.try_into()?;
        Ok(map.get(&(reason as u32), 0)?.iter().map(|counter| counter.packets).sum())
    }

    fn answers_in_place(&self) -> Result<bool> {
        let map: Array<_, Config> = self.ebpf.map("config").context("config")?.try_into()?;
        Ok(map.get(&0, 0)?.flags & config_flags::INJECT == 0)
    }
}

/// Flags and unflags node B, and checks clients of every place and both IP versions. Node C has load all the time.
///
/// # Errors
/// The error names the failed check.
pub fn matrix(options: Options, interfaces: &[&'static str]) -> Result<()> {
    let cluster = Cluster::new(options)?;
    let mut bare = Bare::start_on(&cluster, interfaces)?;
    for family in [Family::V4, Family::V6] {
        let load = Load::on_c(&cluster, family)?;
        for place in Place::ALL {
            // Without offloads UDP is checked too. With them datagrams are CHECKSUM_PARTIAL, and only an agent can answer these by ICMP.
            Case { cluster: &cluster, place, family }.cut_and_back(&mut bare, !options.offloads)?;
        }
        load.finish()?;
    }
    ensure!(bare.counter(Reason::Failed)? == 0, "answers that could not be made");
    Ok(())
}

fn load(interfaces: &[&str]) -> Result<Ebpf> {
    let pins = "/sys/fs/bpf/bare";
    std::fs::create_dir_all(pins)?;
    let mut ebpf = EbpfLoader::new().default_map_pin_directory(pins).load(nodefence::DATAPLANE_OBJECT)?;
    for link in ["l2", "l3"] {
        let mut devices = Vec::new();
        for interface in interfaces {
            let kind = std::fs::read_to_string(format!("/sys/class/net/{interface}/type"))?;
            if (kind.trim() == "1") == (link == "l2") {
                devices.push(std::ffi::CString::new(*interface)?);
            }
        }
        // A program without a device is not loaded, since the verifier takes long.
        if devices.is_empty() {
            continue;
        }
        let name = format!("nf_egress_{link}");
        let program: &mut SchedClassifier = ebpf.program_mut(&name).context("no such program")?.try_into()?;
        program.load().with_context(|| name.clone())?;
        for device in &devices {
            // Errors are ignored: clsact may exist already, and where programs are attached by tcx it is not needed.
            let _ = tc::qdisc_add_clsact(device.as_c_str());
            let at = TcAttachType::Egress;
            program.attach(device.as_c_str(), at).with_context(|| format!("{name} on {device:?}"))?;
        }
    }
    Ok(ebpf)
}

/// Attaches our XDP program to a device, with empty maps, so that it passes all packets. The program is detached when the result is dropped.
///
/// # Errors
/// Fails if the kernel refuses the program.
pub fn pass_all_xdp(ns: &Netns, device: &'static str) -> Result<Ebpf> {
    ns.run(move || {
        let pins = "/sys/fs/bpf/pass-all";
        std::fs::create_dir_all(pins)?;
        let mut ebpf = EbpfLoader::new().default_map_pin_directory(pins).load(nodefence::DATAPLANE_OBJECT)?;
        let program: &mut Xdp = ebpf.program_mut("nf_xdp").context("nf_xdp")?.try_into()?;
        program.load()?;
        program.attach(std::ffi::CString::new(device)?.as_c_str(), XdpMode::Driver)?;
        Ok(ebpf)
    })
}
