//! `kubectl nodefence` beside a real API server. No agent and no controller runs.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Netns,
    client::wait_until,
    kube::{ControlPlane, manifests::manifests},
    nodefence_command,
};
use serde_json::{Value, json};

const FLAGS: &str = "/apis/nodefence.io/v1alpha1/nodeflags";
const SETTINGS: &str = "/apis/nodefence.io/v1alpha1/nodefencesettings/default";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// Generous, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// An API server with nodefence's kinds.
struct Cluster {
    control: ControlPlane,
    kubeconfig: PathBuf,
}

/// What a command printed, and its exit code.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }

    /// Checks the exit code.
    fn ended(self, code: i32) -> Result<Self> {
        ensure!(self.code == Some(code), "wanted exit code {code}: {self:#?}");
        Ok(self)
    }
}

impl Cluster {
    fn new() -> Result<Self> {
        let control = ControlPlane::start(&Arc::new(Netns::new("kubectl")?))?;
        control.crds()?;
        for collection in [FLAGS, SETTINGS.trim_end_matches("/default")] {
            wait_until("the server serves all kinds", LIMIT, || control.api.get(collection).is_ok())?;
        }
        let kubeconfig = control.kubeconfig()?;
        Ok(Self { control, kubeconfig })
    }

    fn with_members() -> Result<Self> {
        let this = Self::new()?;
        for (name, last) in [("node-a", 11), ("node-b", 12), ("node-c", 13)] {
            this.control.member(name, &[[10, 2, 0, last].into()])?;
        }
        Ok(this)
    }

    /// Runs `kubectl nodefence` with all rights.
    fn kubectl(&self, words: &[&str]) -> Result<Said> {
        self.kubectl_as(&self.kubeconfig, words)
    }

    fn kubectl_as(&self, kubeconfig: &Path, words: &[&str]) -> Result<Said> {
        let mut command = nodefence_command()?;
        command.arg0("kubectl-nodefence").args(words).env("KUBECONFIG", kubeconfig);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The wait is outside of the namespace's thread, since others need that thread meanwhile.
        let child = self.control.ns.run(move || command.spawn()).context("start kubectl nodefence")?;
        let Output { status, stdout, stderr } = child.wait_with_output()?;
        let [out, err] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        Ok(Said { code: status.code(), out, err })
    }

    /// All flags of the API server.
    fn flags(&self) -> Result<Vec<Value>> {
        let list = self.control.api.get(FLAGS)?;
        Ok(list["items"].as_array().context("no flags")?.clone())
    }

