//! How a running agent follows its cluster file.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::flags::monotonic_ns;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Options, Place,
    checks::{Case, SOON, reset_by_now},
    load::steady::Load,
    promises::FOLLOWED,
    topology::Service,
    watch::wait_within,
};
use serde_json::Value;

const THREE: &str = "nodes:
- {name: node-a, address: 10.9.0.1}
- {name: node-b, address: 10.9.0.12, backends: [{address: 10.9.1.1}, {address: 10.9.1.2}]}
- {name: node-c, address: 10.9.0.13, backends: [{address: 10.9.2.1}]}
";

fn start(file: &str) -> Result<Agent> {
    Agent::start(&namespace()?, "node-a", &["v0"], file)
}

fn namespace() -> Result<Arc<Netns>> {
    let ns = Arc::new(Netns::new("reload")?);
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/16 dev v0")?;
    Ok(ns)
}

/// The time after which the agent reads a file again that it could not take.
const LOOKED_AT: Duration = Duration::from_secs(5);

/// Changes the file or its path, and waits until `test` is true. The time is checked against the promise, which the agent only keeps if it gets an event: without
/// one it looks at its file every 5 s.
fn changed(
    agent: &Agent,
    what: &str,
    change: impl FnOnce() -> Result<()>,
    test: impl Fn() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    change()?;
    wait_within(what, FOLLOWED, began, || test().is_ok_and(|is_so| is_so))
        .with_context(|| agent.log())
        .map(drop)
}

/// Renames a new file over the cluster file, and waits until the field `cluster` of `status` passes `test`.
fn renamed(agent: &Agent, what: &str, text: &str, test: impl Fn(&Value) -> bool) -> Result<()> {
    let is_so = || Ok(test(&agent.status()?["cluster"]));
    changed(agent, what, || agent.rewrite_cluster_file(text), is_so)
}

/// Renames a new file over the cluster file, and waits until a node's action is this one.
fn action(agent: &Agent, what: &str, text: &str, node: &str, action: &str) -> Result<()> {
    let is_so = || Ok(agent.node(node)?["action"] == action);
    changed(agent, what, || agent.rewrite_cluster_file(text), is_so)
}

#[test]
fn a_bad_file_leaves_the_last_good_view() -> Result<()> {
    let agent = start(THREE)?;
    agent.flag("node-b")?;
    for (bad, says) in [
        ("", "is empty"),
        ("nodes:\n- {name: node-a, addr", "does not end with a line feed"),
        ("nodes: []\n", "--allow-empty"),
        ("nodes:\n- {name: node-a, address: 10.9.0.1}\n- {name: node-a, address: 10.9.0.2}\n", "line 3"),
    ] {
        renamed(&agent, says, bad, |cluster| {
            cluster["error"]
                .as_str()
                .is_some_and(|error| error.contains(says) && error.contains("cluster.yaml"))
        })?;
        ensure!(agent.node("node-b")?["action"] == "refuse");
        ensure!(agent.node("node-b")?["backends"] == 2);
    }
    renamed(&agent, "good again", THREE, |cluster| cluster["error"].is_null())?;
    let remove = || Ok(fs::remove_file(agent.cluster_file())?);
    changed(&agent, "missing", remove, || Ok(!agent.status()?["cluster"]["error"].is_null()))?;
    ensure!(agent.node("node-b")?["action"] == "refuse");
    Ok(())
}

/// Any write of the file confirms the view, also one of the same text.
#[test]
fn a_file_that_is_touched_confirms_its_view() -> Result<()> {
    let options = ["--max-view-age", "3s"];
    let agent = Agent::start_with(&namespace()?, "node-a", &["v0"], THREE, &options)?;
    let is = |action: &str| agent.node("node-b").is_ok_and(|row| row["action"] == action);
    let touch =
        || Ok(fs::File::options().append(true).open(agent.cluster_file())?.set_modified(SystemTime::now())?);
    let touched = Instant::now();
    changed(&agent, "an age of nothing", touch, || Ok(agent.status()?["cluster"]["view"] == 2))?;
    agent.flag("node-b")?;
    ensure!(is("refuse"), "{}", agent.node("node-b")?);
    wait_within("its view is too old", Duration::from_secs(3 + 1), touched, || is("observe"))?;
    ensure!(touched.elapsed() >= Duration::from_secs(3), "the view was too old before its time");
    changed(&agent, "its view is confirmed", touch, || Ok(is("refuse")))
}

