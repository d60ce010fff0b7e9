use super::{AS_ROOT, Check, Facts, KernelVersion, Lockdown, pressure};
use crate::dataplane;

const OLDEST: KernelVersion =
    KernelVersion { major: dataplane::OLDEST.0 as u32, minor: dataplane::OLDEST.1 as u32 };
const NO_MEMLOCK: KernelVersion = KernelVersion { major: 5, minor: 11 };
/// A generous bound on the memory of the maps at their default sizes. Before 5.11 that memory counts against RLIMIT_MEMLOCK.
const MEMLOCK_NEED: u64 = 128 << 20;

/// Judges the facts. The checks stand in the order in which an operator would fix them.
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let kernel = KernelVersion::parse(&facts.release);
    checks.push(kernel_check(&facts.release, kernel));
    // A release that does not parse is judged as the oldest kernel, which gives the strictest answer.
    let kernel = kernel.unwrap_or(OLDEST);
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
            "reboot  # into a kernel of 5.10 or later",
        ),
        None => Check::warn(
            "kernel",
            format!("cannot read a version out of `{release}`"),
            "uname -r  # must be 5.10 or later",
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
            "grep DEBUG_INFO_BTF /boot/config-$(uname -r)  # the cut works without; with it bpftool shows more",
        )
    }
}

fn bpffs(facts: &Facts) -> Check {
    const NAME: &str = "BPF filesystem";
    let pin_dir = facts.pin_dir.display();
    if let Some(mount) = facts.bpf_mounts.iter().find(|mount| facts.pin_dir.starts_with(mount)) {
        return Check::ok(NAME, format!("mounted at {mount}"));
    }
    // The agent mounts a BPF filesystem at /sys/fs/bpf and nowhere else (`dataplane::load`).
    if facts.pin_dir.starts_with("/sys/fs/bpf") {
        return Check::warn(
            NAME,
            "not mounted at /sys/fs/bpf; the agent mounts it when it starts (CAP_SYS_ADMIN)",
            "mount -t bpf bpf /sys/fs/bpf  # in a container: mount the host's into it, or the pins end with the container",
        );
    }
    // The agent does not mount over other folders, since other programs may use them.
    Check::fail(
        NAME,
        format!("{pin_dir} lies in none, and the agent mounts one at /sys/fs/bpf only"),
        "nodefence doctor --pin-dir /sys/fs/bpf/nodefence/v3  # and the agent likewise: it is the default",
    )
}

fn memlock(facts: &Facts, kernel: KernelVersion) -> Check {
    match facts.memlock {
        _ if kernel >= NO_MEMLOCK => Check::ok("locked memory", "not counted for BPF since 5.11"),
        None => Check::ok("locked memory", "unlimited"),
        Some(bytes) if bytes >= MEMLOCK_NEED => Check::ok("locked memory", format!("{} MiB", bytes >> 20)),
        Some(bytes) => Check::warn(
            "locked memory",
            format!("{} KiB; before 5.11 BPF maps count against it", bytes >> 10),
            "ulimit -l unlimited  # or LimitMEMLOCK=infinity in its unit; with CAP_SYS_RESOURCE the agent raises it itself",
        ),
    }
}

fn capabilities(facts: &Facts, kernel: KernelVersion) -> Check {
    let Some(capabilities) = facts.capabilities else {
        return Check::warn("capabilities", "unknown: /proc/self/status cannot be read", AS_ROOT);
    };
    let missing = capabilities.missing(kernel);
    match (missing.as_slice(), facts.root) {
        ([], _) => Check::ok("capabilities", "all that is needed"),
        (_, true) => Check::fail(
            "capabilities",
            format!("root here lacks {}", missing.join(", ")),
            "capsh --print  # grant them: securityContext.capabilities of the pod, CapabilityBoundingSet= of the unit",
        ),
        (_, false) => Check::warn(
            "capabilities",
            format!(
                "this user lacks {}; the agent may run as another user, whose capabilities are not known here",
                missing.join(", ")
            ),
            AS_ROOT,
        ),
    }
}

fn lockdown(facts: &Facts) -> Check {
    match facts.lockdown {
        Lockdown::None => Check::ok("lockdown", "none"),
        Lockdown::Integrity => Check::ok("lockdown", "integrity (BPF works)"),
        Lockdown::Confidentiality => Check::warn(
            "lockdown",
            "confidentiality: some BPF helpers are refused",
            "cat /proc/cmdline  # if the agent cannot load its programs, boot with lockdown=integrity",
        ),
        Lockdown::Unknown => Check::warn(
            "lockdown",
            "unknown: /sys/kernel/security/lockdown cannot be read",
            "mount -t securityfs securityfs /sys/kernel/security",
        ),
    }
}

