//! The table of test files (`tests/tests/*`). A row says what its file needs, on which kernels the file runs, how long the file may take, and
//! whether a failed test may be run again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use Need::{Ipvs, KubeProxy, Pair};
use Trait::{MakesLoad, Slow, Timed, Waits};

/// A kernel that a file runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// This machine's kernel.
    Native,
    /// The oldest kernel of the matrix: clsact, conntrack entries deleted one by one, and with IPVS answers handed to user space.
    Oldest,
    /// The newest kernel of the matrix: tcx, conntrack entries deleted by filter.
    Newest,
    /// Each kernel of the matrix.
    Each,
    /// Each kernel of the matrix, only with `--all`.
    EachInAll,
}

/// What a file needs beside root. All files need root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The kernel's IPVS.
    Ipvs,
    /// A real API server and kube-proxy.
    KubeProxy,
    /// Two guests on one wire.
    Pair,
}

/// How a file runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trait {
    /// The file checks promised times. Nothing runs beside it.
    Timed,
    /// The file waits for most of its time. Others run beside it. It has no guests of its own.
    Waits,
    /// The file, or the tests' library for it, makes load. So a wait of the agent for a processor excuses nothing.
    MakesLoad,
    /// The file does not run with `--quick`.
    Slow,
}

/// The kind of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// No network. Another guest may run beside it.
    Plain,
    /// An API server runs on its host. Another guest may run beside it.
    Kube,
    /// Its tests check promised times. Nothing runs beside it.
    Timed,
    /// Like `Timed`, and an API server runs on its host.
    TimedKube,
    /// Two guests on one wire.
    Pair,
}

/// A row: a file of `tests/tests`, or a module of a file, if the module needs something else than the rest of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// The name of the row: `file`, or `file::module`.
    pub(crate) name: &'static str,
    on: &'static [On],
    needs: &'static [Need],
    traits: &'static [Trait],
    /// Whether a test that missed a bound may be run again, if the machine stood still, or the agent waited for a processor, for longer than the bound.
    pub(crate) again: bool,
    /// The limit. A file that takes longer hangs, and is killed.
    pub(crate) limit: Duration,
}

/// This machine's kernel is enough for each change. With `--all` the file runs on the other kernels too.
const NATIVE_REST_IN_ALL: &[On] = &[On::Native, On::EachInAll];
/// No guest can run the file. The file reads the sources, renders the chart, needs two control planes, ends the API server, suspends a disk of its own, is too much for an emulated processor (the
/// demo's 32 clients, the incident's 60, an agent's start within a verdict's life, a flood), or tests something that only newer kernels have (MPTCP's `close_timeout`).
const NATIVE: &[On] = &[On::Native];
/// The kernels with both ways to attach, to delete and to answer, and this machine's own kernel.
const ENDS: &[On] = &[On::Native, On::Oldest, On::Newest];
/// The file depends on each kernel's verifier, helpers or map types.
const ALL: &[On] = &[On::Native, On::Each];
/// The file runs in guests only, since this machine's kernel may lack IPVS.
const GUEST_ENDS: &[On] = &[On::Oldest, On::Newest];
const GUEST_OLDEST: &[On] = &[On::Oldest];
const GUEST_NEWEST: &[On] = &[On::Newest];
/// The file has not run often enough for each run.
const IN_ALL: &[On] = &[On::EachInAll];
const NATIVE_AND_OLDEST: &[On] = &[On::Native, On::Oldest];