/// A folder stands in the file's place, and then nothing. `status` shows the present error, not the one before it.
#[test]
fn a_folder_in_its_place_that_goes_is_told_of_as_missing() -> Result<()> {
    let agent = start(THREE)?;
    let error = |says: &str| -> Result<bool> {
        Ok(agent.status()?["cluster"]["error"].as_str().is_some_and(|error| error.contains(says)))
    };
    let file = agent.cluster_file();
    fs::remove_file(&file)?;
    fs::create_dir(&file)?;
    let began = Instant::now();
    wait_within("a folder", LOOKED_AT + FOLLOWED, began, || error("is a folder").is_ok_and(|is| is))
        .with_context(|| agent.log())?;
    let began = Instant::now();
    fs::remove_dir(&file)?;
    wait_within("missing", LOOKED_AT + FOLLOWED, began, || error("No such file").is_ok_and(|is| is))
        .with_context(|| agent.log())
        .map(drop)
}

#[test]
fn a_file_written_in_place_is_seen() -> Result<()> {
    let agent = start(THREE)?;
    let before = agent.status()?["cluster"].clone();
    let written = monotonic_ns();
    let four = THREE.replace("{address: 10.9.1.2}", "{address: 10.9.1.2}, {address: 10.9.1.3}");
    let write = || Ok(fs::write(agent.cluster_file(), four)?);
    changed(&agent, "four backends", write, || Ok(agent.status()?["cluster"]["backends"] == 4))?;
    // `cargo xtask bench scale` relies on these fields.
    let after = agent.status()?["cluster"].clone();
    let of =
        |cluster: &Value, key: &str| cluster["reading"][key].as_u64().context("no figure of the reading");
    let rises = |key: &str| Ok::<_, anyhow::Error>(of(&after, key)? > of(&before, key)?);
    ensure!(rises("times")? && rises("processor_micros")?, "{before} {after}");
    ensure!((written..monotonic_ns()).contains(&of(&after, "ended_ns")?), "{written} {after}");
    ensure!(after["view"].as_u64() > before["view"].as_u64(), "{before} {after}");
    Ok(())
}

#[test]
fn a_config_map_is_followed() -> Result<()> {
    // The kubelet lays a ConfigMap out so that the file is a link through `..data`, and swaps `..data`.
    let agent = start(THREE)?;
    let file = agent.cluster_file();
    let dir = file.parent().context("no folder")?;
    let generation = |name: &str, text: &str| -> Result<()> {
        fs::create_dir(dir.join(name))?;
        fs::write(dir.join(name).join("cluster.yaml"), text)?;
        let aside = dir.join("..data_tmp");
        symlink(name, &aside)?;
        Ok(fs::rename(&aside, dir.join("..data"))?)
    };
    generation("..one", &THREE.replace(", {address: 10.9.1.2}", ""))?;
    let link = dir.join("link");
    symlink("..data/cluster.yaml", &link)?;
    let backends = |count: u64| agent.status().map(|status| status["cluster"]["backends"] == count);
    changed(&agent, "two backends", || Ok(fs::rename(&link, &file)?), || backends(2))?;
    let swap = || {
        generation("..two", THREE)?;
        Ok(fs::remove_dir_all(dir.join("..one"))?)
    };
    changed(&agent, "three backends", swap, || backends(3))
}

