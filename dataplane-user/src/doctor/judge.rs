use super::{Check, Facts, KernelVersion, Lockdown};

const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 10 };
const TCX: KernelVersion = KernelVersion { major: 6, minor: 6 };
const NO_MEMLOCK: KernelVersion = KernelVersion { major: 5, minor: 11 };
/// What the maps take at their default sizes, generously: before 5.11 they count against RLIMIT_MEMLOCK.
const MEMLOCK_NEED: u64 = 128 << 20;

/// What the facts mean, in the order in which an operator would mend them.
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let kernel = KernelVersion::parse(&facts.release);
    checks.push(kernel_check(&facts.release, kernel));
    // A release that does not parse is judged as the oldest kernel: the strictest answer.
    let kernel = kernel.unwrap_or(OLDEST);
    checks.push(if kernel >= TCX {
        Check::ok("tcx", "this kernel orders programs by tcx (6.6 and later)")
    } else {
        Check::ok("tcx", "not on this kernel; clsact filters are used")
    });
    checks.push(btf(facts));
    checks.push(bpffs(facts));
    checks.push(memlock(facts, kernel));
    checks.push(capabilities(facts, kernel));
    checks.push(lockdown(facts));
    checks.extend(conntrack(facts));
    checks.extend(ipvs(facts));
    for device in &facts.devices {
        checks.extend(device_checks(device, facts.rp_filter_all));
    }
    checks
}

fn kernel_check(release: &str, version: Option<KernelVersion>) -> Check {
    match version {
        Some(version) if version >= OLDEST => Check::ok("kernel", release),
        Some(_) => Check::fail(
            "kernel",
            format!("{release} is older than 5.10, the oldest that nodefence runs on"),
            "run a kernel of 5.10 or later",
        ),
        None => Check::warn(
            "kernel",
            format!("cannot read a version out of `{release}`"),
            "make sure that it is 5.10 or later",
        ),
    }
}

fn btf(facts: &Facts) -> Check {
    if facts.kernel_btf {
        Check::ok("kernel BTF", "/sys/kernel/btf/vmlinux")
    } else {
        Check::warn(
            "kernel BTF",
            "/sys/kernel/btf/vmlinux is missing",
            "the cut works without it; a kernel with CONFIG_DEBUG_INFO_BTF lets bpftool show more",
        )
    }
}

fn bpffs(facts: &Facts) -> Check {
    match facts.bpf_mounts.as_slice() {
        [] => Check::fail(
            "BPF filesystem",
            "not mounted",
            "mount -t bpf bpf /sys/fs/bpf (in a container: mount the host's /sys/fs/bpf into it)",
        ),
        mounts => Check::ok("BPF filesystem", mounts.join(", ")),
    }
}

fn memlock(facts: &Facts, kernel: KernelVersion) -> Check {
    match facts.memlock {
        _ if kernel >= NO_MEMLOCK => Check::ok("locked memory", "not counted for BPF since 5.11"),
        None => Check::ok("locked memory", "unlimited"),
        Some(bytes) if bytes >= MEMLOCK_NEED => Check::ok("locked memory", format!("{} MiB", bytes >> 20)),
        Some(bytes) => Check::warn(
            "locked memory",
            format!("{} KiB; before 5.11 BPF maps count against it", bytes >> 10),
            "the agent raises it where it has CAP_SYS_RESOURCE; else set LimitMEMLOCK=infinity or ulimit -l unlimited",
        ),
    }
}

fn capabilities(facts: &Facts, kernel: KernelVersion) -> Check {
    let Some(capabilities) = facts.capabilities else {
        return Check::warn("capabilities", "cannot read /proc/self/status", "run as root");
    };
    let missing = capabilities.missing(kernel);
    if missing.is_empty() {
        Check::ok("capabilities", "all that is needed")
    } else {
        Check::fail("capabilities", format!("missing {}", missing.join(", ")), "run as root, or grant them")
    }
}

