//! Rules for the workspace's sources. No two files of a crate import each other in a circle. One file begins the agent's threads and tasks. The pages on
//! coverage, on the log and on warnings fit the code. Golden files have all texts that verbs print. Programs use the words of the field.

mod coverage;
mod events;
mod imports;
mod messages;
mod modules;
mod spawns;
mod warnings;
mod words;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use imports::{Edges, circles, edges};
use modules::Crate;
use spawns::{begins, names};

/// The workspace's packages, and all Rust files.
#[derive(Default)]
struct Found {
    packages: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Found {
    /// Adds what is below a folder of the workspace, except for hidden folders and cargo's `target`.
    fn below(&mut self, workspace: &Path, folder: &Path) -> Result<()> {
        let at = workspace.join(folder);
        for entry in fs::read_dir(&at).with_context(|| format!("cannot read {}", at.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    self.below(workspace, &path)?;
                }
            } else if name == "Cargo.toml" && fs::read_to_string(entry.path())?.contains("[package]") {
                self.packages.push(folder.to_owned());
            } else if name.ends_with(".rs") {
                self.files.push(path);
            }
        }
        Ok(())
    }

    /// The files that cargo compiles as roots of crates.
    fn roots(&self) -> impl Iterator<Item = &PathBuf> {
        let of_package = |file: &Path, package: &PathBuf| file.strip_prefix(package).is_ok_and(is_root);
        self.files.iter().filter(move |file| self.packages.iter().any(|package| of_package(file, package)))
    }
}

