//! A golden file of `dataplane-user/src/cli/golden/` has each text that a verb may print, and each text with which the agent refuses a request. `docs/cli.md`
//! has the help, and `docs/schema/` the texts of schemas.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use syn::{
    Attribute, ImplItem, Item, Lit, LitStr, Macro, Meta,
    buffer::{Cursor, TokenBuffer},
    visit::Visit,
};

use crate::modules::{visit_program_impl_item, visit_program_item};

const GOLDEN: &str = "dataplane-user/src/cli/golden";

/// The sources whose texts are printed for people, or are the agent's refusals.
const PRINTED: [&str; 8] = [
    "dataplane-user/src/cli",
    "dataplane-user/src/doctor",
    "dataplane-user/src/report",
    "dataplane-user/src/agent/inbox.rs",
    "dataplane-user/src/agent/notes.rs",
    "dataplane-user/src/agent/refusals.rs",
    "dataplane-user/src/agent/lock.rs",
    "dataplane-user/core/src/cluster/file/error.rs",
];

/// Texts that are never printed, and why.
const NEVER: [(&str, &str); 2] = [
    ("no such kind", "clap has refused it by the list of names"),
    ("cannot make text of the rows", "a row has no value that JSON or YAML lacks"),
];

/// The macros of the log. `docs/log.md` has their events, and no verb prints their texts.
const LOG: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The texts of a source. Of each text counts the longest part between two inserted values, if that part has at least two words.
#[derive(Default)]
struct Texts {
    /// The literal as the source has it, and its longest part.
    found: Vec<(String, String)>,
}

impl Texts {
    fn of(text: &str) -> Result<Self> {
        let mut this = Self::default();
        this.visit_file(&syn::parse_file(text)?);
        Ok(this)
    }

    fn text(&mut self, literal: &LitStr) {
        let longest = longest(&literal.value());
        if longest.contains(' ') && longest.chars().filter(|letter| letter.is_alphabetic()).count() >= 6 {
            self.found.push((literal.token().to_string(), longest));
        }
    }

    fn tokens(&mut self, mut at: Cursor<'_>) {
        while !at.eof() {
            if let Some((literal, behind)) = at.literal() {
                if let Lit::Str(text) = Lit::new(literal) {
                    self.text(&text);
                }
                at = behind;
            } else if let Some((inside, _, _, behind)) = at.any_group() {
                // A doc comment is an attribute, and is not printed.
                let is_comment =
                    inside.ident().is_some_and(|(name, rest)| name == "doc" && rest.punct().is_some());
                if !is_comment {
                    self.tokens(inside);
                }
                at = behind;
            } else {
                let Some((_, behind)) = at.token_tree() else { return };
                at = behind;
            }
        }
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item(&mut self, item: &'ast Item) {
        visit_program_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        visit_program_impl_item(self, item);
    }

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.text(literal);
    }

    /// Only the attributes whose text thiserror prints.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.tokens(TokenBuffer::new2(list.tokens.clone()).begin());
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if !LOG.contains(&name.as_str()) {
            self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
        }
    }
}

/// The text with each run of white space as one blank, so that columns and line breaks do not count.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The longest part of a text that holds no value.
fn longest(text: &str) -> String {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if depth == 0 && letters.peek() == Some(&letter) => {
                letters.next();
                parts.last_mut().expect("one").push(letter);
            }
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                parts.push(String::new());
            }
            // An escape sequence sets a colour, and ends a part.
            '\u{1b}' => parts.push(String::new()),
            _ if depth <= 0 => parts.last_mut().expect("one").push(letter),
            _ => {}
        }
    }
    parts.iter().map(|part| words(part)).max_by_key(String::len).unwrap_or_default()
}

/// The texts of a source that no golden file has, with their lines.
fn missing(source: &str, golden: &str) -> Result<Vec<(usize, String)>> {
    let mut missing = Vec::new();
    for (written, longest) in Texts::of(source)?.found {
        let never = NEVER.iter().any(|(text, _)| longest.contains(text));
        if !never && !golden.contains(&longest) {
            let before = source.find(&written).map_or("", |at| &source[..at]);
            missing.push((before.lines().count().max(1), longest));
        }
    }
    Ok(missing)
}

