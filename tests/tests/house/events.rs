//! The events of the log: each call names its event, and `docs/log.md` lists exactly the events that the code has. Besides, no text tells a reader to end
//! processes by their name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use syn::{
    ImplItem, Item, Lit, Macro,
    buffer::{Cursor, TokenBuffer},
    visit::Visit,
};

use crate::{
    Found, ROOTS,
    modules::{Crate, visit_program_impl_item, visit_program_item},
};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The other keys of a line in JSON. No field may have such a name.
const TAKEN: [&str; 7] = ["timestamp", "level", "target", "message", "span", "spans", "event"];

/// A kind of line: the levels at which it is logged, and its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kind {
    levels: BTreeSet<String>,
    fields: BTreeSet<String>,
}

/// The kinds of lines that a file logs, and the faults of its calls.
#[derive(Default)]
struct Calls {
    kinds: BTreeMap<String, Kind>,
    wrong: Vec<String>,
}

impl Calls {
    fn of(text: &str) -> Result<Self> {
        let mut this = Self::default();
        this.visit_file(&syn::parse_file(text)?);
        Ok(this)
    }

    /// Finds calls among tokens that are no syntax tree, as in a macro.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        while !at.eof() {
            at = if let Some((word, behind)) = at.ident() {
                let called = behind.punct().filter(|(sign, _)| sign.as_char() == '!');
                match called.and_then(|(_, inside)| inside.any_group()) {
                    Some((inside, _, _, after)) => {
                        self.call(&word.to_string(), inside);
                        after
                    }
                    None => behind,
                }
            } else if let Some((inside, _, _, behind)) = at.any_group() {
                self.tokens(inside);
                behind
            } else {
                let Some((_, behind)) = at.token_tree() else { return };
                behind
            }
        }
    }

    fn call(&mut self, name: &str, arguments: Cursor<'_>) {
        if name == "event" {
            self.wrong.push("event!: use the macro of a level, as `info!`".to_owned());
        }
        if !LEVELS.contains(&name) {
            return self.tokens(arguments);
        }
        let (event, fields) = fields(arguments);
        let Some(event) = event else {
            let fields: Vec<String> = fields.into_iter().collect();
            return self.wrong.push(format!("{name}!({}): no `event = \"..\"`", fields.join(", ")));
        };
        let is_kebab = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        if event.is_empty() || !event.chars().all(is_kebab) {
            self.wrong.push(format!("{event}: expected small letters, digits and `-`"));
        }
        if let Some(taken) = fields.iter().find(|field| TAKEN.contains(&field.as_str())) {
            self.wrong.push(format!("{event}: a field must not be called {taken}"));
        }
        let kind = self.kinds.entry(event).or_default();
        kind.levels.insert(name.to_owned());
        kind.fields.extend(fields);
    }
}

/// The event of a call with these arguments, and its other fields. Arguments behind the message are inserted into it, and are no fields.
fn fields(mut at: Cursor<'_>) -> (Option<String>, BTreeSet<String>) {
    let mut event = None;
    let mut fields = BTreeSet::new();
    while !at.eof() {
        if at.literal().is_some() {
            break;
        }
        if let Some((_, behind)) = at.punct().filter(|(sign, _)| matches!(sign.as_char(), '?' | '%')) {
            at = behind;
        }
        let mut name = String::new();
        while let Some((word, behind)) = at.ident() {
            name += &word.to_string();
            at = behind;
            let Some((_, behind)) = at.punct().filter(|(sign, _)| sign.as_char() == '.') else { break };
            name.push('.');
            at = behind;
        }
        let given = at.punct().filter(|(sign, _)| sign.as_char() == '=').map(|(_, value)| value);
        if name == "event" {
            event = given.and_then(Cursor::literal).and_then(|(literal, _)| match Lit::new(literal) {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            });
        } else if !name.is_empty() {
            fields.insert(name);
        }
        // Skip to the next argument.
        while let Some((token, behind)) = at.token_tree() {
            at = behind;
            if token.to_string() == "," {
                break;
            }
        }
    }
    (event, fields)
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_item(&mut self, item: &'ast Item) {
        visit_program_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        visit_program_impl_item(self, item);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.call(&name, TokenBuffer::new2(call.tokens.clone()).begin());
    }
}

/// The rows of a page's tables: `| event | levels | fields | what it means |`.
fn listed(page: &str) -> Result<BTreeMap<String, Kind>> {
    let mut kinds = BTreeMap::new();
    let words = |cell: &str| -> BTreeSet<String> {
        let words = cell.split(',').map(|word| word.trim().trim_matches('`').to_owned());
        words.filter(|word| !word.is_empty()).collect()
    };
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, event, levels, fields, meaning, _] = cells[..] else {
            anyhow::bail!("expected four cells: {row}")
        };
        ensure!(!meaning.is_empty(), "a row without a meaning: {row}");
        let event = event.trim_matches('`').to_owned();
        let kind = Kind { levels: words(levels), fields: words(fields) };
        ensure!(kinds.insert(event, kind).is_none(), "a second row for one event: {row}");
    }
    Ok(kinds)
}

