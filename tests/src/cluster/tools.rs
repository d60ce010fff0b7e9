//! kubectl, helm and `kubectl nodefence`, as an operator of the cluster runs them.

use std::{
    ffi::OsStr,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::KubeCluster;
use crate::{bin, bin_path::without_options, kube::assets::asset};

impl KubeCluster {
    /// Runs `kubectl`. Returns its standard output.
    ///
    /// # Errors
    /// Fails if kubectl fails. The error has its standard error.
    pub fn kubectl(&self, args: &[&str], stdin: Option<&str>) -> Result<String> {
        self.call(asset("kubectl")?.as_os_str(), args, stdin)
    }

    /// Runs `helm`. Returns its standard output.
    ///
    /// # Errors
    /// Fails if helm fails. The error has its standard error.
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        self.call(asset("helm")?.as_os_str(), args, None)
    }

    /// Runs `nodefence` as the plugin of kubectl. Returns its standard output.
    ///
    /// # Errors
    /// Fails if the program is missing or fails. The error has its standard error.
    pub fn plugin(&self, args: &[&str]) -> Result<String> {
        self.call(bin("nodefence")?.as_os_str(), &[&["kubectl"], args].concat(), None)
    }

    /// How a person looks at the cluster from another shell.
    ///
    /// # Errors
    /// Fails if a file cannot be written, or if a program is missing.
    pub fn how_to_look(&self) -> Result<String> {
        let kubeconfig = self.control.plane().kubeconfig()?;
        let enter =
            format!("nsenter --net={} env KUBECONFIG={}", self.ns.path().display(), kubeconfig.display());
        Ok(format!(
            "\nThe cluster stays up until Ctrl-C. As root, from another shell:\n  \
            {enter} {} get pods --all-namespaces\n  \
            {enter} {} kubectl nodes\n\
            Logs: {}\n",
            asset("kubectl")?.display(),
            bin("nodefence")?.display(),
            self.plan.out.display()
        ))
    }

    /// Runs a program in the namespace, with the rights of an administrator of the cluster. It ends with this process.
    fn call(&self, program: &OsStr, args: &[&str], stdin: Option<&str>) -> Result<String> {
        let mut command = Command::new("setpriv");
        without_options(&mut command);
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(args);
        command.env("KUBECONFIG", self.control.plane().kubeconfig()?);
        // helm and kubectl keep caches in folders of the user.
        command.env("HOME", self.folder()).current_dir(self.folder());
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = format!("{} {}", program.to_string_lossy(), args.join(" "));
        let output = self.ns.within(|| {
            let mut child = command.spawn()?;
            if let (Some(text), Some(mut pipe)) = (stdin, child.stdin.take()) {
                // An error is ignored: a program that reads nothing has ended, and its exit code shows a failure.
                let _unread = pipe.write_all(text.as_bytes());
            }
            Ok(child.wait_with_output()?)
        });
        let output = output.with_context(|| line.clone())?;
        if !output.status.success() {
            bail!("`{line}`: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
