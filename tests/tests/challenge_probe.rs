//! The probes that the agent makes at its start, on this kernel.

use std::path::Path;

use anyhow::Result;
use nodefence::dataplane::probe::{Finding, Findings};
use nodefence_tests::Netns;

/// The devices, addresses and rules of a namespace, and the mounts that its thread sees.
fn state(ns: &Netns) -> Result<String> {
    Ok([
        ns.exec("ip -details link show")?,
        ns.exec("ip address show")?,
        ns.exec("nft list ruleset")?,
        ns.exec("cat /proc/thread-self/mounts")?,
    ]
    .concat())
}

#[test]
fn the_kernel_is_found_out_and_left_as_it_was() -> Result<()> {
    let ns = Netns::new("probe")?;
    let before = state(&ns)?;
    let findings = ns.run(Findings::gather);
    println!("{findings} ({} ms)", findings.milliseconds);
    let Finding::Found(conntrack) = &findings.conntrack else { panic!("{findings:?}") };
    // By conntrack's state table a SYN|ACK passes on each kernel. Far numbers pass since 6.1, or on liberal flows.
    assert!(conntrack.syn_ack && conntrack.liberal, "{findings:?}");
    assert_eq!(findings.manner().far_is_invalid, !conntrack.far_past);
    let ipvs = ns.run(|| Path::new("/proc/thread-self/net/ip_vs").exists());
    match &findings.ipvs_translates {
        Finding::Found(translates) => assert!(ipvs && findings.inject() != *translates, "{findings:?}"),
        Finding::NotNeeded(_) => assert!(!ipvs && !findings.inject(), "{findings:?}"),
        Finding::Failed(reason) => panic!("{reason}"),
    }
    // An emulator is slow to load programs. Without IPVS no program is loaded.
    assert!(findings.milliseconds < if ipvs { 70_000 } else { 10_000 }, "{findings:?}");
    assert_eq!(state(&ns)?, before);
    Ok(())
}

#[test]
fn without_privilege_the_safe_choice_is_taken() {
    // The thread may not make namespaces.
    let findings = std::thread::spawn(|| {
        caps::drop_all();
        Findings::gather()
    })
    .join()
    .unwrap();
    assert!(matches!(&findings.conntrack, Finding::Failed(reason) if reason.contains("network namespace")));
    assert!(findings.manner().far_is_invalid && findings.manner().syn_ack);
    assert!(!matches!(findings.ipvs_translates, Finding::Found(_)));
}

mod caps {
    #![expect(unsafe_code, reason = "capset(2) has no safe wrapper here")]

    /// Drops all capabilities of the calling thread. Threads that it starts have none either.
    pub(super) fn drop_all() {
        // `header` is a struct __user_cap_header_struct (version 3, this thread). `data` is two struct __user_cap_data_struct (effective, permitted, inheritable).
        let header = [0x2008_0522_u32, 0];
        let data = [0_u32; 6];
        // SAFETY: both point to structures of the layout and size that version 3 of the call reads.
        let code = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }
}
