//! The kernel under the test: this machine's, or the guest's where the test runs in a guest.

use anyhow::{Context as _, Result};

/// Major and minor number.
pub type Version = (u32, u32);

/// From this kernel on BPF maps do not count against RLIMIT_MEMLOCK.
pub const UNCOUNTED: Version = (5, 11);
/// From this kernel on programs are attached by tcx, before it by clsact.
pub const TCX: Version = (6, 6);

/// The kernel's release, as `uname -r` prints it.
///
/// # Errors
/// Fails if the release is not UTF-8.
pub fn release() -> Result<String> {
    nix::sys::utsname::uname()?.release().to_str().map(str::to_owned).context("a release that is no UTF-8")
}

/// The version at the beginning of the release.
///
/// # Errors
/// Fails if the release does not begin with a version.
pub fn version() -> Result<Version> {
    let release = release()?;
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten().with_context(|| release.clone());
    Ok((next()?, next()?))
}
