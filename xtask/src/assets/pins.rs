//! The programs to build, and their Go modules. `tests/assets/*/go.mod` and `go.sum` have the versions and checksums.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The variable that names a folder of ready programs, here and in the tests.
pub(crate) const FOLDER: &str = "NODEFENCE_ASSETS";

/// A Go module of ours that requires others in fixed versions.
#[derive(Debug)]
pub(crate) struct Module {
    /// The module's folder below `tests/assets`.
    pub(crate) folder: &'static str,
    pub(crate) programs: &'static [Program],
}

/// A program to build.
#[derive(Debug)]
pub(crate) struct Program {
    /// The program's name, the one that envtest and the projects themselves use.
    pub(crate) name: &'static str,
    /// The main package.
    pub(crate) package: &'static str,
}

/// All modules. Other programs of Kubernetes belong in the same module. A program that depends on other versions of the same libraries (such as
/// containerd) needs a module of its own.
pub(crate) const MODULES: &[Module] = &[Module {
    folder: "kubernetes",
    programs: &[
        Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
        Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
        Program { name: "kube-proxy", package: "k8s.io/kubernetes/cmd/kube-proxy" },
    ],
}];

/// The module whose version is the version of Kubernetes' programs.
const KUBERNETES: &str = "k8s.io/kubernetes";
/// The variable with the program's version. A program without it calls itself v0.0.0-master.
const VERSION_PACKAGE: &str = "k8s.io/component-base/version";
/// Raise this number when a change of the build makes other programs from the same pins.
const FORMAT: u32 = 1;

/// The names of all programs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    MODULES.iter().flat_map(|module| module.programs).map(|program| program.name)
}

/// The linker's flags: no symbol tables, and the version of Kubernetes that `go_mod` pins.
pub(crate) fn linker_flags(go_mod: &str) -> String {
    let mut flags = String::from("-s -w");
    if let Some(version) = required(go_mod, KUBERNETES) {
        let mut numbers = version.trim_start_matches('v').split('.');
        let major = numbers.next().unwrap_or_default();
        let minor = numbers.next().unwrap_or_default();
        for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
            let _infallible = write!(flags, " -X {VERSION_PACKAGE}.{name}={value}");
        }
    }
    flags
}

/// The version that a `go.mod` requires of a module.
pub(crate) fn required<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        let rest = line.strip_prefix(module)?.strip_prefix(' ')?;
        rest.split_whitespace().next().filter(|word| word.starts_with('v'))
    })
}

/// The Go release that a `go.mod` requires.
pub(crate) fn release(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.trim().strip_prefix("go "))
}

/// All inputs of the build, as text. Two clones with the same text share the built programs.
pub(crate) fn text(folder: &Path) -> Result<String> {
    let mut text = format!("format {FORMAT} {}\n", std::env::consts::ARCH);
    for module in MODULES {
        for Program { name, package } in module.programs {
            let _infallible = writeln!(text, "program {name} {package}");
        }
        for file in ["go.mod", "go.sum"] {
            let path = folder.join(module.folder).join(file);
            text += &fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_MOD: &str = "module x\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/api v0.36.3 // indirect\n)\n\
        require example.org/one v1.0.0\nreplace (\n\tk8s.io/kms => k8s.io/kms v0.36.3\n)\n";

    #[test]
    fn versions_are_read_from_what_is_required() {
        assert_eq!(required(GO_MOD, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(required(GO_MOD, "k8s.io/api"), Some("v0.36.3"));
        assert_eq!(required(GO_MOD, "example.org/one"), Some("v1.0.0"));
        assert_eq!(required(GO_MOD, "k8s.io/kms"), None, "replaced, not required");
        assert_eq!(required(GO_MOD, "k8s.io/ap"), None);
        assert_eq!(release(GO_MOD), Some("1.26.0"));
    }

    #[test]
    fn programs_of_kubernetes_are_told_their_version() {
        let flags = linker_flags(GO_MOD);
        for part in ["-s -w", ".gitVersion=v1.36.3", ".gitMajor=1", ".gitMinor=36"] {
            assert!(flags.contains(part), "{flags}");
        }
        assert_eq!(linker_flags("module x\n"), "-s -w");
    }

    #[test]
    fn every_pin_changes_the_text_and_the_clone_s_own_pins_are_whole() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/assets");
        let real = text(&home).expect("pins");
        for module in MODULES {
            let go_mod = fs::read_to_string(home.join(module.folder).join("go.mod")).expect("go.mod");
            for Program { package, .. } in module.programs {
                assert!(
                    go_mod.contains(&format!("\t{package}\n")),
                    "{package} is no tool of go.mod: tidy would drop it"
                );
            }
            // Kubernetes' own go.mod requires its staging modules in a version that does not exist.
            let staging = go_mod.lines().filter(|line| line.trim_start().starts_with("k8s.io/"));
            for line in staging.filter(|line| line.contains(" v0.0.0 ")) {
                let name = line.split_whitespace().next().expect("a module");
                assert!(go_mod.contains(&format!("\t{name} => ")), "{name} is not replaced");
            }
        }
        let scratch =
            crate::cache::Scratch::new(&std::env::temp_dir().join("nodefence-xtask-pins")).expect("a folder");
        for module in MODULES {
            let to = scratch.path().join(module.folder);
            fs::create_dir_all(&to).expect("a folder");
            for file in ["go.mod", "go.sum"] {
                fs::copy(home.join(module.folder).join(file), to.join(file)).expect("a copy");
            }
            assert_eq!(text(scratch.path()).expect("pins"), real, "the clone's place does not matter");
            let sums = to.join("go.sum");
            let changed = fs::read_to_string(&sums).expect("sums") + "\n";
            fs::write(&sums, changed).expect("sums");
            assert_ne!(text(scratch.path()).expect("pins"), real);
        }
    }
}