fn files(workspace: &Path, at: &Path, ending: &str, into: &mut Vec<PathBuf>) -> Result<()> {
    let full = workspace.join(at);
    if full.is_file() {
        into.push(at.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(&full).with_context(|| at.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Tests and the files below `golden` print nothing.
        let is_test = name.ends_with("tests.rs")
            || ["tests", "golden.rs", "reference.rs", "sample.rs", "schemas.rs"].contains(&name.as_str());
        if entry.file_type()?.is_dir() && !is_test && at != Path::new(GOLDEN) {
            files(workspace, &at.join(name), ending, into)?;
        } else if name.ends_with(ending) && !is_test {
            into.push(at.join(name));
        }
    }
    Ok(())
}

#[test]
fn each_text_of_the_command_line_stands_in_a_golden_file() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut golden = fs::read_to_string(workspace.join("docs/cli.md"))?;
    let mut pages = Vec::new();
    files(&workspace, Path::new(GOLDEN), ".txt", &mut pages)?;
    ensure!(pages.len() > 5, "{pages:?}");
    files(&workspace, Path::new("docs/schema"), ".json", &mut pages)?;
    for page in pages {
        golden += &fs::read_to_string(workspace.join(page))?;
    }
    // The page has examples between fences, which are no part of a text.
    let golden = words(&golden.lines().filter(|line| *line != "```").collect::<Vec<_>>().join("\n"));
    let mut sources = Vec::new();
    for at in PRINTED {
        files(&workspace, Path::new(at), ".rs", &mut sources)?;
    }
    sources.retain(|file| !file.starts_with(GOLDEN));
    ensure!(sources.len() > 25, "{sources:?}");
    let mut lines = Vec::new();
    for file in &sources {
        let missing = missing(&fs::read_to_string(workspace.join(file))?, &golden)
            .with_context(|| file.display().to_string())?;
        lines.extend(missing.iter().map(|(line, text)| format!("{}:{line}: {text}", file.display())));
    }
    ensure!(
        lines.is_empty(),
        "in no golden file (dataplane-user/src/cli/golden.rs says how it gets there):\n{}",
        lines.join("\n")
    );
    Ok(())
}

#[test]
fn whatever_may_be_printed_is_found() -> Result<()> {
    for source in [
        r#"fn a() { bail!("it is gone {b}"); }"#,
        r#"fn a() -> &'static str { "it is gone" }"#,
        "fn a() { b.context(\n    \"it is \\\n     gone\") }",
        r#"#[derive(thiserror::Error)] enum A { #[error("{0} it is gone", b)] B }"#,
        r#"const A: [&str; 1] = ["it is gone"];"#,
        r#"fn a() { b.map(|c| { format!("{c:?} it is gone{}", if c { "" } else { "!" }) }) }"#,
    ] {
        let found = missing(source, "")?;
        ensure!(found.iter().any(|(_, text)| text == "it is gone"), "{source}: {found:?}");
        ensure!(missing(source, "before: it is gone, 5")?.is_empty(), "{source}");
    }
    for source in [
        r#"fn a() { tracing::info!(event = "b", "it is gone"); }"#,
        r#"#[cfg(test)] mod tests { fn a() { bail!("it is gone"); } }"#,
        "/// It is gone.\nfn a() {}",
        "macro_rules! a { () => { /// It is gone.\nstruct B; } }",
        r#"fn a() { b("gone"); }"#,
    ] {
        ensure!(missing(source, "")?.is_empty(), "{source}");
    }
    let lines = missing("fn a() {\n    b(\"it is gone\")\n}", "")?;
    ensure!(lines == [(2, "it is gone".to_owned())], "{lines:?}");
    ensure!(longest("a {{b c}} {d:>{e}} f") == "a {b c}", "{}", longest("a {{b c}} {d:>{e}} f"));
    Ok(())
}
