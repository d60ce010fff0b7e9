//! The kernels of the matrix. They come from Debian's suites, are unpacked once, and stay in a cache outside the clone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use super::archive::Suite;
use super::cpio::Archive;
use super::modules;
use crate::cache::{self, Scratch};
use crate::process;
use crate::say::say;

/// A kernel of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 11.
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13.
    #[value(name = "6.12")]
    V6_12,
    /// The newest kernel: that of Debian unstable, or a backport of it.
    #[value(name = "latest")]
    Latest,
}

/// The package that depends on the newest build of the cloud flavour in its suite. This flavour is smaller than the generic one, and has the same
/// networking.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Raise this number when the files that are made from a package change. Older files are then made anew.
const FORMAT: u32 = 4;
/// How long a version counts as current after it was looked up.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// The modules, as a part of an initramfs.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// The oldest kernel of the matrix.
    pub(crate) const OLDEST: Self = Self::V5_10;
    /// The newest kernel of the matrix.
    pub(crate) const NEWEST: Self = Self::Latest;
    /// The whole matrix.
    pub(crate) const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::Latest];

    /// The kernel's name on the command line.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Latest => "latest",
        }
    }

    /// The suites that have the kernel. The first choice is first.
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V5_10 => &["bullseye"],
            Self::V6_1 => &["bookworm"],
            Self::V6_12 => &["trixie", "bookworm-backports"],
            // If a mirror's copy of sid is out of date, it is refused. The newest backports then serve.
            Self::Latest => &["sid", "trixie-backports"],
        }
    }

    /// Whether a release belongs to this kernel line.
    fn fits(self, release: &str) -> bool {
        self == Self::Latest || release.strip_prefix(self.label()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Takes the kernel from the cache, or fetches it. If the version was looked up less than a day ago, the mirror is not contacted. If the mirror
    /// cannot be reached, an older version from the cache is used.
    pub(crate) fn prepare(self) -> Result<Prepared> {
        let folder = cache::folder()?.join("kernels").join(self.label());
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        // Guests of one kernel may boot at the same time. The lock lets one of them fetch it.
        let busy = format!("{}: somebody else fetches this kernel: waiting", self.label());
        let _one = cache::lock(&folder.join("lock"), &busy)?;
        let current = folder.join("current");
        let build = fs::read_to_string(&current).unwrap_or_default();
        let cached = if build.is_empty() { None } else { load(&folder.join(&build)) };
        let is_current = fresh(&current) && build.ends_with(&format!("-f{FORMAT}"));
        if let Some(kernel) = cached.clone().filter(|_| is_current) {
            return Ok(kernel);
        }
        match self.fetch(&folder) {
            Ok((build, kernel)) => {
                fs::write(&current, &build)?;
                prune(&folder, &build);
                Ok(kernel)
            }
            Err(error) => {
                process::check_interrupt()?;
                let kernel = cached.with_context(|| format!("kernel {}: {error:#}", self.label()))?;
                say!("{}: {error:#}; going on with {} from the cache", self.label(), kernel.release);
                Ok(kernel)
            }
        }
    }

    fn fetch(self, folder: &Path) -> Result<(String, Prepared)> {
        let scratch = Scratch::new(folder)?;
        let mut refused = Vec::new();
        for suite in self.suites() {
            say!("{}: asking suite {suite} for its kernel", self.label());
            match Suite::open(suite, scratch.path())
                .and_then(|suite| self.unpack(&suite, scratch.path(), folder))
            {
                Ok(found) => return Ok(found),
                Err(error) => refused.push(format!("{error:#}")),
            }
            process::check_interrupt()?;
        }
        bail!("{}", refused.join("\n"))
    }

    fn unpack(self, suite: &Suite, scratch: &Path, folder: &Path) -> Result<(String, Prepared)> {
        let packages = suite.closure(PACKAGE)?;
        let version = &packages.first().context("no package")?.version;
        if !self.fits(version) {
            bail!("the suite has {PACKAGE} {version}, which is no {}", self.label());
        }
        let build = format!("{}-f{FORMAT}", version.replace(['/', ':'], "_"));
        if let Some(kernel) = load(&folder.join(&build)) {
            return Ok((build, kernel));
        }
        let tree = scratch.join("tree");
        fs::create_dir(&tree)?;
        for package in packages {
            say!("{}: fetching {} {}", self.label(), package.name, package.version);
            let file = suite.fetch(package, scratch)?;
            process::run(process::command("dpkg-deb").arg("-x").arg(&file).arg(&tree))?;
            fs::remove_file(file)?;
        }
        let made = scratch.join("made");
        fs::create_dir(&made)?;
        make(&tree, &made).with_context(|| format!("{PACKAGE} {version}"))?;
        let home = folder.join(&build);
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        fs::rename(&made, &home)?;
        let kernel = load(&home).context("the unpacked kernel is not complete")?;
        Ok((build, kernel))
    }
}

/// Takes the image, the release, and the modules that the guest needs from an unpacked package tree. The modules are uncompressed, since the guest's
/// modprobe may not know xz.
fn make(tree: &Path, made: &Path) -> Result<()> {
    let modules_home = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|path| tree.join(path))
        .find(|path| path.is_dir())
        .context("no modules folder in the packages")?;
    let release = fs::read_dir(&modules_home)?
        .next()
        .context("no kernel release below the modules folder")??
        .file_name();
    let release = release.into_string().ok().context("a kernel release that is no UTF-8")?;
    let home = modules_home.join(&release);
    // Packages before 7.x have the image in /boot.
    let image = [tree.join("boot").join(format!("vmlinuz-{release}")), home.join("vmlinuz")];
    let image = image.iter().find(|path| path.is_file()).context("no vmlinuz in the packages")?;
    fs::copy(image, made.join("vmlinuz"))?;

    if !tree.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", tree.join("lib"))?;
    }
    depmod(tree, &release)?;
    let chosen = modules::select(&fs::read_to_string(home.join("modules.dep"))?);
    let small = made.join("root");
    let to = small.join("lib/modules").join(&release);
    for path in &chosen {
        let from = home.join(path);
        let to = to.join(path);
        fs::create_dir_all(to.parent().context("a module without a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        if path.ends_with(".xz") {
            process::run(process::command("xz").args(["-d", "-q"]).arg(&to))?;
        }
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        if home.join(list).is_file() {
            fs::copy(home.join(list), to.join(list))?;
        }
    }
    depmod(&small, &release)?;
    let mut archive = Archive::new(std::io::BufWriter::new(fs::File::create(made.join("modules.cpio"))?));
    archive.tree("usr/lib/modules", &small.join("lib/modules"))?;
    archive.finish()?;
    fs::remove_dir_all(small)?;
    fs::write(made.join("release"), &release)?;
    cache::seal(made, &["vmlinuz", "modules.cpio", "release"])
}

