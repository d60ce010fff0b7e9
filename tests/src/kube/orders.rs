//! The kinds NodeFlag and NodefenceSettings in a real API server.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::ControlPlane;

/// The collection of NodeFlags.
pub const FLAGS: &str = "/apis/nodefence.io/v1alpha1/nodeflags";

/// The collection of NodefenceSettings.
pub const SETTINGS: &str = "/apis/nodefence.io/v1alpha1/nodefencesettings";

/// A time so long from now, as objects have it.
pub fn in_time(after: Duration) -> String {
    (nodefence::flags::now().wall + after).to_string()
}

/// A NodeFlag for the member that [`ControlPlane::member`] makes. It ends in an hour. `more` are fields of its spec, in place of the usual ones.
pub fn flag(name: &str, node: &str, more: Value) -> Value {
    let mut spec =
        json!({"node": node, "uid": format!("uid-of-{node}"), "until": in_time(Duration::from_secs(3_600))});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": name}, "spec": spec,
    })
}

impl ControlPlane {
    /// Creates a NodeFlag, or changes it to this content, as [`flag`] makes it.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn flag(&self, name: &str, node: &str, more: Value) -> Result<()> {
        self.object(FLAGS, &flag(name, node, more))
    }

    /// Deletes a NodeFlag.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn delete_flag(&self, name: &str) -> Result<()> {
        self.api.delete(&format!("{FLAGS}/{name}"))
    }

    /// Creates the NodefenceSettings, or changes them to this content.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn settings(&self, spec: Value) -> Result<()> {
        let settings = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodefenceSettings", "metadata": {"name": "default"},
            "spec": spec,
        });
        self.object(SETTINGS, &settings)
    }

    /// Has agents enforce. Without settings they only observe.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn enforce(&self) -> Result<()> {
        self.settings(json!({"mode": "enforce"}))
    }

    /// Deletes the NodefenceSettings.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn delete_settings(&self) -> Result<()> {
        self.api.delete(&format!("{SETTINGS}/default"))
    }
}
