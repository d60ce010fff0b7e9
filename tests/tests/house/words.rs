//! Names and comments of the programs: a closure's parameter says what it is, and what has a field term is called by that term.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use syn::{
    Expr, ExprClosure, Item, Macro, PatIdent, Token,
    punctuated::Punctuated,
    visit::{self, Visit},
};

use crate::{Found, modules::visit_program_item};

/// Old words, and what to write instead.
const OLD: [(&[&str], &str); 6] = [
    (&["put back", "puts back", "putting back", "put in again"], "restore"),
    (&["take out", "takes out", "taken out", "taking out", "takeout"], "drain"),
    (&["let go", "lets go", "letting go"], "delete"),
    (&["this room"], "the space, by its name: the map, the memory, the limit"),
    (&["armed"], "enforced"),
    (&["still asking"], "still challenging"),
];

/// Places where such a word means something else: file, word, and what it means there.
const ALLOWED: [(&str, &str, &str); 2] = [
    ("dataplane-user/src/flags/clock.rs", "taken out", "an offset is subtracted"),
    ("xtask/src/assets/golang.rs", "let go", "a variable for the language Go"),
];

/// The one-letter parameters of a file's closures, outside its tests.
#[derive(Default)]
struct Closures {
    short: Vec<String>,
    /// The names of the pattern that was visited last.
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for Closures {
    fn visit_item(&mut self, item: &'ast Item) {
        visit_program_item(self, item);
    }

    fn visit_pat_ident(&mut self, name: &'ast PatIdent) {
        self.names.push(name.ident.to_string());
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        self.names.clear();
        closure.inputs.iter().for_each(|parameter| self.visit_pat(parameter));
        let short: Vec<String> = self.names.drain(..).filter(|name| name.len() == 1).collect();
        // `|a, b|` of a comparison: two of the same kind.
        if closure.inputs.len() != 2 || short.len() != 2 {
            self.short.extend(short);
        }
        visit::visit_expr_closure(self, closure);
    }

    /// A macro's arguments count where they are expressions.
    fn visit_macro(&mut self, call: &'ast Macro) {
        let arguments = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        arguments.iter().flatten().for_each(|argument| self.visit_expr(argument));
    }
}

fn short(text: &str) -> Result<Vec<String>> {
    let mut closures = Closures::default();
    closures.visit_file(&syn::parse_file(text)?);
    Ok(closures.short)
}

/// The old words in a text, each with its line and what to write instead. A comment's line goes on in the next one.
fn old(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let lines: Vec<&str> = text.lines().map(|line| line.trim_start_matches([' ', '/', '!']).trim()).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let prose = format!("{line} {}", lines.get(at + 1).unwrap_or(&"")).to_lowercase().replace('-', " ");
        let names = line.split(|letter| !is_of_name(letter)).map(words).collect::<Vec<_>>().join("|");
        for (forms, instead) in OLD {
            let is_here = |form: &&&str| {
                position(&prose, form).is_some_and(|start| start < line.len())
                    || position(&names, form).is_some()
            };
            found.extend(forms.iter().filter(is_here).map(|form| (at + 1, *form, instead)));
        }
    }
    found
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// A name as words: `put_back` and `PutBack` are `put back`.
fn words(name: &str) -> String {
    let apart = |letter: char| if letter.is_uppercase() { format!(" {letter}") } else { letter.to_string() };
    name.chars().map(apart).collect::<String>().replace('_', " ").to_lowercase()
}

/// Where a form stands in a text as whole words.
fn position(text: &str, form: &str) -> Option<usize> {
    let mut starts = text.match_indices(form).map(|(start, _)| start);
    starts.find(|start| {
        !text[..*start].ends_with(is_of_name) && !text[start + form.len()..].starts_with(is_of_name)
    })
}

#[test]
fn closures_and_comments_of_the_programs_use_the_words_of_the_field() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Found::default();
    for folder in ["bench", "common", "dataplane-ebpf", "dataplane-user", "xtask"] {
        found.below(&workspace, Path::new(folder))?;
    }
    let mut wrong = Vec::new();
    let mut allowed = BTreeSet::new();
    for file in &found.files {
        let name = file.display().to_string();
        let text = fs::read_to_string(workspace.join(file))?;
        for (line, word, instead) in old(&text) {
            match ALLOWED.iter().find(|(file, form, _)| *file == name && *form == word) {
                Some((file, form, _)) => drop(allowed.insert((*file, *form))),
                None => wrong.push(format!("{name}:{line}: `{word}` is an old word: write {instead}")),
            }
        }
        // The files of tests have such names.
        if !name.contains("tests") {
            let short = short(&text).with_context(|| name.clone())?;
            wrong.extend(short.iter().map(|letter| format!("{name}: |{letter}|: say what it is")));
        }
    }
    ensure!(found.files.len() > 400, "only {} files", found.files.len());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(allowed.len() == ALLOWED.len(), "of {ALLOWED:?} only {allowed:?} are there");
    Ok(())
}

#[test]
fn a_short_parameter_and_an_old_word_are_found() -> Result<()> {
    let closures = "fn f() { g(|e| 1); g(|(_, d)| 1); g(|sum, c| 1); g(|&b: &u8| 1); h!(g(move |a| 1)); }";
    ensure!(short(closures)? == ["e", "d", "c", "b", "a"], "{:?}", short(closures)?);
    let good = "fn f() { g(|a, b| 1); g(|(a, _), (b, _)| 1); g(|_| 1); g(|error| 1); } #[cfg(test)] fn h() { g(|e| 1); }";
    ensure!(short(good)?.is_empty(), "{:?}", short(good)?);
    let words = "// It is put\n// back.\n/// Armed.\nfn take_out() {}\nstruct PutBack;\n\"let go of it\"\n//! Still-asking.";
    let lines: Vec<usize> = old(words).iter().map(|(line, ..)| *line).collect();
    ensure!(lines == [1, 3, 4, 5, 6, 7], "{:?}", old(words));
    let good = "let go_mod = 1;\n// Is disarmed.\nStep::PutBackend;\n// Room for this.";
    ensure!(old(good).is_empty(), "{:?}", old(good));
    Ok(())
}
