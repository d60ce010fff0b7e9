//! Requests to the agent by its socket, which flag and unflag nodes. No command has to be started.
use std::time::Duration;

use anyhow::Context as _;
use nodefence::report::{Client, FlagReport, Request, UnflagReport};

use super::{view, world::World};

/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to the agent. The connection serves one request after the other.
pub(super) fn client(world: &World) -> anyhow::Result<Client> {
    let mut client = Client::connect(&world.agent.socket())?;
    client.set_patience(PATIENCE)?;
    Ok(client)
}

/// Flags a node, however many are flagged already.
pub(super) fn flag(client: &mut Client, node: usize) -> anyhow::Result<FlagReport> {
    let name = view::name(node);
    let reason = "bench".to_owned();
    let request =
        Request::Flag { node: name.clone(), for_ms: None, reason, force: true, wait: false, sudo_user: None };
    client.ask(&request).with_context(|| format!("flag {name}"))
}

/// Unflags a node.
pub(super) fn unflag(client: &mut Client, node: usize) -> anyhow::Result<UnflagReport> {
    let name = view::name(node);
    client.ask(&Request::Unflag { node: name.clone() }).with_context(|| format!("unflag {name}"))
}
