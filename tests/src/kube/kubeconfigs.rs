//! The kubeconfigs of a control plane.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use super::{
    control::{ControlPlane, TOKEN},
    rights,
};

impl ControlPlane {
    /// Writes a kubeconfig with all rights.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_at("kubeconfig", &self.url())
    }

    /// Same as [`ControlPlane::kubeconfig`], with this name of the file and this URL of the server: a relay, for example.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig_at(&self, name: &str, server: &str) -> Result<PathBuf> {
        self.kubeconfig_of(name, server, TOKEN)
    }

    /// Writes a kubeconfig of this user of [`rights`].
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig_as(&self, user: &str) -> Result<PathBuf> {
        self.kubeconfig_as_at(user, &self.url())
    }

    /// Writes a kubeconfig with another token.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig_with(&self, file: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig_of(file, &self.url(), token)
    }

    /// Same as [`ControlPlane::kubeconfig_as`], with this URL of the server.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig_as_at(&self, user: &str, server: &str) -> Result<PathBuf> {
        self.kubeconfig_of(&format!("kubeconfig-{user}"), server, &rights::token(user))
    }

    fn kubeconfig_of(&self, file: &str, server: &str, token: &str) -> Result<PathBuf> {
        let path = self.folder().join(file);
        let cluster = match &self.certificates {
            Some(file) => json!({"server": server, "certificate-authority": file}),
            None => json!({"server": server, "insecure-skip-tls-verify": true}),
        };
        // JSON is YAML too.
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}
