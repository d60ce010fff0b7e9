//! The chart of `deploy/chart`: what helm makes of it, and whether a real API server takes that.

mod admission;
mod alerts;
mod helm;
mod objects;
mod rights;
mod server;

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{bin_path, nodefence_command};
use serde_json::{Value, json};
use tempfile::TempDir;

use helm::{ALL, chart, helm, names, render, text};
use objects::{args, containers, find, pod_specs};

/// The environment variable that makes golden tests write their files.
const BLESS: &str = "NODEFENCE_BLESS";

#[test]
fn lint_finds_nothing() -> Result<()> {
    for values in [&[][..], ALL] {
        let mut args = vec!["lint", "--strict", "--kube-version", helm::KUBERNETES];
        args.extend(values);
        let chart = chart();
        args.push(chart.to_str().context("path")?);
        let printed = helm(&args)?;
        ensure!(printed.contains("0 chart(s) failed"), "{printed}");
    }
    Ok(())
}

#[test]
fn wrong_values_are_refused_by_name() -> Result<()> {
    for (value, name) in [
        ("agents.profile=privileged", "agents"),
        ("agent.image=x", "image"),
        ("agent.minReadySeconds=-1", "minReadySeconds"),
        ("agent.http.ports=1", "ports"),
        ("agent.resources.limit.memory=1Gi", "limit"),
        ("controller.hostNetwork=true", "hostNetwork"),
        ("alerts.rules.NodefenceGone=true", "NodefenceGone"),
        ("agent.profile=root", "profile"),
        ("agent.http.port=http", "port"),
        ("agent.http.port=70000", "port"),
        ("agent.extraArgs=--xdp", "extraArgs"),
        ("agent.runPath=run", "runPath"),
        ("image.digest=sha256:12", "digest"),
        ("controller.replicas=two", "replicas"),
        ("hooks.applyCrds=yes", "applyCrds"),
        ("apiServer=10.0.0.1:6443", "apiServer"),
    ] {
        let error = render(&["--set", value]).err().with_context(|| format!("{value} was taken"))?;
        let error = format!("{error:#}");
        ensure!(error.contains("schema") && error.contains(name), "{value}: {error}");
    }
    Ok(())
}

#[test]
fn an_older_kubernetes_is_refused() -> Result<()> {
    let error = helm::template("1.29.9", &[]).err().context("it was taken")?.to_string();
    ensure!(error.contains(">=1.30.0-0"), "{error}");
    Ok(())
}

