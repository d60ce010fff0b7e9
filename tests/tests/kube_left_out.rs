//! A Service with the label `nodefence.io/mode` is left out: its endpoints are not cut, on whatever node they are.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Conn, Family, Netns,
    audit::BOTH,
    checks::SOON,
    kube::{
        Alone, ControlPlane,
        alone::{backends_on, lists},
        control::SERVICES,
        forwards::object,
    },
    promises::WATCHED,
    topology::Service,
    watch::wait_within,
};
use serde_json::json;

/// Gives a Service this label, or takes the label away.
fn label(control: &ControlPlane, service: Service, mode: Option<&str>) -> Result<()> {
    let mut object = object(service, &BOTH).json();
    object["metadata"]["labels"] = mode.map_or(json!({}), |mode| json!({ "nodefence.io/mode": mode }));
    control.object(SERVICES, &object)
}

/// Whether the endpoint answers.
fn answers(ns: &Netns, to: std::net::SocketAddr) -> bool {
    Conn::connect(ns, to, SOON).and_then(|mut conn| conn.who()).is_ok()
}

#[test]
fn a_service_with_the_label_is_not_cut_on_a_flagged_node() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let a = &cluster.a;
    let b = &cluster.b;
    lists(agent, &backends_on(&[b, &cluster.c], &[Service::Web, Service::Host]))?;
    label(control, Service::Web, Some("off"))?;
    agent.flag(b.name)?;
    let passes = |wanted: bool| -> Result<()> {
        for family in BOTH {
            let to = b.endpoint(Service::Web, family);
            wait_within("the label is in force", WATCHED, Instant::now(), || answers(&a.ns, to) == wanted)
                .with_context(|| format!("{to} answers: {wanted}\n{}", agent.log()))?;
            Conn::refused_at_once(&a.ns, b.endpoint(Service::Host, family), SOON)
                .with_context(|| format!("the other Service\n{}", agent.log()))?;
        }
        Ok(())
    };
    passes(true)?;
    let row = agent.status()?;
    let exempt = row["exempt_examples"].to_string();
    ensure!(exempt.contains("default/web, which is left out (mode: off)"), "{exempt}");

    // The node is flagged all the time.
    label(control, Service::Web, None)?;
    passes(false).context("without the label")?;
    label(control, Service::Web, Some("observe"))?;
    passes(true).context("with the label again")?;
    ensure!(agent.status()?["cluster"]["conflicts"] == 0);
    label(control, Service::Web, Some("of"))?;
    let conflict = || agent.status().is_ok_and(|status| status["cluster"]["conflicts"] == 1);
    wait_within("the label's conflict", WATCHED, Instant::now(), conflict).with_context(|| agent.log())?;
    let row = agent.status()?["cluster"]["conflict_examples"].to_string();
    ensure!(row.contains("`of` is no mode: expected observe or off"), "{row}");
    passes(true).context("with a label that is none")?;
    ensure!(answers(&a.ns, cluster.c.endpoint(Service::Web, Family::V4)), "the other endpoint");
    Ok(())
}
