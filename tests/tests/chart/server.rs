//! A real API server takes each object of the chart.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Netns, client::wait_until, kube::ControlPlane};
use serde_json::{Value, json};

use crate::{
    helm::{ALL, render},
    objects::collection,
};

/// How long the API server may take until it serves a new kind.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// An API server with the kinds of nodefence, with stand-ins for those of the Prometheus operator, and with the namespace.
pub(crate) fn server(label: &str) -> Result<ControlPlane> {
    let control = ControlPlane::start(&Arc::new(Netns::new(label)?))?;
    control.crds()?;
    for (kind, plural) in [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        });
        control.object("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)?;
        let served = format!("/apis/monitoring.coreos.com/v1/{plural}");
        wait_until("the server serves the kind", SOON, || control.api.get(&served).is_ok())?;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodefence"}});
    control.object("/api/v1/namespaces", &namespace)?;
    Ok(control)
}

/// Creates the objects of these kinds.
pub(crate) fn create(control: &ControlPlane, objects: &[Value], kinds: &[&str]) -> Result<()> {
    for object in objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind)) {
        control.object(&collection(object)?, object)?;
    }
    Ok(())
}

#[test]
fn every_object_is_accepted() -> Result<()> {
    let control = server("chart-dry")?;
    // A field that the server does not know is an error.
    let refused = |object: &Value| -> Result<Option<String>> {
        let path = format!("{}?dryRun=All&fieldValidation=Strict", collection(object)?);
        Ok(control.api.create(&path, object).err().map(|error| format!("{error:#}")))
    };
    for values in [&[][..], ALL] {
        for object in render(values)?.iter().filter(|object| object["kind"] != "Namespace") {
            let error = refused(object)?;
            ensure!(error.is_none(), "{object:#}: {error:?}");
        }
    }
    let plain =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/nodefence.yaml"))?;
    let plain: Vec<Value> = serde_saphyr::from_multiple(&plain)?;
    let known = ["Namespace", "CustomResourceDefinition"];
    for object in plain.iter().filter(|object| !known.iter().any(|kind| object["kind"] == *kind)) {
        let error = refused(object)?;
        ensure!(error.is_none(), "{object:#}: {error:?}");
    }
    // The check itself finds a word that is wrong.
    let mut wrong =
        render(&[])?.into_iter().find(|object| object["kind"] == "DaemonSet").context("no DaemonSet")?;
    wrong["spec"]["template"]["spec"]["hostNetworks"] = json!(true);
    ensure!(refused(&wrong)?.is_some_and(|error| error.contains("hostNetworks")));
    Ok(())
}
