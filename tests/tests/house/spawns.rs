//! Finds the calls in a file that begin threads or tasks, under any name, and the names of the threads and tasks that `Crew` begins.

use std::path::Path;

use anyhow::Result;
use syn::{
    Expr, ExprLit, ExprMethodCall, ImplItem, Item, Lit, Macro,
    buffer::{Cursor, TokenBuffer},
    visit::{self, Visit},
};

use crate::modules::{Crate, visit_program_impl_item, visit_program_item};

/// Functions and methods that begin a thread or a task.
const CALLS: [&str; 5] = ["spawn", "spawn_blocking", "spawn_local", "spawn_on", "spawn_blocking_on"];

/// Types that only files that begin threads or tasks need.
const TYPES: [&str; 4] = ["JoinSet", "TaskTracker", "LocalSet", "Runtime"];

/// The modules whose `Builder` begins threads or tasks.
const BUILDERS: [&str; 2] = ["thread", "runtime"];

/// Methods that begin a thread or a task and watch it. The first argument is its name.
const WATCHED: [&str; 5] = ["thread", "hand", "task", "errand", "blocking"];

/// The calls in a file of this text, outside its tests, that begin threads or tasks.
pub(crate) fn begins(text: &str) -> Result<Vec<String>> {
    let alone = text.to_owned();
    // Modules in other files are read as empty, since only this file counts.
    let read = |file: &Path| Some(if file == Path::new("lib.rs") { alone.clone() } else { String::new() });
    let of = Crate::read(Path::new("lib.rs"), &read)?;
    let paths = of.modules.iter().flat_map(|module| &module.paths);
    let mut found: Vec<String> =
        paths.filter(|words| is_beginning(words)).map(|words| words.join("::")).collect();
    let mut methods = Methods::default();
    methods.visit_file(&syn::parse_file(text)?);
    found.extend(methods.begin);
    Ok(found)
}

/// The names of the threads and tasks that a file begins by the methods of [`WATCHED`].
pub(crate) fn names(text: &str) -> Result<Vec<String>> {
    let mut methods = Methods::default();
    methods.visit_file(&syn::parse_file(text)?);
    Ok(methods.named)
}

fn is_beginning(words: &[String]) -> bool {
    let is_builder = |two: &[String]| BUILDERS.contains(&two[0].as_str()) && two[1] == "Builder";
    words.last().is_some_and(|last| CALLS.contains(&last.as_str()))
        || words.iter().any(|word| TYPES.contains(&word.as_str()))
        || words.windows(2).any(is_builder)
}

/// The calls of methods in a file.
#[derive(Default)]
struct Methods {
    begin: Vec<String>,
    named: Vec<String>,
}

impl Methods {
    /// Finds calls among tokens that are no syntax tree, as in a macro.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        let mut dot = false;
        while !at.eof() {
            let before = std::mem::take(&mut dot);
            at = if let Some((word, behind)) = at.ident() {
                let name = word.to_string();
                let takes = behind.any_group().is_some_and(|(inside, ..)| !inside.eof());
                if before && takes && CALLS.contains(&name.as_str()) {
                    self.begin.push(format!(".{name}()"));
                }
                behind
            } else if let Some((inside, _, _, behind)) = at.any_group() {
                self.tokens(inside);
                behind
            } else if let Some((sign, behind)) = at.punct() {
                dot = sign.as_char() == '.';
                behind
            } else {
                let Some((_, behind)) = at.token_tree() else { return };
                behind
            }
        }
    }
}

impl<'ast> Visit<'ast> for Methods {
    fn visit_item(&mut self, item: &'ast Item) {
        visit_program_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        visit_program_impl_item(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        // `Command::spawn` takes no argument, and begins a process.
        if CALLS.contains(&name.as_str()) && !call.args.is_empty() {
            self.begin.push(format!(".{name}()"));
        }
        if WATCHED.contains(&name.as_str())
            && let Some(Expr::Lit(ExprLit { lit: Lit::Str(name), .. })) = call.args.first()
        {
            self.named.push(name.value());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
    }
}
