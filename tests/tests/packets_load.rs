//! The kernel loads the object's programs, their size is bounded, and they have type information.
use anyhow::{Result, ensure};
use nodefence_tests::packet::{CLASSIFIERS, Programs, XDP};

#[test]
fn every_program_loads_within_bounds() -> Result<()> {
    let programs = Programs::load()?;
    for name in CLASSIFIERS.into_iter().chain([XDP]) {
        let info = programs.info(name)?;
        // Kernels from 5.16 on report this number.
        let verified = info.verified_instruction_count();
        println!("{name}: {verified:?} instructions verified, {:?} bytes translated", info.size_translated());
        // The verifier's limit is a million (BPF_COMPLEXITY_LIMIT_INSNS, 5.2).
        ensure!(
            verified.is_none_or(|count| count < 250_000),
            "{name} costs the verifier {verified:?} instructions"
        );
        ensure!(
            info.size_translated().is_some_and(|bytes| bytes < 40_000),
            "{name} has {:?} bytes",
            info.size_translated()
        );
        ensure!(info.btf_id().is_some(), "{name} has no BTF");
    }
    Ok(())
}

#[test]
fn every_program_loads_with_the_log_of_cuts() -> Result<()> {
    Programs::load_with(true).map(drop)
}
