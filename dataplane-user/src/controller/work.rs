//! What the controller does while it leads: it compares what the watches tell with what is to be, and writes the difference.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    clock::Answers,
    flags::{is_to_be_deleted, statuses},
    known::Known,
    last_good::LastGood,
    lease::Lease,
    members::{Step, Unwanted, step},
    orphans::Orphans,
    queue::{Item, Queue},
    watch::Heard,
    wire::{Flag, Member, Node, Settings},
    writes::{Failed, Writes},
};
use crate::{
    crds::{NodeFlagStatus, NodeMemberSpec, SETTINGS_NAME},
    enforce::{Judge, JudgedNode, Share},
};

/// The shortest time between two writes: 20 in a second at most.
const PACE: Duration = Duration::from_millis(50);
/// How often flags are looked at where something changed.
const LOOK: Duration = Duration::from_millis(500);
/// How many looks there are to one where nothing changed: times pass.
const IDLE_LOOKS: u32 = 4;

/// What the watches tell.
#[derive(Debug)]
pub(super) enum News {
    Nodes(Heard<Node>),
    Members(Heard<Member>),
    Flags(Heard<Flag>),
    Settings(Heard<Settings>),
}

/// The owner of what is known, and of what is to be written.
pub(super) struct Work<'a> {
    lease: &'a Lease,
    clock: &'a Answers,
    pool_labels: &'a [String],
    writes: Writes,
    nodes: Known<Node>,
    members: Known<Member>,
    flags: Known<Flag>,
    settings: Known<Settings>,
    last_good: LastGood,
    orphans: Orphans,
    /// The status that each flag is to have.
    statuses: BTreeMap<String, NodeFlagStatus>,
    judge: (Share, Judge),
    /// Members changed since the judge took them over.
    members_changed: bool,
    /// Something that flags depend on changed since the last look.
    flags_changed: bool,
    queue: Queue,
    /// Verbs and resources of writes that failed, and are in the log.
    failing: BTreeSet<(&'static str, &'static str)>,
    begun: Instant,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        lease: &'a Lease,
        clock: &'a Answers,
        pool_labels: &'a [String],
        writes: Writes,
    ) -> Self {
        Self {
            lease,
            clock,
            pool_labels,
            writes,
            nodes: Known::default(),
            members: Known::default(),
            flags: Known::default(),
            settings: Known::default(),
            last_good: LastGood::default(),
            orphans: Orphans::default(),
            statuses: BTreeMap::new(),
            judge: (Share::default(), Judge::new(Share::default())),
            members_changed: true,
            flags_changed: true,
            queue: Queue::default(),
            failing: BTreeSet::new(),
            begun: Instant::now(),
        }
    }

    /// Works until the watches end.
    pub(super) async fn go_on(mut self, mut news: mpsc::Receiver<News>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut idle = 0;
        let mut pace = Instant::now();
        loop {
            let due = self.queue.next().map(|due| (self.begun + due).max(pace));
            tokio::select! {
                biased;
                heard = news.recv() => match heard {
                    Some(heard) => self.hear(heard),
                    None => return,
                },
                _ = looks.tick() => {
                    idle += 1;
                    if self.flags_changed || idle >= IDLE_LOOKS {
                        idle = 0;
                        self.look_at_flags();
                    }
                }
                () = sleep_until(due.unwrap_or(pace)), if due.is_some() => {
                    if self.write().await {
                        pace = Instant::now() + PACE;
                    }
                }
            }
        }
    }

    /// The time of the queue.
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn hear(&mut self, news: News) {
        let now = self.now();
        match news {
            News::Nodes(heard) => {
                let is_list = matches!(heard, Heard::Listed(_));
                let mut names = self.nodes.hear(heard);
                // What the other list brought was dropped until this one came.
                names.extend(self.members.iter().filter(|_| is_list).map(|(name, _)| name.clone()));
                names.into_iter().for_each(|name| self.queue.add(Item::Member(name), now));
            }
            News::Members(heard) => {
                let is_list = matches!(heard, Heard::Listed(_));
                let mut names = self.members.hear(heard);
                names.extend(self.nodes.iter().filter(|_| is_list).map(|(name, _)| name.clone()));
                names.into_iter().for_each(|name| self.queue.add(Item::Member(name), now));
                self.members_changed = true;
                self.flags_changed = true;
            }
            News::Flags(heard) => {
                drop(self.flags.hear(heard));
                self.flags_changed = true;
            }
            News::Settings(heard) => {
                drop(self.settings.hear(heard));
                self.queue.add(Item::Settings, now);
                self.flags_changed = true;
            }
        }
    }

    /// Works out the status of each flag, and which flags are to be deleted. Half a list, or the wrong time, would be a wrong status.
    fn look_at_flags(&mut self) {
        let now = self.now();
        let (Some(clock), Some(at_least)) = (self.clock.now(), self.clock.at_least()) else { return };
        let (Some(flags), Some(members), Some(_)) =
            (self.flags.all(), self.members.all(), self.settings.all())
        else {
            return;
        };
        let settings = self.settings.all().and_then(|all| all.get(SETTINGS_NAME));
        let Some(settings) = self.last_good.read(settings, |spec| self.clock.settings(spec)) else { return };
        let limit = settings.limit;
        let mut specs = BTreeMap::new();
        for (name, member) in members {
            if let Ok(spec) = serde_json::from_value::<NodeMemberSpec>(member.spec.clone()) {
                specs.insert(name.clone(), spec);
            }
        }
        if self.judge.0 != limit {
            self.judge = (limit, Judge::new(limit));
            self.members_changed = true;
        }
        if std::mem::take(&mut self.members_changed) {
            self.judge.1.open(specs.iter().map(|(name, spec)| JudgedNode {
                name: name.as_str().into(),
                zone: spec.zone.as_deref().map(Into::into),
                pool: spec.pool.as_deref().map(Into::into),
            }));
        }
        let uids = specs.into_iter().map(|(name, spec)| (name, spec.uid)).collect();
        self.statuses = statuses(flags, &uids, &settings, &mut self.judge.1, clock);
        self.flags_changed = false;
        if let Some(nodes) = self.nodes.all() {
            self.orphans.look(flags, |node| nodes.get(node)?.metadata.uid.as_deref(), now);
        }
        for (name, flag) in flags {
            if is_to_be_deleted(flag, at_least) || self.orphans.due(name, now).is_some() {
                self.queue.add(Item::OverFlag(name.clone()), now);
            } else if self.statuses.get(name).is_some_and(|status| !has(flag, status)) {
                self.queue.add(Item::Status(name.clone()), now);
            }
        }
    }

    /// Writes what is due first. Whether there was a request.
    async fn write(&mut self) -> bool {
        // Of two controllers only one writes, even where this process stood still for a while.
        if !self.lease.is_held() {
            return true;
        }
        let Some(item) = self.queue.take(self.now()) else { return false };
        let done = match &item {
            Item::Settings => self.write_settings().await,
            Item::Member(name) => self.write_member(name).await,
            Item::Status(name) => self.write_status(name).await,
            Item::OverFlag(name) => self.delete_flag(name).await,
        };
        match done {
            Ok(wrote) => {
                self.queue.done(&item);
                wrote
            }
            Err(failed) => {
                self.log(failed);
                self.queue.failed(item, self.now());
                true
            }
        }
    }

    async fn write_settings(&mut self) -> Result<bool, Failed> {
        if self.settings.all().is_none_or(|all| all.contains_key(SETTINGS_NAME)) {
            return Ok(false);
        }
        self.writes.create_settings().await?;
        self.succeeded("create", "nodefencesettings");
        tracing::info!(
            event = "settings-made",
            "NodefenceSettings/default was missing; it was created, and its mode is observe"
        );
        Ok(true)
    }

    async fn write_member(&mut self, name: &str) -> Result<bool, Failed> {
        let (Some(nodes), Some(members)) = (self.nodes.all(), self.members.all()) else { return Ok(false) };
        let member = members.get(name);
        match (step(nodes.get(name), member, self.pool_labels), member) {
            (Step::Nothing, _) | (Step::Change(_) | Step::Delete(_), None) => return Ok(false),
            (Step::Create(wanted), _) => {
                let made = self.writes.create_member(name, &wanted).await?;
                self.members.put(made);
                self.succeeded("create", "nodemembers");
                tracing::info!(event = "member-made", node = name, "a NodeMember was created for the Node");
            }
            (Step::Change(wanted), Some(before)) => {
                let changed = self.writes.change_member(name, before, &wanted).await?;
                self.members.put(changed);
                self.succeeded("patch", "nodemembers");
                tracing::info!(
                    event = "member-changed",
                    node = name,
                    "a NodeMember was changed to what its Node is"
                );
            }
            (Step::Delete(why), Some(before)) => {
                if why == Unwanted::NodeGone && self.writes.node_uid(name).await?.is_some() {
                    return Err(Failed::Stale);
                }
                self.writes.delete_member(name, before).await?;
                self.members.remove(name);
                self.succeeded("delete", "nodemembers");
                let why = match why {
                    Unwanted::NodeGone => "the Node is gone",
                    Unwanted::NotLinux => "the Node does not run Linux",
                    Unwanted::OtherMachine => {
                        "the Node is another machine, whose addresses are not known yet"
                    }
                };
                tracing::info!(event = "member-deleted", node = name, why, "a NodeMember was deleted");
            }
        }
        self.members_changed = true;
        self.flags_changed = true;
        Ok(true)
    }

    async fn write_status(&mut self, name: &str) -> Result<bool, Failed> {
        let flag = self.flags.all().and_then(|all| all.get(name));
        let Some((flag, status)) = flag.zip(self.statuses.get(name)) else { return Ok(false) };
        if has(flag, status) {
            return Ok(false);
        }
        let written = self.writes.set_status(name, flag, status).await?;
        tracing::info!(
            event = "flag-judged",
            flag = name,
            node = flag.spec.get("node").and_then(serde_json::Value::as_str),
            state = ?status.state,
            "the status of a NodeFlag: {}",
            status.message
        );
        self.flags.put(written);
        self.succeeded("patch", "nodeflags/status");
        Ok(true)
    }

    async fn delete_flag(&mut self, name: &str) -> Result<bool, Failed> {
        let flag = self.flags.all().and_then(|all| all.get(name));
        let Some((flag, now)) = flag.zip(self.clock.at_least()) else { return Ok(false) };
        let why = if is_to_be_deleted(flag, now) {
            "it ended long ago"
        } else if let Some((node, uid)) = self.orphans.due(name, self.now()) {
            if self.writes.node_uid(node).await?.as_ref() == Some(uid) {
                return Err(Failed::Stale);
            }
            "its Node has been gone, or another machine, for long"
        } else {
            return Ok(false);
        };
        self.writes.delete_flag(name, flag).await?;
        self.flags.remove(name);
        self.succeeded("delete", "nodeflags");
        tracing::info!(event = "flag-deleted", flag = name, why, "a NodeFlag was deleted");
        Ok(true)
    }

    fn succeeded(&mut self, verb: &'static str, resource: &'static str) {
        self.failing.remove(&(verb, resource));
    }

    /// Logs a failure once, until a write of the same kind succeeds.
    fn log(&mut self, failed: Failed) {
        let Failed::Refused { verb, resource, is_forbidden, error } = failed else { return };
        if !self.failing.insert((verb, resource)) {
            return;
        }
        if is_forbidden {
            tracing::error!(
                event = "controller-forbidden",
                verb,
                resource,
                error,
                "the controller lacks a right at the API server (docs/kubernetes.md has its ClusterRole); it tries again"
            );
        } else {
            tracing::warn!(
                event = "controller-write-failed",
                verb,
                resource,
                error,
                "a request to the API server failed; the controller tries again"
            );
        }
    }
}

/// Whether a flag has this status already.
fn has(flag: &Flag, status: &NodeFlagStatus) -> bool {
    serde_json::from_value::<NodeFlagStatus>(flag.status.clone()).is_ok_and(|before| before == *status)
}
