//! Builds the program of an image, and checks what was built.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use object::{
    Architecture, Object as _,
    read::elf::{ElfFile64, ProgramHeader as _},
};
use oci_spec::image::Arch;

use super::zig;
use crate::process;
use crate::say::say;
use crate::workspace::Workspace;

/// cargo's profile of the program (the root `Cargo.toml`).
const PROFILE: &str = "image";

/// An architecture that images are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Machine {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Machine {
    pub(super) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    pub(super) const fn arch(self) -> Arch {
        match self {
            Self::Amd64 => Arch::Amd64,
            Self::Arm64 => Arch::ARM64,
        }
    }

    /// Rust's name of the target. musl's programs are static.
    const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    const fn machine(self) -> Architecture {
        match self {
            Self::Amd64 => Architecture::X86_64,
            Self::Arm64 => Architecture::Aarch64,
        }
    }

    /// The program that runs this architecture's programs on others.
    pub(super) const fn emulator(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-x86_64-static",
            Self::Arm64 => "qemu-aarch64-static",
        }
    }
}

/// Builds the program for one architecture.
pub(super) fn build(workspace: &Workspace, machine: Machine, tools: &Path) -> Result<Vec<u8>> {
    let target = machine.target();
    say!("building nodefence for {target} (profile {PROFILE}: minutes)");
    let rust = &workspace.pins.rust;
    process::run(process::command("rustup").args(["target", "add", "--toolchain", rust, target]))?;
    // A target folder of its own: the wrapper below would have cargo build everything anew.
    let folder = workspace.target.join("image/build");
    let wrapper = wrapper(workspace, &workspace.target.join("image"))?;
    let mut command = workspace.cargo();
    zig::first_on_path(&mut command, tools)?;
    command
        .args(["zigbuild", "--profile", PROFILE, "--locked", "--package", "nodefence", "--bin", "nodefence"])
        .args(["--target", target])
        .env("CARGO_TARGET_DIR", &folder)
        .env("CARGO_INCREMENTAL", "0")
        .env("RUSTC_WRAPPER", wrapper);
    process::run(&mut command)?;
    let path = folder.join(target).join(PROFILE).join("nodefence");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    check(&bytes, machine).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// A program in rustc's place that has rustc write no folder of this machine into programs: the same source gives the same bytes in each folder.
/// A variable with flags does not do, since the build of the kernel object replaces it.
fn wrapper(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
    let folder_of = |variable: &str, usual: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(usual), PathBuf::from)
    };
    let from_to = [
        (workspace.root.clone(), "nodefence"),
        (workspace.target.clone(), "target"),
        (folder_of("CARGO_HOME", ".cargo"), "cargo"),
        (folder_of("RUSTUP_HOME", ".rustup"), "rustup"),
    ];
    let mut script = "#!/bin/sh\nexec \"$@\"".to_owned();
    for (from, to) in from_to {
        let from = from.to_str().context("a path that is no UTF-8")?;
        script.push_str(&format!(" '--remap-path-prefix={}={to}'", from.replace('\'', "'\\''")));
    }
    script.push('\n');
    fs::create_dir_all(folder)?;
    let path = folder.join("rustc");
    // cargo takes a wrapper that was written anew for another compiler.
    if fs::read_to_string(&path).is_ok_and(|before| before == script) {
        return Ok(path);
    }
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Checks that a program is one of this architecture, and needs no other file to run.
fn check(program: &[u8], machine: Machine) -> Result<()> {
    let elf = ElfFile64::<object::Endianness>::parse(program).context("no 64-bit ELF program")?;
    let found = elf.architecture();
    ensure!(
        found == machine.machine(),
        "wanted a program for {:?}, found one for {found:?}",
        machine.machine()
    );
    let endian = elf.endian();
    let linker = object::elf::PT_INTERP;
    let names_linker = elf.elf_program_headers().iter().any(|header| header.p_type(endian) == linker);
    ensure!(!names_linker, "the program is not static: it names a dynamic linker");
    Ok(())
}

/// Runs the program as far as its version, under an emulator where it is for another machine than this one.
pub(super) fn run(program: &Path, machine: Machine) -> Result<String> {
    let here = match std::env::consts::ARCH {
        "x86_64" => Some(Machine::Amd64),
        "aarch64" => Some(Machine::Arm64),
        _ => None,
    };
    let mut command = match here == Some(machine) {
        true => process::command(program),
        false => {
            let mut command = process::command(machine.emulator());
            command.arg(program);
            command
        }
    };
    Ok(process::output(command.arg("--version"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_machine_is_known_by_its_architecture() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        let (own, other) = match std::env::consts::ARCH {
            "x86_64" => (Machine::Amd64, Machine::Arm64),
            _ => (Machine::Arm64, Machine::Amd64),
        };
        // Test programs name a dynamic linker.
        assert!(check(&this, own).unwrap_err().to_string().contains("not static"));
        assert!(check(&this, other).unwrap_err().to_string().contains("wanted a program for"));
        assert!(check(b"#!/bin/sh", own).is_err());
    }
}
