//! The answers that are made from one reading of the agent's state. Pure.

use axum::body::Bytes;

use super::{
    metrics::{self, Measured},
    ready,
};
use crate::report::{Envelope, OffStatus, Status, StatusReport};

/// The answers that are made from one reading of the agent's state. They are made where the state is read, and a client only gets a copy.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The answer to `/metrics`.
    pub(super) metrics: Bytes,
    /// The answer to `/v1/status`: the document of `nodefence status -o json`, whole. It has no client's address.
    pub(super) status: Bytes,
    /// Why the agent is not ready. `None` if it is ready.
    pub(super) not_ready: Option<String>,
}

impl Snapshot {
    /// The answers of an agent in this state.
    ///
    /// # Errors
    /// Where the state cannot be put into words.
    pub fn of(status: Status, measured: &Measured) -> Result<Self, String> {
        let report = StatusReport::from(status);
        let not_ready = ready::not_ready(&report.status, &report.health, measured.has_tables);
        let metrics = metrics::text(&report, measured).map_err(|error| error.to_string())?;
        let status = serde_json::to_vec(&Envelope::new(&report)).map_err(|error| error.to_string())?;
        Ok(Self { metrics: metrics.into(), status: status.into(), not_ready })
    }

    /// The answers of an agent that is off. It is ready: somebody wants it to be off.
    ///
    /// # Errors
    /// As of [`Self::of`].
    pub fn of_off(status: &OffStatus, log_lines_lost: usize) -> Result<Self, String> {
        let metrics = metrics::text_of_off(status, log_lines_lost).map_err(|error| error.to_string())?;
        let status = serde_json::to_vec(&Envelope::new(status)).map_err(|error| error.to_string())?;
        Ok(Self { metrics: metrics.into(), status: status.into(), not_ready: None })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        net::{IpAddr, SocketAddr},
    };

    use serde_json::Value;

    use super::*;
    use crate::report::sample;

    fn told(status: Status) -> Value {
        let snapshot = Snapshot::of(status, &Measured::default()).unwrap();
        serde_json::from_slice(&snapshot.status).unwrap()
    }

    /// No field is dropped: whoever reads the document over HTTP and whoever calls the command see the same.
    #[test]
    fn the_status_is_the_whole_document_of_the_command() {
        let report = StatusReport::from(sample::full());
        assert_eq!(told(sample::full()), serde_json::to_value(Envelope::new(&report)).unwrap());
    }

    /// An agent that is off is ready: its pod must not count as broken.
    #[test]
    fn an_agent_that_is_off_is_ready_and_gives_the_document_of_the_command() {
        let status = sample::off();
        let snapshot = Snapshot::of_off(&status, 0).unwrap();
        let told: Value = serde_json::from_slice(&snapshot.status).unwrap();
        assert_eq!(told, serde_json::to_value(Envelope::new(&status)).unwrap());
        assert_eq!((&told["kind"], &told["state"]), (&"OffStatus".into(), &"off".into()));
        assert_eq!(snapshot.not_ready, None);
        let mut found = BTreeSet::new();
        addresses(&told, "", &mut found);
        assert_eq!(found, BTreeSet::new());
    }

    /// Whether a text has an address, alone or with a port.
    fn has_address(text: &str) -> bool {
        let mut words = text.split([' ', ',', ';']).map(|word| word.trim_end_matches(':'));
        words.any(|word| word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok())
    }

    /// Collects the fields with an address, each as the path of its names.
    fn addresses(value: &Value, at: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::String(text) if has_address(text) => drop(found.insert(at.to_owned())),
            Value::Array(items) => items.iter().for_each(|item| addresses(item, at, found)),
            Value::Object(fields) => {
                fields.iter().for_each(|(name, field)| addresses(field, &format!("{at}/{name}"), found));
            }
            _ => {}
        }
    }

    /// Anybody in the node's network may read the document. The addresses in it are those of nodes, of backends, of Services and of next hops.
    #[test]
    fn the_status_has_no_address_of_a_client() {
        let mut found = BTreeSet::new();
        addresses(&told(sample::full()), "", &mut found);
        let expected = [
            "/cluster/left_out_examples/address",
            "/dataplane/left_out_first",
            "/exempt_examples/address",
            "/flagged/address",
            "/flagged/addresses",
            "/ipvs/nodes/node-b/exempt/service",
            "/ipvs/nodes/node-b/problems",
            "/neighbours/address",
            "/uncovered_examples/address",
            // These repeat the first examples.
            "/warnings/message",
        ];
        assert_eq!(found, expected.map(str::to_owned).into());
    }
}
