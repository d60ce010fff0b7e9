//! Runs the kernel programs on given packets (BPF_PROG_TEST_RUN), with maps of their own.
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::{
    Ebpf, EbpfLoader, TestRun as _, TestRunOptions,
    maps::{Array, HashMap, PerCpuArray, PerCpuValues, RingBuf},
    programs::{ProgramInfo, SchedClassifier, TcAttachType, Xdp, tc},
    util::nr_cpus,
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare},
    unistd::Pid,
};
use nodefence::dataplane::interfaces;
use nodefence_common::{
    Addr, BackendEntry, Budget, Config, Counter, DEFAULT_ICMP_PER_SECOND, Device, Event, Limits, MacKey,
    NodeEntry, PortKey, Reason, RescueHead, RouteVlan, rescue_budget,
};
use tempfile::TempDir;

use crate::packet_frame::ROUTE_VLANS;

/// The names of the object's traffic control programs.
pub const CLASSIFIERS: [&str; 3] = ["nf_egress_l2", "nf_egress_l3", "nf_inject"];
/// The name of the object's XDP program.
pub const XDP: &str = "nf_xdp";
/// `TC_ACT_UNSPEC`.
pub const TC_PASS: u32 = u32::MAX;
/// `TC_ACT_SHOT`.
pub const TC_DROP: u32 = 2;
/// `TC_ACT_REDIRECT`.
pub const TC_REDIRECT: u32 = 7;
/// `XDP_DROP`.
pub const XDP_DROP: u32 = 1;
/// `XDP_PASS`.
pub const XDP_PASS: u32 = 2;
/// `XDP_TX`.
pub const XDP_TX: u32 = 3;

/// A BPF filesystem that only this thread sees.
#[derive(Debug)]
pub struct BpfFs {
    dir: TempDir,
}

impl BpfFs {
    /// Moves the calling thread to a new mount namespace, and mounts a BPF filesystem there.
    ///
    /// # Errors
    /// Fails without the privilege to mount.
    pub fn mount() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace of our own (root is needed)")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .context("making the mounts private")?;
        let dir = tempfile::tempdir()?;
        mount(Some("bpf"), dir.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
            .context("mounting a bpf filesystem")?;
        Ok(Self { dir })
    }

    /// The path of the mount.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        if let Err(error) = umount2(self.dir.path(), MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.dir.path().display());
        }
    }
}

/// Keeps the calling thread on one processor, since each processor has a budget of samples of its own. Returns the processor's number.
///
/// # Errors
/// Fails if the kernel refuses it.
pub fn stay_on_one_cpu() -> Result<usize> {
    let cpu = cpus()?.first().copied().context("no processor to run on")?;
    stay_on(cpu)?;
    Ok(cpu)
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// Fails if the kernel refuses to say.
pub fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect())
}

/// Keeps the calling thread on a processor.
///
/// # Errors
/// Fails if the kernel refuses it.
pub fn stay_on(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &only)?)
}

/// Moves the calling thread to a new network namespace, which forwards if `forwards` is set. Without forwarding all senders are this machine's own, and no
/// sender has a budget of ICMP answers of its own.
///
/// # Errors
/// Fails without the privilege to make one.
pub fn own_network(forwards: bool) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace of our own (root is needed)")?;
    set_forwarding(forwards)
}

/// Switches forwarding of the calling thread's network namespace on or off.
///
/// # Errors
/// Fails if a sysctl cannot be written.
pub fn set_forwarding(forwards: bool) -> Result<()> {
    for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        let path = Path::new("/proc/sys/net").join(name);
        std::fs::write(&path, if forwards { "1" } else { "0" })
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The result of a program on a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The program's return value.
    pub verdict: u32,
    /// The packet after the run.
    pub packet: Vec<u8>,
}

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
    fs: BpfFs,
}

impl Programs {
    /// Loads the object with fresh maps and the default configuration.
    ///
    /// # Errors
    /// Fails without privilege, or if the verifier refuses a program.
    pub fn load() -> Result<Self> {
        Self::load_with(false)
    }

    /// Same as [`Programs::load`]. With `log_cuts` the programs include the code that logs sampled cuts.
    ///
    /// # Errors
    /// Fails as [`Programs::load`] does.
    pub fn load_with(log_cuts: bool) -> Result<Self> {
        let fs = BpfFs::mount()?;
        let mut ebpf = EbpfLoader::new()
            .override_global("LOG_CUTS", &u8::from(log_cuts), true)
            .default_map_pin_directory(fs.path())
            .map_max_entries("backends", 4_096)
            .load(nodefence::DATAPLANE_OBJECT)
            .context("loading the object")?;
        for name in CLASSIFIERS {
            let program: &mut SchedClassifier = ebpf.program_mut(name).context(name)?.try_into()?;
            program.load().with_context(|| format!("loading {name}"))?;
        }
        let program: &mut Xdp = ebpf.program_mut(XDP).context(XDP)?.try_into()?;
        program.load().context("loading nf_xdp")?;
        let mut out = Self { ebpf, fs };
        out.configure(Config {
            flags: 0,
            icmp_per_second: DEFAULT_ICMP_PER_SECOND,
            samples_per_second: 0,
            zero: 0,
        })?;
        Ok(out)
    }

