//! Each test that `docs/coverage.md` names exists.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use crate::modules::Crate;

/// The names of tests that a page has in backticks. A name is file, modules and test, as the runner prints it.
fn named(page: &str) -> BTreeSet<&str> {
    page.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::")).collect()
}

/// Whether a file of `tests/tests` has a function of this name, either written there or made by `each_topology`.
fn is_there(path: &str) -> Result<bool> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, rest) = path.split_once("::").context("no name of a test")?;
    let roots = [format!("tests/{file}.rs"), format!("tests/{file}/main.rs")].map(|root| tests.join(root));
    let Some(root) = roots.into_iter().find(|root| root.is_file()) else { return Ok(false) };
    let of = Crate::read(&root, &|file| fs::read_to_string(file).ok())?;
    let mut words: Vec<&str> = rest.split("::").collect();
    let name = words.pop().context("no name of a test")?;
    let below = |at: usize, word: &&str| of.modules[at].children.get(*word).copied();
    let Some(module) = words.iter().try_fold(0, below).map(|at| &of.modules[at]) else { return Ok(false) };
    if module.items.contains(name) {
        return Ok(true);
    }
    let topologies = fs::read_to_string(tests.join("src/each_topology.rs"))?;
    let made = format!("{name} {{");
    Ok(module.generated && topologies.lines().any(|line| line.trim_start().starts_with(&made)))
}

#[test]
fn each_test_that_the_page_on_coverage_names_is_there() -> Result<()> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/coverage.md"))?;
    let named = named(&page);
    // Fewer names mean that the page names tests in another way now.
    ensure!(named.len() > 40, "docs/coverage.md names only {named:?}");
    let mut missing = Vec::new();
    for path in named {
        if !is_there(path)? {
            missing.push(path);
        }
    }
    ensure!(missing.is_empty(), "docs/coverage.md names tests that are not there: {missing:?}");
    Ok(())
}

#[test]
fn a_test_is_found_by_its_file_modules_and_name() -> Result<()> {
    for path in [
        "net_topology::vxlan",
        "net_cut::vxlan",
        "kube_hang::ipvs::clients_go_on",
        "net_rescue::refused::without_services_it_is_as_before",
        "house::coverage::a_test_is_found_by_its_file_modules_and_name",
    ] {
        ensure!(is_there(path)?, "{path}");
    }
    for path in [
        "gone::vxlan",
        "net_cut::vlan_that_is_gone",
        // `challenge_idle` does not use `each_topology`.
        "challenge_idle::vxlan",
        "kube_hang::clients_go_on",
        "net_rescue::gone::without_services_it_is_as_before",
    ] {
        ensure!(!is_there(path)?, "{path}");
    }
    let page = "`net_cut::vxlan` and `cargo xtask test`,\n`a::b::c`";
    ensure!(named(page) == BTreeSet::from(["net_cut::vxlan", "a::b::c"]), "{:?}", named(page));
    Ok(())
}
