//! `nodefence flows` lists real flows through a Service.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Cluster, Family, Options, Place,
    checks::{Case, reset_by_now},
    topology::Service,
};
use serde_json::Value;

#[test]
fn flows_are_listed_by_node() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let list = |args: &[&str]| -> Result<Vec<Value>> {
        let answer: Value = serde_json::from_str(&agent.expect(&[&["flows", "-o", "json"], args].concat())?)?;
        Ok(answer["items"].as_array().context("no list")?.clone())
    };
    let mut conn =
        Case { cluster: &cluster, place: Place::Outside, family: Family::V4 }.to_b(Service::Web)?;
    let service = cluster.service(Service::Web, Place::Outside, Family::V4).to_string();
    let backend = cluster.b.pod_address(Family::V4).to_string();
    let ours = |flow: &Value| {
        flow["service"] == service.as_str()
            && flow["backend"].as_str().is_some_and(|end| end.starts_with(&backend))
            && flow["state"] == "established"
    };
    let flows = list(&["--node", "node-b"])?;
    ensure!(flows.iter().filter(|flow| ours(flow)).count() == 1, "{flows:?}");
    ensure!(flows.iter().all(|flow| flow["node"] == "node-b"), "{flows:?}");
    ensure!(!list(&["--node", "node-c"])?.iter().any(ours));
    ensure!(list(&[])?.iter().any(ours));
    agent.flag("node-b")?;
    reset_by_now(&mut conn)?;
    let table = agent.expect(&["flows", "--node", "node-b"])?;
    ensure!(table.starts_with("PROTOCOL") && !table.contains("ESTABLISHED"), "{table}");
    let unknown = agent.cli(&["flows", "--node", "node-z"])?;
    ensure!(unknown.status.code() == Some(7), "{unknown:?}");
    Ok(())
}
