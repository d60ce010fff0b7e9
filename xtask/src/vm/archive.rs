//! Packages of a Debian suite, each trusted for the chain keyring -> InRelease -> Packages -> package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::deb822::{self, Package};
use super::mirror;
use crate::process;

/// apt's downloader: it knows the proxy and the certificates that apt is configured with.
const HELPER: &str = "/usr/lib/apt/apt-helper";
/// The second one holds keys of suites that are archived.
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-removed-keys.gpg"];
const PACKAGES: &str = "main/binary-amd64/Packages.xz";

/// A suite whose index was fetched and verified.
#[derive(Debug)]
pub(crate) struct Suite {
    root: String,
    packages: std::collections::HashMap<String, Package>,
}

impl Suite {
    /// Fetches and verifies `suite`'s index from the first mirror that has it. `scratch` is a folder of ours.
    pub(crate) fn open(suite: &str, scratch: &Path) -> Result<Self> {
        let mut tried = Vec::new();
        for root in mirror::candidates()? {
            match Self::open_at(&root, suite, scratch) {
                Ok(found) => return Ok(found),
                Err(error) => tried.push(format!("{root}: {error:#}")),
            }
            process::check_interrupt()?;
        }
        bail!("no mirror has suite {suite}:\n  {}", tried.join("\n  "))
    }

    fn open_at(root: &str, suite: &str, scratch: &Path) -> Result<Self> {
        let signed = scratch.join("InRelease");
        download(&format!("{root}/dists/{suite}/InRelease"), &signed)?;
        let release = scratch.join("Release");
        verify(&signed, &release)?;
        let text = fs::read_to_string(&release)?;
        let release = deb822::paragraphs(&text).into_iter().next().context("InRelease is empty")?;
        // Else a mirror could pass off another suite that is signed as well.
        if !["suite", "codename"].iter().any(|key| release.get(*key).is_some_and(|name| name == suite)) {
            bail!("InRelease is of another suite");
        }
        let hash = deb822::release_hash(&release, PACKAGES)
            .with_context(|| format!("InRelease names no {PACKAGES}"))?;
        let index = scratch.join("Packages.xz");
        download(&format!("{root}/dists/{suite}/{PACKAGES}"), &index)?;
        check_hash(&index, &hash)?;
        let text = process::output(process::command("xz").arg("-dc").arg(&index))?;
        Ok(Self { root: root.to_owned(), packages: deb822::packages(&text, "linux-") })
    }

    /// `name` and all parts of the same build that it needs.
    pub(crate) fn closure(&self, name: &str) -> Result<Vec<&Package>> {
        let mut wanted = vec![name.to_owned()];
        let mut found: Vec<&Package> = Vec::new();
        while let Some(name) = wanted.pop() {
            if found.iter().any(|package| package.name == name) {
                continue;
            }
            let package =
                self.packages.get(&name).with_context(|| format!("the suite has no package {name}"))?;
            wanted.extend(package.siblings.iter().cloned());
            found.push(package);
        }
        Ok(found)
    }

    /// Fetches one package into `folder`.
    pub(crate) fn fetch(&self, package: &Package, folder: &Path) -> Result<PathBuf> {
        let file = folder.join(format!("{}.deb", package.name));
        download(&format!("{}/{}", self.root, package.filename), &file)?;
        check_hash(&file, &package.sha256)?;
        Ok(file)
    }
}

fn download(uri: &str, file: &Path) -> Result<()> {
    if file.exists() {
        fs::remove_file(file)?;
    }
    let mut command = process::command(HELPER);
    command.args([
        "-q",
        "-o",
        "Acquire::Retries=2",
        "-o",
        "Acquire::http::Timeout=60",
        "-o",
        "APT::Sandbox::User=root",
    ]);
    process::output(command.args(["download-file", uri]).arg(file)).map(drop)
}

/// Writes what is signed, and only that, to `plain`.
fn verify(signed: &Path, plain: &Path) -> Result<()> {
    let mut refused = Vec::new();
    for keyring in KEYRINGS.iter().filter(|keyring| Path::new(keyring).exists()) {
        if plain.exists() {
            fs::remove_file(plain)?;
        }
        let mut command = process::command("gpgv");
        command.args(["--quiet", "--keyring", keyring, "--output"]).arg(plain).arg(signed);
        match process::output(&mut command) {
            Ok(_) => return Ok(()),
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    bail!("InRelease is signed by no key of the Debian keyrings: {}", refused.join("; "))
}

fn check_hash(file: &Path, sha256: &str) -> Result<()> {
    let printed = process::output(process::command("sha256sum").arg("--binary").arg(file))?;
    let got = printed.split_whitespace().next().unwrap_or_default().trim_start_matches('\\');
    if got != sha256 {
        bail!("{}: SHA256 is {got}, signed is {sha256}", file.display());
    }
    Ok(())
}
