//! A rollout of the agents: what became of each node's old and new pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    super::{KubeCluster, install::NAMESPACE, is_ready, wire},
    check::Check,
};

/// How long a rollout of all nodes may take.
const DONE: Duration = Duration::from_secs(600);
/// How often the pods are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// A new pod is ready within this time after it was made, on an emulated processor of which the clients take their share.
const READY: Duration = Duration::from_secs(120);
/// The agents' HTTP port (`agent.http.port` of the chart).
const PORT: u16 = 9478;

/// An agent's pod at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pod {
    node: String,
    uid: String,
    is_ready: bool,
    is_ending: bool,
}

/// The agents' pods at a moment, counted from the beginning of the rollout.
#[derive(Clone, Debug)]
struct Look {
    at: Duration,
    pods: Vec<Pod>,
}

/// Which pod of a node listens on the agents' port, and which lines the old pod's agent has logged, while both pods are there.
#[derive(Clone, Debug)]
struct HandOver {
    old: String,
    new: String,
    told: String,
}

/// A rollout.
#[derive(Debug)]
pub(super) struct Rollout {
    /// The old pods' UIDs.
    old: BTreeSet<String>,
    looks: Vec<Look>,
    /// By node.
    hand_overs: BTreeMap<String, HandOver>,
}

impl Rollout {
    /// The pods of now are the old ones.
    pub(super) fn before(cluster: &KubeCluster) -> Result<Self> {
        let old = agents(cluster)?.into_iter().map(|pod| pod.uid).collect();
        Ok(Self { old, looks: Vec::new(), hand_overs: BTreeMap::new() })
    }

