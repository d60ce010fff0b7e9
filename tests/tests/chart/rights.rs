//! The rights that the chart gives, in a real API server: enough for each program, and no more.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{kube::ControlPlane, nodefence_command};
use serde_json::{Value, json};

use crate::{
    helm::{ALL, render},
    objects::{args, find},
    server::{create, server},
};

const RIGHTS: [&str; 5] = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"];

/// Whether a ServiceAccount of the chart may do this.
fn may(control: &ControlPlane, account: &str, verb: &str, group: &str, resource: &str) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:nodefence:{account}"),
            "groups": ["system:serviceaccounts", "system:serviceaccounts:nodefence", "system:authenticated"],
            "resourceAttributes": {
                "namespace": "nodefence", "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            },
        },
    });
    let answer = control.api.create(REVIEWS, &review)?;
    answer["status"]["allowed"].as_bool().with_context(|| format!("{answer:#}"))
}

/// Group and name of each resource that the server has, subresources too.
fn resources(control: &ControlPlane) -> Result<Vec<(String, String)>> {
    let mut versions = vec![("/api/v1".to_owned(), String::new())];
    for group in control.api.get("/apis")?["groups"].as_array().context("no groups")? {
        let version = group["preferredVersion"]["groupVersion"].as_str().context("no version")?;
        versions.push((format!("/apis/{version}"), group["name"].as_str().unwrap_or_default().to_owned()));
    }
    let mut found = Vec::new();
    for (path, group) in versions {
        for resource in control.api.get(&path)?["resources"].as_array().context("no resources")? {
            found.push((group.clone(), resource["name"].as_str().context("no name")?.to_owned()));
        }
    }
    Ok(found)
}

/// All that a ServiceAccount may do in the chart's namespace, but for what each account may: ask about itself.
fn allowed(control: &ControlPlane, account: &str) -> Result<BTreeSet<String>> {
    let mut allowed = BTreeSet::new();
    let resources = resources(control)?;
    ensure!(resources.len() > 60, "{resources:?}");
    for (group, resource) in &resources {
        for verb in VERBS {
            if may(control, account, verb, group, resource)? {
                allowed.insert(format!("{verb} {resource}.{group}"));
            }
        }
    }
    // The roles system:basic-user and system:discovery, which each account has.
    for review in [
        "selfsubjectaccessreviews.authorization",
        "selfsubjectrulesreviews.authorization",
        "selfsubjectreviews.authentication",
    ] {
        let review = format!("create {review}.k8s.io");
        ensure!(allowed.remove(&review), "{review}: {allowed:?}");
    }
    Ok(allowed)
}

/// What whoever steals an agent's token may do: read what the agent reads.
#[test]
fn an_agent_s_token_reads_five_kinds_and_changes_nothing() -> Result<()> {
    let control = server("chart-agent")?;
    create(&control, &render(ALL)?, &RIGHTS)?;
    let allowed = allowed(&control, "nodefence-agent")?;
    let read = ["services.", "endpointslices.discovery.k8s.io"].into_iter();
    let ours = ["nodemembers", "nodeflags", "nodefencesettings"].map(|kind| format!("{kind}.nodefence.io"));
    let wanted: BTreeSet<String> = read
        .map(str::to_owned)
        .chain(ours)
        .flat_map(|resource| ["list", "watch"].map(|verb| format!("{verb} {resource}")))
        .collect();
    ensure!(allowed == wanted, "{:?}", allowed.symmetric_difference(&wanted).collect::<Vec<_>>());
    Ok(())
}

