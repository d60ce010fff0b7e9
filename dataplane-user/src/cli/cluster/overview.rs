//! `nodes` and `status`.

use std::collections::BTreeMap;

use super::{
    agent_rows::AgentRow,
    agents::{agents, wanted},
    args::ListNodes,
    error::Error,
    node_rows::{ClusterNodes, is_wanted},
    session::Session,
    status_rows::ClusterStatus,
};

/// Lists nodes.
pub(super) async fn nodes(
    session: &Session,
    namespace: &str,
    args: &ListNodes,
) -> Result<ClusterNodes, Error> {
    let known = session.known().await?;
    let wanted = |node: &str| match args.flagged {
        // The agents of all other nodes are those that cut.
        true => known.members.contains_key(node),
        false => is_wanted(&known, &args.names, false, node),
    };
    let agents = of_agents(session, namespace, wanted).await;
    Ok(ClusterNodes::new(&known, &args.names, args.flagged, agents))
}

/// Says in one page how it is.
pub(super) async fn status(session: &Session, namespace: &str) -> Result<ClusterStatus, Error> {
    let known = session.known().await?;
    let agents = of_agents(session, namespace, |node| known.members.contains_key(node)).await;
    let wanted = wanted(&session.client, namespace).await.map_err(|error| error.to_string());
    let nodes = ClusterNodes::new(&known, &[], false, agents);
    Ok(ClusterStatus::new(&session.server, &known, &nodes, wanted))
}

/// What the agents say, or why they could not be asked: members and flags are worth printing without them.
async fn of_agents(
    session: &Session,
    namespace: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, AgentRow>, String> {
    agents(&session.client, namespace, is_wanted).await.map_err(|error| error.to_string())
}
