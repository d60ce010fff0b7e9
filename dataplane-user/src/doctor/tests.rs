use super::{
    Capabilities, Check, Counting, DeviceFacts, Facts, KernelVersion, Level, Lockdown, Pressure,
    facts::bpf_mounts, judge, worst,
};
use crate::conntrack::Stats;

/// Counts from long before the first reading.
const COUNTED: Stats = Stats { invalid: 0, insert_failed: 1_000, drop: 10, early_drop: 1 };

fn good() -> Facts {
    Facts {
        release: "6.12.107+deb13-cloud-amd64".into(),
        kernel_btf: true,
        pin_dir: "/sys/fs/bpf/nodefence/v3".into(),
        bpf_mounts: vec!["/sys/fs/bpf".into()],
        root: true,
        memlock: None,
        capabilities: Some(Capabilities(u64::MAX)),
        lockdown: Lockdown::None,
        conntrack: Some(Pressure { entries: 235_000, most: 262_144, counted: Ok([COUNTED; 2]) }),
        tcp_loose: Some(1),
        ipvs: true,
        vs_conntrack: Some(1),
        expire_nodest_conn: Some(1),
        expire_quiescent_template: Some(2),
        rp_filter_all: Some(0),
        devices: vec![DeviceFacts {
            name: "eth0".into(),
            rp_filter: Some(2),
            hw_tc_offload: Ok(Some(false)),
            virtual_functions: 0,
        }],
    }
}

fn line<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no line {name} in {checks:#?}"))
}

#[test]
fn a_good_machine_has_no_warning() {
    let checks = judge(&good());
    assert_eq!(worst(&checks), Level::Ok, "{checks:#?}");
    assert!(checks.iter().all(|check| check.remedy.is_none()));
}