fn depmod(root: &Path, release: &str) -> Result<()> {
    process::output(process::command("depmod").arg("-b").arg(root).arg(release)).map(drop)
}

/// Loads a build from the cache. `None` if a file is missing or was changed.
fn load(home: &Path) -> Option<Prepared> {
    let release = fs::read_to_string(home.join("release")).ok()?;
    let image = home.join("vmlinuz");
    let modules = home.join("modules.cpio");
    cache::is_whole(home).then_some(Prepared { release, image, modules })
}

fn fresh(file: &Path) -> bool {
    let age =
        file.metadata().and_then(|meta| meta.modified()).map(|then| SystemTime::now().duration_since(then));
    matches!(age, Ok(Ok(age)) if age < FRESH)
}

/// Removes builds that a newer one replaced.
fn prune(folder: &Path, keep: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.path().is_dir() && name != keep && !name.starts_with(cache::SCRATCH) {
            say!("cache: removing {}", entry.path().display());
            let _leftover = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    #[test]
    fn a_release_belongs_to_its_own_line_only() {
        assert!(Kernel::V6_1.fits("6.1.176-1") && !Kernel::V6_1.fits("6.12.107-1"));
        assert!(Kernel::V6_12.fits("6.12.107-1") && !Kernel::V5_10.fits("5.100.1"));
        assert!(Kernel::Latest.fits("7.2.13-1"));
    }
}