    /// A kubeconfig of a new service account that has these ClusterRoles.
    fn account(&self, name: &str, roles: &[&str]) -> Result<PathBuf> {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        self.control.api.create(ACCOUNTS, &account)?;
        for role in roles {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": format!("{name}-{role}")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            });
            self.control.api.create(BINDINGS, &binding)?;
        }
        let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let token = self.control.api.create(&format!("{ACCOUNTS}/{name}/token"), &wanted)?;
        let mut config: Value = serde_json::from_slice(&std::fs::read(&self.kubeconfig)?)?;
        config["users"][0]["user"]["token"] = token["status"]["token"].clone();
        let path = self.kubeconfig.with_file_name(name);
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Applies the ClusterRoles for people of the plain manifests.
    fn roles(&self) -> Result<()> {
        let is_for_people = |name: &str| !["nodefence-agent", "nodefence-controller"].contains(&name);
        let mut count = 0;
        for (name, document) in manifests("ClusterRole")?.into_iter().filter(|(name, _)| is_for_people(name))
        {
            self.control.api.apply_yaml(&format!("{ROLES}/{name}"), document)?;
            count += 1;
        }
        ensure!(count == 4, "{count} roles");
        Ok(())
    }
}

/// Seconds since the day began, of a time such as `2026-12-01T08:00:00Z`.
fn of_day(time: &Value) -> Result<i64> {
    let text = time.as_str().context("no time")?;
    let mut numbers = text.get(11..19).context("a short time")?.split(':').map(str::parse::<i64>);
    numbers.try_fold(0, |sum, number| Ok(sum * 60 + number?))
}

#[test]
fn a_flag_is_an_object_that_ends_by_the_servers_clock() -> Result<()> {
    let cluster = Cluster::with_members()?;
    let said = cluster.kubectl(&["flag", "node-b", "--reason", "disk is gone", "--for", "10m"])?.ended(0)?;
    ensure!(said.out.contains("node node-b is flagged until "), "{said:?}");
    ensure!(said.out.contains("there is no NodefenceSettings/default: agents only observe"), "{said:?}");
    let flags = cluster.flags()?;
    let spec = &flags[0]["spec"];
    ensure!(flags.len() == 1 && spec["node"] == "node-b" && spec["uid"] == "uid-of-node-b", "{flags:#?}");
    ensure!(spec["by"] == "admin" && spec["cause"] == "operator" && spec["force"] == false, "{spec}");
    let name = flags[0]["metadata"]["name"].as_str().context("no name")?.to_owned();
    ensure!(name.starts_with("node-b-"), "{name}");
    let lasts = of_day(&spec["until"])? - of_day(&flags[0]["metadata"]["creationTimestamp"])?;
    let lasts = lasts.rem_euclid(24 * 3_600);
    ensure!((570..=600).contains(&lasts), "{lasts} s: {:#}", flags[0]);

    // The same user flags the node again, and one flag is left.
    let said = cluster.kubectl(&["flag", "node-b", "--reason", "still", "-o", "json"])?.ended(0)?.json()?;
    ensure!(said["replaced"] == json!([name]), "{said:#}");
    let flags = cluster.flags()?;
    ensure!(flags.len() == 1 && flags[0]["metadata"]["name"] == said["flag"]["name"], "{flags:#?}");
    let listed = cluster.kubectl(&["flags", "-o", "json"])?.ended(0)?.json()?;
    ensure!(listed["kind"] == "ClusterFlagList" && listed["items"][0]["reason"] == "still", "{listed:#}");
    let nodes = cluster.kubectl(&["nodes", "--flagged", "-o", "name"])?.ended(0)?;
    ensure!(nodes.out == "node/node-b\n", "{nodes:?}");

    let said = cluster.kubectl(&["unflag", "node-b"])?.ended(0)?;
    ensure!(said.out.contains("node node-b: the flag ") && cluster.flags()?.is_empty(), "{said:?}");
    let said = cluster.kubectl(&["unflag", "node-b"])?.ended(0)?;
    ensure!(said.out == "node node-b was not flagged\n", "{said:?}");
    Ok(())
}

#[test]
fn what_is_unwise_is_refused() -> Result<()> {
    let cluster = Cluster::with_members()?;
    let flag = |words: &[&str]| cluster.kubectl(&[&["flag", "--reason", "test"], words].concat());
    let said = flag(&["node-x", "--force"])?.ended(7)?;
    ensure!(said.err.contains("there is no node `node-x`"), "{said:?}");
    flag(&["node-a", "--dry-run"])?.ended(0)?;
    let said = flag(&["node-a", "--for", "25h"])?.ended(4)?;
    ensure!(said.err.contains("--long"), "{said:?}");
    ensure!(cluster.flags()?.is_empty());
    flag(&["node-a", "--for", "25h", "--long"])?.ended(0)?;
    let said = flag(&["node-b"])?.ended(4)?;
    ensure!(
        said.err.contains("2 of 3 nodes (all nodes) would be flagged, and the limit allows 1"),
        "{said:?}"
    );
    flag(&["node-b", "--force"])?.ended(0)?;
    let said = flag(&["node-c"])?.ended(4)?;
    ensure!(said.err.contains("all other nodes are flagged: it is the last usable one"), "{said:?}");
    flag(&["node-c", "--force"])?.ended(0)?;
    ensure!(cluster.flags()?.len() == 3, "{:#?}", cluster.flags()?);
    cluster.kubectl(&["unflag", "--all"])?.ended(0)?;
    ensure!(cluster.flags()?.is_empty());
    Ok(())
}

#[test]
fn settings_are_made_and_changed() -> Result<()> {
    let cluster = Cluster::with_members()?;
    let said = cluster.kubectl(&["settings"])?.ended(0)?;
    ensure!(said.out.contains("there is no NodefenceSettings/default"), "{said:?}");
    cluster.kubectl(&["status", "--check"])?.ended(5)?;
    let said = cluster.kubectl(&["mode", "enforce"])?.ended(0)?;
    ensure!(said.out.contains("the mode is enforce: agents cut"), "{said:?}");
    cluster.kubectl(&["pause", "--for", "10m", "--reason", "switch is replaced"])?.ended(0)?;
    let spec = cluster.control.api.get(SETTINGS)?["spec"].clone();
    ensure!(spec["mode"] == "enforce" && spec["limit"] == "1/3", "{spec:#}");
    ensure!(
        spec["pauses"][0]["by"] == "admin" && spec["pauses"].as_array().map(Vec::len) == Some(1),
        "{spec:#}"
    );
    let said = cluster.kubectl(&["status"])?.ended(0)?;
    ensure!(said.out.contains("agents    paused by admin until "), "{said:?}");
    let said = cluster.kubectl(&["resume"])?.ended(0)?;
    ensure!(said.out.contains("ended      paused by admin"), "{said:?}");
    let spec = cluster.control.api.get(SETTINGS)?["spec"].clone();
    ensure!(spec["mode"] == "enforce" && spec["pauses"] == json!([]), "{spec:#}");
    Ok(())
}

#[test]
fn the_cluster_roles_allow_what_they_are_for() -> Result<()> {
    let cluster = Cluster::with_members()?;
    cluster.roles()?;
    let view = cluster.account("viewer", &["nodefence-view"])?;
    let operate = cluster.account("operator", &["nodefence-operate"])?;
    let agents = cluster.account("watcher", &["nodefence-view", "nodefence-view-agents"])?;
    let install = cluster.account("installer", &["nodefence-preflight"])?;
    let flag = ["flag", "node-b", "--reason", "test"];
    // The server's authorizer knows a new binding a moment later.
    let sees = || cluster.kubectl_as(&view, &["flags"]).is_ok_and(|said| said.code == Some(0));
    wait_until("the viewer sees flags", LIMIT, sees)?;
    for words in [&["settings"][..], &["nodes"], &["status"]] {
        cluster.kubectl_as(&view, words)?.ended(0)?;
    }
    let said = cluster.kubectl_as(&view, &["nodes"])?.ended(0)?;
    ensure!(said.err.contains("the agents were not asked: you may not list pods"), "{said:?}");
    let said = cluster.kubectl_as(&view, &flag)?.ended(4)?;
    for part in ["you may not create nodeflags.nodefence.io", "the ClusterRole nodefence-operate"] {
        ensure!(said.err.contains(part), "{said:?}");
    }
    cluster.kubectl_as(&view, &["mode", "enforce"])?.ended(4)?;
    let said = cluster.kubectl_as(&view, &["preflight"])?.ended(4)?;
    ensure!(said.err.contains("you may not list nodes"), "{said:?}");

    let may = || cluster.kubectl_as(&operate, &flag).is_ok_and(|said| said.code == Some(0));
    wait_until("the operator flags a node", LIMIT, may)?;
    let by = cluster.flags()?[0]["spec"]["by"].clone();
    ensure!(by == "system:serviceaccount:default:operator", "{by}");
    for words in [
        &["flag", "node-b", "--reason", "again"][..],
        &["unflag", "node-b"],
        &["mode", "enforce"],
        &["mode", "observe"],
        &["pause", "--reason", "test"],
        &["resume"],
    ] {
        cluster.kubectl_as(&operate, words)?.ended(0)?;
    }
    let asked = || {
        let said = cluster.kubectl_as(&agents, &["nodes"]);
        said.is_ok_and(|said| {
            said.code == Some(0) && said.err.contains("no agent's pod in namespace nodefence")
        })
    };
    wait_until("the watcher lists the agents' pods", LIMIT, asked)?;
    let looks = || cluster.kubectl_as(&install, &["preflight"]).is_ok_and(|said| said.code == Some(0));
    wait_until("the installer looks at nodes", LIMIT, looks)?;
    let said = cluster.kubectl_as(&install, &["preflight"])?.ended(0)?;
    ensure!(!said.err.contains("you may not"), "{said:?}");
    Ok(())
}

/// Serves one status over HTTP in the namespace, as an agent does.
fn serve(ns: &Netns, address: &'static str) -> Result<()> {
    let listener = ns.run(move || TcpListener::bind(address))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                if line.is_empty() {
                    break;
                }
                head.push(line);
            }
            let is_status = head.first().is_some_and(|line| line.starts_with("GET /v1/status "));
            let body = json!({
                "version": "0.1.0", "mode": "observe", "state": if is_status { "ok" } else { "blind" },
                "cluster": {"age_seconds": 3, "conflicts": 0},
            });
            let body = body.to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            let _gone =
                (&stream).write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        }
    });
    Ok(())
}