/// Makes a good machine another one.
type Change = fn(&mut Facts);
/// A check's name, the level that it must have, and what is wrong with the machine.
type Fault = (&'static str, Level, Change);

const FAULTS: &[Fault] = &[
    ("kernel", Level::Fail, |f| f.release = "5.4.0-200-generic".into()),
    ("kernel", Level::Warn, |f| f.release = "mainline".into()),
    ("kernel BTF", Level::Warn, |f| f.kernel_btf = false),
    ("BPF filesystem", Level::Warn, |f| f.bpf_mounts.clear()),
    ("BPF filesystem", Level::Fail, |f| f.pin_dir = "/run/nodefence/v3".into()),
    ("locked memory", Level::Warn, |f| {
        f.release = "5.10.0-32-amd64".into();
        f.memlock = Some(64 << 10);
    }),
    ("capabilities", Level::Fail, |f| f.capabilities = Some(Capabilities(0))),
    ("capabilities", Level::Warn, |f| {
        f.capabilities = Some(Capabilities(0));
        f.root = false;
    }),
    ("lockdown", Level::Warn, |f| f.lockdown = Lockdown::Confidentiality),
    ("conntrack", Level::Warn, |f| f.conntrack = None),
    ("conntrack table", Level::Warn, |f| pressure(f).entries = 236_000),
    ("conntrack drops", Level::Warn, |f| pressure(f).counted = Err("not permitted".into())),
    ("conntrack drops", Level::Warn, |f| {
        pressure(f).counted = Ok([COUNTED, Stats { drop: 11, ..COUNTED }]);
    }),
    ("nf_conntrack_tcp_loose", Level::Warn, |f| f.tcp_loose = Some(0)),
    ("nf_conntrack_tcp_loose", Level::Warn, |f| f.tcp_loose = None),
    ("vs.conntrack", Level::Warn, |f| f.vs_conntrack = Some(0)),
    ("vs.expire_nodest_conn", Level::Warn, |f| f.expire_nodest_conn = Some(0)),
    ("vs.expire_quiescent_template", Level::Warn, |f| f.expire_quiescent_template = Some(0)),
    ("rp_filter eth0", Level::Warn, |f| f.devices[0].rp_filter = Some(1)),
    ("hardware offload eth0", Level::Warn, |f| f.devices[0].hw_tc_offload = Ok(Some(true))),
    ("hardware offload eth0", Level::Warn, |f| f.devices[0].hw_tc_offload = Err("gone".into())),
    ("rp_filter eth0", Level::Warn, |f| f.devices[0].rp_filter = None),
    ("SR-IOV eth0", Level::Warn, |f| f.devices[0].virtual_functions = 8),
    ("lockdown", Level::Warn, |f| f.lockdown = Lockdown::Unknown),
    ("capabilities", Level::Warn, |f| f.capabilities = None),
];

/// Machines on which a check says something else and nothing is wrong.
const OTHERS: &[(&str, Change)] = &[
    ("locked memory", |f| f.release = "5.10.0-32-amd64".into()),
    ("locked memory", |f| {
        f.release = "5.10.0-32-amd64".into();
        f.memlock = Some(256 << 20);
    }),
    ("lockdown", |f| f.lockdown = Lockdown::Integrity),
    ("conntrack table", |f| pressure(f).most = 0),
    ("conntrack drops", |f| pressure(f).counted = Ok([Stats::default(); 2])),
    ("IPVS", |f| f.ipvs = false),
    ("hardware offload eth0", |f| f.devices[0].hw_tc_offload = Ok(None)),
];

#[test]
fn each_check_of_the_machine_stands_in_the_golden_file() {
    use std::fmt::Write as _;

    let mut text = String::new();
    let mut add = |checks: &[Check]| {
        for Check { name, level, found, remedy } in checks {
            let level = format!("{level:?}").to_lowercase();
            let _ = writeln!(text, "{level} {name}: {found}");
            if let Some(remedy) = remedy {
                let _ = writeln!(text, "  -> {remedy}");
            }
        }
    };
    add(&judge(&good()));
    let faults = FAULTS.iter().map(|(name, _, change)| (*name, *change));
    for (name, change) in faults.chain(OTHERS.iter().copied()) {
        let mut facts = good();
        change(&mut facts);
        add(std::slice::from_ref(line(&judge(&facts), name)));
    }
    crate::cli::golden::check("doctor-machine", &text);
}

#[test]
fn each_fault_has_its_line_and_a_remedy() {
    for (name, level, fault) in FAULTS {
        let mut facts = good();
        fault(&mut facts);
        let checks = judge(&facts);
        let line = line(&checks, name);
        assert_eq!(line.level, *level, "{line:?}");
        let remedy = line.remedy.as_deref().expect("a remedy");
        let program = remedy.split(' ').next().unwrap_or_default();
        assert!(COMMANDS.contains(&program), "no command for a shell: {remedy}");
    }
}

/// The programs with which remedies may begin: a remedy must be a command that can be pasted into a shell.
const COMMANDS: &[&str] = &[
    "capsh",
    "cat",
    "conntrack",
    "ethtool",
    "grep",
    "ip",
    "ls",
    "modprobe",
    "mount",
    "nodefence",
    "nsenter",
    "reboot",
    "sudo",
    "sysctl",
    "ulimit",
    "uname",
];

fn pressure(facts: &mut Facts) -> &mut Pressure {
    facts.conntrack.as_mut().expect("conntrack")
}

#[test]
fn a_table_that_is_nearly_full() {
    for (entries, most, full) in [
        (89, 100, false),
        (90, 100, true),
        (120, 100, true),
        // Without a maximum.
        (5, 0, false),
    ] {
        let mut facts = good();
        facts.conntrack = Some(Pressure { entries, most, counted: Ok([COUNTED; 2]) });
        let level = line(&judge(&facts), "conntrack table").level;
        assert_eq!(level == Level::Warn, full, "{entries} of {most}");
    }
    let mut facts = good();
    pressure(&mut facts).entries = 236_000;
    let checks = judge(&facts);
    let found = "nearly full, new flows are dropped then: 236000 of 262144 entries (90 %)";
    assert_eq!(line(&checks, "conntrack table").found, found);
}

#[test]
fn counters_are_a_warning_only_while_they_grow() {
    let told = |after: Stats| {
        let mut facts = good();
        pressure(&mut facts).counted = Ok([COUNTED, after]);
        let checks = judge(&facts);
        line(&checks, "conntrack drops").found.clone()
    };
    // Counts from before the first reading are history.
    let history =
        "none just now; since this network namespace began: insert_failed 1000, drop 10, early_drop 1";
    assert_eq!(told(COUNTED), history);
    let grown = Stats { insert_failed: 1_004, early_drop: 4, ..COUNTED };
    let dropped = "packets are being dropped: insert_failed 4, early_drop 3 within about a second";
    assert_eq!(told(grown), dropped);
    // After a CPU went offline the counts are smaller. That is no growth.
    assert_eq!(told(Stats::default()), "none");
}

#[test]
fn sysctls_of_vlan_devices_are_written_as_sysctl_reads_them() {
    let mut facts = good();
    facts.devices[0].name = "eth0.5".into();
    facts.devices[0].rp_filter = Some(1);
    let checks = judge(&facts);
    let remedy = line(&checks, "rp_filter eth0.5").remedy.as_deref().expect("a remedy");
    assert!(remedy.starts_with("sysctl -w net.ipv4.conf.eth0/5.rp_filter=2 "), "{remedy}");
}

#[test]
fn the_larger_rp_filter_counts() {
    let mut facts = good();
    facts.devices[0].rp_filter = Some(0);
    facts.rp_filter_all = Some(1);
    assert_eq!(line(&judge(&facts), "rp_filter eth0").level, Level::Warn);
    facts.devices[0].rp_filter = Some(2);
    assert_eq!(line(&judge(&facts), "rp_filter eth0").level, Level::Ok);
}

#[test]
fn versions_are_read_from_releases() {
    let version = |major, minor| Some(KernelVersion { major, minor });
    assert_eq!(KernelVersion::parse("5.10.0-32-cloud-amd64"), version(5, 10));
    assert_eq!(KernelVersion::parse("7.2-rc1"), version(7, 2));
    assert_eq!(KernelVersion::parse("6.18.44"), version(6, 18));
    assert_eq!(KernelVersion::parse("linux"), None);
    assert_eq!(KernelVersion::parse(""), None);
}

#[test]
fn capabilities_follow_the_kernel() {
    let net_admin = 1 << 12;
    let sys_admin = 1 << 21;
    let old = KernelVersion { major: 5, minor: 10 };
    let new = KernelVersion { major: 6, minor: 1 };
    assert_eq!(Capabilities(net_admin | sys_admin).missing(new), Vec::<&str>::new());
    assert_eq!(Capabilities(net_admin | sys_admin).missing(old), ["CAP_SYS_RESOURCE"]);
    assert_eq!(Capabilities(net_admin).missing(new), ["CAP_BPF", "CAP_PERFMON"]);
    assert_eq!(Capabilities(sys_admin).missing(new), ["CAP_NET_ADMIN"]);
}

#[test]
fn lockdown_is_the_bracketed_word() {
    assert_eq!(Lockdown::parse("[none] integrity confidentiality\n"), Lockdown::None);
    assert_eq!(Lockdown::parse("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
    assert_eq!(Lockdown::parse("garbage"), Lockdown::Unknown);
}

#[test]
fn only_bpf_mounts_count() {
    let mounts =
        "bpf /sys/fs/bpf bpf rw 0 0\nproc /proc proc rw 0 0\nnone /run/bpf bpf rw 0 0\nbpf /x tmpfs rw 0 0\n";
    assert_eq!(bpf_mounts(mounts), ["/sys/fs/bpf", "/run/bpf"]);
}

#[test]
fn this_machine_can_be_read() {
    let pins = "/sys/fs/bpf/nodefence/v3".as_ref();
    let none = Facts::gather(&["nope0".to_owned()], pins).expect("facts of the running machine");
    assert_eq!(none.devices, [], "a device that does not exist has no facts");
    let mut facts = Facts::gather(&[], pins).expect("facts of the running machine");
    facts.conntrack = Counting::begin().end();
    assert!(KernelVersion::parse(&facts.release).is_some(), "{}", facts.release);
    assert!(facts.capabilities.is_some());
}
