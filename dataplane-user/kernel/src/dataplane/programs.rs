//! The loaded programs, by their purpose.
use std::os::fd::{AsFd, OwnedFd};

use aya::{
    Ebpf,
    programs::{ProgramError, SchedClassifier, Xdp},
};

use super::{error::Error, interfaces::LinkLayer, names, sys};

/// A loaded program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) id: u32,
    pub(super) fd: OwnedFd,
}

/// All programs that an agent needs.
pub(super) struct Programs {
    egress_l2: Program,
    /// Loaded for the first device that needs it, since the verifier takes its time.
    egress_l3: Option<Program>,
    pub(super) inject: Program,
    /// Loaded only if XDP was asked for.
    pub(super) xdp: Option<Program>,
}

impl Programs {
    pub(super) fn load(ebpf: &mut Ebpf, xdp: bool) -> Result<Self, Error> {
        Ok(Self {
            egress_l2: classifier(ebpf, "nf_egress_l2")?,
            egress_l3: None,
            inject: classifier(ebpf, names::INJECT)?,
            xdp: if xdp { Some(load_xdp(ebpf)?) } else { None },
        })
    }

    pub(super) fn egress(&mut self, ebpf: &mut Ebpf, layer: LinkLayer) -> Result<&Program, Error> {
        if layer == LinkLayer::L2 {
            return Ok(&self.egress_l2);
        }
        let program = match self.egress_l3.take() {
            Some(program) => program,
            None => classifier(ebpf, "nf_egress_l3")?,
        };
        Ok(self.egress_l3.insert(program))
    }
}

fn classifier(ebpf: &mut Ebpf, name: &'static str) -> Result<Program, Error> {
    let program = ebpf.program_mut(name).ok_or(Error::Missing { kind: "program", name })?;
    let program: &mut SchedClassifier = program.try_into().map_err(Error::program(name))?;
    program.load().map_err(|error| load_error(name, error))?;
    loaded(name, program.fd().map_err(Error::program(name))?.as_fd())
}

fn load_xdp(ebpf: &mut Ebpf) -> Result<Program, Error> {
    let name = names::XDP;
    let program = ebpf.program_mut(name).ok_or(Error::Missing { kind: "program", name })?;
    let program: &mut Xdp = program.try_into().map_err(Error::program(name))?;
    program.load().map_err(|error| load_error(name, error))?;
    loaded(name, program.fd().map_err(Error::program(name))?.as_fd())
}

fn load_error(name: &'static str, error: ProgramError) -> Error {
    match error {
        ProgramError::LoadError { io_error, .. } if io_error.raw_os_error() == Some(libc::EPERM) => {
            Error::Privilege { what: format!("load the program {name}"), source: io_error }
        }
        other => Error::Program { name, source: Box::new(other) },
    }
}

/// Describes a loaded program, with a descriptor of its own.
fn loaded(name: &'static str, fd: std::os::fd::BorrowedFd<'_>) -> Result<Program, Error> {
    let query = || format!("query the program {name}");
    let (id, _) = sys::program_info(fd).map_err(|error| Error::call(query())(error))?;
    let fd = fd.try_clone_to_owned().map_err(|error| Error::call(query())(error))?;
    Ok(Program { name, id, fd })
}