#[test]
fn agents_answer_through_the_proxy_of_pods() -> Result<()> {
    let cluster = Cluster::with_members()?;
    let ns = &cluster.control.ns;
    // The API server refuses to proxy to loopback addresses.
    ns.ip("addr add 10.2.0.11/32 dev lo\naddr add 10.2.0.12/32 dev lo")?;
    serve(ns, "10.2.0.11:9478")?;
    let api = &cluster.control.api;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodefence"}});
    api.create("/api/v1/namespaces", &namespace)?;
    let pods = "/api/v1/namespaces/nodefence/pods";
    for (name, node, address) in [("agent-a", "node-a", "10.2.0.11"), ("agent-b", "node-b", "10.2.0.12")] {
        let labels = json!({"app.kubernetes.io/name": "nodefence", "app.kubernetes.io/component": "agent"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"name": "agent", "image": "none"}]},
        });
        api.create(pods, &pod)?;
        let ip = json!({"podIP": address, "podIPs": [{"ip": address}], "phase": "Running"});
        let status = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": ip});
        api.apply(&format!("{pods}/{name}/status"), &status)?;
    }
    let found = cluster.kubectl(&["nodes", "-o", "json"])?.ended(0)?.json()?;
    let [a, b, c] = [0, 1, 2].map(|at| &found["items"][at]["agent"]);
    ensure!(a["health"] == "ok" && a["mode"] == "observe" && a["view_age_seconds"] == 3, "{found:#}");
    ensure!(b["silent"].is_string() && b["health"].is_null() && c.is_null(), "{found:#}");
    let said = cluster.kubectl(&["status", "--check"])?.ended(5)?;
    for part in
        ["1 node with an agent that does not answer: node-b", "1 node without pod of an agent: node-c"]
    {
        ensure!(said.out.contains(part), "{said:?}");
    }
    Ok(())
}