    /// Looks on until each node has a new pod that is ready, and no old one. Old pods that end still have what they requested: with one of them, its
    /// successor and the pod of the next rollout the scheduler would evict other pods.
    pub(super) fn follow(&mut self, cluster: &KubeCluster, step: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            cluster.waiting.check()?;
            let pods = agents(cluster)?;
            self.look_at_hand_overs(cluster, &pods)?;
            let is_done = self.is_done(&pods);
            self.looks.push(Look { at: began.elapsed(), pods });
            if is_done {
                let seconds = began.elapsed().as_secs_f64();
                cluster.waiting.say(&format!("{step}: all agents are new and ready (after {seconds:.0} s)"));
                return Ok(());
            }
            if began.elapsed() > DONE {
                bail!("{step}: not done within {DONE:?}; the agents' pods: {:#?}", self.looks.last());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Looks at a node once: its new pod is ready, and its old one is still there.
    fn look_at_hand_overs(&mut self, cluster: &KubeCluster, pods: &[Pod]) -> Result<()> {
        for new in pods.iter().filter(|pod| pod.is_ready && !self.old.contains(&pod.uid)) {
            let old = pods.iter().find(|pod| pod.node == new.node && self.old.contains(&pod.uid));
            let Some(old) = old.filter(|_| !self.hand_overs.contains_key(&new.node)) else { continue };
            let told = cluster.on(&new.node, &question(&old.uid))?;
            let hand_over = HandOver { old: old.uid.clone(), new: new.uid.clone(), told };
            self.hand_overs.insert(new.node.clone(), hand_over);
        }
        Ok(())
    }

    /// Whether each node has one pod, and this pod is new and ready.
    fn is_done(&self, pods: &[Pod]) -> bool {
        let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
        let are_new = pods.iter().all(|pod| pod.is_ready && self.is_new(pod));
        nodes.len() == wire::NODES.count() && pods.len() == nodes.len() && are_new
    }

    /// What was seen of it, for the report.
    pub(super) fn checks(&self, step: &str) -> Vec<Check> {
        vec![self.one_at_a_time(step), self.old_stays(step), self.ready_soon(step), self.port(step)]
    }

    /// The DaemonSet makes no new pod before the last one is available.
    fn one_at_a_time(&self, step: &str) -> Check {
        let starting = |look: &Look| look.pods.iter().filter(|pod| self.is_new(pod) && !pod.is_ready).count();
        let most = self.looks.iter().map(starting).max().unwrap_or_default();
        let what =
            format!("{step}: maxSurge of 10 % of three nodes starts the new pod of one node at a time");
        Check::of(what, most == 1, format!("{most} new pods at once were not ready"))
    }

    /// The old pod of a node ends only once the new one is ready.
    fn old_stays(&self, step: &str) -> Check {
        let what = format!("{step}: each old pod stays until its node's new pod is ready");
        let mut ready: BTreeSet<&str> = BTreeSet::new();
        let mut both: BTreeSet<&str> = BTreeSet::new();
        let mut early: BTreeSet<&str> = BTreeSet::new();
        for look in &self.looks {
            let is_here = |node: &str| {
                look.pods.iter().any(|pod| pod.node == node && !self.is_new(pod) && !pod.is_ending)
            };
            ready.extend(
                look.pods.iter().filter(|pod| self.is_new(pod) && pod.is_ready).map(|pod| &*pod.node),
            );
            for node in look.pods.iter().filter(|pod| self.is_new(pod)).map(|pod| &*pod.node) {
                if is_here(node) {
                    both.insert(node);
                } else if !ready.contains(node) {
                    early.insert(node);
                }
            }
        }
        let evidence = format!("both at once on {}; too early on {}", listed(&both), listed(&early));
        Check::of(what, early.is_empty() && both.len() == wire::NODES.count(), evidence)
    }

    fn ready_soon(&self, step: &str) -> Check {
        let what = format!("{step}: each new pod is ready within {} s", READY.as_secs());
        let mut since: BTreeMap<&str, Duration> = BTreeMap::new();
        let mut took: BTreeMap<&str, Duration> = BTreeMap::new();
        for Look { at, pods } in &self.looks {
            for pod in pods.iter().filter(|pod| self.is_new(pod)) {
                let began = *since.entry(&pod.node).or_insert(*at);
                if pod.is_ready {
                    took.entry(&pod.node).or_insert(at.saturating_sub(began));
                }
            }
        }
        let all: Vec<String> =
            took.iter().map(|(node, took)| format!("{node} {:.0} s", took.as_secs_f64())).collect();
        let holds = took.len() == wire::NODES.count() && took.values().all(|took| *took <= READY);
        Check::of(what, holds, all.join(", "))
    }

    fn port(&self, step: &str) -> Check {
        let what = format!("{step}: each old agent closes its HTTP port for the new one, and stands by");
        let wrong: Vec<String> = self
            .hand_overs
            .iter()
            .filter_map(|(node, hand_over)| hand_over.wrong().map(|wrong| format!("{node}: {wrong}")))
            .collect();
        let seen = self.hand_overs.len();
        let evidence = format!(
            "seen on {seen} nodes; {}",
            if wrong.is_empty() { "on each the new pod alone listens".to_owned() } else { wrong.join("\n") }
        );
        Check::of(what, wrong.is_empty() && seen == wire::NODES.count(), evidence)
    }

    fn is_new(&self, pod: &Pod) -> bool {
        !self.old.contains(&pod.uid)
    }
}

impl HandOver {
    /// What is not as it should be.
    fn wrong(&self) -> Option<String> {
        let Self { old, new, told } = self;
        let listens: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("listens ")).collect();
        if listens != [new.as_str()] {
            return Some(format!(
                "the old pod is {old}, the new one {new}, and on port {PORT} listen: {listens:?}"
            ));
        }
        let missing: Vec<&str> =
            ["newcomer", "stands-by"].into_iter().filter(|event| !has_event(told, event)).collect();
        (!missing.is_empty())
            .then(|| format!("the old pod's agent has logged no {}", missing.join(" and no ")))
    }
}

/// A line of `sh` that names the pods whose processes listen on the agents' port, and prints what a pod's agent has logged.
fn question(old: &str) -> String {
    format!(
        "for process in $(ss -Hltnp 'sport = :{PORT}' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do
            tr '\\0' '\\n' </proc/$process/environ | sed -n 's/^NODEFENCE_POD_UID=/listens /p'
        done
        cat /var/log/pods/{NAMESPACE}_*_{old}/agent/*.log"
    )
}

/// Whether a log has a line of this event.
fn has_event(log: &str, event: &str) -> bool {
    log.lines().any(|line| {
        line.split_whitespace()
            .any(|word| word == format!("event={event}") || word == format!("event=\"{event}\""))
    })
}

/// The agents' pods of now.
fn agents(cluster: &KubeCluster) -> Result<Vec<Pod>> {
    let path =
        format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component%3Dagent");
    let list = cluster.api().get(&path)?;
    list["items"].as_array().into_iter().flatten().map(pod).collect()
}

fn pod(object: &Value) -> Result<Pod> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(Pod {
        // A DaemonSet's pod names its node from its start on: in its affinity, until the scheduler has bound it.
        node: text(&object["spec"]["nodeName"])
            .or_else(|| text(&wanted(object)?.clone()))
            .context("a pod without a node")?,
        uid: text(&object["metadata"]["uid"]).context("a pod without a UID")?,
        is_ready: is_ready(object),
        is_ending: object["metadata"]["deletionTimestamp"].is_string(),
    })
}

/// The node for which the DaemonSet's controller has made a pod (pkg/controller/daemon/util, `ReplaceDaemonSetPodNodeNameNodeAffinity`).
fn wanted(pod: &Value) -> Option<&Value> {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    required.pointer("/nodeSelectorTerms/0/matchFields/0/values/0")
}

fn listed(nodes: &BTreeSet<&str>) -> String {
    if nodes.is_empty() { "none".to_owned() } else { nodes.iter().copied().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod by a word: node, generation, and `+` where it is ready or `-` where it ends.
    fn pods(words: &str) -> Vec<Pod> {
        let pod = |word: &str| Pod {
            node: format!("node-{}", &word[..1]),
            uid: word[..2].to_owned(),
            is_ready: word.ends_with('+'),
            is_ending: word.ends_with('-'),
        };
        words.split_whitespace().map(pod).collect()
    }

    /// A rollout from the pods `1a`, `2a` and `3a` to `1b`, `2b` and `3b`, with a look each 10 s.
    fn rollout(looks: &[&str]) -> Rollout {
        let looks =
            (0..).zip(looks).map(|(at, words)| Look { at: Duration::from_secs(10 * at), pods: pods(words) });
        let hand_over = |node: u8| {
            let told =
                format!("listens {node}b\nx event=\"newcomer\"\ny event=\"stands-by\" pod=\"{node}a\"\n");
            (format!("node-{node}"), HandOver { old: format!("{node}a"), new: format!("{node}b"), told })
        };
        Rollout {
            old: ["1a", "2a", "3a"].map(str::to_owned).into(),
            looks: looks.collect(),
            hand_overs: wire::NODES.map(hand_over).collect(),
        }
    }

    const GOOD: [&str; 8] = [
        "1a+ 2a+ 3a+",
        "1a+ 2a+ 3a+ 1b",
        "1a 2a+ 3a+ 1b+",
        "1a- 2a+ 3a+ 1b+ 2b",
        "2a 3a+ 1b+ 2b+",
        "2a- 3a+ 1b+ 2b+ 3b",
        "3a 1b+ 2b+ 3b+",
        "1b+ 2b+ 3b+",
    ];

    fn held(rollout: &Rollout) -> Vec<bool> {
        rollout
            .checks("upgrade")
            .iter()
            .map(|check| super::super::check::all_held(std::slice::from_ref(check)))
            .collect()
    }

    #[test]
    fn a_rollout_node_by_node_is_held() {
        let rollout = rollout(&GOOD);
        assert_eq!(held(&rollout), [true; 4], "{:#?}", rollout.checks("upgrade"));
        assert!(rollout.is_done(&pods(GOOD[7])) && !rollout.is_done(&pods(GOOD[6])));
        assert!(!rollout.is_done(&pods("3a- 1b+ 2b+ 3b+")));
        assert!(!rollout.is_done(&pods("1b+ 2b+ 3b")) && !rollout.is_done(&pods("1a+ 2a+ 3a+")));
    }

    #[test]
    fn two_new_pods_at_once_are_too_many() {
        let mut looks = GOOD;
        looks[1] = "1a+ 2a+ 3a+ 1b 2b";
        assert_eq!(held(&rollout(&looks)), [false, true, true, true]);
    }

    #[test]
    fn an_old_pod_that_ends_before_the_new_one_is_ready_is_found() {
        let mut looks = GOOD;
        looks[3] = "1a- 2a- 3a+ 1b+ 2b";
        assert_eq!(held(&rollout(&looks)), [true, false, true, true]);
    }

    #[test]
    fn a_new_pod_that_is_not_ready_in_time_is_found() {
        let waiting = ["1a+ 2a+ 3a+ 1b"; 13];
        let looks = [&GOOD[..1], &waiting, &GOOD[2..]].concat();
        assert_eq!(held(&rollout(&looks)), [true, true, false, true]);
    }

    #[test]
    fn the_port_must_be_the_new_pods_alone() {
        for (wrong, message) in [
            ("listens 2a\nevent=\"newcomer\" event=\"stands-by\"", "on port 9478 listen: [\"2a\"]"),
            ("listens 2a\nlistens 2b\nevent=\"newcomer\" event=\"stands-by\"", "[\"2a\", \"2b\"]"),
            ("listens 2b\nevent=\"newcomer-gone\" event=\"stands-by\"", "has logged no newcomer"),
        ] {
            let mut rollout = rollout(&GOOD);
            rollout.hand_overs.get_mut("node-2").expect("node-2").told = wrong.to_owned();
            assert_eq!(held(&rollout), [true, true, true, false]);
            let text = super::super::check::lines(&rollout.checks("upgrade"));
            assert!(text.contains(message), "{text}");
        }
        let mut rollout = rollout(&GOOD);
        rollout.hand_overs.remove("node-3");
        assert_eq!(held(&rollout), [true, true, true, false]);
    }

    #[test]
    fn a_pod_without_a_node_has_the_one_that_it_is_made_for() {
        let mut object = json!({"metadata": {"uid": "u"}, "spec": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"values": ["node-3"]}]}]},
        }}}});
        let expected =
            Pod { node: "node-3".to_owned(), uid: "u".to_owned(), is_ready: false, is_ending: false };
        assert_eq!(pod(&object).expect("a pod"), expected);
        object["spec"] = json!({"nodeName": "node-1"});
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let ending = pod(&object).expect("a pod");
        assert_eq!((&*ending.node, ending.is_ending), ("node-1", true));
    }
}
