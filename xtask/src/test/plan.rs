//! Which tests run at which place: applies the table to the built executables.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::executables::{Built, Executable};
use super::job::Job;
use super::table::{self, File, Kind, On};
use crate::vm::Kernel;

/// The scope of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The tests that need neither a guest nor real Kubernetes.
    Quick,
    /// The tests that the table chooses.
    Usual,
    /// The tests whose outcome may depend on the kernel, on each kernel.
    All,
}

/// A place where tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// This machine's own kernel.
    Native,
    /// A guest with this kernel.
    Guest(Kernel),
}

/// A row of the table at a place, with the tests to run.
#[derive(Debug, Clone)]
pub(crate) struct Planned<'a> {
    /// `None` for unit tests.
    pub(crate) file: Option<&'static File>,
    pub(crate) executable: &'a Executable,
    pub(crate) job: Job,
}

/// Every executable with the names of its tests. Each executable lists them once.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    tests: Vec<(&'a Executable, Vec<String>)>,
    filter: Option<&'a str>,
    scope: Scope,
}

impl<'a> Plan<'a> {
    /// Lists the tests. `filter`: plan only tests whose `file::name` contains it.
    pub(crate) fn new(built: &'a Built, filter: Option<&'a str>, scope: Scope) -> Result<Self> {
        let listed = |executable: &'a Executable| Ok((executable, executable.names()?));
        let tests = built.tests.iter().map(listed).collect::<Result<Vec<_>>>()?;
        let missing: Vec<_> = tests
            .iter()
            .filter(|(executable, _)| executable.is_of_the_table())
            .filter(|(executable, _)| table::rows(&executable.name).next().is_none())
            .map(|(executable, _)| executable.title())
            .collect();
        if !missing.is_empty() {
            bail!("xtask/src/test/table.rs has no row for {}", missing.join(", "));
        }
        for (executable, names) in tests.iter().filter(|(executable, _)| executable.is_of_the_table()) {
            let empty = table::rows(&executable.name).find(|row| !names.iter().any(|name| row.has(name)));
            if let Some(row) = empty {
                bail!("xtask/src/test/table.rs has a row `{}`, which no test belongs to", row.name);
            }
        }
        Ok(Self { tests, filter, scope })
    }

    /// The tests that stand beside the code.
    pub(crate) fn unit(&self) -> Vec<Planned<'a>> {
        let of = |(executable, names): &(&'a Executable, Vec<String>)| {
            let wanted = self.wanted(executable, names, |_| true);
            let job = Job::new(executable, None, names, wanted);
            (!executable.is_of_the_table() && !job.names.is_empty()).then_some(Planned {
                file: None,
                executable,
                job,
            })
        };
        self.tests.iter().filter_map(of).collect()
    }

    /// The rows that run at a place, in the table's order.
    pub(crate) fn at(&self, place: Place) -> Vec<Planned<'a>> {
        let mut planned = Vec::new();
        for file in table::FILES.iter().filter(|file| self.runs(file, place)) {
            let of_file = |(executable, _): &&(&Executable, Vec<String>)| {
                executable.is_of_the_table() && executable.name == file.executable()
            };
            let Some((executable, names)) = self.tests.iter().find(of_file) else { continue };
            let wanted = self.wanted(executable, names, |name| file.has(name));
            let job = Job::new(executable, Some(file), names, wanted);
            if !job.names.is_empty() {
                planned.push(Planned { file: Some(file), executable, job });
            }
        }
        planned
    }

    /// The rows that run in guests with this kernel, by the kind of guest.
    pub(crate) fn guests(&self, kernel: Kernel) -> BTreeMap<Kind, Vec<Planned<'a>>> {
        let mut guests: BTreeMap<Kind, Vec<Planned<'a>>> = BTreeMap::new();
        for planned in self.at(Place::Guest(kernel)) {
            let Some(file) = planned.file else { continue };
            guests.entry(file.kind()).or_default().push(planned);
        }
        guests
    }

    fn runs(&self, file: &File, place: Place) -> bool {
        match (self.scope, place) {
            (Scope::Quick, Place::Guest(_)) => false,
            (Scope::Quick, Place::Native) => {
                file.is_on(On::Native) && !file.needs_kube_proxy() && !file.is_slow()
            }
            (Scope::Usual | Scope::All, Place::Native) => file.is_on(On::Native),
            (Scope::Usual, Place::Guest(kernel)) => {
                file.is_on(On::Each)
                    || kernel == Kernel::OLDEST && file.is_on(On::Oldest)
                    || kernel == Kernel::NEWEST && file.is_on(On::Newest)
            }
            (Scope::All, Place::Guest(_)) => !file.is_native_alone(),
        }
    }

    fn wanted(&self, executable: &Executable, names: &[String], has: impl Fn(&str) -> bool) -> Vec<String> {
        let meant = |name: &&String| {
            self.filter.is_none_or(|filter| format!("{}::{name}", executable.name).contains(filter))
        };
        names.iter().filter(meant).filter(|name| has(name)).cloned().collect()
    }
}

