//! With every scheduler new flows go to another node, and none is refused. Of the existing flows only those of the flagged node are deleted.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Conn, Family, Outcome, Place,
    checks::reset_by_now,
    client::{UdpConn, try_new},
    topology::Service,
};

use super::common::{
    LIMIT, addresses, agent, answered_by_c, cluster, connections, saved, wait_drained, wait_same,
};

#[test]
fn new_flows_go_elsewhere_and_none_is_refused() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster)?;
    let at = cluster.service(Service::Web, Place::Pod, Family::V4);
    let dns = cluster.service(Service::Dns, Place::Pod, Family::V4);
    let pod = cluster.at(Place::Pod);
    let to_b = addresses(&cluster.b);
    let mut moved = 0;
    for scheduler in
        ["rr", "wrr", "lc", "wlc", "sed", "nq", "sh -b sh-port", "mh -b mh-port", "sh -b sh-port,sh-fallback"]
    {
        for server in [format!("-t {at}"), format!("-u {dns}")] {
            ns.exec(&format!("ipvsadm -E {server} -s {scheduler}")).with_context(|| scheduler.to_owned())?;
        }
        let before = saved(ns)?;
        // The connections stay open meanwhile, since some schedulers count them. So both nodes get some by each scheduler.
        let connect = |_| -> Result<(String, Conn)> {
            let mut conn = Conn::connect(pod, at, LIMIT)?;
            Ok((conn.who()?, conn))
        };
        let mut conns =
            (0..24).map(connect).collect::<Result<Vec<_>>>().with_context(|| scheduler.to_owned())?;
        let mut first = |name: &str| -> Result<Conn> {
            let at = conns.iter().position(|(who, _)| who == name);
            Ok(conns.swap_remove(at.with_context(|| format!("{scheduler}: {name} had no flow"))?).1)
        };
        let mut hung = first("node-b")?;
        let mut open = first("node-c")?;
        drop(conns);
        // Some schedulers only count TCP connections, and send all datagrams to one node.
        let datagrams = ["node-b", "node-c"].map(|name| UdpConn::connect_to(pod, dns, name, LIMIT).ok());
        moved += usize::from(datagrams[0].is_some());
        agent.flag("node-b")?;
        wait_drained(&cluster, &agent).with_context(|| scheduler.to_owned())?;
        let left = connections(ns, &to_b)?;
        ensure!(left.is_empty(), "{scheduler}: {left:?}");
        reset_by_now(&mut hung).with_context(|| format!("{scheduler}: the client was not reset"))?;
        ensure!(open.who()? == "node-c", "{scheduler}: a flow to node C was cut");
        let datagrams: Vec<_> = datagrams.into_iter().flatten().collect();
        answered_by_c(&datagrams).with_context(|| scheduler.to_owned())?;
        for n in 0..24 {
            let (outcome, name) = try_new(pod, at, LIMIT);
            ensure!(
                outcome == Outcome::Answered && name.as_deref() == Some("node-c"),
                "{scheduler}: flow {n}: {outcome:?} {name:?}\n{}",
                ns.exec("ipvsadm -Ln")?
            );
        }
        let began = Instant::now();
        agent.unflag("node-b")?;
        wait_same(&cluster, &before, began, &agent.log()).with_context(|| scheduler.to_owned())?;
    }
    ensure!(moved >= 5, "only {moved} schedulers had datagrams for node B");
    Ok(())
}
