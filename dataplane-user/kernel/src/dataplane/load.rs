//! Loads the object. Mounts the BPF filesystem if it is missing, raises the memory limit, and decides which pinned maps are used again.
use std::{
    io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::MapError,
    programs::{ProgramError, ProgramType},
    sys::is_program_supported,
    util::KernelVersion,
};
use nix::{
    mount::{MsFlags, mount},
    sys::resource::{RLIM_INFINITY, Resource, setrlimit},
    unistd::{AccessFlags, access, geteuid},
};

use super::{
    error::{Error, OLDEST},
    exposed,
    folders::{in_bpffs, make_folders, root},
    lock::{self, PinLock},
    maps::Maps,
    names,
    options::{Options, XdpChoice},
    programs::Programs,
    staging::{self, Staged},
    versions::{self, Other},
};

/// The usual place of the BPF filesystem. A BPF filesystem is mounted without being asked only there.
const BPF_MOUNT: &str = "/sys/fs/bpf";

pub(super) struct Loaded {
    /// Holds the object's remaining maps.
    pub(super) ebpf: Ebpf,
    pub(super) programs: Programs,
    pub(super) maps: Maps,
    pub(super) staged: Option<Staged>,
    pub(super) other_versions: Vec<Other>,
    pub(super) lock: PinLock,
}

/// Loads the programs over the pinned maps. Maps of another size are made in the staging folder.
pub(super) fn load(options: &Options) -> Result<Loaded, Error> {
    raise_memlock(supported_kernel()?)?;
    let lock = prepare_pin_dir(&options.pin_dir)?;
    let object = crate::DATAPLANE_OBJECT;
    let differing = staging::differing(&options.pin_dir, object, options.max_backends)?;
    if differing.is_none() {
        versions::put_aside(&options.pin_dir)?;
    }
    let differing = differing.unwrap_or_default();
    let other_versions = versions::others(&options.pin_dir)?.into_iter().map(Other::new).collect();
    staging::prepare(&options.pin_dir, &differing)?;
    let mut loader = EbpfLoader::new();
    loader.default_map_pin_directory(&options.pin_dir).map_max_entries(names::BACKENDS, options.max_backends);
    let log_cuts = u8::from(options.log_cuts);
    loader.override_global("LOG_CUTS", &log_cuts, true);
    for name in &differing {
        loader.map_pin_path(name, names::staging(&options.pin_dir).join(name));
    }
    let mut ebpf = loader.load(object).map_err(load_error)?;
    let programs = Programs::load(&mut ebpf, options.xdp != XdpChoice::Off)?;
    let mut maps = Maps::take(&mut ebpf)?;
    let staged = Staged::fill(&options.pin_dir, differing, &mut maps)?;
    Ok(Loaded { ebpf, programs, maps, staged, other_versions, lock })
}

fn load_error(error: EbpfError) -> Error {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. })
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            Error::Privilege { what: "create BPF maps".into(), source: io_error }
        }
        other => Error::Load(other),
    }
}

fn supported(kernel: KernelVersion) -> Result<(), Error> {
    let oldest = KernelVersion::new(OLDEST.0, OLDEST.1, 0);
    if kernel >= oldest { Ok(()) } else { Err(Error::OldKernel(kernel)) }
}

/// Raises RLIMIT_MEMLOCK, against which maps and programs count before 5.11. From 5.11 on a failure does not matter.
fn raise_memlock(kernel: KernelVersion) -> Result<(), Error> {
    let counted = kernel < KernelVersion::new(5, 11, 0);
    match setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        Err(e) if counted => {
            let what = "raise RLIMIT_MEMLOCK, which this kernel counts BPF maps against".into();
            Err(Error::Privilege { what, source: e.into() })
        }
        _ => Ok(()),
    }
}

