use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nodefence_kernel::{offload, sriov};

use super::pressure::Pressure;
use crate::sysctl;

/// A kernel's version: the two numbers that decide anything here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KernelVersion {
    /// The 6 of 6.12.
    pub major: u32,
    /// The 12 of 6.12.
    pub minor: u32,
}

impl KernelVersion {
    /// Reads a release as `uname -r` prints it (`6.1.0-44-amd64`). `None` where the release does not begin with two numbers.
    pub fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

/// A process's effective capabilities (bits of CapEff, include/uapi/linux/capability.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities(pub u64);

impl Capabilities {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const SYS_RESOURCE: u32 = 24;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;

    fn has(self, bit: u32) -> bool {
        self.0 & (1 << bit) != 0
    }

    /// The names of the capabilities that the agent needs on this kernel and that are missing here.
    ///
    /// CAP_BPF and CAP_PERFMON came with 5.8. CAP_SYS_ADMIN stands for both, before 5.8 and since. Before 5.11
    /// CAP_SYS_RESOURCE is needed to raise the locked-memory limit.
    pub fn missing(self, kernel: KernelVersion) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.has(Self::NET_ADMIN) {
            missing.push("CAP_NET_ADMIN");
        }
        if !self.has(Self::SYS_ADMIN) {
            for (bit, name) in [(Self::BPF, "CAP_BPF"), (Self::PERFMON, "CAP_PERFMON")] {
                if !self.has(bit) {
                    missing.push(name);
                }
            }
        }
        if kernel < (KernelVersion { major: 5, minor: 11 }) && !self.has(Self::SYS_RESOURCE) {
            missing.push("CAP_SYS_RESOURCE");
        }
        missing
    }
}

/// The mode of the lockdown LSM (`/sys/kernel/security/lockdown`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lockdown {
    /// Lockdown is off, or the LSM is not built in.
    None,
    /// Root may not change the running kernel. BPF works.
    Integrity,
    /// Root may not read kernel memory. The kernel refuses BPF helpers that could.
    Confidentiality,
    /// The mode cannot be read: securityfs is not mounted or not readable.
    Unknown,
}

impl Lockdown {
    /// Reads the file's text, which has the mode in force in brackets: `none [integrity] confidentiality`.
    pub fn parse(text: &str) -> Self {
        match text.split('[').nth(1).and_then(|rest| rest.split(']').next()) {
            Some("none") => Self::None,
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            _ => Self::Unknown,
        }
    }
}

/// The properties of a network device on which the cut depends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// The device's name.
    pub name: String,
    /// `net.ipv4.conf.<name>.rp_filter`: 0 off, 1 strict, 2 loose.
    pub rp_filter: Option<u32>,
    /// Whether tc rules are offloaded to the device's hardware (`ethtool -k`: hw-tc-offload). `Ok(None)` where the kernel
    /// does not know the feature. `Err` has the reason why the device cannot be asked.
    pub hw_tc_offload: Result<Option<bool>, String>,
    /// The number of virtual functions (SR-IOV) of the device and of the devices below it.
    pub virtual_functions: u32,
}

/// Everything that the doctor reads of the machine. A value that could not be read is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// `uname -r`.
    pub release: String,
    /// Whether `/sys/kernel/btf/vmlinux` exists.
    pub kernel_btf: bool,
    /// The folder in which the agent would pin.
    pub pin_dir: PathBuf,
    /// The BPF filesystem's mount points in this mount namespace.
    pub bpf_mounts: Vec<String>,
    /// Whether this process runs as root. The agent may have capabilities that another user lacks.
    pub root: bool,
    /// The soft locked-memory limit in bytes. `None`: unlimited.
    pub memlock: Option<u64>,
    /// CapEff of this process.
    pub capabilities: Option<Capabilities>,
    /// The mode of the lockdown LSM.
    pub lockdown: Lockdown,
    /// How full conntrack is. `None` where conntrack is not loaded.
    pub conntrack: Option<Pressure>,
    /// `net.netfilter.nf_conntrack_tcp_loose`.
    pub tcp_loose: Option<u32>,
    /// Whether IPVS is loaded (`/proc/sys/net/ipv4/vs`).
    pub ipvs: bool,
    /// `net.ipv4.vs.conntrack`.
    pub vs_conntrack: Option<u32>,
    /// `net.ipv4.vs.expire_nodest_conn`.
    pub expire_nodest_conn: Option<u32>,
    /// `net.ipv4.vs.expire_quiescent_template`.
    pub expire_quiescent_template: Option<u32>,
    /// `net.ipv4.conf.all.rp_filter`. The kernel applies the larger of this and the device's value.
    pub rp_filter_all: Option<u32>,
    /// Those of the requested devices that exist. Where none were requested, all but the loopback device.
    pub devices: Vec<DeviceFacts>,
}

