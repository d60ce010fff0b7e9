//! What the agent answers: to commands, and to requests at its socket.

use std::{
    process::{Child, Output, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use nodefence::report::{Client, FlagReport, Request};
use nodefence_common::Reason;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Agent, READY};
use crate::bin_path::command;

impl Agent {
    /// Runs the CLI against this agent, in its namespace.
    ///
    /// # Errors
    /// Fails if the binary is missing.
    pub fn cli(&self, args: &[&str]) -> Result<Output> {
        // The wait is outside of the namespace's thread, since others need that thread meanwhile.
        Ok(self.begin(args)?.wait_with_output()?)
    }

    /// Same as [`Agent::cli`], but does not wait for the command's end.
    ///
    /// # Errors
    /// Fails as [`Agent::cli`] does.
    pub fn begin(&self, args: &[&str]) -> Result<Child> {
        let mut command = command(&self.program);
        command.args(args).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(self.ns.run(move || command.spawn())?)
    }

    /// Runs a command that must succeed, as [`Agent::cli`] does. Returns its standard output.
    ///
    /// # Errors
    /// Fails if the command fails. The error includes the command's output and the agent's log.
    pub fn expect(&self, args: &[&str]) -> Result<String> {
        let output = self.cli(args)?;
        if !output.status.success() {
            bail!(
                "nodefence {}: {}\n{}\nagent's log:\n{}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr),
                self.log()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Same as [`Agent::expect`], but returns the answer as JSON.
    ///
    /// # Errors
    /// Fails as [`Agent::expect`] does, or if the answer is not JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.expect(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("{args:?}: {text}"))
    }

    /// The row of one node in the answer to `nodes`.
    ///
    /// # Errors
    /// Fails if the agent does not know the node.
    pub fn node(&self, name: &str) -> Result<Value> {
        let nodes = self.json(&["nodes"])?;
        let node = nodes["items"].as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == name));
        node.cloned().with_context(|| format!("no node {name}"))
    }

    /// The agent's `status`.
    ///
    /// # Errors
    /// Fails as [`Agent::json`] does.
    pub fn status(&self) -> Result<Value> {
        self.json(&["status"])
    }

    /// The message of the warning with this code in `status`, if there is one.
    ///
    /// # Errors
    /// Fails as [`Agent::json`] does.
    pub fn warning(&self, code: &str) -> Result<Option<String>> {
        let status = self.status()?;
        let mut warnings = status["warnings"].as_array().context("no warnings")?.iter();
        let warning = warnings.find(|warning| warning["code"] == code);
        Ok(warning.and_then(|warning| warning["message"].as_str()).map(str::to_owned))
    }

    /// Sends a request without a CLI process. Each request has a connection of its own, since the agent closes connections that are idle for a while.
    ///
    /// # Errors
    /// Fails if the agent refuses the request or does not answer. The error includes the agent's log.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let asked = Client::connect(&self.socket()).and_then(|mut client| {
            client.set_patience(READY)?;
            client.ask(request)
        });
        asked.with_context(|| self.log())
    }

    /// Flags a node by the CLI.
    ///
    /// # Errors
    /// Fails as [`Agent::expect`] does.
    pub fn flag(&self, node: &str) -> Result<()> {
        // The limit of flagged nodes is a third of all nodes, which is one node in a cluster of three.
        self.expect(&["flag", node, "--reason", "test"]).map(drop)
    }

    /// Flags a node by the socket, which starts no command, and with `force`, which lifts the limits. Returns the time at which the flag was in force.
    ///
    /// # Errors
    /// Fails as [`Agent::ask`] does.
    pub fn flag_by_socket(&self, node: &str) -> Result<Instant> {
        let node = node.to_owned();
        let reason = "test".to_owned();
        let request = Request::Flag { node, for_ms: None, reason, force: true, wait: false, sudo_user: None };
        self.ask::<FlagReport>(&request)?;
        Ok(Instant::now())
    }

    /// Withdraws the flag.
    ///
    /// # Errors
    /// Fails as [`Agent::expect`] does.
    pub fn unflag(&self, node: &str) -> Result<()> {
        self.expect(&["unflag", node]).map(drop)
    }

    /// The number of packets that a counter has counted.
    ///
    /// # Errors
    /// Fails as [`Agent::json`] does, or if the counter is not listed.
    pub fn counter(&self, reason: Reason) -> Result<u64> {
        let json = self.json(&["counters"])?;
        let row =
            json["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == reason.name()));
        row.and_then(|row| row["packets"].as_u64())
            .with_context(|| format!("no counter `{}` in {json}", reason.name()))
    }

    /// Whether answers are made in place on this kernel, as the agent's probe found.
    ///
    /// # Errors
    /// Fails as [`Agent::json`] does.
    pub fn answers_in_place(&self) -> Result<bool> {
        let finding = &self.status()?["probe"]["ipvs_translates"];
        let not_needed = finding["not_needed"].as_str().map(|_| true);
        finding["found"].as_bool().or(not_needed).with_context(|| format!("the probe failed: {finding}"))
    }
}
