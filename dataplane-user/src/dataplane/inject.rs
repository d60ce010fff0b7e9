//! The injector: fresh frames enter as ingress of a device through a program under BPF_PROG_TEST_RUN. No device is made.
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{error::Error, programs::Program, sys};

/// Puts frames in as if a device had received them. Cheap to clone; every clone may be used by its own thread, which must
/// be in the device's network namespace.
#[derive(Clone, Debug)]
pub struct Injector {
    program: Arc<OwnedFd>,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct InjectReport {
    /// Frames that the device took.
    pub sent: u64,
    /// Frames that were refused.
    pub failed: u64,
    /// The first refusal.
    pub first_error: Option<Error>,
}

/// The head of `struct __sk_buff` up to and with `cb[0]` (include/uapi/linux/bpf.h); all else must be zero.
const CONTEXT: usize = 52;
const CB0: usize = 48;

impl Injector {
    pub(super) fn new(program: &Program) -> Result<Self, Error> {
        let fd = program.fd.as_fd().try_clone_to_owned();
        Ok(Self { program: Arc::new(fd.map_err(Error::call("open the injector once more"))?) })
    }

    /// Puts one frame in as ingress of a device. `frame` begins with an Ethernet header; where the device has none, its
    /// addresses do not matter and the header is taken off.
    pub fn inject(&self, ifindex: u32, frame: &[u8]) -> Result<(), Error> {
        let mut context = [0; CONTEXT];
        context[CB0..].copy_from_slice(&ifindex.to_ne_bytes());
        self.run(ifindex, frame, &context)
    }

    /// Puts many frames in. A frame that is refused does not stop the others.
    pub fn inject_all<F: AsRef<[u8]>>(
        &self,
        ifindex: u32,
        frames: impl IntoIterator<Item = F>,
    ) -> InjectReport {
        let mut context = [0; CONTEXT];
        context[CB0..].copy_from_slice(&ifindex.to_ne_bytes());
        let mut report = InjectReport::default();
        for frame in frames {
            match self.run(ifindex, frame.as_ref(), &context) {
                Ok(()) => report.sent += 1,
                Err(error) => {
                    report.failed += 1;
                    report.first_error.get_or_insert(error);
                }
            }
        }
        report
    }

    fn run(&self, ifindex: u32, frame: &[u8], context: &[u8]) -> Result<(), Error> {
        let refused = |reason: String| Error::Inject { ifindex, reason };
        loop {
            return match sys::test_run(self.program.as_fd(), frame, context) {
                Ok(0) => Ok(()),
                Ok(_) => Err(refused("the kernel did not redirect the frame; is the interface up?".into())),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => Err(refused(format!("BPF_PROG_TEST_RUN over {} bytes: {e}", frame.len()))),
            };
        }
    }
}
