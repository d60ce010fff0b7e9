//! `flag`, `unflag` and `flags`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Node};
use kube::{Api, ResourceExt as _};

use super::{
    args::{FlagNode, UnflagNode},
    ask,
    error::Error,
    flag_rows::{ClusterFlagReport, ClusterFlags, ClusterUnflagReport, NodeFlagRow},
    known::{Known, Unread},
    session::Session,
    would::would,
};
use crate::crds::{FlagCause, FlagState, NodeFlag, NodeFlagSpec};

/// How long a flag lasts where the command does not say so.
const USUAL: Duration = Duration::from_secs(3_600);
/// The longest time that a flag lasts without `--long`.
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How often, and for how long in all, `--wait` asks for the flag's status.
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest name that fits into a flag's `by`.
const LONGEST_NAME: usize = 253;

/// The name by which the API server knows whoever runs the command. `None` where it does not say so.
pub(super) async fn user(session: &Session) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(session.client.clone());
    let review = ask::create(&reviews, &SelfSubjectReview::default(), false).await.ok()?;
    let name = review.status?.user_info?.username?;
    (!name.is_empty() && name.chars().count() <= LONGEST_NAME).then_some(name)
}

/// Flags a node.
pub(super) async fn flag(session: &Session, args: &FlagNode) -> Result<ClusterFlagReport, Error> {
    let now = session.server.now;
    let until = end(args, now)?;
    let known = session.known().await?;
    let uid = uid(session, &known, &args.node).await?;
    let by = user(session).await;
    let earlier = earlier(&known, &args.node, by.as_deref());
    if !args.force
        && let Some(forced) = earlier.iter().find(|flag| flag.spec.force && known.idle(flag).is_none())
    {
        return Err(Error::Forced { node: args.node.clone(), flag: forced.name_any() });
    }
    let earlier: Vec<String> = earlier.iter().map(|flag| flag.name_any()).collect();
    let would = would(&known, &args.node, args.force, &earlier);
    if !args.force && !would.unwise.is_empty() {
        return Err(Error::Unwise { node: args.node.clone(), why: would.unwise });
    }
    let spec = NodeFlagSpec {
        node: args.node.clone(),
        uid,
        reason: args.reason.clone(),
        cause: FlagCause::Operator,
        by: by.clone(),
        force: args.force,
        until,
        long: args.long,
    };
    let mut flag = NodeFlag::new("", spec);
    flag.metadata.name = None;
    flag.metadata.generate_name = Some(format!("{}-", args.node));
    let mut flag = ask::create(&session.new_flags(), &flag, args.dry_run).await?;
    let mut warnings = would.warnings;
    warnings.extend(known.unread_texts());
    let mut replaced = Vec::new();
    for name in earlier {
        // The new flag holds already: traffic is cut without a gap, and the end counts from now.
        if args.dry_run {
            replaced.push(name);
            continue;
        }
        match ask::delete(&session.flags(), &name).await {
            Ok(_) => replaced.push(name),
            Err(error) => warnings.push(stays(&name, &error)),
        }
    }
    if args.wait {
        match judged(session, &flag.name_any()).await? {
            Some(judged) => flag = judged,
            None => warnings.push(not_judged()),
        }
    }
    let (_, agents) = known.does();
    let flag = NodeFlagRow::as_judged(&flag);
    Ok(ClusterFlagReport { flag, dry_run: args.dry_run, agents, replaced, warnings })
}

/// The warning about an earlier flag that was not deleted.
pub(super) fn stays(name: &str, error: &Error) -> String {
    format!("the earlier flag {name} stays: {error}")
}

/// The warning that the controller did not say in time what agents do.
pub(super) fn not_judged() -> String {
    let seconds = PATIENCE.as_secs();
    format!("the controller has said nothing of the flag within {seconds} s; agents do not wait for it")
}

