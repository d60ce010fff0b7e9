//! Every scheduler sends new flows elsewhere and refuses nobody.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Family, Outcome, Place,
    client::{try_new, wait_until},
    topology::Service,
};

use super::common::{LIMIT, agent, cluster, saved, wait_out, wait_same};

#[test]
fn new_flows_go_elsewhere_and_none_is_refused() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster)?;
    let at = cluster.service(Service::Web, Place::Pod, Family::V4);
    for scheduler in
        ["rr", "wrr", "lc", "wlc", "sed", "nq", "sh -b sh-port", "mh -b mh-port", "sh -b sh-port,sh-fallback"]
    {
        ns.exec(&format!("ipvsadm -E -t {at} -s {scheduler}")).with_context(|| scheduler.to_owned())?;
        let before = saved(ns)?;
        // Both get something, by whatever rule.
        let who = |limit| try_new(cluster.at(Place::Pod), at, limit);
        let both = || {
            let names: Vec<_> = (0..24).filter_map(|_| who(LIMIT).1).collect();
            ["node-b", "node-c"].iter().all(|name| names.iter().any(|n| n == name))
        };
        wait_until("both get flows", LIMIT, both).with_context(|| scheduler.to_owned())?;
        agent.flag("node-b")?;
        wait_out(&cluster, &agent).with_context(|| scheduler.to_owned())?;
        for n in 0..24 {
            let (outcome, name) = who(LIMIT);
            ensure!(
                outcome == Outcome::Answered && name.as_deref() == Some("node-c"),
                "{scheduler}: flow {n}: {outcome:?} {name:?}\n{}",
                ns.exec("ipvsadm -Ln")?
            );
        }
        agent.unflag("node-b")?;
        wait_same(&cluster, &before, LIMIT, &agent.log()).with_context(|| scheduler.to_owned())?;
    }
    Ok(())
}
