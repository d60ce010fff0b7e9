use std::{io, path::PathBuf};

/// Major and minor number of the oldest kernel on which the programs load. This kernel has what the programs and their maps need (bounded
/// loops 5.3, ring buffer and links 5.8), and is the oldest one on which they are tested.
pub const OLDEST: (u8, u8) = (5, 10);

/// What can fail in this module. Each message names the file, device or map, and says what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pin folder does not lie in a BPF filesystem.
    #[error(
        "{path}: not in a BPF filesystem; mount one with `mount -t bpf bpf {mount_at}` (in a container: mount the \
         host's {mount_at} into it)"
    )]
    NoBpfFs {
        /// The pin folder that was asked for.
        path: PathBuf,
        /// Where a BPF filesystem would have to be mounted.
        mount_at: PathBuf,
    },
    /// A file or folder below the pin folder could not be used.
    #[error("{path}: cannot {what}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Call {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The process may not load BPF programs.
    #[error(
        "no privilege to {what}: {source}; run as root or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (before Linux 5.11 \
         CAP_SYS_RESOURCE too)"
    )]
    Privilege {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel lacks what the programs use.
    #[error(
        "kernel {}.{}.{} is too old: nodefence runs on {}.{} or later (see `nodefence doctor`)",
        .0.code() >> 16, .0.code() >> 8 & 0xff, .0.code() & 0xff, OLDEST.0, OLDEST.1
    )]
    OldKernel(aya::util::KernelVersion),
    /// The kernel was built without what the programs need.
    #[error("this kernel has no TC programs: it was built without CONFIG_BPF_SYSCALL or CONFIG_NET_CLS_BPF")]
    NoClassifier,
    /// The object could not be loaded.
    #[error("cannot load the eBPF object: {0}")]
    Load(#[from] aya::EbpfError),
    /// A program of the object could not be loaded or used.
    #[error("program {name}: {source}")]
    Program {
        /// The program's name in the object.
        name: &'static str,
        /// Why it failed.
        source: Box<aya::programs::ProgramError>,
    },
    /// The object lacks a program or a map.
    #[error("the eBPF object has no {kind} named {name}")]
    Missing {
        /// `map` or `program`.
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// A map could not be read or written.
    #[error("map {name}: {source}")]
    Map {
        /// The map's name.
        name: &'static str,
        /// Why it failed.
        source: Box<aya::maps::MapError>,
    },
    /// Another agent has the dataplane.
    #[error(
        "{}: an agent{} has the dataplane that is pinned here; end it first (its run folder may be another one)",
        root.display(),
        pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    Busy {
        /// The locked folder, above the versions' pin folders.
        root: PathBuf,
        /// The other process' id, if this process can see it.
        pid: Option<u32>,
    },
    /// Somebody else could change what is pinned, or has pinned it.
    #[error("{path}: {what}; it is mended by `{remedy}`")]
    Exposed {
        /// The folder or pin.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The command that mends it.
        remedy: String,
    },
    /// The folder is not one of ours.
    #[error("{0}: not a pin folder of nodefence (expected .../nodefence/v3)")]
    NotOurs(PathBuf),
    /// The kernel programs' log could not be opened.
    #[error("the kernel programs' log (--log-cuts): {0}")]
    Log(String),
    /// The `nodes` map does not have this node index.
    #[error("node index {0} does not fit into the nodes map, which holds {max}", max = nodefence_common::MAX_NODES)]
    NodeIndex(u32),
    /// The injector refused a frame.
    #[error("cannot inject into interface {ifindex}: {reason}")]
    Inject {
        /// The device for which the frame was meant.
        ifindex: u32,
        /// Why it failed.
        reason: String,
    },
}

impl Error {
    /// For `map_err` after an operation on a file below the pin folder.
    pub(super) fn file(path: impl Into<PathBuf>, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, what, source }
    }

    /// For `map_err` after a system call.
    pub(super) fn call(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Privilege { what, source },
            _ => Self::Call { what, source },
        }
    }

    /// For `map_err` after an operation on a map.
    pub(super) fn map(name: &'static str) -> impl Fn(aya::maps::MapError) -> Self {
        move |source| Self::Map { name, source: Box::new(source) }
    }

    /// For `map_err` after an operation on a program.
    pub(super) fn program(name: &'static str) -> impl Fn(aya::programs::ProgramError) -> Self {
        move |source| Self::Program { name, source: Box::new(source) }
    }

    /// Whether this process or the machine has no descriptor left. A lack of memory is not included: it may concern one device only, and
    /// must not stop the others.
    pub(super) fn lacks_descriptors(&self) -> bool {
        let first: &(dyn std::error::Error + 'static) = self;
        let mut causes = std::iter::successors(Some(first), |error| error.source());
        causes.any(|error| {
            let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            matches!(code, Some(libc::EMFILE | libc::ENFILE))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_descriptors_is_told_from_what_is_wrong_with_a_device() {
        let error =
            |code| Error::Call { what: "open a socket".into(), source: io::Error::from_raw_os_error(code) };
        for (code, lacks) in
            [(libc::EMFILE, true), (libc::ENFILE, true), (libc::ENOMEM, false), (libc::ENODEV, false)]
        {
            assert_eq!(error(code).lacks_descriptors(), lacks, "{code}");
        }
    }
}