#[test]
fn a_node_keeps_its_index_and_a_new_one_gets_another_generation() -> Result<()> {
    let agent = start(THREE)?;
    let b = agent.node("node-b")?;
    let c = agent.node("node-c")?;
    let reordered = "nodes:
- {name: node-x, address: 10.9.0.14, backends: [{address: 10.9.1.1}]}
- {name: node-c, address: 10.9.0.13, backends: [{address: 10.9.2.1}]}
- {name: node-a, address: 10.9.0.1}
";
    changed(&agent, "node-x", || agent.rewrite_cluster_file(reordered), || Ok(agent.node("node-x").is_ok()))?;
    let x = agent.node("node-x")?;
    ensure!(agent.node("node-c")?["index"] == c["index"], "node-c moved");
    ensure!(
        (&x["index"], &x["generation"]) != (&b["index"], &b["generation"]),
        "node-x has node-b's place in the same generation"
    );
    Ok(())
}

#[test]
fn a_flag_in_the_file_cuts_and_its_removal_frees() -> Result<()> {
    let agent = start(THREE)?;
    let flagged = format!("{THREE}flags:\n- {{node: node-b, until: 2999-01-01T00:00:00Z, reason: disk}}\n");
    action(&agent, "a flag in the file", &flagged, "node-b", "refuse")?;
    let b = agent.node("node-b")?;
    ensure!(b["flag"]["origin"] == "cluster-file" && b["flag"]["reason"] == "disk", "{b}");
    // `unflag` cannot take the file's flag back, and says so.
    let told = agent.cli(&["unflag", "node-b"])?;
    ensure!(
        String::from_utf8_lossy(&told.stderr).contains("the cluster file flags the node too"),
        "{told:?}"
    );
    action(&agent, "the file's flag taken back", THREE, "node-b", "pass")?;
    // A flag whose time is over has no effect.
    let view = agent.status()?["cluster"]["view"].as_u64().context("no number of the view")?;
    let over = flagged.replace("2999", "1999");
    renamed(&agent, "read", &format!("# over\n{over}"), |cluster| {
        cluster["error"].is_null() && cluster["view"].as_u64() > Some(view)
    })?;
    ensure!(agent.node("node-b")?["action"] == "pass");
    Ok(())
}

/// A flag for which `nodefence flag` needs `--force` holds if the file has it. `status` shows a warning.
#[test]
fn dangerous_flags_of_the_file_are_told() -> Result<()> {
    let agent = start(THREE)?;
    let row = || anyhow::Ok(agent.status()?["cluster"]["flags"].clone());
    ensure!(row()? == serde_json::json!([]));
    let flagged = format!(
        "{THREE}flags:\n- {{node: node-a}}\n- {{node: node-b}}\n- {{node: node-c, until: 1999-01-01T00:00:00Z}}\n"
    );
    action(&agent, "two flags in the file", &flagged, "node-b", "refuse")?;
    let told = [
        "the cluster file flags 2 of 3 nodes, more than a third: the rest may not carry the load",
        "the cluster file flags `node-a`, the node this agent runs on: whoever enters here is cut off from its pods",
        "1 flags in the cluster file ended in the past and mean nothing: node-c",
    ];
    ensure!(row()? == serde_json::json!(told), "{}", row()?);
    ensure!(agent.warning("NF13")? == Some(told.join("; ")), "{}", agent.status()?["warnings"]);
    action(&agent, "the file's flags taken back", THREE, "node-b", "pass")?;
    ensure!(row()? == serde_json::json!([]));
    Ok(())
}