/// Whether a path within a package is a crate's root.
fn is_root(file: &Path) -> bool {
    let parts: Vec<&str> = file.iter().filter_map(OsStr::to_str).collect();
    matches!(
        parts[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["benches" | "examples" | "tests", _]
            | ["benches" | "examples" | "tests", _, "main.rs"]
    )
}

#[test]
fn no_two_files_of_a_crate_import_each_other_in_a_circle() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Found::default();
    found.below(&workspace, Path::new(""))?;
    let mut read = BTreeSet::new();
    let mut wrong = Vec::new();
    for root in found.roots() {
        let of = Crate::read(root, &|file| fs::read_to_string(workspace.join(file)).ok())?;
        wrong.extend(circles(&edges(&of)).into_iter().map(|circle| format!("{}: {circle}", root.display())));
        for file in of.files() {
            read.insert(fs::canonicalize(workspace.join(file))?);
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A file that the test did not read may hide a circle.
    for file in &found.files {
        let is_read = read.contains(&fs::canonicalize(workspace.join(file))?);
        ensure!(is_read, "{}: no crate has this file as a module", file.display());
    }
    Ok(())
}

/// The imports of a crate of these files, the first of which is its root.
fn edges_of(files: &[(&str, &str)]) -> Result<Edges> {
    let text = |file: &Path| {
        let (_, text) = files.iter().find(|(name, _)| Path::new(name) == file)?;
        Some((*text).to_owned())
    };
    let (root, _) = files.first().context("no root")?;
    Ok(edges(&Crate::read(Path::new(root), &text)?))
}

fn told(files: &[(&str, &str)]) -> Result<Vec<String>> {
    edges_of(files).map(|edges| circles(&edges))
}

#[test]
fn a_circle_is_told_with_its_edges_and_names() -> Result<()> {
    let root = ("lib.rs", "mod a; mod b; mod c; mod d;");
    let b = ("b.rs", "use super::c::{C, other as o};");
    let c = ("c.rs", "pub struct C; pub fn other() {}");
    let a = ("a.rs", "use crate::b::B; pub fn a(_: B) {}");
    let d = ("d.rs", "use crate::a::a;");
    assert_eq!(told(&[root, a, b, c, d])?.len(), 0, "a circle is reported where there is none");
    let b = ("b.rs", "use super::c::{C, other as o}; pub struct B(C);");
    let c = ("c.rs", "pub struct C; pub fn other() { crate::a::a(todo!()) }");
    let expected = "3 files import each other in a circle:\n  a.rs -> b.rs: B\n  b.rs -> c.rs: C, other\n  c.rs -> a.rs: a";
    assert_eq!(told(&[root, a, b, c, d])?, [expected]);
    Ok(())
}

#[test]
fn a_child_that_imports_from_its_parent_counts() -> Result<()> {
    let child = ("a/child.rs", "use super::LIMIT; pub fn run() -> u8 { LIMIT }");
    let uses = ("a/mod.rs", "mod child; use child::run; pub const LIMIT: u8 = 1; fn all() { run(); }");
    let expected = "2 files import each other in a circle:\n  a/child.rs -> a/mod.rs: LIMIT\n  a/mod.rs -> a/child.rs: run";
    assert_eq!(told(&[("lib.rs", "mod a;"), uses, child])?, [expected]);
    let inline = ("a/mod.rs", "mod child; pub const LIMIT: u8 = 1; fn all() { child::run(); }");
    assert_eq!(told(&[("lib.rs", "mod a;"), inline, child])?, [expected]);
    // A re-export is no import, unless the file uses the name itself.
    let hands_on = ("a/mod.rs", "mod child; pub(crate) use child::run; pub const LIMIT: u8 = 1;");
    assert_eq!(told(&[("lib.rs", "mod a;"), hands_on, child])?.len(), 0);
    let both = ("a/mod.rs", "mod child; pub use child::run; pub const LIMIT: u8 = 1; fn all() { run(); }");
    assert_eq!(told(&[("lib.rs", "mod a;"), both, child])?, [expected]);
    // A declaration is no import.
    let declares = ("a/mod.rs", "mod child; pub const LIMIT: u8 = 1;");
    assert_eq!(told(&[("lib.rs", "mod a;"), declares, child])?.len(), 0);
    Ok(())
}

#[test]
fn what_is_handed_on_counts_to_the_file_that_defines_it() -> Result<()> {
    let root = ("lib.rs", "mod a; mod b; pub use a::*;");
    let a = ("a.rs", "mod leaf; pub use leaf::leaf; pub use self::leaf::Leaf as Blade;");
    let leaf = ("a/leaf.rs", "use crate::b::B; pub struct Leaf; pub fn leaf(_: B) {}");
    for (b, name) in [
        ("pub struct B; use crate::a::Blade;", "Leaf"),
        ("pub struct B; use crate::Blade;", "Leaf"),
        ("pub struct B; use super::a::leaf;", "leaf"),
        ("pub struct B; fn b() { super::a::Blade::new() }", "Leaf"),
        ("pub struct B; use crate::a::*; fn b() { leaf(B) }", "leaf"),
    ] {
        let told = told(&[root, a, leaf, ("b.rs", b)])?;
        let expected = format!(
            "2 files import each other in a circle:\n  a/leaf.rs -> b.rs: B\n  b.rs -> a/leaf.rs: {name}"
        );
        assert_eq!(told, [expected], "{b}");
    }
    Ok(())
}

#[test]
fn paths_count_wherever_they_stand() -> Result<()> {
    let root = ("lib.rs", "mod a;");
    let a = ("a.rs", "mod child; use child::Child; pub const NAME: &str = \"\"; pub fn seconds() {}");
    for (child, name) in [
        ("#[derive(Error)] pub enum Child { #[error(\"since {}\", super::NAME)] Old }", "NAME"),
        ("pub struct Child { #[serde(with = \"super::seconds\")] at: u8 }", "seconds"),
        ("pub struct Child { #[arg(default_value = super::NAME)] at: u8 }", "NAME"),
        ("pub struct Child; fn child() { println!(\"{}\", super::NAME); }", "NAME"),
        ("pub struct Child; fn child() { assert!((0..super::NAME.len()).is_empty()); }", "NAME"),
        ("pub struct Child; fn child() { use crate::a::NAME as LOCAL; drop(LOCAL); }", "NAME"),
        ("pub struct Child; mod more { use super::super::NAME; }", "NAME"),
        ("pub struct Child; impl Child { const fn child() -> &'static str { super::NAME } }", "NAME"),
        ("pub struct Child; use super::{self as above, seconds}; use seconds as later;", "seconds"),
        ("pub struct Child; use super as above; fn child() { above::seconds() }", "seconds"),
    ] {
        let expected = format!(
            "2 files import each other in a circle:\n  a/child.rs -> a.rs: {name}\n  a.rs -> a/child.rs: Child"
        );
        assert_eq!(told(&[root, a, ("a/child.rs", child)])?, [expected], "{child}");
    }
    Ok(())
}

#[test]
fn macros_count_with_and_without_an_import() -> Result<()> {
    let child = ("a/child.rs", "pub struct Child; fn child() { say!(1); }");
    for a in [
        "macro_rules! say { ($($part:tt)*) => {}; } mod child; use child::Child;",
        "macro_rules! say { ($($part:tt)*) => { drop($crate::a::child::Child) }; } mod child;",
    ] {
        let expected =
            "2 files import each other in a circle:\n  a/child.rs -> a.rs: say\n  a.rs -> a/child.rs: Child";
        assert_eq!(told(&[("lib.rs", "mod a;"), ("a.rs", a), child])?, [expected], "{a}");
    }
    // An exported macro belongs to the root, and counts to the file that defines it.
    let a = "#[macro_export] macro_rules! say { () => {}; } mod child; use child::Child;";
    let child = ("a/child.rs", "use crate::say; pub struct Child;");
    assert_eq!(told(&[("lib.rs", "mod a;"), ("a.rs", a), child])?.len(), 1);
    // A macro's expansion belongs to the module that calls it.
    let a = "mod child; use child::Child; fates! { Kept, Lost }";
    let child = ("a/child.rs", "use super::Fate; pub struct Child;");
    assert_eq!(told(&[("lib.rs", "mod a;"), ("a.rs", a), child])?.len(), 1);
    Ok(())
}

#[test]
fn tests_and_names_alone_do_not_count() -> Result<()> {
    let root = ("lib.rs", "mod a; mod b;");
    let b = ("b.rs", "use crate::a::A; pub struct B; impl B { pub fn method() {} } pub fn b(_: A) {}");
    for a in [
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "pub struct A; #[cfg(all(test, feature = \"x\"))] use crate::b::B;",
        "pub struct A; #[cfg(test)] fn a() { crate::b::b(A) }",
        "pub struct A; impl A { #[cfg(test)] fn a() { crate::b::b(A) } }",
        "pub struct A; use crate::b;",
        "pub struct A; use crate::b::{self}; fn a(a: A) { a.method(); println!(\"{}\", a.b); }",
        "/// As [`crate::b::B`].\npub struct A; pub(in crate::a) fn b() {}",
        "pub struct A; fn a(a: ::b::B) { <A>::b(); std::b::b(); }",
    ] {
        assert_eq!(told(&[root, ("a.rs", a), b])?.len(), 0, "{a}");
    }
    for a in [
        "pub struct A; #[cfg(not(test))] use crate::b::B;",
        "pub struct A; #[cfg(any(test, unix))] use crate::b::B;",
    ] {
        assert_eq!(told(&[root, ("a.rs", a), b])?.len(), 1, "{a}");
    }
    Ok(())
}

#[test]
fn files_are_found_where_rustc_finds_them() -> Result<()> {
    let files = [
        ("x/main.rs", "mod a; mod inline { mod deep; } #[path = \"../y/other.rs\"] mod named; fn main() {}"),
        ("x/a.rs", "mod one; mod two; pub struct A;"),
        ("x/a/one.rs", "use super::super::named::beside::Beside; pub struct One;"),
        ("x/a/two/mod.rs", "mod three;"),
        ("x/a/two/three.rs", "use super::super::one::One;"),
        ("x/inline/deep.rs", "use crate::a::A;"),
        ("x/../y/other.rs", "pub mod beside;"),
        ("x/../y/beside.rs", "pub struct Beside;"),
    ];
    let edges = edges_of(&files)?;
    let pairs: Vec<_> = edges.keys().map(|(from, to)| (from.to_str(), to.to_str())).collect();
    let expected = [
        ("x/a/one.rs", "x/../y/beside.rs"),
        ("x/a/two/three.rs", "x/a/one.rs"),
        ("x/inline/deep.rs", "x/a.rs"),
    ];
    assert_eq!(pairs, expected.map(|(from, to)| (Some(from), Some(to))));
    let missing = edges_of(&[("lib.rs", "mod gone;")]).map(drop);
    assert!(missing.is_err_and(|error| error.to_string().contains("gone/mod.rs")));
    Ok(())
}

/// The roots of the agent's crates.
const ROOTS: [&str; 4] = [
    "dataplane-user/src/lib.rs",
    "dataplane-user/src/main.rs",
    "dataplane-user/core/src/lib.rs",
    "dataplane-user/kernel/src/lib.rs",
];
/// The file that begins the agent's threads and tasks.
const CREW: &str = "dataplane-user/src/agent/threads.rs";

/// Other files that begin threads, and why nobody needs to watch these threads.
const BESIDES: [(&str, &str); 3] = [
    (
        "dataplane-user/kernel/src/dataplane/challenge/inject.rs",
        "scoped: the caller waits for them, and counts each packet that one of them did not inject",
    ),
    (
        "dataplane-user/kernel/src/dataplane/probe.rs",
        "each needs a network namespace of its own; the caller waits for it, and takes its panic as a failed finding",
    ),
    (
        "dataplane-user/src/cli/log.rs",
        "it waits for the last lines of the log after the agent's end; it may wait for ever, and the process ends all the same",
    ),
];

#[test]
fn threads_and_tasks_of_the_agent_begin_in_one_file_and_bear_names() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = BTreeSet::new();
    for root in ROOTS {
        let of = Crate::read(Path::new(root), &|file| fs::read_to_string(workspace.join(file)).ok())?;
        files.extend(of.modules.into_iter().map(|module| module.file));
    }
    let mut beginning = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for file in &files {
        let text = fs::read_to_string(workspace.join(file))?;
        let begins = begins(&text)?;
        let may = Path::new(CREW) == file || BESIDES.iter().any(|(besides, _)| Path::new(besides) == file);
        match begins.is_empty() {
            true => {}
            false if may => drop(beginning.insert(file.clone())),
            false => wrong.push(format!("{}: {}", file.display(), begins.join(", "))),
        }
        named.extend(names(&text)?);
    }
    ensure!(
        wrong.is_empty(),
        "these files begin threads or tasks, which only {CREW} may do:\n{}",
        wrong.join("\n")
    );
    let may = BESIDES.iter().map(|(file, _)| *file).chain([CREW]).map(PathBuf::from).collect();
    ensure!(beginning == may, "of {may:?} only {beginning:?} begin threads or tasks");
    // The kernel cuts a thread's name at 15 bytes, so `ps` shows no more.
    let long: Vec<&String> = named.iter().filter(|name| name.len() > 15).collect();
    ensure!(long.is_empty(), "names of threads longer than 15 bytes: {long:?}");
    ensure!(["verdicts", "routes", "audit", "api"].iter().all(|name| named.contains(*name)), "{named:?}");
    Ok(())
}

#[test]
fn whatever_begins_a_thread_or_a_task_is_found() -> Result<()> {
    for text in [
        "fn a() { std::thread::spawn(|| ()); }",
        "use std::thread; fn a() { thread::spawn(|| ()); }",
        "use std::thread::spawn; fn a() { spawn(b); }",
        "use std::thread::Builder as B; fn a() { B::new(); }",
        "fn a() { std::thread::Builder::new().name(n).spawn(b); }",
        "fn a() { tokio::spawn(b()); }",
        "use tokio::{task::{self}, net}; fn a() { task::spawn_blocking(b); }",
        "use tokio::task::JoinSet;",
        "fn a(set: &mut Set) { set.spawn(b()); }",
        "fn a() { std::thread::scope(|scope| { scope.spawn(b); }); }",
        "fn a() { tokio::select! { () = b() => { tokio::spawn(c()); } } }",
        "fn a() { tokio::select! { () = b() => set.spawn(c()), } }",
        "fn a() { tokio::runtime::Runtime::new(); }",
        "use tokio::runtime; fn a() { runtime::Builder::new_current_thread(); }",
    ] {
        ensure!(!begins(text)?.is_empty(), "{text}");
    }
    for text in [
        "fn a() { Command::new(b).spawn(); }",
        "fn a() { spawn_guard(b); }",
        "#[cfg(test)] mod tests { fn a() { std::thread::spawn(b); } }",
        "use std::process::Builder;",
        "fn a() { std::thread::sleep(b); }",
    ] {
        ensure!(begins(text)?.is_empty(), "{text}: {:?}", begins(text)?);
    }
    let named = names(
        "fn a(crew: &Crew) { crew.task(\"b\", c()); self.crew.blocking(\"d\", || ()); e.push(\"f\"); }",
    )?;
    ensure!(named == ["b", "d"], "{named:?}");
    Ok(())
}