/// Checks what can be checked before anything is loaded, pinned or attached: the kernel's version, the privilege, and the BPF filesystem at
/// the pin folder. Mounts a BPF filesystem at its usual place if there is none. Takes no lock: a dataplane that is in use goes on as it is.
///
/// # Errors
/// Fails if one of these would make [`super::Dataplane::open`] fail.
pub fn check(options: &Options) -> Result<(), Error> {
    raise_memlock(supported_kernel()?)?;
    // This tries to load a program of two instructions. The kernel refuses it if the privilege is missing or the kernel is locked down.
    match is_program_supported(ProgramType::SchedClassifier) {
        Ok(true) => {
            require_bpffs(&options.pin_dir)?;
            let there = options.pin_dir.ancestors().find(|folder| folder.exists());
            let folder = there.unwrap_or(&options.pin_dir);
            access(folder, AccessFlags::W_OK)
                .map_err(|errno| Error::file(folder, "write into it")(errno.into()))
        }
        Ok(false) => Err(Error::NoClassifier),
        Err(error) => Err(Error::call("load BPF programs")(match error {
            ProgramError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        })),
    }
}

fn supported_kernel() -> Result<KernelVersion, Error> {
    let unreadable = |error: &dyn std::error::Error| io::Error::other(error.to_string());
    let kernel = KernelVersion::current()
        .map_err(|error| Error::call("read the kernel's version")(unreadable(&error)))?;
    supported(kernel)?;
    Ok(kernel)
}

/// Makes sure that the pin folder is one of ours, lies in a BPF filesystem, and cannot be changed by anybody else.
fn require_bpffs(pin_dir: &Path) -> Result<(), Error> {
    root(pin_dir)?;
    if !in_bpffs(pin_dir)? {
        if !pin_dir.starts_with(BPF_MOUNT) || !mount_bpffs() || !in_bpffs(pin_dir)? {
            let mount_at = if pin_dir.starts_with(BPF_MOUNT) {
                PathBuf::from(BPF_MOUNT)
            } else {
                pin_dir.ancestors().nth(2).unwrap_or(pin_dir).to_owned()
            };
            return Err(Error::NoBpfFs { path: pin_dir.to_owned(), mount_at });
        }
        tracing::info!(event = "bpffs-mounted", "mounted a BPF filesystem at {BPF_MOUNT}, where none was");
    }
    exposed::refuse(pin_dir)
}

/// Makes the pin folder and locks it. First makes sure that it lies in a BPF filesystem and that nobody else can change it.
fn prepare_pin_dir(pin_dir: &Path) -> Result<PinLock, Error> {
    require_bpffs(pin_dir)?;
    let lock = PinLock::take(root(pin_dir)?, lock::PATIENCE)?;
    make_folders(pin_dir)?;
    // If others may make folders here too, another user may have made one of these first.
    exposed::refuse(pin_dir)?;
    Ok(lock)
}

/// Mounts a BPF filesystem at its usual place. Root mounts it for itself alone. The mount's root folder always belongs to root (the option
/// `uid=` is newer than Linux 5.10), so another user could not enter a closed one. That user leaves it open to all, with the sticky bit.
fn mount_bpffs() -> bool {
    let mode = geteuid().is_root().then_some("mode=0700");
    mount(Some("bpf"), BPF_MOUNT, Some("bpf"), MsFlags::empty(), mode).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_before_5_10_is_refused_by_name() {
        for old in [KernelVersion::new(4, 19, 300), KernelVersion::new(5, 9, 16)] {
            let text = supported(old).unwrap_err().to_string();
            assert!(text.contains("is too old") && text.contains("5.10 or later"), "{text}");
        }
        assert!(supported(KernelVersion::new(5, 4, 0)).unwrap_err().to_string().contains("kernel 5.4.0"));
        for new in [KernelVersion::new(5, 10, 0), KernelVersion::new(5, 10, 251), KernelVersion::new(6, 1, 0)]
        {
            supported(new).unwrap();
        }
    }
}