    /// The folder of the pinned maps.
    pub fn pins(&self) -> &Path {
        self.fs.path()
    }

    /// The kernel's information on a program.
    ///
    /// # Errors
    /// Fails if the program is unknown.
    pub fn info(&self, name: &str) -> Result<ProgramInfo> {
        Ok(self.ebpf.program(name).context("no such program")?.info()?)
    }

    /// Runs a program once on a packet.
    ///
    /// # Errors
    /// Fails if the kernel refuses to run it.
    pub fn run(&self, name: &str, packet: &[u8]) -> Result<Outcome> {
        let mut out = vec![0; packet.len() + 256];
        let opts =
            TestRunOptions { data_in: Some(packet), data_out: Some(&mut out), ..TestRunOptions::default() };
        let program = self.ebpf.program(name).context("no such program")?;
        let result = if name == XDP {
            let program: &Xdp = program.try_into()?;
            program.test_run(opts)?
        } else {
            let program: &SchedClassifier = program.try_into()?;
            program.test_run(opts)?
        };
        let len = result.data_size_out as usize;
        ensure!(len <= out.len(), "the packet grew to {len} bytes");
        out.truncate(len);
        Ok(Outcome { verdict: result.return_value, packet: out })
    }

    /// Attaches a classifier to a device of the calling thread's network namespace, for as long as `self` lives. Makes the device's MAC address one of this
    /// node's, and [`ROUTE_VLANS`] VLANs by which routes to backends leave by the device.
    ///
    /// # Errors
    /// Fails if the kernel refuses it.
    pub fn attach(&mut self, name: &str, ifindex: u32, direction: TcAttachType) -> Result<()> {
        // Before Linux 6.6 a classifier needs the queueing discipline clsact. An error is ignored, since clsact may exist already.
        let _ = tc::qdisc_add_clsact(ifindex);
        let program: &mut SchedClassifier =
            self.ebpf.program_mut(name).context("no such program")?.try_into()?;
        program.attach(ifindex, direction).with_context(|| format!("attaching {name}"))?;
        let device = interfaces::list()?.into_iter().find(|device| device.ifindex == ifindex);
        if let Some(mac) = device.and_then(|device| device.mac) {
            self.mac(MacKey::new(mac))?;
        }
        for (outer, inner) in ROUTE_VLANS {
            self.route_vlan(RouteVlan { ifindex, outer, inner }, MacKey::NONE)?;
        }
        Ok(())
    }

