//! The object as the kernel sees it: it loads, its size is bounded, its types are named.
use anyhow::{Context as _, Result};
use nodefence_tests::packet::{CLASSIFIERS, Programs, XDP};

#[test]
fn every_program_loads_within_bounds() -> Result<()> {
    let programs = Programs::load()?;
    for name in CLASSIFIERS.into_iter().chain([XDP]) {
        let info = programs.info(name)?;
        let verified =
            info.verified_instruction_count().context("no verified instruction count (Linux 5.16)")?;
        let jited = info.size_jitted();
        println!(
            "{name}: {verified} instructions verified, {} bytes translated, {jited} jited",
            info.size_translated().unwrap_or(0)
        );
        assert!(verified < 200_000, "{name} costs the verifier {verified} instructions");
        assert!(info.btf_id().is_some(), "{name} has no BTF");
    }
    Ok(())
}
