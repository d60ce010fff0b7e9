//! The programs to build, and their Go modules. `tests/assets/*/go.mod` and `go.sum` have the versions and checksums.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

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
    /// Go's build tags.
    pub(crate) tags: &'static [&'static str],
}

impl Program {
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package, tags: &[] }
    }

    /// A program of containerd, without the snapshotters that need C libraries or other file systems.
    const fn containerd(name: &'static str, package: &'static str) -> Self {
        Self { name, package, tags: &["no_btrfs", "no_devmapper", "no_zfs"] }
    }
}

impl Module {
    /// The names of the module's programs.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.programs.iter().map(|program| program.name)
    }
}

/// The programs that a verb needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    /// Those of the tests.
    Tests,
    /// Those of the tests, and those of `cluster-test`.
    Cluster,
}

impl Set {
    /// The modules of this set.
    pub(crate) fn modules(self) -> impl Iterator<Item = &'static Module> {
        let more = match self {
            Self::Tests => &[],
            Self::Cluster => CLUSTER,
        };
        MODULES.iter().chain(more)
    }

    /// The names of this set's programs.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        self.modules().flat_map(Module::names)
    }
}

/// The modules of the tests. Other programs of Kubernetes belong in the same module as these. A program that depends on other versions of the same libraries
/// (such as containerd) needs a module of its own.
const MODULES: &[Module] = &[
    Module {
        folder: "kubernetes",
        programs: &[
            Program::new("etcd", "go.etcd.io/etcd/server/v3"),
            Program::new("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            Program::new("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    },
    Module { folder: "helm", programs: &[Program::new("helm", "helm.sh/helm/v3/cmd/helm")] },
    Module {
        folder: "prometheus",
        programs: &[Program {
            name: "promtool",
            package: "github.com/prometheus/prometheus/cmd/promtool",
            // Without the clients of clouds, in which promtool would look for targets.
            tags: &["remove_all_sd"],
        }],
    },
    // It is written here, and not in the module of Kubernetes: that module is built in minutes, and this one in seconds.
    Module { folder: "informer", programs: &[Program::new("informer", "nodefence.test/assets/informer")] },
];

/// What `cluster-test` needs beside these. The same pins as the tests' Kubernetes, but a list of its own: other verbs do not build these programs.
const CLUSTER: &[Module] = &[
    Module {
        folder: "kubernetes",
        programs: &[
            Program::new("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            Program::new("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            Program::new("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            Program::new("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ],
    },
    Module {
        folder: "containerd",
        programs: &[
            Program::containerd("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            Program::containerd(
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            Program::containerd("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
    },
];

/// A variable that has the version of the module's programs. The linker sets it, since each of these programs would call itself v0.0.0 or nothing.
struct Version {
    /// The module whose version it is.
    module: &'static str,
    variable: &'static str,
    part: fn(&str) -> &str,
}

/// Kubernetes' variables are those of all its programs. The names are the linker's.
const VERSIONS: &[Version] = &[
    Version {
        module: KUBERNETES,
        variable: "k8s.io/component-base/version.gitVersion",
        part: |version| version,
    },
    Version { module: KUBERNETES, variable: "k8s.io/component-base/version.gitMajor", part: major },
    Version { module: KUBERNETES, variable: "k8s.io/component-base/version.gitMinor", part: minor },
    Version {
        module: "helm.sh/helm/v3",
        variable: "helm.sh/helm/v3/internal/version.version",
        part: |version| version,
    },
    Version {
        module: "github.com/containerd/containerd/v2",
        variable: "github.com/containerd/containerd/v2/version.Version",
        part: |version| version,
    },
    Version {
        module: "github.com/prometheus/prometheus",
        variable: "github.com/prometheus/common/version.Version",
        part: |version| version.trim_start_matches('v'),
    },
];

/// The module whose version is the version of Kubernetes' programs.
const KUBERNETES: &str = "k8s.io/kubernetes";
/// Raise this number when a change of the build makes other programs from the same pins.
const FORMAT: u32 = 1;

fn major(version: &str) -> &str {
    version.trim_start_matches('v').split('.').next().unwrap_or_default()
}

fn minor(version: &str) -> &str {
    version.split('.').nth(1).unwrap_or_default()
}

/// The linker's flags: no symbol tables, and the version that `go_mod` pins.
pub(crate) fn linker_flags(go_mod: &str) -> String {
    let mut flags = String::from("-s -w");
    for Version { module, variable, part } in VERSIONS {
        if let Some(version) = required(go_mod, module) {
            let _infallible = write!(flags, " -X {variable}={}", part(version));
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

/// All inputs of a module's build, as text. Two clones with the same text share the built programs.
pub(crate) fn text(folder: &Path, module: &Module) -> Result<String> {
    let mut text = format!("format {FORMAT} {}\n", std::env::consts::ARCH);
    for Program { name, package, tags } in module.programs {
        let tags: String = tags.iter().map(|tag| format!(" {tag}")).collect();
        let _infallible = writeln!(text, "program {name} {package}{tags}");
    }
    let folder = folder.join(module.folder);
    let own = sources(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for file in ["go.mod", "go.sum"].map(PathBuf::from).into_iter().chain(own) {
        let path = folder.join(file);
        text += &fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}

/// The names of the Go files beside a `go.mod`, in the order of names: the sources of programs that are written here.
fn sources(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|extension| extension == "go") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
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
        let flags = linker_flags("\tgithub.com/prometheus/prometheus v0.316.0\n");
        assert_eq!(flags, "-s -w -X github.com/prometheus/common/version.Version=0.316.0");
    }

    #[test]
    fn every_pin_changes_the_text_and_the_clone_s_own_pins_are_whole() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/assets");
        for module in Set::Cluster.modules() {
            let go_mod = fs::read_to_string(home.join(module.folder).join("go.mod")).expect("go.mod");
            for Program { package, .. } in module.programs {
                let listed = [format!("\t{package}\n"), format!("tool {package}\n")];
                assert!(
                    listed.iter().any(|line| go_mod.contains(line)),
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
        for module in Set::Cluster.modules() {
            let to = scratch.path().join(module.folder);
            fs::create_dir_all(&to).expect("a folder");
            let own = sources(&home.join(module.folder)).expect("names");
            assert_eq!(own.len(), usize::from(module.folder == "informer"), "{own:?}");
            for file in ["go.mod", "go.sum"].map(PathBuf::from).iter().chain(&own) {
                fs::copy(home.join(module.folder).join(file), to.join(file)).expect("a copy");
            }
            let real = text(&home, module).expect("pins");
            let copied = text(scratch.path(), module).expect("pins");
            assert_eq!(copied, real, "the clone's place does not matter");
            for file in ["go.sum"].map(PathBuf::from).iter().chain(&own) {
                let before = text(scratch.path(), module).expect("pins");
                let path = to.join(file);
                let changed = fs::read_to_string(&path).expect("a file") + "\n";
                fs::write(&path, changed).expect("a file");
                assert_ne!(text(scratch.path(), module).expect("pins"), before, "{}", file.display());
            }
        }
    }
}