/// The limit for the unit tests of one executable, in milliseconds.
const UNIT: u64 = 10 * 60 * 1_000;

impl Job {
    fn new(executable: &Executable, file: Option<&File>, all: &[String], names: Vec<String>) -> Self {
        Self {
            title: match file.and_then(|file| file.module()) {
                Some(module) => format!("{} ({module})", executable.title()),
                None => executable.title(),
            },
            program: executable.path.clone(),
            some: names.len() < all.len(),
            names,
            threads: file.and_then(|file| file.threads()),
            limit_ms: file.map_or(UNIT, |file| file.limit.as_millis() as u64),
            again: file.is_some_and(|file| file.again),
            makes_load: file.is_some_and(|file| file.makes_load()),
            ipvs: file.is_some_and(|file| file.needs_ipvs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scope: Scope) -> Plan<'static> {
        Plan { tests: Vec::new(), filter: None, scope }
    }

    fn places(scope: Scope, name: &str) -> Vec<Place> {
        let file = table::FILES.iter().find(|file| file.name == name).expect(name);
        let guests = Kernel::ALL.map(Place::Guest);
        let all = [Place::Native].into_iter().chain(guests);
        all.filter(|place| plan(scope).runs(file, *place)).collect()
    }

    #[test]
    fn the_table_says_where() {
        let [oldest, _, _, newest] = Kernel::ALL.map(Place::Guest);
        assert_eq!(places(Scope::Usual, "challenge_probe"), [Place::Native, oldest, newest]);
        assert_eq!(places(Scope::Usual, "net_kernel"), [Place::Native, oldest]);
        assert_eq!(places(Scope::Usual, "packets_table").len(), 5);
        assert_eq!(places(Scope::Usual, "cli_surface"), [Place::Native]);
        assert_eq!(places(Scope::Quick, "net_kernel"), [Place::Native]);
        assert_eq!(places(Scope::Quick, "kube_proxy"), []);
        assert_eq!(places(Scope::All, "net_kernel").len(), 5);
        assert_eq!(places(Scope::All, "cli_surface").len(), 5);
        let native: Vec<&str> =
            table::FILES.iter().filter(|file| file.is_native_alone()).map(|file| file.name).collect();
        assert_eq!(
            native,
            [
                "agent_life::flood",
                "attach_load::agent",
                "chart",
                "demo",
                "house",
                "incident",
                "kube_controller",
                "kube_disk",
                "kube_flags::away",
                "kube_kubectl",
                "kube_nodes",
                "kube_off::away",
                "kube_proxy::namespaces",
                "kube_rights",
                "kube_source::away",
                "kube_view_store",
                "kube_watch",
                "waits_mptcp"
            ],
            "what `--all` leaves out in guests"
        );
    }
}
