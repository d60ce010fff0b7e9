use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nodefence_kernel::{offload, sriov};

use super::pressure::Pressure;
use crate::sysctl;

/// A kernel's version as far as it decides anything here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KernelVersion {
    /// The 6 of 6.12.
    pub major: u32,
    /// The 12 of 6.12.
    pub minor: u32,
}

impl KernelVersion {
    /// From a release as `uname -r` prints it (`6.1.0-44-amd64`); `None` where it does not begin with two numbers.
    pub fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

/// The capabilities that decide (bits of CapEff, include/uapi/linux/capability.h).
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

    /// The names of those that are missing on a kernel of this version. CAP_BPF and CAP_PERFMON came with 5.8, before
    /// and beside them CAP_SYS_ADMIN does; CAP_SYS_RESOURCE raises the locked-memory limit before 5.11.
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

/// What the lockdown LSM allows (`/sys/kernel/security/lockdown`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lockdown {
    /// Off, or the LSM is not built in.
    None,
    /// Root may not change the running kernel; BPF works.
    Integrity,
    /// Root may not read kernel memory; BPF helpers that could are refused.
    Confidentiality,
    /// securityfs is not mounted or not readable.
    Unknown,
}

impl Lockdown {
    /// From the file's text, where brackets stand around the mode in force: `none [integrity] confidentiality`.
    pub fn parse(text: &str) -> Self {
        match text.split('[').nth(1).and_then(|rest| rest.split(']').next()) {
            Some("none") => Self::None,
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            _ => Self::Unknown,
        }
    }
}

/// A network device as far as the cut depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// `net.ipv4.conf.<name>.rp_filter`: 0 off, 1 strict, 2 loose.
    pub rp_filter: Option<u32>,
    /// Whether tc rules are offloaded to its hardware (`ethtool -k`: hw-tc-offload); `Ok(None)` where the kernel does not
    /// know that feature, `Err` with the reason where the device cannot be asked.
    pub hw_tc_offload: Result<Option<bool>, String>,
    /// Virtual functions (SR-IOV) of it and of what it stands on.
    pub virtual_functions: u32,
}

/// Everything the doctor looks at. A field that could not be read is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// `uname -r`.
    pub release: String,
    /// Whether `/sys/kernel/btf/vmlinux` exists.
    pub kernel_btf: bool,
    /// Where the agent would pin.
    pub pin_dir: PathBuf,
    /// The BPF filesystem's mount points in this mount namespace.
    pub bpf_mounts: Vec<String>,
    /// Whether this process is root's. What another user lacks, the agent may have.
    pub root: bool,
    /// The soft locked-memory limit in bytes; `None` for unlimited.
    pub memlock: Option<u64>,
    /// CapEff of this process.
    pub capabilities: Option<Capabilities>,
    /// The lockdown LSM.
    pub lockdown: Lockdown,
    /// How full conntrack is; `None` where it is not loaded.
    pub conntrack: Option<Pressure>,
    /// `net.netfilter.nf_conntrack_tcp_loose`.
    pub tcp_loose: Option<u32>,
    /// Whether IPVS is there (`/proc/sys/net/ipv4/vs`).
    pub ipvs: bool,
    /// `net.ipv4.vs.conntrack`.
    pub vs_conntrack: Option<u32>,
    /// `net.ipv4.vs.expire_nodest_conn`.
    pub expire_nodest_conn: Option<u32>,
    /// `net.ipv4.vs.expire_quiescent_template`.
    pub expire_quiescent_template: Option<u32>,
    /// `net.ipv4.conf.all.rp_filter`; the larger of this and the device's counts.
    pub rp_filter_all: Option<u32>,
    /// The devices that were asked for and exist, or all but the loopback device.
    pub devices: Vec<DeviceFacts>,
}

impl Facts {
    /// The capabilities that the agent needs and this process lacks: what depends on them cannot be looked at from here.
    pub fn lacking(&self) -> Vec<&'static str> {
        // As `judge`: a release that does not parse is judged as the oldest kernel.
        let kernel = KernelVersion::parse(&self.release).unwrap_or(KernelVersion { major: 5, minor: 10 });
        self.capabilities.map_or_else(Vec::new, |capabilities| capabilities.missing(kernel))
    }

    /// Reads them all, in the calling process's own namespaces, but for [`Self::conntrack`], which takes a second ([`super::pressure::Counting`]). `devices` are those the agent
    /// would attach to; empty for all but the loopback device.
    ///
    /// # Errors
    /// Where /proc is not there or the limits cannot be read.
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
        // Where securityfs itself is there, a missing file means that the LSM is not built in.
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
            let (at, kind) = (fields.next()?, fields.next()?);
            (kind == "bpf").then(|| at.to_owned())
        })
        .collect()
}

/// By netlink, since `/sys/class/net` shows the network namespace in which that sysfs was mounted (`nsenter --net`).
fn all_devices() -> io::Result<Vec<String>> {
    let list = nix::net::if_::if_nameindex()?;
    let mut names: Vec<String> =
        list.iter().map(|device| device.name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
