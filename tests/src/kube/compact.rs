//! Compaction of etcd, after which the API server does not have old changes any more.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use ureq::Agent;

use super::ControlPlane;

impl ControlPlane {
    /// Has etcd forget all changes until now. The API server still has those that it watched itself, until it is started again.
    ///
    /// # Errors
    /// Fails if etcd does not answer, or if the server runs outside.
    pub fn compact(&self) -> Result<()> {
        let ask = |verb: &str, body: Value| -> Result<Value> {
            let url = format!("http://127.0.0.1:2379/v3/kv/{verb}");
            self.ns.run(move || {
                // Proxies in the environment are outside of the namespace.
                let agent: Agent = Agent::config_builder().proxy(None).build().into();
                let mut answer = agent.post(&url).send(body.to_string()).with_context(|| url.clone())?;
                serde_json::from_str(&answer.body_mut().read_to_string()?).context("etcd's answer is no JSON")
            })
        };
        // "AA==" is the key of one byte 0.
        let last = ask("range", json!({"key": "AA=="}))?;
        let revision =
            last["header"]["revision"].as_str().with_context(|| format!("no revision in {last}"))?;
        ask("compaction", json!({"revision": revision, "physical": true})).map(drop)
    }
}
