//! `build-ebpf`: builds the kernel object alone, and prints its size and the length of its programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use serde_json::{Value, json};

use crate::output::Output;
use crate::process;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::workspace::Workspace;

/// Bytes of one eBPF instruction (`struct bpf_insn`, include/uapi/linux/bpf.h). A 64-bit load takes two instructions.
const INSTRUCTION: u64 = 8;

/// A program or subprogram of the object and its length in instructions, before the verifier.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    section: String,
    name: String,
    instructions: u64,
}

/// The name of the object's file in the build script's OUT_DIR. It is the name of the eBPF package's binary.
const OBJECT: &str = "nodefence-dataplane";

/// Builds the object as the agent's build script does, and prints its size and programs.
pub(crate) fn verb(workspace: &Workspace, format: Output) -> Result<()> {
    setup::ensure(workspace, &[Need::Build])?;
    say!("building the eBPF object (with the build script of package nodefence-kernel)");
    let path = build(workspace)?;
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let functions = functions(&bytes).with_context(|| format!("{}", path.display()))?;
    match format {
        Output::Table => print_table(&path, bytes.len(), &functions),
        Output::Json => println!("{:#}", to_json(&path, bytes.len(), &functions)),
    }
    Ok(())
}

/// Runs the build script of package nodefence-kernel and takes the object from its OUT_DIR: only that script knows how the object is made.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = workspace.cargo();
    command.args([
        "build",
        "--package",
        "nodefence-kernel",
        "--lib",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let folder = process::output_with_progress(&mut command)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "build-script-executed")
        .filter_map(|message| message["out_dir"].as_str().map(PathBuf::from))
        .find(|folder| folder.join(OBJECT).is_file());
    let folder = folder.with_context(|| {
        format!("the build script of package nodefence-kernel left no file {OBJECT} in its OUT_DIR")
    })?;
    Ok(folder.join(OBJECT))
}

/// Lists every function symbol of an executable section: the programs by section, then the functions that they call (`.text`).
fn functions(elf: &[u8]) -> Result<Vec<Function>> {
    let file = object::File::parse(elf).context("no ELF object")?;
    let mut functions = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let Some(index) = symbol.section_index() else { continue };
        let section = file.section_by_index(index)?.name()?.to_owned();
        let instructions = symbol.size() / INSTRUCTION;
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name()?));
        functions.push(Function { section, name, instructions });
    }
    let order =
        |function: &Function| (function.section == ".text", function.section.clone(), function.name.clone());
    functions.sort_by_cached_key(order);
    if functions.is_empty() {
        bail!("no program in it");
    }
    Ok(functions)
}

fn print_table(path: &Path, size: usize, functions: &[Function]) {
    println!("object        {}", path.display());
    println!("size          {size} bytes");
    let width = functions.iter().map(|function| function.name.len()).max().unwrap_or(0).max(7);
    println!("\n{:<width$}  {:<12}  {:>12}", "PROGRAM", "SECTION", "INSTRUCTIONS");
    for Function { section, name, instructions } in functions {
        println!("{name:<width$}  {section:<12}  {instructions:>12}");
    }
}

fn to_json(path: &Path, size: usize, functions: &[Function]) -> Value {
    let programs: Vec<Value> = functions
        .iter()
        .map(|Function { section, name, instructions }| json!({"name": name, "section": section, "instructions": instructions}))
        .collect();
    json!({"object": path, "size": size, "programs": programs})
}
