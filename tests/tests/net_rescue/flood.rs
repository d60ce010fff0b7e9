//! A flood of clients with session affinity. Its packets fill the kernel's queue of received packets (`net.core.netdev_max_backlog`), which tests that
//! run beside it share.
use std::{
    net::SocketAddr,
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nodefence_tests::{Family, Netns, Place, emulated, load::syns::Syns, topology::Service, watch::figure};

use super::sticky::{keeping, set};

/// `iptables-nft-restore` prepares its rules for one generation of the rule set, and begins anew after each transaction that comes in between. So the agent
/// limits its transactions.
#[test]
fn a_flood_of_kept_clients_lets_rules_be_restored() -> Result<()> {
    const FLOOD: Duration = Duration::from_secs(2);
    /// The most transactions of the agent, one in 50 ms.
    const A_SECOND: u32 = 20;
    let (cluster, agent) = keeping()?;
    let ns = &cluster.a.ns;
    // Only node B keeps clients, so the agent deletes the client again for each pick of node B.
    let b = set(&cluster.b);
    ns.nft(&format!("insert rule ip kube-proxy endpoint-web-0 update @{b} {{ ip saddr timeout 3h }}"))?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let rules = rules_to_restore();
    let restore = || -> Result<Duration> {
        let begun = Instant::now();
        ns.feed("timeout 60 iptables-nft-restore", &rules)?;
        Ok(begun.elapsed())
    };
    let alone = restore()?;
    let SocketAddr::V4(to) = cluster.service(Service::Web, Place::Outside, Family::V4) else {
        bail!("no IPv4 address");
    };
    let flood = Syns::start(&cluster.client, &["192.0.2.2".parse()?], to)?;
    let begun = Instant::now();
    let first = generation(ns)?;
    std::thread::sleep(FLOOD);
    let transactions = generation(ns)?.wrapping_sub(first);
    let most = (begun.elapsed().as_secs() as u32 + 1) * A_SECOND;
    let beside = restore();
    let sent = flood.finish()?;
    println!("{sent:.0} SYNs a second, {transactions} transactions; alone {alone:?}, beside {beside:?}");
    figure("rules restored beside a flood of kept clients", beside?.as_secs_f64() * 1e3, "ms");
    ensure!(transactions > 2, "only {transactions} transactions: few clients were deleted");
    ensure!(transactions <= most, "{transactions} transactions, {most} at most");
    Ok(())
}

/// A rule set for which `iptables-nft-restore` needs a while. An emulated processor needs as long for fewer rules.
fn rules_to_restore() -> String {
    let rules = if emulated() { 1_000 } else { 20_000 };
    let mut text = "*filter\n:RESTORED - [0:0]\n".to_owned();
    for rule in 0_u32..rules {
        let [_, _, high, low] = rule.to_be_bytes();
        text += &format!("-A RESTORED -d 198.18.{high}.{low}/32 -j ACCEPT\n");
    }
    text + "COMMIT\n"
}

/// The number of nftables transactions in the namespace so far (`NFT_MSG_GETGEN`).
fn generation(ns: &Netns) -> Result<u32> {
    /// The header has length, type, flags (`NLM_F_REQUEST`), number and port. `struct nfgenmsg` follows.
    const QUESTION: [u8; 20] = [20, 0, 0, 0, 16, 10, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// The offset of the first attribute's value, `NFTA_GEN_ID`, behind both headers and the attribute's own.
    const AT: usize = 24;
    ns.within(|| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let family = AddressFamily::Netlink;
        let netlink = socket(family, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        let to = NetlinkAddr::new(0, 0);
        sendto(netlink.as_raw_fd(), &QUESTION, &to, MsgFlags::empty())?;
        let mut answer = [0; 256];
        let len = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        let number = answer[..len].get(AT..AT + 4).context("no generation")?;
        Ok(u32::from_be_bytes(number.try_into()?))
    })
}