    /// Sets the configuration.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn configure(&mut self, config: Config) -> Result<()> {
        let mut map: Array<_, Config> = Array::try_from(self.ebpf.map_mut("config").context("config")?)?;
        Ok(map.set(0, &config, 0)?)
    }

    /// What the machine has spent of the budget in the map `name`.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn budget(&self, name: &'static str) -> Result<Budget> {
        let map: Array<_, Budget> = Array::try_from(self.ebpf.map(name).context(name)?)?;
        Ok(map.get(&0, 0)?)
    }

    /// Sets what the machine has spent of the budget in the map `name`.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn set_budget(&mut self, name: &'static str, spent: Budget) -> Result<()> {
        let mut map: Array<_, Budget> = Array::try_from(self.ebpf.map_mut(name).context(name)?)?;
        Ok(map.set(0, &spent, 0)?)
    }

    /// What a processor has spent of its budget of samples.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn limits(&self, cpu: usize) -> Result<Limits> {
        let map: PerCpuArray<_, Limits> = PerCpuArray::try_from(self.ebpf.map("limits").context("limits")?)?;
        map.get(&0, 0)?.get(cpu).copied().context("no such processor")
    }

    /// Sets what each processor has spent of its budget of samples.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn set_limits(&mut self, limits: Limits) -> Result<()> {
        let mut map: PerCpuArray<_, Limits> =
            PerCpuArray::try_from(self.ebpf.map_mut("limits").context("limits")?)?;
        let cpus = nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
        Ok(map.set(0, PerCpuValues::try_from(vec![limits; cpus.get() as usize])?, 0)?)
    }

    /// Writes a backend.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn backend(&mut self, addr: Addr, entry: BackendEntry) -> Result<()> {
        let mut map: HashMap<_, Addr, BackendEntry> =
            HashMap::try_from(self.ebpf.map_mut("backends").context("backends")?)?;
        Ok(map.insert(&addr, &entry, 0)?)
    }

    /// Writes a port.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn port(&mut self, key: PortKey, flags: u32) -> Result<()> {
        let mut map: HashMap<_, PortKey, u32> =
            HashMap::try_from(self.ebpf.map_mut("ports").context("ports")?)?;
        Ok(map.insert(&key, &flags, 0)?)
    }

    /// Writes a node.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn node(&mut self, index: u32, entry: NodeEntry) -> Result<()> {
        let mut map: Array<_, NodeEntry> = Array::try_from(self.ebpf.map_mut("nodes").context("nodes")?)?;
        Ok(map.set(index, &entry, 0)?)
    }

    /// Makes a device known to the XDP program.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn device(&mut self, ifindex: u32, device: Device) -> Result<()> {
        let mut map: HashMap<_, u32, Device> =
            HashMap::try_from(self.ebpf.map_mut("devices").context("devices")?)?;
        Ok(map.insert(&ifindex, &device, 0)?)
    }

    /// Makes a MAC address one of this node's.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn mac(&mut self, mac: MacKey) -> Result<()> {
        let mut map: HashMap<_, MacKey, u32> = HashMap::try_from(self.ebpf.map_mut("macs").context("macs")?)?;
        Ok(map.insert(&mac, &1, 0)?)
    }

    /// Makes a VLAN one by which a route to a backend leaves. `usual` is the usual source address of its packets.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn route_vlan(&mut self, vlan: RouteVlan, usual: MacKey) -> Result<()> {
        let mut map: HashMap<_, RouteVlan, MacKey> =
            HashMap::try_from(self.ebpf.map_mut("route_vlans").context("route_vlans")?)?;
        Ok(map.insert(&vlan, &usual, 0)?)
    }

    /// A counter, summed over all processors.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn counter(&self, reason: Reason) -> Result<Counter> {
        let map: PerCpuArray<_, Counter> =
            PerCpuArray::try_from(self.ebpf.map("counters").context("counters")?)?;
        let mut sum = Counter::default();
        for cpu in map.get(&(reason as u32), 0)?.iter() {
            sum.packets += cpu.packets;
            sum.bytes += cpu.bytes;
        }
        Ok(sum)
    }

    /// Reads all records from the ring buffer of events.
    ///
    /// # Errors
    /// Fails if a record has another size than [`Event`].
    pub fn events(&mut self) -> Result<Vec<Event>> {
        let mut ring = RingBuf::try_from(self.ebpf.map_mut("events").context("events")?)?;
        let mut out = Vec::new();
        while let Some(record) = ring.next() {
            out.push(Event::from_bytes(&record).context("a record of another size")?);
        }
        Ok(out)
    }

    /// Lets the programs hand over packets to rescue until this time (CLOCK_MONOTONIC, ns), without a budget.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn take_rescues_until(&mut self, until: u64) -> Result<()> {
        let mut map: Array<_, u64> =
            Array::try_from(self.ebpf.map_mut("rescue_until").context("rescue_until")?)?;
        map.set(0, &until, 0)?;
        self.allow_rescues(u64::MAX)
    }

    /// The number of packets that the programs wanted to hand over for a rescue. They hand over no more than [`Self::allow_rescues`] says.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn rescues_asked(&self) -> Result<u64> {
        let map: Array<_, u64> = Array::try_from(self.ebpf.map("rescue_budget").context("rescue_budget")?)?;
        Ok(map.get(&rescue_budget::ASKED, 0)?)
    }

    /// Sets how many packets to rescue may be handed over in all.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn allow_rescues(&mut self, up_to: u64) -> Result<()> {
        let mut map: Array<_, u64> =
            Array::try_from(self.ebpf.map_mut("rescue_budget").context("rescue_budget")?)?;
        Ok(map.set(rescue_budget::ALLOWED, &up_to, 0)?)
    }

    /// Reads all packets to rescue from their ring buffer.
    ///
    /// # Errors
    /// Fails if a record is not as [`RescueHead`] says.
    pub fn rescues(&mut self) -> Result<Vec<(RescueHead, Vec<u8>)>> {
        let mut ring = RingBuf::try_from(self.ebpf.map_mut("rescue").context("rescue")?)?;
        let mut out = Vec::new();
        while let Some(record) = ring.next() {
            let (head, frame) = RescueHead::from_bytes(&record).context("a record of another shape")?;
            out.push((head, frame.to_vec()));
        }
        Ok(out)
    }
}