impl Facts {
    /// The capabilities that the agent needs and this process lacks. This process cannot check what depends on them.
    pub fn lacking(&self) -> Vec<&'static str> {
        // `judge` too treats a release that does not parse as the oldest kernel.
        let kernel = KernelVersion::parse(&self.release).unwrap_or(KernelVersion { major: 5, minor: 10 });
        self.capabilities.map_or_else(Vec::new, |capabilities| capabilities.missing(kernel))
    }

    /// Reads all facts in the calling process's own namespaces, except [`Self::conntrack`], which takes a second
    /// ([`super::pressure::Counting`]). `devices`: the devices to which the agent would attach; where there are none, all but
    /// the loopback device.
    ///
    /// # Errors
    /// Where /proc or the limits cannot be read.
    pub fn gather(devices: &[String], pin_dir: &Path) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let capabilities = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .map(Capabilities);
        let (soft, _hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)?;
        let mut names = all_devices()?;
        names.retain(|name| if devices.is_empty() { name != "lo" } else { devices.contains(name) });
        Ok(Self {
            release: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            kernel_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            pin_dir: pin_dir.to_owned(),
            root: nix::unistd::geteuid().is_root(),
            bpf_mounts: bpf_mounts(&fs::read_to_string("/proc/self/mounts")?),
            memlock: (soft != nix::sys::resource::RLIM_INFINITY).then_some(soft),
            capabilities,
            lockdown: lockdown(),
            conntrack: None,
            tcp_loose: number("netfilter/nf_conntrack_tcp_loose"),
            ipvs: Path::new("/proc/sys/net/ipv4/vs").exists(),
            vs_conntrack: number("ipv4/vs/conntrack"),
            expire_nodest_conn: number("ipv4/vs/expire_nodest_conn"),
            expire_quiescent_template: number("ipv4/vs/expire_quiescent_template"),
            rp_filter_all: number("ipv4/conf/all/rp_filter"),
            devices: names
                .into_iter()
                .map(|name| DeviceFacts {
                    rp_filter: number(&format!("ipv4/conf/{name}/rp_filter")),
                    hw_tc_offload: offload::hw_tc_offload(&name).map_err(|error| error.to_string()),
                    virtual_functions: sriov::functions(Path::new("/sys"), &name),
                    name,
                })
                .collect(),
        })
    }
}

fn number(below_net: &str) -> Option<u32> {
    sysctl::number(&format!("net/{below_net}"))?.try_into().ok()
}

fn lockdown() -> Lockdown {
    match fs::read_to_string("/sys/kernel/security/lockdown") {
        Ok(text) => Lockdown::parse(&text),
        // Where securityfs is mounted, a missing file means that the LSM is not built in.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && Path::new("/sys/kernel/security/lsm").exists() =>
        {
            Lockdown::None
        }
        Err(_) => Lockdown::Unknown,
    }
}

pub(super) fn bpf_mounts(mounts: &str) -> Vec<String> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let at = fields.next()?;
            let kind = fields.next()?;
            (kind == "bpf").then(|| at.to_owned())
        })
        .collect()
}

/// The names of all devices, read by netlink: `/sys/class/net` shows the network namespace in which that sysfs was mounted, which
/// is another one after `nsenter --net`.
fn all_devices() -> io::Result<Vec<String>> {
    let list = nix::net::if_::if_nameindex()?;
    let mut names: Vec<String> =
        list.iter().map(|device| device.name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