/// Judges conntrack. `nf_conntrack_tcp_be_liberal` is not checked: with either value the cut's RSTs have exact sequence numbers,
/// and idle clients are challenged.
fn conntrack(facts: &Facts) -> Vec<Check> {
    let Some(found) = &facts.conntrack else {
        return vec![Check::warn(
            "conntrack",
            "not loaded: idle flows cannot be listed, so they are cut when they next send",
            "modprobe nf_conntrack_netlink  # where flows are translated",
        )];
    };
    let loose = "after a conntrack entry is gone the client's next packet is INVALID and dropped, instead of being answered";
    let remedy = "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1";
    let mut checks = vec![Check::ok("conntrack", "there")];
    checks.extend(pressure::judge(found));
    checks.push(not_zero("nf_conntrack_tcp_loose", facts.tcp_loose, loose, remedy));
    checks
}

fn ipvs(facts: &Facts) -> Vec<Check> {
    if !facts.ipvs {
        return vec![Check::ok("IPVS", "not loaded (nothing to do where kube-proxy does not use it)")];
    }
    vec![
        not_zero(
            "vs.conntrack",
            facts.vs_conntrack,
            "IPVS flows are not in conntrack, idle ones cannot be challenged and are cut when they next send",
            "sysctl -w net.ipv4.vs.conntrack=1  # kube-proxy sets it",
        ),
        not_zero(
            "vs.expire_nodest_conn",
            facts.expire_nodest_conn,
            "IPVS keeps the connections of a destination that is drained",
            "sysctl -w net.ipv4.vs.expire_nodest_conn=1  # kube-proxy sets it",
        ),
        not_zero(
            "vs.expire_quiescent_template",
            facts.expire_quiescent_template,
            "clients with affinity stay with a destination of weight 0",
            "sysctl -w net.ipv4.vs.expire_quiescent_template=1  # kube-proxy sets it",
        ),
    ]
}

/// Judges a sysctl that must not be 0. `zero`: the consequence of 0.
fn not_zero(name: &str, value: Option<u32>, zero: &str, remedy: &str) -> Check {
    match value {
        Some(0) => Check::warn(name, format!("0: {zero}"), remedy),
        Some(value) => Check::ok(name, value.to_string()),
        None => Check::warn(
            name,
            "unknown: it cannot be read",
            "nsenter --target 1 --net nodefence doctor  # the host's network namespace",
        ),
    }
}

fn device_checks(device: &super::DeviceFacts, rp_filter_all: Option<u32>) -> Vec<Check> {
    // The kernel applies the larger of `all` and the device's own value (IN_DEV_RPFILTER, include/linux/inetdevice.h).
    let rp_filter = device.rp_filter.max(rp_filter_all);
    let mut checks = vec![match rp_filter.filter(|_| device.rp_filter.is_some()) {
        Some(1) => Check::warn(
            format!("rp_filter {}", device.name),
            "1 (strict): an answer is accepted only if the route back to the backend leads through this device",
            format!(
                "sysctl -w net.ipv4.conf.{}.rp_filter=2  # not needed where routes are symmetric",
                device.name.replace('.', "/")
            ),
        ),
        Some(value) => Check::ok(format!("rp_filter {}", device.name), value.to_string()),
        None => Check::warn(
            format!("rp_filter {}", device.name),
            "unknown: it cannot be read",
            format!("ls /proc/sys/net/ipv4/conf/{}", device.name),
        ),
    }];
    let name = format!("hardware offload {}", device.name);
    checks.push(match &device.hw_tc_offload {
        Ok(Some(true)) => Check::warn(
            name,
            "hw-tc-offload is on: flows that the hardware forwards do not pass the cut",
            format!("ethtool -K {} hw-tc-offload off", device.name),
        ),
        Ok(Some(false)) => Check::ok(name, "off"),
        Ok(None) => Check::ok(name, "this kernel has none"),
        Err(why) => Check::warn(
            name,
            format!("unknown: {why}"),
            format!("ethtool -k {} | grep hw-tc-offload", device.name),
        ),
    });
    if device.virtual_functions != 0 {
        checks.push(Check::warn(
            format!("SR-IOV {}", device.name),
            format!("{} virtual functions: what pods send by these does not pass the cut", device.virtual_functions),
            format!("ip link show dev {}  # pods that have one: have them use Services by the cluster's own network", device.name),
        ));
    }
    checks
}