#[test]
fn nodes_are_looked_at_before_an_install() -> Result<()> {
    let cluster = Cluster::new()?;
    let api = &cluster.control.api;
    let node = |name: &str, kernel: &str| {
        let info = json!({
            "kernelVersion": kernel, "architecture": "amd64", "operatingSystem": "linux", "osImage": "Debian 12",
            "bootID": "1", "containerRuntimeVersion": "1", "kubeProxyVersion": "1", "kubeletVersion": "1",
            "machineID": "1", "systemUUID": "1",
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": info}
        });
        api.create("/api/v1/nodes", &node).map(drop)
    };
    node("node-a", "6.1.0-18-amd64")?;
    wait_until("kube-system is there", LIMIT, || api.get("/api/v1/namespaces/kube-system").is_ok())?;
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy"},
        "data": {"config.conf": "kind: KubeProxyConfiguration\nmode: nftables\n"},
    });
    api.create("/api/v1/namespaces/kube-system/configmaps", &config)?;
    let found = cluster.kubectl(&["preflight", "-o", "json"])?.ended(0)?.json()?;
    ensure!(found["proxy"] == "nftables" && found["items"][0]["kernel"] == "6.1.0-18-amd64", "{found:#}");
    node("node-b", "4.18.0")?;
    let said = cluster.kubectl(&["preflight"])?.ended(5)?;
    ensure!(said.out.contains("the kernel is too old: expected 5.10 or later"), "{said:?}");
    ensure!(said.err.contains("`nodefence doctor`"), "{said:?}");
    cluster.kubectl(&["preflight", "--node", "node-a"])?.ended(0)?;
    cluster.kubectl(&["preflight", "--node", "node-x"])?.ended(7)?;
    Ok(())
}

#[test]
fn a_server_that_is_away_is_told_soon() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut config: Value = serde_json::from_slice(&std::fs::read(&cluster.kubeconfig)?)?;
    config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    let away = cluster.kubeconfig.with_file_name("away");
    std::fs::write(&away, config.to_string())?;
    let said = cluster.kubectl_as(&away, &["flags"])?.ended(1)?;
    ensure!(said.err.contains("cannot get /version"), "{said:?}");
    let said = cluster.kubectl(&["flags", "--context", "none"])?.ended(1)?;
    ensure!(said.err.contains("that has the context"), "{said:?}");
    Ok(())
}
