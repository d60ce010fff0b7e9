//! What `cargo xtask cluster-test` has built, and what is to be done with it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::incident::Scenario;

/// How far the cluster is brought up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// All nodes are ready, and kube-proxy has synced on each.
    Ready,
    /// nodefence is installed too, and all of its pods are ready.
    Installed,
    /// The incident is over.
    Incident,
    /// The agents were rolled, and the chart is removed again.
    Removed,
}

/// The plan. xtask writes it as JSON.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// QEMU, and its options for processors.
    pub qemu: Vec<String>,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// The kernel's parameters.
    pub parameters: String,
    /// A guest's memory, in MiB.
    pub memory: u32,
    /// kube-proxy's mode.
    pub proxy: String,
    /// nodefence's chart.
    pub chart: PathBuf,
    /// The image of nodefence.
    pub image: Image,
    /// What the incident is run with.
    pub scenarios: Vec<Scenario>,
    /// How far to go.
    pub until: Until,
    /// Whether the cluster stays up afterwards, until Ctrl-C.
    pub keep: bool,
    /// The folder of the logs and results.
    pub out: PathBuf,
}

/// An image on the nodes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Its name.
    pub repository: String,
    /// Its tag.
    pub tag: String,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is no plan.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
}
