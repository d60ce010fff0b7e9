//! The users at the API server of the tests, and what they asked for, by the API server's audit log.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The users that agents and controllers are: their ServiceAccounts in the manifests.
pub const AGENT: &str = "system:serviceaccount:nodefence:nodefence-agent";
/// See [`AGENT`].
pub const CONTROLLER: &str = "system:serviceaccount:nodefence:nodefence-controller";
/// Whoever has an agent's token.
pub const THIEF: &str = "thief";
/// People, each with the ClusterRole of the manifests that is for them. The last one is bound in the agents' namespace.
pub const PEOPLE: [(&str, &str); 4] = [
    ("viewer", "nodefence-view"),
    ("operator", "nodefence-operate"),
    ("installer", "nodefence-preflight"),
    ("watcher", "nodefence-view-agents"),
];

/// All users but the one with all rights.
fn users() -> impl Iterator<Item = &'static str> {
    [AGENT, CONTROLLER, THIEF].into_iter().chain(PEOPLE.map(|(name, _)| name))
}

/// The token of a user. It is no secret, since the server and its namespace are the test's own.
pub(super) fn token(user: &str) -> String {
    format!("nodefence-tests-{}", user.rsplit(':').next().unwrap_or_default())
}

/// The lines of the server's file of tokens for these users.
pub(super) fn tokens() -> String {
    let groups = "\"system:serviceaccounts,system:serviceaccounts:nodefence\"";
    users().map(|user| format!("{},{user},{user},{groups}\n", token(user))).collect()
}

/// The options by which the server writes down what these users ask for. Nothing else is written down.
pub(super) fn audit_options(dir: &Path) -> Result<Vec<String>> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": users().collect::<Vec<_>>()}, {"level": "None"}],
    });
    let file = dir.join("audit-policy.yaml");
    std::fs::write(&file, policy.to_string())?;
    Ok(vec![
        format!("--audit-policy-file={}", file.display()),
        format!("--audit-log-path={}", log(dir).display()),
    ])
}

fn log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

/// The length of the audit log.
pub(super) fn audited(dir: &Path) -> u64 {
    std::fs::metadata(log(dir)).map_or(0, |meta| meta.len())
}

/// A request that a user has made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// The user.
    pub user: String,
    /// The verb, by RBAC's name.
    pub verb: String,
    /// The API group. The core group has an empty name.
    pub group: String,
    /// The plural, and after a slash the subresource.
    pub resource: String,
    /// The object. Empty for a collection.
    pub name: String,
    /// The status of the answer.
    pub code: u64,
}

impl Asked {
    fn of(event: &Value) -> Option<Self> {
        let of = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match of["subresource"].as_str() {
            Some(subresource) => format!("{}/{subresource}", text(&of["resource"])),
            None => text(&of["resource"]),
        };
        Some(Self {
            user: event["user"]["username"].as_str()?.to_owned(),
            verb: text(&event["verb"]),
            group: text(&of["apiGroup"]),
            resource,
            name: text(&of["name"]),
            code: event["responseStatus"]["code"].as_u64()?,
        })
    }
}

/// The requests in the audit log from this byte on.
pub(super) fn read(dir: &Path, from: u64) -> Result<BTreeSet<Asked>> {
    let text = match std::fs::read(log(dir)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        text => text?,
    };
    let new = text.get(usize::try_from(from)?..).unwrap_or_default();
    // The last line may be half written.
    let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |end| &new[..end]);
    let mut asked = BTreeSet::new();
    for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let event: Value = serde_json::from_slice(line).context("a line of the audit log")?;
        asked.extend(Asked::of(&event));
    }
    Ok(asked)
}
