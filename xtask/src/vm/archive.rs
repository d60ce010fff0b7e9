//! Fetches packages of a Debian suite. The keyring verifies InRelease, InRelease has the hash of Packages, and Packages has the hash of each package.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

use super::deb822::{self, Package, Paragraph};
use super::mirror;
use crate::process;

/// apt's downloader. It uses the proxy and the certificates of apt's configuration.
const HELPER: &str = "/usr/lib/apt/apt-helper";
/// The keyrings. The second one has the keys of archived suites.
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-removed-keys.gpg"];
const PACKAGES: &str = "main/binary-amd64/Packages.xz";

/// A suite with its fetched and verified index.
#[derive(Debug)]
pub(crate) struct Suite {
    root: String,
    packages: std::collections::HashMap<String, Package>,
}

impl Suite {
    /// Fetches the index of `suite` from the first mirror that has it, and verifies the index. `scratch` is a temporary folder.
    pub(crate) fn open(suite: &str, scratch: &Path) -> Result<Self> {
        let mut tried = Vec::new();
        for root in mirror::candidates()? {
            match Self::open_at(&root, suite, scratch, &KEYRINGS.map(Path::new)) {
                Ok(found) => return Ok(found),
                Err(error) => tried.push(format!("{error:#}")),
            }
            process::check_interrupt()?;
        }
        bail!("no mirror has suite {suite}:\n  {}", tried.join("\n  "))
    }

    fn open_at(root: &str, suite: &str, scratch: &Path, keyrings: &[&Path]) -> Result<Self> {
        let dists = format!("{root}/dists/{suite}");
        let signed = format!("{dists}/InRelease");
        let release = trusted(&signed, suite, scratch, keyrings).with_context(|| signed.clone())?;
        let hash = deb822::release_hash(&release, PACKAGES)
            .with_context(|| format!("{signed} names no {PACKAGES}"))?;
        let index = scratch.join("Packages.xz");
        fetch(&format!("{dists}/{PACKAGES}"), &index, &hash)?;
        let text = process::output(process::command("xz").arg("-dc").arg(&index))?;
        Ok(Self { root: root.to_owned(), packages: deb822::packages(&text, "linux-") })
    }

