//! Examples in the documentation.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::libtest::{Outcome, Parser};
use super::tally::Stage;
use crate::process;
use crate::say::say;
use crate::workspace::Workspace;

/// The limit for all examples. Examples that take longer hang.
const EXAMPLES: Duration = Duration::from_secs(10 * 60);

/// Runs the examples in the documentation. Returns `None` if there are none. Only cargo can run them, and it builds everything once more for them.
pub(crate) fn run(workspace: &Workspace) -> Result<Option<Stage>> {
    if !has_examples(&workspace.root)? {
        return Ok(None);
    }
    let mut stage = Stage::new("documentation");
    let started = Instant::now();
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--workspace"]);
    say!("examples in the documentation");
    let mut parser = Parser::default();
    let mut printed = Vec::new();
    let ended = process::stream(&mut command, EXAMPLES, |line| {
        parser.line(line);
        printed.push(line.to_owned());
    })?;
    for (name, outcome) in parser.outcomes() {
        match outcome {
            Outcome::Passed => stage.pass(),
            Outcome::Failed => stage.fail(name.clone()),
            Outcome::Ignored => stage.fail(format!("{name}: ignored; no test may be skipped")),
        }
    }
    if !ended.is_some_and(|status| status.success()) {
        if stage.failures.is_empty() {
            stage.fail(format!("`{}`", process::line(&command)));
        }
        eprintln!("{}", printed.join("\n"));
    }
    stage.took = started.elapsed();
    Ok(Some(stage))
}

/// Whether a source file below `folder` has an example that rustdoc takes for code.
fn has_examples(folder: &Path) -> Result<bool> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            if has_examples(&path)? {
                return Ok(true);
            }
        } else if name.ends_with(".rs") && is_example_in(&fs::read_to_string(&path)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_example_in(source: &str) -> bool {
    let documented = source.lines().map(str::trim_start);
    let documented = documented.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
    let mut open = false;
    let fence = |line: &'_ str| {
        let line = line.trim_start();
        line.strip_prefix("```").or(line.strip_prefix("~~~")).map(str::to_owned)
    };
    for language in documented.filter_map(fence) {
        if !open && language != "text" {
            return true;
        }
        open = !open;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::is_example_in;

    #[test]
    fn what_is_no_text_is_an_example() {
        assert!(!is_example_in("//! ```text\n//! a\n//! ```\n/// ```text\n/// ```\nlet fence = \"```\";"));
        for example in ["    /// ```\n    /// one();\n    /// ```", "//! ```no_run\n//! ```"] {
            assert!(is_example_in(example), "{example}");
        }
    }
}