/// When the flag ends.
fn end(args: &FlagNode, now: Timestamp) -> Result<Timestamp, Error> {
    let until = match args.until {
        Some(until) => until,
        None => now.saturating_add(args.lasts.unwrap_or(USUAL)).unwrap_or(Timestamp::MAX),
    };
    if until <= now {
        return Err(Error::Past { until: format!("{until:.0}"), now: format!("{now:.0}") });
    }
    let is_long = until.duration_since(now).unsigned_abs() > DAY;
    if is_long && !args.long { Err(Error::TooLong) } else { Ok(until) }
}

/// The UID of a node: that of its member, else that of the Node itself.
async fn uid(session: &Session, known: &Known, node: &str) -> Result<String, Error> {
    if let Some(member) = known.members.get(node) {
        return Ok(member.spec.uid.clone());
    }
    let nodes: Api<Node> = Api::all(session.client.clone());
    let found = ask::get(&nodes, node).await?;
    found.and_then(|node| node.metadata.uid).ok_or_else(|| Error::UnknownNode(node.to_owned()))
}

/// The flags that a new one replaces: those of the same user on the same node.
fn earlier<'a>(known: &'a Known, node: &'a str, by: Option<&str>) -> Vec<&'a NodeFlag> {
    let Some(by) = by else { return Vec::new() };
    let is_same =
        |flag: &&NodeFlag| flag.spec.by.as_deref() == Some(by) && flag.spec.cause == FlagCause::Operator;
    known.of_node(node).filter(is_same).collect()
}

/// Waits until the controller has judged a flag. `None` where it has not in time.
async fn judged(session: &Session, name: &str) -> Result<Option<NodeFlag>, Error> {
    let flags = session.new_flags();
    let looking = async {
        loop {
            let flag = ask::get(&flags, name).await?;
            let flag = flag.ok_or_else(|| Error::UnknownFlag(name.to_owned()))?;
            if flag.status.as_ref().is_some_and(|status| status.state != FlagState::Pending) {
                return Ok(flag);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.ok().transpose()
}

/// Deletes flags.
pub(super) async fn unflag(session: &Session, args: &UnflagNode) -> Result<ClusterUnflagReport, Error> {
    let known = session.known().await?;
    let is_meant = |flag: &&NodeFlag| match (&args.node, &args.name) {
        (Some(node), _) => flag.spec.node == *node,
        (None, Some(name)) => flag.name_any() == *name,
        (None, None) => true,
    };
    let is_meant_unread = |flag: &&Unread| match (&args.node, &args.name) {
        (Some(node), _) => flag.node.as_ref() == Some(node),
        (None, Some(name)) => flag.name == *name,
        (None, None) => true,
    };
    let mut items = Vec::new();
    let mut unread = Vec::new();
    for flag in known.flags.iter().filter(is_meant) {
        if ask::delete(&session.flags(), &flag.name_any()).await? {
            items.push(NodeFlagRow::new(&known, flag));
        }
    }
    for flag in known.unread_flags().filter(is_meant_unread) {
        if ask::delete(&session.flags(), &flag.name).await? {
            unread.push(flag.name.clone());
        }
    }
    let none = items.is_empty() && unread.is_empty();
    let not_flagged = match (&args.node, &args.name) {
        (_, Some(name)) if none => return Err(Error::UnknownFlag(name.clone())),
        (Some(node), _) if none => {
            if !known.members.contains_key(node) {
                return Err(Error::UnknownNode(node.clone()));
            }
            Some(node.clone())
        }
        _ => None,
    };
    Ok(ClusterUnflagReport { items, unread, not_flagged })
}

/// Lists flags.
pub(super) async fn flags(session: &Session) -> Result<ClusterFlags, Error> {
    let known = session.known().await?;
    let items = known.flags.iter().map(|flag| NodeFlagRow::new(&known, flag)).collect();
    Ok(ClusterFlags { items, unread: known.unread_texts() })
}