/// The rows, sorted by name.
pub(crate) const FILES: &[File] = &[
    file("agent_again", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("agent_capabilities", NATIVE_REST_IN_ALL, 5),
    file("agent_doctor", NATIVE_REST_IN_ALL, 5).is(&[MakesLoad]),
    file("agent_flags", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("agent_flows", NATIVE_REST_IN_ALL, 5),
    file("agent_http", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("agent_life", NATIVE_REST_IN_ALL, 5),
    file("agent_life::ends", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("agent_life::flood", NATIVE, 5).is(&[Slow, Timed, MakesLoad]),
    file("agent_life::hangs", NATIVE_REST_IN_ALL, 5).is(&[Waits]),
    file("agent_life::service", NATIVE_REST_IN_ALL, 5).is(&[Waits]),
    file("agent_life::unread", NATIVE_REST_IN_ALL, 5).is(&[Slow, Timed]),
    file("agent_life::watchdog", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("agent_maps", NATIVE_REST_IN_ALL, 5).is(&[Slow, Timed]),
    file("agent_objects", NATIVE_AND_OLDEST, 5).is(&[Timed]),
    file("agent_off", NATIVE_AND_OLDEST, 10).is(&[Slow]),
    file("agent_surge", NATIVE_REST_IN_ALL, 5).is(&[Slow, Timed]),
    file("agent_threads", NATIVE_REST_IN_ALL, 5).is(&[Slow, Timed]),
    file("attach", NATIVE_AND_OLDEST, 10).is(&[Slow, MakesLoad]),
    file("attach_load", NATIVE_AND_OLDEST, 10).is(&[Slow, MakesLoad]),
    file("attach_load::agent", NATIVE, 5).is(&[Slow, Timed, MakesLoad]),
    file("challenge_idle", NATIVE_AND_OLDEST, 5).is(&[Timed]),
    file("challenge_probe", ENDS, 5),
    file("chart", NATIVE, 10).needs(&[KubeProxy]),
    file("cli_surface", NATIVE_REST_IN_ALL, 5),
    file("cluster_file_reload", NATIVE_REST_IN_ALL, 5).is(&[Timed, MakesLoad]),
    file("cluster_file_start", NATIVE_REST_IN_ALL, 5),
    file("conntrack_delete", ENDS, 5).is(&[MakesLoad]),
    file("conntrack_many", NATIVE_REST_IN_ALL, 15).is(&[Slow, Timed, MakesLoad]),
    file("conntrack_stale", ENDS, 5),
    file("conntrack_stale::alone", ENDS, 5).is(&[Timed]),
    file("conntrack_table", ENDS, 5).is(&[MakesLoad]),
    file("demo", NATIVE, 5).is(&[Slow, Timed, MakesLoad]),
    file("guard_waits", NATIVE_REST_IN_ALL, 5).is(&[Waits]),
    file("hold_neighbour", NATIVE_REST_IN_ALL, 10).is(&[Waits]),
    file("house", NATIVE, 5),
    file("incident", NATIVE, 5).is(&[Slow, Timed, MakesLoad]),
    file("kube_audit", NATIVE_REST_IN_ALL, 60).needs(&[KubeProxy]).is(&[Waits]),
    file("kube_audit::ipvs", GUEST_OLDEST, 60).needs(&[Ipvs, KubeProxy]),
    file("kube_controller", NATIVE, 10).needs(&[KubeProxy]),
    file("kube_disk", NATIVE, 5).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_drain", GUEST_NEWEST, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_drain::seldom", GUEST_OLDEST, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_flags", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_flags::away", NATIVE, 5).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_hang::iptables", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_hang::ipvs", GUEST_OLDEST, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_hang::nftables", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_kubectl", NATIVE, 10).needs(&[KubeProxy]),
    file("kube_left_out", NATIVE_REST_IN_ALL, 5).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_nodes", NATIVE, 10).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_off", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_off::away", NATIVE, 5).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_orphan", IN_ALL, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed]),
    file("kube_proxy", NATIVE_REST_IN_ALL, 5).needs(&[KubeProxy]),
    file("kube_proxy::ipvs", GUEST_OLDEST, 5).needs(&[Ipvs, KubeProxy]),
    file("kube_proxy::namespaces", NATIVE, 5).needs(&[KubeProxy]),
    file("kube_proxy::nftables", NATIVE_AND_OLDEST, 5).needs(&[KubeProxy]),
    file("kube_rights", NATIVE, 10).needs(&[KubeProxy]),
    file("kube_source", NATIVE_REST_IN_ALL, 15).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_source::away", NATIVE, 5).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_stale::iptables", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_stale::ipvs", GUEST_NEWEST, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed]),
    file("kube_stale::nftables", NATIVE_REST_IN_ALL, 10).needs(&[KubeProxy]).is(&[Timed]),
    file("kube_switch", IN_ALL, 10).needs(&[Ipvs, KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_usable", NATIVE_REST_IN_ALL, 60).needs(&[KubeProxy]),
    file("kube_usable::ipvs", GUEST_OLDEST, 60).needs(&[Ipvs, KubeProxy]),
    file("kube_view_store", NATIVE, 8).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("kube_watch", NATIVE, 10).needs(&[KubeProxy]).is(&[Timed, MakesLoad]),
    file("net_audit", NATIVE_REST_IN_ALL, 5).is(&[Waits]),
    file("net_bridge", NATIVE_AND_OLDEST, 5),
    file("net_bridge::vlan", GUEST_ENDS, 5),
    file("net_compare", NATIVE_REST_IN_ALL, 20).is(&[Waits]),
    file("net_cut", NATIVE_AND_OLDEST, 10).is(&[Timed, MakesLoad]),
    file("net_exempt", NATIVE_REST_IN_ALL, 5).is(&[Timed]),
    file("net_kernel", NATIVE_AND_OLDEST, 10).is(&[MakesLoad]),
    file("net_lapse", NATIVE_REST_IN_ALL, 5).is(&[Slow, Timed, MakesLoad]),
    file("net_link_down", NATIVE_REST_IN_ALL, 10).is(&[Waits]),
    file("net_rescue", NATIVE_AND_OLDEST, 10).is(&[Slow, MakesLoad]),
    file("net_rescue::flood", NATIVE_AND_OLDEST, 5).is(&[Timed, MakesLoad]),
    file("net_rescue::stopped", NATIVE_AND_OLDEST, 5).is(&[Timed, MakesLoad]),
    file("net_routes", NATIVE_AND_OLDEST, 10),
    file("net_topology", NATIVE_REST_IN_ALL, 10),
    file("net_xdp", ENDS, 5),
    file("packets_fuzz", ALL, 5).never_again(),
    file("packets_load", ALL, 5).never_again(),
    file("packets_maps", ALL, 5).never_again(),
    file("packets_path", NATIVE_REST_IN_ALL, 5).never_again(),
    file("packets_real", ALL, 5).never_again(),
    file("packets_rescue", ALL, 5).never_again(),
    file("packets_table", ALL, 5).never_again(),
    file("pair_sums", GUEST_ENDS, 10).needs(&[Pair]).never_again(),
    file("proxy_traces", NATIVE_AND_OLDEST, 5),
    file("vm_audit", GUEST_NEWEST, 10).needs(&[Ipvs]),
    file("vm_audit::flagged", GUEST_NEWEST, 5).needs(&[Ipvs]).is(&[Timed]),
    file("vm_devices", GUEST_ENDS, 10).is(&[MakesLoad]),
    file("vm_doctor", GUEST_ENDS, 10).needs(&[Ipvs]),
    // The test lowers a maximum of the whole machine, which the doctor reports everywhere.
    file("vm_doctor::full", GUEST_ENDS, 5).needs(&[Ipvs]).is(&[MakesLoad]),
    file("vm_doctor::status", GUEST_ENDS, 5).needs(&[Ipvs]).is(&[Timed]),
    file("vm_drain", GUEST_OLDEST, 10).needs(&[Ipvs]).is(&[Timed]),
    file("vm_drain::end", GUEST_OLDEST, 10).needs(&[Ipvs]).is(&[Timed, MakesLoad]),
    file("vm_drain::exact", GUEST_ENDS, 10).needs(&[Ipvs]).is(&[Timed, MakesLoad]),
    file("vm_drain::schedulers", GUEST_ENDS, 10).needs(&[Ipvs]).is(&[Timed]),
    file("vm_drain::steps", GUEST_OLDEST, 10).needs(&[Ipvs]).is(&[MakesLoad]),
    file("vm_drain::tables", GUEST_ENDS, 10).needs(&[Ipvs]).is(&[Timed, MakesLoad]),
    file("vm_drain_many", GUEST_ENDS, 15).needs(&[Ipvs]).is(&[Timed, MakesLoad]),
    file("vm_ipvs", GUEST_ENDS, 10).needs(&[Ipvs]).is(&[MakesLoad]),
    file("vm_ipvs::alone", GUEST_ENDS, 5).needs(&[Ipvs]).is(&[Timed, MakesLoad]),
    file("vm_ipvs_tables", GUEST_ENDS, 10).needs(&[Ipvs]).is(&[MakesLoad]),
    file("vm_late_ipvs", GUEST_ENDS, 5).is(&[Timed]),
    file("vm_waits", GUEST_NEWEST, 15),
    file("waits_mptcp", NATIVE, 5).is(&[Slow, Waits]),
    file("waits_quic", NATIVE_REST_IN_ALL, 5).is(&[Slow, Waits]),
    file("watchdog", NATIVE_REST_IN_ALL, 5).is(&[Timed, MakesLoad]),
];

/// Checks that each file of the folder of tests has a row, and that each row has its file. Called before anything is built.
pub(crate) fn is_complete(folder: &Path) -> Result<()> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        files.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    let rows: BTreeSet<String> = FILES.iter().map(|file| file.executable().to_owned()).collect();
    let missing = |name: &String| {
        format!("tests/tests/{name} has no row: add `file(\"{name}\", NATIVE_REST_IN_ALL, 5),`")
    };
    let gone = |name: &String| format!("`{name}` has a row, and no file in tests/tests");
    let wrong: Vec<String> =
        files.difference(&rows).map(missing).chain(rows.difference(&files).map(gone)).collect();
    ensure!(wrong.is_empty(), "xtask/src/test/table.rs: {}", wrong.join("; "));
    Ok(())
}

/// The rows of a test executable.
pub(crate) fn rows(executable: &str) -> impl Iterator<Item = &'static File> {
    FILES.iter().filter(move |file| file.executable() == executable)
}

const fn file(name: &'static str, on: &'static [On], minutes: u64) -> File {
    File { name, on, needs: &[], traits: &[], again: true, limit: Duration::from_secs(60 * minutes) }
}

impl File {
    const fn needs(mut self, needs: &'static [Need]) -> Self {
        self.needs = needs;
        self
    }

    const fn is(mut self, traits: &'static [Trait]) -> Self {
        self.traits = traits;
        self
    }

    const fn never_again(mut self) -> Self {
        self.again = false;
        self
    }

    /// Cargo's name of the file's executable.
    pub(crate) fn executable(&self) -> &'static str {
        self.name.split("::").next().unwrap_or(self.name)
    }

    /// The module of the row. `None` if the row is for a whole file.
    pub(crate) fn module(&self) -> Option<&'static str> {
        Some(self.name.split_once("::")?.1)
    }

    /// Whether a test of the executable belongs to this row.
    pub(crate) fn has(&self, test: &str) -> bool {
        let of = |file: &File| file.module().is_some_and(|module| test.starts_with(&format!("{module}::")));
        if self.module().is_some() { of(self) } else { !rows(self.executable()).any(of) }
    }

    pub(crate) fn is_on(&self, on: On) -> bool {
        self.on.contains(&on)
    }

    /// Whether no guest can run the file.
    pub(crate) fn is_native_alone(&self) -> bool {
        self.on == NATIVE
    }

    pub(crate) fn needs_ipvs(&self) -> bool {
        self.needs.contains(&Need::Ipvs)
    }

    pub(crate) fn needs_kube_proxy(&self) -> bool {
        self.needs.contains(&Need::KubeProxy)
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.traits.contains(&Trait::Slow)
    }

    pub(crate) fn waits(&self) -> bool {
        self.traits.contains(&Trait::Waits)
    }

    pub(crate) fn makes_load(&self) -> bool {
        self.traits.contains(&Trait::MakesLoad)
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.traits.contains(&Trait::Timed)
    }

    /// The kind of guest that the file runs in.
    pub(crate) fn kind(&self) -> Kind {
        if self.needs.contains(&Need::Pair) {
            Kind::Pair
        } else {
            match (self.is_timed(), self.needs_kube_proxy()) {
                (true, true) => Kind::TimedKube,
                (true, false) => Kind::Timed,
                (false, true) => Kind::Kube,
                (false, false) => Kind::Plain,
            }
        }
    }

    /// The number of libtest's threads, if the table sets it. Timed tests run one after the other. Waiting tests leave processors idle, so several run
    /// at once. Guests have a number of their own.
    pub(crate) fn threads(&self) -> Option<usize> {
        if self.is_timed() {
            Some(1)
        } else if self.waits() {
            Some(4)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_file_has_its_row_and_each_row_its_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        is_complete(&folder).unwrap();
        let folder = std::env::temp_dir().join(format!("nodefence-xtask-table-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("net_new.rs"), "").unwrap();
        let told = is_complete(&folder).unwrap_err().to_string();
        fs::remove_dir_all(&folder).unwrap();
        assert!(
            told.contains("tests/tests/net_new has no row: add `file(\"net_new\", NATIVE_REST_IN_ALL, 5),`"),
            "{told}"
        );
        assert!(told.contains("`net_cut` has a row, and no file"), "{told}");
    }

    /// The source of a row's tests. If the row's module is a file, that file.
    fn source(file: &File) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        let one = folder.join(file.executable()).with_extension("rs");
        if let Ok(text) = std::fs::read_to_string(one) {
            return text;
        }
        let of = |path: &Path| {
            let module = path.file_stem().unwrap().to_str().unwrap();
            file.has(&format!("{module}::"))
        };
        let files =
            std::fs::read_dir(folder.join(file.executable())).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| of(path)).map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    /// Whether a source has one of these words, or a longer word that begins with one.
    fn has_any(source: &str, words: &[&str]) -> bool {
        let stands = |word: &&str| {
            let mut found = source.match_indices(*word);
            found.any(|(at, _)| {
                !source[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            })
        };
        words.iter().any(stands)
    }

    /// Whether a source uses the load generator, or a module of the tests' library that uses it or has clients of its own.
    fn uses_load(source: &str) -> bool {
        has_any(source, &["load::", "matrix(", "hang::", "incident::"])
    }

    #[test]
    fn what_makes_load_says_so() {
        for file in FILES.iter().filter(|file| file.again && uses_load(&source(file))) {
            assert!(file.makes_load(), "{}: its tests make load", file.name);
        }
        let users = FILES.iter().filter(|file| uses_load(&source(file))).count();
        assert!(users > 15, "{users} rows use the load generator");
    }

    /// Words that a file which checks a promise has: the promises' module, a helper of `vm_drain`, and modules of the tests' library that check promises.
    const HOLDS: [&str; 8] =
        ["promises::", "wait_same(", "matrix(", "hang::", "local::", "rolling::", "stale::", "still::"];
    /// Rows that check promised times beside others. `cluster_file_reload`, `net_cut`, `vm_ipvs::alone` and `vm_drain` check the same times alone.
    const BESIDE: [&str; 6] =
        ["kube_audit", "kube_audit::ipvs", "net_kernel", "vm_devices", "vm_ipvs", "vm_drain::steps"];

    /// A file that checks a promised time runs alone.
    #[test]
    fn what_holds_a_promise_says_so() {
        let holds = |file: &&File| !BESIDE.contains(&file.name) && has_any(&source(file), &HOLDS);
        for file in FILES.iter().filter(holds) {
            assert!(file.is_timed(), "{}: its tests hold what is promised", file.name);
        }
        let unused = BESIDE
            .iter()
            .filter(|name| !FILES.iter().any(|file| file.name == **name && has_any(&source(file), &HOLDS)));
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&&str>::new(), "hold no promise");
        let holding = FILES.iter().filter(holds).count();
        assert!(holding > 20, "{holding} rows hold what is promised");
    }

    #[test]
    fn rows_are_sorted_and_run_somewhere() {
        assert!(FILES.iter().map(|file| file.name).is_sorted());
        for file in FILES {
            assert!(!file.on.is_empty(), "{}", file.name);
            let native = file.is_on(On::Native);
            assert!(!(native && file.needs_ipvs()), "{}: this machine's kernel may lack IPVS", file.name);
            assert!(!(native && file.kind() == Kind::Pair), "{}: a pair is two guests", file.name);
            // Two guests on one wire must stay in step, so no test of a pair is run again.
            assert!(file.kind() != Kind::Pair || !file.again, "{}: never run again", file.name);
        }
    }

    #[test]
    fn a_module_with_a_row_of_its_own_is_no_other_row_s() {
        let row = |name: &str| *FILES.iter().find(|file| file.name == name).expect("a row");
        let module = row("kube_proxy::ipvs");
        let rest = row("kube_proxy");
        assert!(module.has("ipvs::forwards") && !module.has("forwards"));
        assert!(!rest.has("ipvs::forwards") && rest.has("forwards") && rest.has("ipvs_like"));
    }
}