fn differences(code: &BTreeMap<String, Kind>, page: &BTreeMap<String, Kind>) -> Vec<String> {
    let events: BTreeSet<&String> = code.keys().chain(page.keys()).collect();
    let differing = events.into_iter().filter(|event| code.get(*event) != page.get(*event));
    let differing = differing.map(|event| {
        format!("{event}:\n  the code has  {:?}\n  the page says {:?}", code.get(event), page.get(event))
    });
    differing.collect()
}

#[test]
fn each_line_of_the_log_names_its_event_and_the_page_lists_these() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = BTreeSet::new();
    for root in ROOTS {
        let of = Crate::read(Path::new(root), &|file| fs::read_to_string(workspace.join(file)).ok())?;
        files.extend(of.modules.into_iter().map(|module| module.file));
    }
    let mut kinds = BTreeMap::<String, Kind>::new();
    let mut wrong = Vec::new();
    for file in &files {
        let calls = Calls::of(&fs::read_to_string(workspace.join(file))?)?;
        wrong.extend(calls.wrong.into_iter().map(|wrong| format!("{}: {wrong}", file.display())));
        for (event, Kind { levels, fields }) in calls.kinds {
            let kind = kinds.entry(event).or_default();
            kind.levels.extend(levels);
            kind.fields.extend(fields);
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(["flagged", "started", "ended"].iter().all(|event| kinds.contains_key(*event)), "{kinds:?}");
    let page = fs::read_to_string(workspace.join("docs/log.md")).context("docs/log.md")?;
    let differing = differences(&kinds, &listed(&page)?);
    ensure!(differing.is_empty(), "docs/log.md and the code differ:\n{}", differing.join("\n"));
    Ok(())
}

#[test]
fn whatever_logs_is_found_with_its_level_and_fields() -> Result<()> {
    let kind = |levels: &[&str], fields: &[&str]| Kind {
        levels: levels.iter().map(ToString::to_string).collect(),
        fields: fields.iter().map(ToString::to_string).collect(),
    };
    for (text, expected) in [
        (r#"fn a() { tracing::info!(event = "b", "c"); }"#, kind(&["info"], &[])),
        (
            r#"fn a() { warn!(event = "b", node, %error, ?took, x.y = 1 + d(2, 3), "c {}", e, f = g); }"#,
            kind(&["warn"], &["node", "error", "took", "x.y"]),
        ),
        (
            r#"fn a() { tokio::select! { () = c() => tracing::error!(event = "b", "c"), } }"#,
            kind(&["error"], &[]),
        ),
        (
            r#"fn a() { match c { d => tracing::debug!(event = "b", e = d, "c {f}") } }"#,
            kind(&["debug"], &["e"]),
        ),
        (
            r#"fn a() { tracing::info!(event = "b", c, "d"); tracing::error!(event = "b", e, "d"); }"#,
            kind(&["info", "error"], &["c", "e"]),
        ),
    ] {
        let calls = Calls::of(text)?;
        ensure!(calls.wrong.is_empty() && calls.kinds.len() == 1, "{text}: {:?}", calls.wrong);
        ensure!(calls.kinds.get("b") == Some(&expected), "{text}: {:?}", calls.kinds);
    }
    for wrong in [
        r#"fn a() { tracing::info!("c"); }"#,
        r#"fn a() { tracing::info!(node, "event"); }"#,
        r#"fn a() { tracing::info!(event = name, "c"); }"#,
        r#"fn a() { tracing::info!(event = "B_c", "c"); }"#,
        r#"fn a() { tracing::info!(event = "b", level = 1, "c"); }"#,
        r#"fn a() { tracing::event!(tracing::Level::INFO, event = "b", "c"); }"#,
        r#"fn a() { tokio::select! { () = c() => { tracing::error!("c") } } }"#,
    ] {
        ensure!(!Calls::of(wrong)?.wrong.is_empty(), "{wrong}");
    }
    let tests = r#"#[cfg(test)] mod tests { fn a() { tracing::info!("c"); } }"#;
    ensure!(Calls::of(tests)?.wrong.is_empty(), "{tests}");
    let page = listed(
        "| event | level | fields | meaning |\n|---|---|---|---|\n| `b` | info, warn | `c`, `d` | e |",
    )?;
    ensure!(page.get("b") == Some(&kind(&["info", "warn"], &["c", "d"])), "{page:?}");
    let code = BTreeMap::from([("b".to_owned(), kind(&["info"], &["c"]))]);
    ensure!(differences(&code, &page).len() == 1 && differences(&code, &BTreeMap::new()).len() == 1);
    ensure!(differences(&code, &code).is_empty());
    Ok(())
}

/// A command that ends processes by their name also ends the agents of other namespaces.
#[test]
fn no_text_ends_processes_by_their_name() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Found::default();
    found.below(&workspace, Path::new("dataplane-user"))?;
    let mut pages: Vec<PathBuf> = vec!["README.md".into()];
    for folder in ["docs", "docs/design", "deploy/systemd"] {
        for entry in fs::read_dir(workspace.join(folder)).with_context(|| folder.to_owned())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                pages.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    ensure!(found.files.len() > 100 && pages.len() > 10, "{} {}", found.files.len(), pages.len());
    for file in found.files.iter().chain(&pages) {
        let text = fs::read_to_string(workspace.join(file))?;
        let by_name = ["pkill", "killall"].into_iter().find(|word| text.contains(word));
        ensure!(by_name.is_none(), "{}: has {by_name:?}", file.display());
    }
    Ok(())
}
