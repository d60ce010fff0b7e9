//! Runs helm.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::kube::assets::asset;
use serde_json::Value;
use tempfile::TempDir;

/// The version of Kubernetes for which helm renders the chart.
pub(crate) const KUBERNETES: &str = "1.36.3";

/// Values that turn everything on.
pub(crate) const ALL: &[&str] = &[
    "--set",
    "agent.profile=unprivileged,namespace.create=true,podMonitor.enabled=true,alerts.enabled=true",
    "--set",
    "rbac.aggregateToAdmin=true,apiServer=https://10.0.0.9:6443",
];

/// The chart's folder.
pub(crate) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/nodefence")
}

/// Runs helm, which finds no settings of this machine's user. Returns what it printed.
pub(crate) fn helm(args: &[&str]) -> Result<String> {
    let home = TempDir::with_prefix("nodefence-helm-")?;
    let mut command = Command::new(asset("helm")?);
    for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(folder, home.path());
    }
    let output = command.args(args).env_remove("KUBECONFIG").output().context("start helm")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {}: {}\n{printed}{error}", args.join(" "), output.status);
    Ok(printed)
}

/// What helm makes of the chart for a version of Kubernetes, as text.
pub(crate) fn text(kubernetes: &str, more: &[&str]) -> Result<String> {
    let chart = chart();
    let mut args = vec!["template", "nodefence", chart.to_str().context("path")?, "--namespace", "nodefence"];
    args.extend(["--kube-version", kubernetes]);
    args.extend(more);
    helm(&args)
}

/// The lines with a bare word that helm and kubectl take for a boolean (YAML 1.1), and this test's parser for a text.
pub(crate) fn ambiguous(text: &str) -> Vec<&str> {
    let value = |line: &str| {
        line.trim_start_matches([' ', '-']).rsplit(": ").next().unwrap_or_default().trim().to_lowercase()
    };
    text.lines().filter(|line| ["y", "n", "yes", "no", "on", "off"].contains(&value(line).as_str())).collect()
}

/// The objects that helm makes of the chart for a version of Kubernetes.
pub(crate) fn template(kubernetes: &str, more: &[&str]) -> Result<Vec<Value>> {
    let text = text(kubernetes, more)?;
    let ambiguous = ambiguous(&text);
    ensure!(ambiguous.is_empty(), "these need quotes: {ambiguous:?}");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).context("helm's output is no YAML")?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// The objects that helm makes of the chart.
pub(crate) fn render(more: &[&str]) -> Result<Vec<Value>> {
    template(KUBERNETES, more)
}

/// Kind and name of each object.
pub(crate) fn names(objects: &[Value]) -> Result<BTreeSet<String>> {
    let name = |object: &Value| -> Option<String> {
        Some(format!("{} {}", object["kind"].as_str()?, object["metadata"]["name"].as_str()?))
    };
    objects.iter().map(|object| name(object).with_context(|| format!("no name: {object:#}"))).collect()
}