/// A file that lacks a node may be half written, and the node may hang all the same. So its flag stays.
#[test]
fn a_flag_outlives_a_file_without_its_node() -> Result<()> {
    let agent = start(THREE)?;
    agent.expect(&["flag", "node-b", "--for", "forever", "--reason", "disk"])?;
    let without: String =
        THREE.lines().filter(|line| !line.contains("node-b")).map(|line| format!("{line}\n")).collect();
    renamed(&agent, "two nodes", &without, |cluster| cluster["nodes"] == 2)?;
    // In this time the agent looks through its flags at least once.
    std::thread::sleep(Duration::from_millis(2500));
    ensure!(agent.status()?["flagged_unknown"]["node-b"]["reason"] == "disk");
    ensure!(
        agent
            .expect(&["status"])?
            .contains("node-b (not in the cluster file): flagged by root until unflagged: disk")
    );
    action(&agent, "flagged again", THREE, "node-b", "refuse")?;
    // A flag can be taken back also if the file lacks its node.
    renamed(&agent, "two nodes", &without, |cluster| cluster["nodes"] == 2)?;
    agent.unflag("node-b")?;
    ensure!(agent.status()?["flagged_unknown"] == serde_json::json!({}));
    Ok(())
}

#[test]
fn a_second_address_of_this_machine_is_no_pod() -> Result<()> {
    let ns = namespace()?;
    let agent = Agent::start(&ns, "node-a", &["v0"], THREE)?;
    ns.ip("addr add 10.9.2.7/16 dev v0")?;
    let local = THREE.replace("{address: 10.9.2.1}", "{address: 10.9.2.7}");
    renamed(&agent, "refused", &local, |cluster| {
        cluster["error"].as_str().is_some_and(|error| {
            error.contains("cluster.yaml: backend 10.9.2.7 of node `node-c` is an address of this machine")
        })
    })?;
    let backends = || agent.expect(&["backends"]);
    ensure!(backends()?.contains("10.9.2.1"));
    // The address is removed from this machine, so it may be a pod's now. Only another reading of the file shows that.
    let moved = Instant::now();
    ns.ip("addr del 10.9.2.7/16 dev v0")?;
    wait_within("the file is read again", LOOKED_AT + FOLLOWED, moved, || {
        backends().is_ok_and(|rows| rows.contains("10.9.2.7"))
    })
    .with_context(|| agent.log())
    .map(drop)
}

/// The file is reloaded under load while B is flagged: nodes are reordered, added and removed. No packet to C is cut, and no packet to B passes.
#[test]
fn reloads_cut_nobody_else() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    let load = Load::on_c(&cluster, Family::V4)?;
    let mut conn =
        Case { cluster: &cluster, place: Place::Outside, family: Family::V4 }.to_b(Service::Web)?;
    agent.flag("node-b")?;
    reset_by_now(&mut conn)?;
    let good = cluster.cluster_file();
    let (head, nodes) = good.split_once('\n').context("no line")?;
    let mut blocks: Vec<String> =
        nodes.split("  - name: ").skip(1).map(|block| format!("  - name: {block}")).collect();
    ensure!(blocks.len() == 3, "{good}");
    let backend = (cluster.b.pod_address(Family::V4), Service::Web.ports().1).into();
    for round in 0..20 {
        blocks.rotate_left(1);
        let extra: String = (0..round % 7)
            .map(|node| {
                format!(
                    "  - name: extra-{node}\n    address: 10.77.{round}.{node}\n    backends: [{{address: 10.78.{round}.{node}}}]\n"
                )
            })
            .collect();
        let text = if round % 2 == 0 {
            format!("{head}\n{extra}{}", blocks.concat())
        } else {
            format!("{head}\n{}{extra}", blocks.concat())
        };
        renamed(&agent, "this round's file", &text, |cluster| cluster["nodes"] == 3 + round % 7)?;
        Conn::refused_at_once(&cluster.a.pod, backend, SOON).with_context(|| format!("round {round}"))?;
        Conn::connect_to(
            &cluster.a.pod,
            (cluster.c.pod_address(Family::V4), Service::Web.ports().1).into(),
            "node-c",
            SOON,
        )
        .with_context(|| format!("round {round}"))?;
    }
    load.finish()?;
    ensure!(agent.status()?["cluster"]["error"].is_null(), "{}", agent.status()?["cluster"]);
    Ok(())
}
