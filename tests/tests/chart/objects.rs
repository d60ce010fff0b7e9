//! Parts of rendered objects.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The object of this kind and name.
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).with_context(|| format!("there is no {kind} {name}"))
}

/// The pods of DaemonSets, Deployments and Jobs, each with its owner's name.
pub(crate) fn pod_specs(objects: &[Value]) -> Result<Vec<(String, &Value)>> {
    let of = |object: &&Value| object["spec"]["template"]["spec"].is_object();
    let mut pods = Vec::new();
    for object in objects.iter().filter(of) {
        let name = object["metadata"]["name"].as_str().context("no name")?;
        pods.push((name.to_owned(), &object["spec"]["template"]["spec"]));
    }
    Ok(pods)
}

/// All containers of a pod, its init containers first.
pub(crate) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|field| pod[field].as_array()).flatten()
}

/// A container's arguments.
pub(crate) fn args(container: &Value) -> Vec<String> {
    let words = container["args"].as_array().into_iter().flatten();
    words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

/// The path at which the API server has objects of this kind.
pub(crate) fn collection(object: &Value) -> Result<String> {
    let version = object["apiVersion"].as_str().context("no apiVersion")?;
    let kind = object["kind"].as_str().context("no kind")?.to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    })
}
