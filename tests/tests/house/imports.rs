//! Which file imports which names from which other file, and the circles of such imports.
//!
//! A path counts to the file that defines its last item, also if another module re-exports that item. A path that ends at a module is no import.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::modules::Crate;

/// For each file and each other file: the names that the first imports from the second.
pub(crate) type Edges = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The target of a path.
enum Target {
    Module(usize),
    /// A module and the name of its item.
    Item(usize, String),
}

/// The names whose imports were followed already.
type Followed = BTreeSet<(usize, String)>;

/// All imports between the files of a crate.
pub(crate) fn edges(of: &Crate) -> Edges {
    let mut edges = Edges::new();
    for (at, module) in of.modules.iter().enumerate() {
        for words in &module.paths {
            let mut found = end(of, at, words, &mut Followed::new());
            if found.is_empty() {
                found.extend(macro_above(of, at, words));
            }
            for target in found {
                let Target::Item(there, name) = target else { continue };
                let file = &of.modules[there].file;
                if *file != module.file {
                    edges.entry((module.file.clone(), file.clone())).or_default().insert(name);
                }
            }
        }
    }
    edges
}

/// The targets of a path in a module. Empty if the path leads out of the crate.
fn end(of: &Crate, at: usize, words: &[String], followed: &mut Followed) -> Vec<Target> {
    let mut found: Option<Vec<Target>> = None;
    for word in words {
        found = Some(match (word.as_str(), found.take()) {
            ("crate", _) => vec![Target::Module(0)],
            ("self", None) => vec![Target::Module(at)],
            // `x::{self}` is a module or a type.
            ("self", Some(mut before)) => {
                before.retain(is_type);
                before
            }
            ("super", None) => above(of, &[Target::Module(at)]),
            ("super", Some(before)) => above(of, &before),
            (name, None) => named(of, at, name, followed),
            (name, Some(before)) => below(of, before, name, followed),
        });
    }
    found.unwrap_or_default()
}

fn is_type(target: &Target) -> bool {
    match target {
        Target::Module(_) => true,
        Target::Item(_, name) => name.starts_with(char::is_uppercase),
    }
}

fn above(of: &Crate, before: &[Target]) -> Vec<Target> {
    let parent = |target: &Target| match target {
        Target::Module(at) => of.modules[*at].parent.map(Target::Module),
        Target::Item(..) => None,
    };
    before.iter().filter_map(parent).collect()
}

/// The targets of a name below the targets that were found before.
fn below(of: &Crate, before: Vec<Target>, name: &str, followed: &mut Followed) -> Vec<Target> {
    let mut found = Vec::new();
    for target in &before {
        match target {
            Target::Module(at) if name == "*" => found.push(Target::Item(*at, name.to_owned())),
            Target::Module(at) => found.extend(named(of, *at, name, followed)),
            Target::Item(..) => {}
        }
    }
    if !found.is_empty() {
        return found;
    }
    let of_it = |target: Target| match target {
        // An associated item counts to its type.
        Target::Item(..) => Some(target),
        Target::Module(at) => {
            let module = &of.modules[at];
            let made = module.generated && !module.imports.contains_key(name);
            made.then(|| Target::Item(at, name.to_owned()))
        }
    };
    before.into_iter().filter_map(of_it).collect()
}

/// The targets of a name in a module.
fn named(of: &Crate, at: usize, name: &str, followed: &mut Followed) -> Vec<Target> {
    let module = &of.modules[at];
    let mut found: Vec<Target> =
        module.children.get(name).map(|child| Target::Module(*child)).into_iter().collect();
    if module.items.contains(name) {
        found.push(Target::Item(at, name.to_owned()));
    }
    if at == 0 {
        found.extend(of.exported.get(name).map(|there| Target::Item(*there, name.to_owned())));
    }
    // `use x::x` leads to the same name again.
    if !followed.insert((at, name.to_owned())) {
        return found;
    }
    for words in module.imports.get(name).into_iter().flatten() {
        found.extend(end(of, at, words, followed));
    }
    if found.is_empty() && !module.imports.contains_key(name) {
        for words in &module.globs {
            for target in end(of, at, words, followed) {
                if let Target::Module(there) = target {
                    found.extend(named(of, there, name, followed));
                }
            }
        }
    }
    found
}

/// The macro that a call means, if a module above defines it. Such a macro needs no import.
fn macro_above(of: &Crate, at: usize, words: &[String]) -> Option<Target> {
    let [name] = words else { return None };
    let mut above = of.modules[at].calls.contains(name).then_some(of.modules[at].parent)?;
    while let Some(at) = above {
        if of.modules[at].macros.contains(name) {
            return Some(Target::Item(at, name.clone()));
        }
        above = of.modules[at].parent;
    }
    None
}

/// A text for each circle: its files, and their imports of each other.
pub(crate) fn circles(edges: &Edges) -> Vec<String> {
    let tell = |circle: BTreeSet<&Path>| {
        let mut text = format!("{} files import each other in a circle:", circle.len());
        for ((from, to), names) in edges {
            if circle.contains(from.as_path()) && circle.contains(to.as_path()) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                text += &format!("\n  {} -> {}: {}", from.display(), to.display(), names.join(", "));
            }
        }
        text
    };
    groups(edges).into_iter().map(tell).collect()
}

/// Groups of files in which each file reaches each other one by imports.
fn groups(edges: &Edges) -> BTreeSet<BTreeSet<&Path>> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from.as_path()).or_default().push(to.as_path());
    }
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        next.keys().map(|file| (*file, reach(&next, file))).collect();
    let mut groups = BTreeSet::new();
    for (file, others) in &reached {
        let back = |other: &Path| reached.get(other).is_some_and(|others| others.contains(file));
        let group: BTreeSet<&Path> = others.iter().copied().filter(|other| back(other)).collect();
        if !group.is_empty() {
            groups.insert(group);
        }
    }
    groups
}

fn reach<'a>(next: &BTreeMap<&'a Path, Vec<&'a Path>>, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for other in next.get(file).into_iter().flatten() {
            if reached.insert(*other) {
                open.push(*other);
            }
        }
    }
    reached
}
