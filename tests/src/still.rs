//! Checks promises of an agent one of whose threads stands still: flags are answered, and verdicts are renewed. The cluster is that of
//! [`four_nodes`](crate::four_nodes).

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::{flags::monotonic_ns, report::Request};
use serde_json::Value;

use crate::{Agent, Netns, agent::verdict_until, watch};

/// How long a thread is held: longer than a verdict holds without a renewal (3 s).
pub const STILL: Duration = Duration::from_secs(5);
/// A verdict's deadline is always at least this far ahead, whichever thread stands still.
const AHEAD: Duration = Duration::from_secs(1);
/// A flag and an unflag are carried out and answered within this time while any thread stands still, except the thread that saves flags.
const ANSWERED: Duration = Duration::from_millis(500);
/// A flag and an unflag each wait at most this long until they are saved.
const SAVED: Duration = Duration::from_secs(1);

/// The names of the cut nodes.
fn flagged(agent: &Agent) -> Result<Vec<String>> {
    let nodes: Vec<Value> = agent.ask(&Request::Nodes)?;
    let cut = nodes.iter().filter(|node| node["action"] == "refuse");
    Ok(cut.filter_map(|node| node["name"].as_str()).map(str::to_owned).collect())
}

/// Flags `node-c` while `node-b` is flagged, and withdraws that flag. Both must be carried out in time while the thread `name` stands still.
///
/// # Errors
/// Fails if the flag or the unflag is not carried out, or is late.
pub fn flags_are_answered(agent: &Agent, name: &str) -> Result<()> {
    let since = Instant::now();
    agent.flag_by_socket("node-c").with_context(|| format!("{name} stands still"))?;
    ensure!(flagged(agent)? == ["node-b", "node-c"], "{name} stands still: the flag is not carried out");
    agent.ask::<Value>(&Request::Unflag { node: "node-c".into() })?;
    ensure!(flagged(agent)? == ["node-b"], "{name} stands still: the flag is not taken back");
    let promised = if name == "store" { ANSWERED + 2 * SAVED } else { ANSWERED };
    watch::within(&format!("answers while {name} stands still"), promised, since).map(drop)
}

/// Checks that the verdict of the node with this index is renewed in time, until [`STILL`] has passed since `since`. The thread `name` stands still.
///
/// # Errors
/// Fails if the verdict is about to lapse.
pub fn verdicts_are_renewed(ns: &Netns, index: u32, name: &str, since: Instant) -> Result<()> {
    while since.elapsed() < STILL {
        let ahead = Duration::from_nanos(verdict_until(ns, index)?.saturating_sub(monotonic_ns()));
        if ahead + watch::longest_gap(since) < AHEAD {
            let text = format!("{name} stands still: the verdict holds for {ahead:?} only");
            return Err(watch::overdue(AHEAD, text));
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}