/// The Job before a removal turns agents off, asks them, and does nothing else. It asks agents of its own namespace alone.
#[test]
fn the_uninstall_s_account_turns_agents_off_and_asks_them() -> Result<()> {
    let control = server("chart-uninstall")?;
    create(&control, &render(ALL)?, &RIGHTS)?;
    let found = allowed(&control, "nodefence-uninstall")?;
    // Of the settings, the object `default` alone may be read and changed: `allowed` names none.
    let wanted = [
        "list pods.",
        "get pods/proxy.",
        "create nodefencesettings.nodefence.io",
        "list nodemembers.nodefence.io",
    ]
    .map(str::to_owned)
    .into();
    ensure!(found == wanted, "{:?}", found.symmetric_difference(&wanted).collect::<Vec<_>>());
    let folder = tempfile::TempDir::with_prefix("nodefence-chart-")?;
    let rendered = render(ALL)?;
    let job = find(&rendered, "Job", "nodefence-uninstall")?;
    let words = args(&job["spec"]["template"]["spec"]["containers"][0]);
    let run = |words: Vec<String>| -> Result<(bool, String)> {
        let mut command = nodefence_command()?;
        command.args(words).env("KUBECONFIG", kubeconfig(&control, "nodefence-uninstall", folder.path())?);
        said(&control, command)
    };
    let local = |word: &String| !word.starts_with("--api-server");
    let (done, text) = run(words.into_iter().filter(local).collect())?;
    // Here is no agent, and this process runs in no pod of the namespace.
    ensure!(!done && text.contains("no agent's pod in namespace nodefence"), "{text}");
    ensure!(!text.contains("you may not"), "{text}");
    let settings = control.api.get("/apis/nodefence.io/v1alpha1/nodefencesettings/default")?;
    ensure!(settings["spec"]["mode"] == "off", "{settings:#}");
    let elsewhere = ["kubectl", "mode", "off", "--wait", "--namespace", "default"].map(str::to_owned);
    let (done, text) = run(elsewhere.into())?;
    ensure!(!done && text.contains("you may not list pods"), "{text}");
    Ok(())
}

/// The kubeconfig of the control plane, whose user acts as a ServiceAccount.
fn kubeconfig(control: &ControlPlane, account: &str, folder: &Path) -> Result<std::path::PathBuf> {
    let mut config: Value = serde_json::from_slice(&std::fs::read(control.kubeconfig()?)?)?;
    config["users"][0]["user"]["as"] = json!(format!("system:serviceaccount:nodefence:{account}"));
    config["users"][0]["user"]["as-groups"] = json!(["system:serviceaccounts", "system:authenticated"]);
    let path = folder.join(account);
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Runs `nodefence crds --apply` with the rights of a ServiceAccount. Returns whether it succeeded, and what it printed.
fn apply(control: &ControlPlane, account: &str) -> Result<(bool, String)> {
    let folder = tempfile::TempDir::with_prefix("nodefence-chart-")?;
    let mut command = nodefence_command()?;
    command.args(["crds", "--apply", "--kubeconfig"]).arg(kubeconfig(control, account, folder.path())?);
    said(control, command)
}

/// Runs a command beside the API server. Returns whether it succeeded, and what it printed.
fn said(control: &ControlPlane, mut command: Command) -> Result<(bool, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = control.ns.run(move || command.spawn()).context("start nodefence")?;
    let output = child.wait_with_output()?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    Ok((output.status.success(), text))
}

#[test]
fn the_hook_s_account_may_apply_the_kinds_and_no_other_may() -> Result<()> {
    let control = server("chart-crds")?;
    create(&control, &render(ALL)?, &RIGHTS)?;
    // Once where they are there, and once where they are not.
    let (done, text) = apply(&control, "nodefence-crds")?;
    ensure!(done && text.contains("unchanged"), "{text}");
    for kind in ["nodemembers", "nodeflags", "nodefencesettings"] {
        control.api.delete(&format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.nodefence.io"
        ))?;
    }
    let (done, text) = apply(&control, "nodefence-crds")?;
    ensure!(done && text.contains("created"), "{text}");
    for account in ["nodefence-agent", "nodefence-controller", "nodefence-uninstall"] {
        let (done, text) = apply(&control, account)?;
        ensure!(!done && text.contains("forbidden"), "{account}: {text}");
    }
    ensure!(!may(&control, "nodefence-crds", "delete", "apiextensions.k8s.io", "customresourcedefinitions")?);
    Ok(())
}