/// Compares a text with a file of the workspace, or writes the file.
fn golden(file: &str, text: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    if std::env::var_os(BLESS).is_some_and(|value| !value.is_empty()) {
        fs::create_dir_all(path.parent().context("no folder")?)?;
        return fs::write(&path, text).context(file.to_owned());
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(text.lines()).position(|(kept, new)| kept != new);
    ensure!(
        kept == text,
        "{file} differs from what the chart gives, from line {} on; {BLESS}=1 writes it anew",
        differs.map_or_else(|| kept.lines().count().min(text.lines().count()) + 1, |line| line + 1)
    );
    Ok(())
}

#[test]
fn the_plain_manifests_are_those_of_the_chart() -> Result<()> {
    let rendered = text(helm::KUBERNETES, &["--no-hooks", "--set", "namespace.create=true"])?;
    // Helm does not manage these objects.
    let of_helm =
        |line: &&str| line.contains("app.kubernetes.io/managed-by: ") || line.contains("helm.sh/chart: ");
    let rest: String =
        rendered.lines().filter(|line| !of_helm(line)).map(|line| format!("{line}\n")).collect();
    // The documents of a namespace and of the kinds come first, since `kubectl apply` goes by their order.
    let (namespace, rest): (Vec<&str>, Vec<&str>) = rest
        .split("---\n")
        .filter(|part| !part.trim().is_empty())
        .partition(|part| part.contains("kind: Namespace\n"));
    let parts = namespace.into_iter().map(str::to_owned).chain([nodefence::crds::yaml()?]);
    let parts: Vec<String> = parts.chain(rest.into_iter().map(str::to_owned)).collect();
    let ambiguous: Vec<&str> = parts.iter().flat_map(|part| helm::ambiguous(part)).collect();
    ensure!(ambiguous.is_empty(), "these need quotes: {ambiguous:?}");
    let head = "# nodefence with the chart's default values, in the namespace nodefence. Written by the test `chart` (NODEFENCE_BLESS=1).\n";
    golden("deploy/manifests/nodefence.yaml", &format!("{head}---\n{}", parts.join("---\n")))
}

#[test]
fn the_chart_with_every_toggle_is_as_it_was() -> Result<()> {
    golden("tests/tests/chart/all.yaml", &text(helm::KUBERNETES, ALL)?)
}

#[test]
fn a_toggle_turns_its_objects_off_and_nothing_else() -> Result<()> {
    let off = |name: &str| {
        format!("Job {name}, ClusterRole {name}, ClusterRoleBinding {name}, ServiceAccount {name}")
    };
    let whole = names(&render(ALL)?)?;
    for (value, gone) in [
        ("namespace.create=false", "Namespace nodefence".to_owned()),
        ("controller.podDisruptionBudget=false", "PodDisruptionBudget nodefence-controller".to_owned()),
        ("hooks.applyCrds=false", off("nodefence-crds")),
        (
            "hooks.modeOff=false",
            format!("{}, Role nodefence-uninstall, RoleBinding nodefence-uninstall", off("nodefence-uninstall")),
        ),
        (
            "admissionPolicy=false",
            "ValidatingAdmissionPolicy nodefence-nodeflags, ValidatingAdmissionPolicyBinding nodefence-nodeflags".to_owned(),
        ),
        ("rbac.roles=false", "ClusterRole nodefence-view, ClusterRole nodefence-operate, ClusterRole nodefence-view-agents, ClusterRole nodefence-preflight".to_owned()),
        ("podMonitor.enabled=false", "PodMonitor nodefence-agent".to_owned()),
        ("alerts.enabled=false", "PrometheusRule nodefence".to_owned()),
    ] {
        let mut args = ALL.to_vec();
        args.extend(["--set", value]);
        let left = names(&render(&args)?)?;
        let wanted: BTreeSet<String> = gone.split(", ").map(str::to_owned).collect();
        let found: BTreeSet<String> = whole.difference(&left).cloned().collect();
        ensure!(found == wanted, "{value}: {found:?}");
        ensure!(left.is_subset(&whole), "{value}");
    }
    Ok(())
}

#[test]
fn a_word_that_would_be_a_boolean_is_found() {
    let text = "a: off\nb: \"off\"\n  - on\nc: often\nlist: [x]\n";
    assert_eq!(helm::ambiguous(text), ["a: off", "  - on"]);
}

#[test]
fn settings_and_flags_are_never_rendered() -> Result<()> {
    let text = text(helm::KUBERNETES, ALL)?;
    ensure!(!text.contains("kind: NodefenceSettings") && !text.contains("kind: NodeFlag"), "{text}");
    Ok(())
}

#[test]
fn no_pod_has_ports_and_none_is_ended_by_a_probe() -> Result<()> {
    for values in [&[][..], ALL] {
        for (name, pod) in pod_specs(&render(values)?)? {
            for container in containers(pod) {
                for field in ["ports", "livenessProbe", "startupProbe"] {
                    ensure!(container[field].is_null(), "{name}: {field}");
                }
                let limits = &container["resources"]["limits"];
                ensure!(limits["cpu"].is_null() && limits["memory"].is_string(), "{name}: {limits}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_agents_pod_is_as_it_must_be() -> Result<()> {
    let rendered = render(&[])?;
    let agent = find(&rendered, "DaemonSet", "nodefence-agent")?;
    let rolling =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "10%", "maxUnavailable": 0 } });
    ensure!(agent["spec"]["updateStrategy"] == rolling, "{agent:#}");
    let template = &agent["spec"]["template"];
    ensure!(template["metadata"]["annotations"]["nodefence.io/http-port"] == "9478", "{template:#}");
    let pod = &template["spec"];
    for (field, value) in [
        ("hostNetwork", json!(true)),
        ("hostPID", json!(true)),
        ("dnsPolicy", json!("Default")),
        ("priorityClassName", json!("system-node-critical")),
        ("nodeSelector", json!({ "kubernetes.io/os": "linux" })),
        ("tolerations", json!([{ "operator": "Exists" }])),
    ] {
        ensure!(pod[field] == value, "{field}: {}", pod[field]);
    }
    for (part, container, cpu) in
        [("agent", &pod["containers"][0], "250m"), ("guard", &pod["initContainers"][0], "50m")]
    {
        let requested = &container["resources"]["requests"]["cpu"];
        ensure!(requested == cpu, "{part}: {requested}");
        // The page has the reason.
        let reason = include_str!("../../../docs/design/actors.md");
        ensure!(
            reason.contains(&format!("{cpu} for the {part}")),
            "docs/design/actors.md does not say {cpu} for the {part}"
        );
    }
    // With the settings of the probe, a pod counts as available some seconds after its own agent has taken over.
    ensure!(agent["spec"]["minReadySeconds"] == 5, "{agent:#}");
    let probe = &pod["containers"][0]["readinessProbe"];
    ensure!(probe["exec"]["command"] == json!(["/nodefence", "status", "--ready"]), "{probe:#}");
    let guard = &pod["initContainers"][0];
    ensure!(guard["restartPolicy"] == "Always" && guard["args"] == json!(["guard", "--wait"]), "{guard:#}");
    for container in containers(pod) {
        let of_host: Vec<&Value> = container["volumeMounts"].as_array().context("mounts")?.iter().collect();
        let bpf = of_host.iter().find(|mount| mount["name"] == "bpf").context("no BPF filesystem")?;
        // Below /sys/fs/bpf the agent would mount one of its own.
        ensure!(bpf["mountPath"] == "/host/bpf" && bpf["mountPropagation"] == "HostToContainer", "{bpf}");
        let variables = container["env"].as_array().context("no variables")?;
        let pins = variables.iter().find(|variable| variable["name"] == "NODEFENCE_PIN_DIR");
        ensure!(pins.is_some_and(|pins| pins["value"] == "/host/bpf/nodefence/v3"), "{variables:?}");
        let own = variables.iter().find(|variable| variable["name"] == "NODEFENCE_POD_UID");
        let field = own.map(|own| &own["valueFrom"]["fieldRef"]["fieldPath"]);
        ensure!(field.is_some_and(|field| field == "metadata.uid"), "{variables:?}");
    }
    let cgroup = |mount: &&Value| mount["name"] == "cgroup" && mount["readOnly"] == true;
    let mounts = pod["containers"][0]["volumeMounts"].as_array().context("mounts")?;
    ensure!(mounts.iter().any(|mount| cgroup(&mount)), "{mounts:?}");
    Ok(())
}

#[test]
fn the_profile_decides_what_the_agents_containers_may_do() -> Result<()> {
    let of = |values: &[&str]| -> Result<Vec<Value>> {
        let rendered = render(values)?;
        let pod = &find(&rendered, "DaemonSet", "nodefence-agent")?["spec"]["template"]["spec"];
        Ok(containers(pod).map(|container| container["securityContext"].clone()).collect())
    };
    for context in of(&[])? {
        ensure!(context["privileged"] == true && context["capabilities"].is_null(), "{context}");
    }
    // `agent_capabilities` shows that they are enough, and that none is spare.
    let wanted: [&[&str]; 2] = [
        &["BPF", "NET_ADMIN", "SYS_NICE"],
        &["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_NICE", "SYS_RESOURCE"],
    ];
    for (context, wanted) in of(&["--set", "agent.profile=unprivileged"])?.iter().zip(wanted) {
        ensure!(context["privileged"].is_null() && context["allowPrivilegeEscalation"] == false, "{context}");
        ensure!(context["capabilities"] == json!({ "drop": ["ALL"], "add": wanted }), "{context}");
    }
    let add = "agent.profile=unprivileged,agent.securityContext.capabilities.add={BPF,PERFMON}";
    for context in of(&["--set", add])? {
        let wanted = json!({ "drop": ["ALL"], "add": ["BPF", "PERFMON"] });
        ensure!(context["capabilities"] == wanted, "docs/security.md: the list is replaced: {context}");
    }
    for context in of(&["--set", "agent.securityContext.appArmorProfile.type=Unconfined"])? {
        ensure!(
            context["appArmorProfile"]["type"] == "Unconfined" && context["privileged"] == true,
            "{context}"
        );
    }
    Ok(())
}

#[test]
fn the_digest_and_what_a_user_adds_take_effect() -> Result<()> {
    let digest = format!("image.digest=sha256:{}", "0".repeat(64));
    let rendered = render(&[
        "--set",
        &digest,
        "--set",
        "image.pullSecrets[0].name=pull,apiServer=https://10.0.0.9:6443,agent.http.address=192.0.2.7",
        "--set",
        "agent.extraArgs={--proxy=ipvs},agent.extraEnv[0].name=RUST_LOG,agent.extraEnv[0].value=debug",
        "--set",
        "labels.team=net,annotations.note=x,agent.podLabels.pod=y,agent.podAnnotations.more=z",
    ])?;
    for (name, pod) in pod_specs(&rendered)? {
        ensure!(pod["imagePullSecrets"] == json!([{ "name": "pull" }]), "{name}");
        for container in containers(pod) {
            let image = container["image"].as_str().context("no image")?;
            ensure!(image.ends_with(&format!("nodefence@sha256:{}", "0".repeat(64))), "{name}: {image}");
            let words = args(container);
            let asks = words.first().is_none_or(|word| word != "guard");
            let told = words.iter().any(|word| word == "--api-server=https://10.0.0.9:6443");
            ensure!(asks == told, "{name}: {words:?}");
        }
    }
    for object in &rendered {
        ensure!(object["metadata"]["labels"]["team"] == "net", "{object:#}");
        ensure!(object["metadata"]["annotations"]["note"] == "x", "{object:#}");
    }
    let template = &find(&rendered, "DaemonSet", "nodefence-agent")?["spec"]["template"];
    ensure!(template["metadata"]["labels"]["pod"] == "y", "{template:#}");
    ensure!(template["metadata"]["annotations"]["more"] == "z", "{template:#}");
    let agent = &template["spec"]["containers"][0];
    ensure!(args(agent).iter().any(|word| word == "--proxy=ipvs"), "{agent:#}");
    ensure!(args(agent).iter().any(|word| word == "--http=192.0.2.7:9478"), "{agent:#}");
    Ok(())
}

/// The notes that helm prints.
fn notes(more: &[&str]) -> Result<String> {
    let copy = TempDir::with_prefix("nodefence-notes-")?;
    let status = Command::new("cp").arg("-r").arg(chart()).arg(copy.path()).status()?;
    ensure!(status.success(), "cp: {status}");
    let folder = copy.path().join("nodefence");
    let text = fs::read_to_string(folder.join("templates/NOTES.txt"))?;
    // `helm template` leaves the notes out, so they become a value of an object.
    let name = "templates/notes.yaml";
    let object = format!(
        "{{{{- define \"notes\" }}}}{text}{{{{ end }}}}kind: Notes\ntext: {{{{ include \"notes\" . | quote }}}}\n"
    );
    fs::write(folder.join(name), object)?;
    let mut args =
        vec!["template", "nodefence", folder.to_str().context("path")?, "--namespace", "nodefence"];
    args.extend(["--kube-version", helm::KUBERNETES, "--show-only", name]);
    args.extend(more);
    let object: Value = serde_saphyr::from_str(&helm(&args)?)?;
    Ok(object["text"].as_str().context("no notes")?.to_owned())
}

/// After an upgrade agents do what the settings say, which may be to cut.
#[test]
fn the_notes_say_only_after_an_install_that_nothing_is_cut() -> Result<()> {
    let (installed, upgraded) = (notes(&[])?, notes(&["--is-upgrade"])?);
    let said = |notes: &str| {
        notes.contains("Nothing is cut yet") || notes.contains(r#"{"spec":{"mode":"observe"}}"#)
    };
    ensure!(said(&installed) && !said(&upgraded), "{installed}\n{upgraded}");
    ensure!(upgraded.contains("kubectl get nodemembers,nodeflags,nodefencesettings"), "{upgraded}");
    Ok(())
}

/// The verb and the options of a container's readiness probe. Empty if it has none.
fn probe(container: &Value) -> Vec<String> {
    let words = container["readinessProbe"]["exec"]["command"].as_array();
    words.into_iter().flatten().skip(1).filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

/// Runs the verb of each container with each of its options and `--help`, and those of its probe.
#[test]
fn the_program_knows_each_verb_and_option_that_the_chart_gives_it() -> Result<()> {
    bin_path::bin("nodefence")?;
    for (name, pod) in pod_specs(&render(ALL)?)? {
        let mut commands = Vec::new();
        for container in containers(pod) {
            commands.push(args(container));
            commands.extend(Some(probe(container)).filter(|words| !words.is_empty()));
        }
        for words in commands {
            let first = words.first().with_context(|| format!("{name}: no verb"))?;
            // `nodefence kubectl` has verbs of its own.
            let (verb, rest) = words.split_at(if first == "kubectl" { 2 } else { 1 });
            let mut command: Command = nodefence_command()?;
            let output = command.args(verb).arg("--help").output()?;
            let help = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.success(), "{name}: nodefence has no verb {verb:?}:\n{help}");
            let bare = |word: &str| word.split(['=', '[', ',']).next().unwrap_or(word).to_owned();
            for option in rest.iter().filter(|word| word.starts_with("--")).map(|word| bare(word)) {
                let known = help.split_whitespace().any(|part| bare(part) == option);
                ensure!(known, "{name}: `nodefence {verb:?}` has no {option}:\n{help}");
            }
        }
    }
    Ok(())
}
