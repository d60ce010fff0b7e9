//! The real program ends with a message if it cannot start with its cluster file. The unit tests beside the code check which file is refused with which message.

use std::{fs, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Netns, nodefence_command};
use tempfile::TempDir;

#[test]
fn a_file_that_is_refused_ends_the_agent_with_one_line() -> Result<()> {
    let ns = Netns::new("file")?;
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/24 dev v0
         addr add 10.9.0.2/24 dev v0")?;
    let dir = TempDir::with_prefix("nodefence-test-")?;
    let path = |name: &str| dir.path().join(name);
    let one = "nodes:\n- {name: a, address: 10.9.0.77}\n";
    let service = "nodes:
- {name: a, address: 10.9.0.1}
services:
- name: default/web
  ports: [{port: 80}]
  endpoints:
  - {address: 10.9.1.2, node: b}
";
    nix::unistd::mkfifo(&path("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU)?;
    for (name, text) in [
        ("short.yaml", "nodes:\n- {name: a, addr"),
        ("none.yaml", "nodes: []\n"),
        ("service.yaml", service),
        ("elsewhere.yaml", one),
        ("twice.yaml", "nodes:\n- {name: a, address: 10.9.0.1}\n- {name: b, address: 10.9.0.2}\n"),
    ] {
        fs::write(path(name), text)?;
    }
    for (name, more, says) in [
        ("missing.yaml", &[][..], "missing.yaml: cannot be read: No such file"),
        ("pipe.yaml", &[], "pipe.yaml: is a pipe; expected a regular file"),
        ("short.yaml", &[], "short.yaml: does not end with a line feed"),
        ("none.yaml", &[], "start the agent with --allow-empty"),
        (
            "service.yaml",
            &[],
            "service.yaml: services[0].endpoints[0].node: `b` is not among the nodes at line 7, column 31",
        ),
        ("elsewhere.yaml", &[], "none of the 1 nodes"),
        ("twice.yaml", &[], "a and b both have an address of this machine"),
        ("elsewhere.yaml", &["--node", "z"], "--node z: the cluster file has no such node"),
    ] {
        let mut command = nodefence_command()?;
        command.arg("--run-dir").arg(path("run")).arg("agent").arg("--cluster-file").arg(path(name));
        command.args(["--interface", "v0"]).args(more).env("NO_COLOR", "1").stdin(Stdio::null());
        let output = ns.run(move || command.output())?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{name}: ended with {}:\n{text}", output.status);
        let last = text.lines().last().context("the agent printed nothing")?;
        ensure!(last.contains(says), "{name}: no `{says}` in: {last}");
        ensure!(
            text.contains("the start failed event=\"start-failed\" stage=view"),
            "{name}: the log does not name the stage:\n{text}"
        );
    }
    Ok(())
}
