//! The chart's admission policy, in a real API server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{client::wait_until, kube::orders::in_time};
use serde_json::{Value, json};

use crate::{
    helm::render,
    server::{SOON, create, server},
};

const FLAGS: &str = "/apis/nodefence.io/v1alpha1/nodeflags";

/// A flag until the year 2100.
fn flag(name: &str, more: Value) -> Value {
    let mut spec = json!({"node": "node-b", "uid": "u", "until": "2100-01-01T00:00:00Z", "long": true});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": name}, "spec": spec})
}

#[test]
fn flags_have_a_bound_and_their_author_s_name() -> Result<()> {
    let control = server("chart-admit")?;
    create(&control, &render(&[])?, &["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"])?;
    let refused = |flag: &Value| control.api.create(FLAGS, flag).err().map(|error| format!("{error:#}"));
    let too_long = flag("too-long", json!({"long": false}));
    // The server follows its own policies a moment later.
    let path = format!("{FLAGS}?dryRun=All");
    let holds = |error: anyhow::Error| format!("{error:#}").contains("24 hours");
    wait_until("the policy holds", SOON, || control.api.create(&path, &too_long).is_err_and(holds))?;
    let error = refused(&too_long).context("it was taken")?;
    ensure!(error.contains("more than 24 hours after the creation"), "{error}");
    for (name, more) in [
        ("long", json!({})),
        ("short", json!({"long": false, "until": "2020-01-01T00:00:00Z"})),
        ("mine", json!({"by": "admin"})),
    ] {
        let error = refused(&flag(name, more));
        ensure!(error.is_none(), "{name}: {error:?}");
    }
    let error = refused(&flag("others", json!({"by": "somebody"}))).context("it was taken")?;
    ensure!(error.contains("another name than that of the requester"), "{error}");
    ensure!(error.contains("expected none, or admin"), "{error}");
    // The bound is a day after the creation.
    let day = Duration::from_secs(24 * 3_600);
    let minute = Duration::from_secs(60);
    let ends = |name: &str, until| refused(&flag(name, json!({"long": false, "until": in_time(until)})));
    let error = ends("within", day - minute);
    ensure!(error.is_none(), "{error:?}");
    let error = ends("beyond", day + minute).context("it was taken")?;
    ensure!(error.contains("more than 24 hours"), "{error}");

    let changed = |name: &str, more: Value| {
        let result = control.api.apply(&format!("{FLAGS}/{name}"), &flag(name, more));
        result.err().map(|error| format!("{error:#}"))
    };
    for (name, by) in [("mine", "somebody"), ("long", "admin")] {
        let error = changed(name, json!({"by": by})).with_context(|| format!("{name}: it was taken"))?;
        ensure!(error.contains("spec.by cannot be changed"), "{error}");
    }
    for more in [json!({"by": "admin", "node": "node-z"}), json!({"by": "admin", "uid": "another"})] {
        let error = changed("mine", more.clone()).with_context(|| format!("{more}: it was taken"))?;
        ensure!(error.contains("spec.node and spec.uid cannot be changed"), "{more}: {error}");
    }
    let error = changed("mine", json!({"by": "admin", "reason": "disk", "force": true}));
    ensure!(error.is_none(), "{error:?}");
    let error = changed("short", json!({"long": false})).context("it was taken")?;
    ensure!(error.contains("more than 24 hours"), "{error}");
    Ok(())
}

/// No program could read such a time, and one that is an offset of 99 hours.
#[test]
fn ends_lie_before_the_year_9999() -> Result<()> {
    let control = server("chart-ends")?;
    let pauses = |until: &str| {
        let spec = json!({"pauses": [{"by": "admin", "until": until}]});
        let meta = json!({"name": "default"});
        json!({"apiVersion": "nodefence.io/v1alpha1", "kind": "NodefenceSettings", "metadata": meta, "spec": spec})
    };
    let answer = |path: &str, object: &Value| {
        let answer = control.api.create(&format!("{path}?dryRun=All"), object);
        answer.err().map(|error| format!("{error:#}")).unwrap_or_default()
    };
    let both = |until: &str| {
        let of_flag = answer(FLAGS, &flag("ends", json!({"until": until})));
        [of_flag, answer("/apis/nodefence.io/v1alpha1/nodefencesettings", &pauses(until))]
    };
    ensure!(both("9998-12-31T23:59:59Z") == ["", ""], "{:?}", both("9998-12-31T23:59:59Z"));
    for until in ["9999-12-31T23:59:59Z", "9999-01-01T00:00:00Z"] {
        let [of_flag, of_settings] = both(until);
        ensure!(of_flag.contains("spec.until: expected a time before the year 9999"), "{until}: {of_flag}");
        ensure!(of_settings.contains("expected an `until` before the year 9999"), "{until}: {of_settings}");
    }
    let refused = both("2026-06-01T12:00:00+99:00");
    ensure!(refused.iter().all(|error| !error.is_empty()), "{refused:?}");
    Ok(())
}
