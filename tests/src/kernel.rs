//! This machine's kernel (a guest's, where the test runs in one).

use anyhow::{Context as _, Result};

/// Major and minor number.
pub type Version = (u32, u32);

/// BPF maps no longer count against RLIMIT_MEMLOCK.
pub const UNCOUNTED: Version = (5, 11);
/// From this kernel on programs are attached by tcx, before it by clsact.
pub const TCX: Version = (6, 6);

/// As `uname -r` gives it.
///
/// # Errors
/// Where it is no UTF-8.
pub fn release() -> Result<String> {
    nix::sys::utsname::uname()?.release().to_str().map(str::to_owned).context("a release that is no UTF-8")
}

/// The version at the beginning of the release.
///
/// # Errors
/// Where it begins with something else.
pub fn version() -> Result<Version> {
    let release = release()?;
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten().with_context(|| release.clone());
    Ok((next()?, next()?))
}