fn lockdown(facts: &Facts) -> Check {
    match facts.lockdown {
        Lockdown::None => Check::ok("lockdown", "none"),
        Lockdown::Integrity => Check::ok("lockdown", "integrity (BPF works)"),
        Lockdown::Confidentiality => Check::warn(
            "lockdown",
            "confidentiality: some BPF helpers are refused",
            "if the agent cannot load its programs, boot with lockdown=integrity",
        ),
        Lockdown::Unknown => Check::warn(
            "lockdown",
            "unknown: /sys/kernel/security/lockdown cannot be read",
            "mount securityfs, or look at `dmesg | grep -i lockdown`",
        ),
    }
}

fn conntrack(facts: &Facts) -> Vec<Check> {
    if !facts.conntrack {
        return vec![Check::warn(
            "conntrack",
            "not loaded: idle flows cannot be listed, so they are cut when they next send",
            "load nf_conntrack where flows are translated",
        )];
    }
    let mut checks = vec![Check::ok("conntrack", "there")];
    checks.push(match facts.tcp_loose {
        Some(0) => Check::warn(
            "nf_conntrack_tcp_loose",
            "0: after a conntrack entry is gone the client's next packet is INVALID and dropped, instead of being answered",
            "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1",
        ),
        Some(value) => Check::ok("nf_conntrack_tcp_loose", value.to_string()),
        None => Check::warn("nf_conntrack_tcp_loose", "cannot be read", "run in the host's network namespace"),
    });
    checks
}

fn ipvs(facts: &Facts) -> Vec<Check> {
    if !facts.ipvs {
        return vec![Check::ok("IPVS", "not loaded (nothing to do where kube-proxy does not use it)")];
    }
    let vs_conntrack = match facts.vs_conntrack {
        Some(0) => Check::warn(
            "vs.conntrack",
            "0: IPVS flows are not in conntrack, idle ones cannot be asked and are cut when they next send",
            "sysctl -w net.ipv4.vs.conntrack=1 (kube-proxy sets it)",
        ),
        Some(value) => Check::ok("vs.conntrack", value.to_string()),
        None => Check::warn("vs.conntrack", "cannot be read", "run in the host's network namespace"),
    };
    let expire = match facts.expire_nodest_conn {
        Some(0) => Check::warn(
            "vs.expire_nodest_conn",
            "0: IPVS keeps the connections of a destination that is taken out",
            "sysctl -w net.ipv4.vs.expire_nodest_conn=1 (kube-proxy sets it)",
        ),
        Some(value) => Check::ok("vs.expire_nodest_conn", value.to_string()),
        None => Check::warn("vs.expire_nodest_conn", "cannot be read", "run in the host's network namespace"),
    };
    vec![vs_conntrack, expire]
}

fn device_checks(device: &super::DeviceFacts, rp_filter_all: Option<u32>) -> Vec<Check> {
    // include/linux/inetdevice.h, IN_DEV_RPFILTER: the larger of `all` and the device's own counts.
    let rp_filter = device.rp_filter.max(rp_filter_all);
    let mut checks = vec![match rp_filter {
        Some(1) => Check::warn(
            format!("rp_filter {}", device.name),
            "1 (strict): an answer is accepted only if the route back to the backend leads through this device",
            format!(
                "fine with symmetric routes; otherwise sysctl -w net.ipv4.conf.{}.rp_filter=2",
                device.name
            ),
        ),
        Some(value) => Check::ok(format!("rp_filter {}", device.name), value.to_string()),
        None => Check::warn(
            format!("rp_filter {}", device.name),
            "cannot be read: no such device in this network namespace?",
            "check the interface's name with `ip link`",
        ),
    }];
    if device.hw_tc_offload == Some(true) {
        checks.push(Check::warn(
            format!("hardware offload {}", device.name),
            "hw-tc-offload is on: flows that the hardware forwards do not pass the cut",
            format!("ethtool -K {} hw-tc-offload off, or make sure that no flow is offloaded", device.name),
        ));
    }
    checks
}