    /// The package `name`, and all packages of the same build that it needs.
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
        fetch(&format!("{}/{}", self.root, package.filename), &file, &package.sha256)?;
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

/// Fetches a suite's `InRelease` and returns its content.
///
/// # Errors
/// Fails if the file is not signed by a trusted key, is of another suite, or is out of date.
fn trusted(uri: &str, suite: &str, scratch: &Path, keyrings: &[&Path]) -> Result<Paragraph> {
    let signed = scratch.join("InRelease");
    download(uri, &signed)?;
    let plain = scratch.join("Release");
    verify(&signed, &plain, keyrings)?;
    let text = fs::read_to_string(&plain)?;
    let release = deb822::paragraphs(&text).into_iter().next().context("it is empty")?;
    // Without this check a mirror could deliver another suite, which is signed too.
    if !["suite", "codename"].iter().any(|key| release.get(*key).is_some_and(|name| name == suite)) {
        bail!("it is of another suite");
    }
    check_valid(&release)?;
    Ok(release)
}

/// Checks that the suite's `Valid-Until` has not passed. Without this check a mirror could hold back the replacement of a faulty package. Suites
/// that do not change any more have no such date.
fn check_valid(release: &Paragraph) -> Result<()> {
    let Some(until) = release.get("valid-until") else { return Ok(()) };
    let printed = process::output(process::command("date").args(["--utc", "+%s", "--date", until]))?;
    let seconds: u64 = printed.trim().parse().with_context(|| format!("Valid-Until: {until}"))?;
    if SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() > seconds {
        bail!("it was valid until {until}: this mirror's copy is out of date");
    }
    Ok(())
}

/// Verifies the signature, and writes the signed text, and nothing else, to `plain`.
fn verify(signed: &Path, plain: &Path, keyrings: &[&Path]) -> Result<()> {
    let mut refused = Vec::new();
    for keyring in keyrings.iter().filter(|keyring| keyring.exists()) {
        if plain.exists() {
            fs::remove_file(plain)?;
        }
        let mut command = process::command("gpgv");
        command.args(["--quiet", "--keyring"]).arg(keyring).arg("--output").arg(plain).arg(signed);
        match process::output(&mut command) {
            Ok(_) => return Ok(()),
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    bail!("it is signed by no key of the Debian keyrings: {}", refused.join("; "))
}

fn fetch(uri: &str, file: &Path, sha256: &str) -> Result<()> {
    download(uri, file)?;
    let printed = process::output(process::command("sha256sum").arg("--binary").arg(file))?;
    let got = printed.split_whitespace().next().unwrap_or_default().trim_start_matches('\\');
    if got != sha256 {
        bail!("{uri}: SHA256 is {got}, signed is {sha256}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTING: &str = "Fri, 01 Jan 2100 00:00:00 UTC";
    const DEB: &str = "pool/l/linux-image.deb";

    /// An archive in a folder of this machine, with one package, and the trusted keyring.
    struct Archive {
        folder: PathBuf,
        release: String,
    }

    impl Archive {
        /// Makes an archive that is signed by a key of the keyring, and valid until then.
        fn new(name: &str, until: &str) -> Result<Self> {
            let folder = format!("nodefence-archive-{name}-{}", std::process::id());
            let mut this = Self { folder: std::env::temp_dir().join(folder), release: String::new() };
            for folder in ["got", "gnupg", "dists/sid/main/binary-amd64", "pool/l"] {
                fs::create_dir_all(this.path(folder))?;
            }
            process::output(process::command("chmod").arg("700").arg(this.path("gnupg")))?;
            fs::write(this.path(DEB), "a package")?;
            let package = format!(
                "Package: linux-image\nVersion: 1\nFilename: {DEB}\nSHA256: {}\n",
                sha256(&this.path(DEB))?
            );
            let packages = this.path("dists/sid/main/binary-amd64/Packages");
            fs::write(&packages, package)?;
            process::output(process::command("xz").arg(&packages))?;
            this.release = format!(
                "Suite: unstable\nCodename: sid\nValid-Until: {until}\nSHA256:\n {} 1 {PACKAGES}\n",
                sha256(&packages.with_extension("xz"))?
            );
            this.make_key("trusted")?;
            let exported =
                this.gpg().arg("--output").arg(this.path("keyring")).args(["--export", "trusted"]).status();
            assert!(exported?.success(), "gpg --export");
            this.sign("trusted")?;
            Ok(this)
        }

        fn path(&self, below: &str) -> PathBuf {
            self.folder.join(below)
        }

        fn gpg(&self) -> std::process::Command {
            let mut command = process::command("gpg");
            command.arg("--homedir").arg(self.path("gnupg")).args(["--batch", "--quiet", "--yes"]);
            command
        }

        fn make_key(&self, name: &str) -> Result<()> {
            let words = ["--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never"];
            process::output(self.gpg().args(words)).map(drop)
        }

        fn sign(&self, key: &str) -> Result<()> {
            let plain = self.path("plain");
            fs::write(&plain, &self.release)?;
            let mut command = self.gpg();
            command.args(["--local-user", key, "--output"]).arg(self.path("dists/sid/InRelease"));
            process::output(command.arg("--clearsign").arg(plain)).map(drop)
        }

        fn change(&self, below: &str, from: &str, to: &str) -> Result<()> {
            let text = fs::read_to_string(self.path(below))?;
            assert!(text.contains(from), "{below}: {text}");
            Ok(fs::write(self.path(below), text.replacen(from, to, 1))?)
        }

        fn open(&self) -> Result<Suite> {
            let root = format!("copy://{}", self.folder.display());
            Suite::open_at(&root, "sid", &self.path("got"), &[&self.path("keyring")])
        }

        /// Opens the archive and fetches the package.
        fn package(&self) -> Result<PathBuf> {
            let suite = self.open()?;
            let package = suite.closure("linux-image")?.remove(0);
            suite.fetch(package, &self.path("got"))
        }

        /// Checks that the archive is refused, with an error that names the file and the reason.
        fn refused(&self, file: &str, why: &str) {
            let error = format!("{:#}", self.package().expect_err("refused"));
            assert!(error.contains(&format!("{}/{file}: ", self.folder.display())), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }

    impl Drop for Archive {
        fn drop(&mut self) {
            // Without this call gpg's agent would run for another minute.
            let _gone = process::output(
                process::command("gpgconf").arg("--homedir").arg(self.path("gnupg")).args(["--kill", "all"]),
            );
            let _leftover = fs::remove_dir_all(&self.folder);
        }
    }

    fn sha256(file: &Path) -> Result<String> {
        let printed = process::output(process::command("sha256sum").arg(file))?;
        Ok(printed.split_whitespace().next().unwrap_or_default().to_owned())
    }

    const SIGNED: &str = "dists/sid/InRelease";

    #[test]
    fn a_sound_archive_is_read() -> Result<()> {
        let archive = Archive::new("sound", LASTING)?;
        assert_eq!(fs::read_to_string(archive.package()?)?, "a package");
        // Text outside of the signed part is ignored.
        let text = fs::read_to_string(archive.path(SIGNED))?;
        fs::write(archive.path(SIGNED), format!("Suite: other\nCodename: other\n\n{text}"))?;
        assert_eq!(archive.open()?.packages.len(), 1);
        Ok(())
    }

    #[test]
    fn a_text_that_was_changed_after_it_was_signed_is_refused() -> Result<()> {
        let archive = Archive::new("changed", LASTING)?;
        archive.change(SIGNED, "Suite: unstable", "Suite: stable")?;
        archive.refused(SIGNED, "signed by no key");
        Ok(())
    }

    #[test]
    fn another_key_is_refused() -> Result<()> {
        let archive = Archive::new("key", LASTING)?;
        archive.make_key("stranger")?;
        archive.sign("stranger")?;
        archive.refused(SIGNED, "signed by no key");
        Ok(())
    }

    #[test]
    fn no_signature_is_refused() -> Result<()> {
        let archive = Archive::new("none", LASTING)?;
        fs::write(archive.path(SIGNED), &archive.release)?;
        archive.refused(SIGNED, "signed by no key");
        Ok(())
    }

    #[test]
    fn another_suite_is_refused() -> Result<()> {
        let mut archive = Archive::new("suite", LASTING)?;
        archive.release = archive.release.replace("unstable", "stable").replace("sid", "trixie");
        archive.sign("trusted")?;
        archive.refused(SIGNED, "another suite");
        Ok(())
    }

    #[test]
    fn an_expired_one_is_refused() -> Result<()> {
        let archive = Archive::new("expired", "Sat, 01 Feb 2020 08:00:00 UTC")?;
        archive.refused(SIGNED, "valid until Sat, 01 Feb 2020");
        let archive = Archive::new("no-date", "whenever")?;
        archive.refused(SIGNED, "whenever");
        Ok(())
    }

    #[test]
    fn an_index_with_another_hash_is_refused() -> Result<()> {
        let archive = Archive::new("index", LASTING)?;
        let index = format!("dists/sid/{PACKAGES}");
        let packages = "Package: linux-image\nVersion: 2\nFilename: f\nSHA256: 0\n";
        fs::write(archive.path("Packages"), packages)?;
        process::output(process::command("xz").arg(archive.path("Packages")))?;
        fs::rename(archive.path("Packages.xz"), archive.path(&index))?;
        archive.refused(&index, "SHA256 is");
        Ok(())
    }

    #[test]
    fn a_package_with_another_hash_is_refused() -> Result<()> {
        let archive = Archive::new("package", LASTING)?;
        fs::write(archive.path(DEB), "another package")?;
        archive.refused(DEB, "SHA256 is");
        Ok(())
    }
}
