//! What the agent says to a cluster file that it cannot start with. Each case is the real binary in a namespace of its own.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Result, ensure};
use nodefence_tests::{Netns, bin};
use tempfile::TempDir;

/// Starts an agent that is to end by itself.
fn agent(file: &Path, more: &[&str]) -> Result<Output> {
    let ns = Netns::new("file")?;
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/24 dev v0
         addr add 10.9.0.2/24 dev v0")?;
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let mut command = Command::new(bin("nodefence")?);
    command.arg("--run-dir").arg(dir.path().join("run")).arg("agent").arg("--cluster-file").arg(file);
    command.args(["--interface", "v0"]).args(more).env("NO_COLOR", "1").stdin(Stdio::null());
    Ok(ns.run(move || command.output())?)
}

/// The agent must end with 1 and say all of this, the file's name among it.
fn refused(file: &Path, more: &[&str], says: &[&str]) -> Result<()> {
    let output = agent(file, more)?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "ended with {}:\n{text}", output.status);
    let last = text.lines().last().unwrap_or_default();
    for part in says {
        ensure!(last.contains(part), "no `{part}` in: {last}");
    }
    Ok(())
}

fn refused_text(text: impl AsRef<[u8]>, says: &[&str]) -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let file = dir.path().join("cluster.yaml");
    fs::write(&file, text)?;
    refused(&file, &[], &[&["cluster.yaml"], says].concat())
}

#[test]
fn missing() -> Result<()> {
    refused(Path::new("/nonexistent/cluster.yaml"), &[], &["/nonexistent/cluster.yaml", "No such file"])
}

#[test]
fn a_folder() -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    refused(dir.path(), &[], &["is a folder; expected a regular file"])
}

#[test]
fn a_pipe() -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    refused(&pipe, &[], &["is a pipe; expected a regular file"])
}

/// Neither read without end nor waited for.
#[test]
fn a_device() -> Result<()> {
    for device in ["/dev/null", "/dev/zero", "/dev/tty"] {
        refused(Path::new(device), &[], &[device, "is a device; expected a regular file"])?;
    }
    Ok(())
}

#[test]
fn unreadable() -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let file = dir.path().join("cluster.yaml");
    // A link to itself: not even root can read it.
    std::os::unix::fs::symlink(&file, &file)?;
    refused(&file, &[], &["cluster.yaml: cannot be read", "symbolic links"])
}

#[test]
fn empty() -> Result<()> {
    refused_text("", &["is empty", "nodes: []"])?;
    refused_text("\n\n", &["is empty"])
}

#[test]
fn huge() -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let file = dir.path().join("cluster.yaml");
    File::create(&file)?.set_len(65 << 20)?;
    refused(&file, &[], &["is 68157440 bytes long; the limit is 67108864"])
}

#[test]
fn not_text() -> Result<()> {
    refused_text(b"nodes:\n- name: \xff\n", &["is not UTF-8 (first bad byte at offset 15)"])
}

#[test]
fn cut_short() -> Result<()> {
    refused_text(
        "nodes:\n- name: node-a\n  address: 10.9.0.1\n- name: nod",
        &["does not end with a line feed"],
    )?;
    refused_text("{\"nodes\": [{\"name\": \"node-a\"", &["does not end with a line feed"])
}

#[test]
fn wrong() -> Result<()> {
    refused_text("nodes: [\n", &["line "])?;
    refused_text(
        "nodes:\n- name: node-a\n  adress: 10.9.0.1\n",
        &[
            "line 3",
            "nodes[0].adress: there is no field `adress` here: expected name, address, zone, backends",
        ],
    )?;
    refused_text(
        "nodes:\n- name: node-a\n  address: 10.9.0.999\n",
        &["line 3, column 12: nodes[0].address: `10.9.0.999` is no IP address"],
    )
}

#[test]
fn duplicate() -> Result<()> {
    refused_text(
        "nodes:\n- {name: a, address: 10.9.0.1}\n- {name: a, address: 10.9.0.3}\n",
        &["line 3", "nodes[1].name: node `a` stands on line 2 already"],
    )
}

#[test]
fn conflicting() -> Result<()> {
    let text = "nodes:
- {name: a, address: 10.9.0.1, backends: [{address: 10.9.1.1}]}
- {name: b, address: 10.9.0.3, backends: [{address: 10.9.1.1}]}
";
    refused_text(text, &["line 3", "10.9.1.1 is a backend of `a` (line 2) and of `b`"])
}

#[test]
fn a_service_with_an_endpoint_on_no_node() -> Result<()> {
    let text = "nodes:
- {name: a, address: 10.9.0.1}
services:
- name: default/web
  ports: [{port: 80}]
  endpoints:
  - {address: 10.9.1.1, node: a}
  - {address: 10.9.1.2, node: b}
";
    refused_text(text, &["line 8, column 31: services[0].endpoints[1].node: `b` is not among the nodes"])
}

#[test]
fn the_nodes_own_address() -> Result<()> {
    refused_text(
        "nodes:\n- {name: a, address: 10.9.0.1, backends: [{address: 10.9.0.1}]}\n",
        &["nodes[0].backends[0].address", "needs hostNetwork: true"],
    )
}

#[test]
fn without_nodes() -> Result<()> {
    refused_text("nodes: []\n", &["`nodes` is empty", "--allow-empty"])
}

#[test]
fn no_node_is_this_one() -> Result<()> {
    refused_bare("nodes:\n- {name: a, address: 10.9.0.77}\n", &[], &["none of the 1 nodes", "--node"])
}

#[test]
fn two_nodes_are_this_one() -> Result<()> {
    let text = "nodes:\n- {name: a, address: 10.9.0.1}\n- {name: b, address: 10.9.0.2}\n";
    refused_bare(text, &[], &["a and b both have an address of this machine", "--node"])
}

#[test]
fn an_unknown_node() -> Result<()> {
    let text = "nodes:\n- {name: a, address: 10.9.0.1}\n";
    refused_bare(text, &["--node", "z"], &["--node z: the cluster file has no such node"])
}

fn refused_bare(text: &str, more: &[&str], says: &[&str]) -> Result<()> {
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let file = dir.path().join("cluster.yaml");
    fs::write(&file, text)?;
    refused(&file, more, says)
}
