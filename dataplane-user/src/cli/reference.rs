//! `docs/cli.md`: the texts of `--help` as one page.

use std::{fmt::Write as _, path::Path};

use clap::{Arg, Command, CommandFactory as _};

use super::{args::Cli, environment::with_variables, golden};

const TOP: &str = "# The command line

<!-- Written by `NODEFENCE_BLESS=1 cargo test -p nodefence --lib reference` from the commands' own help: change that. -->

Other pages: [the cluster file](cluster-file.md), [Kubernetes](kubernetes.md), [how the agent runs and ends, variables, systemd](operating.md),
[what the verbs print](output.md), [the log](log.md).
";

fn page(command: &mut Command) -> String {
    command.build();
    let mut text = TOP.to_owned();
    let _ = write!(text, "{}", prose(&command.get_long_about().expect("about").to_string()));
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    let globals = command.get_arguments().filter(|arg| arg.is_global_set() || !is_shown(arg));
    let verbs: Vec<Command> = verbs.cloned().collect();
    let list = verbs.iter().map(|verb| {
        let name = verb.get_name();
        format!("- [`{name}`](#nodefence-{name}): {}\n", verb.get_about().expect("about"))
    });
    let _ = write!(text, "\n{}\n## Options of all commands\n\n", list.collect::<String>());
    text.extend(globals.map(option));
    text += &prose(&command.get_after_long_help().expect("help").to_string());
    for mut verb in verbs {
        let usage = verb.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let _ =
            write!(text, "\n## `nodefence {}`\n\n{}.\n", verb.get_name(), verb.get_about().expect("about"));
        let _ = write!(text, "\n```\n{usage}\n```\n");
        let help = verb.get_after_long_help().or(verb.get_after_help()).map(ToString::to_string);
        text += &prose(&help.expect("each verb has an example"));
        let own: Vec<&Arg> =
            verb.get_arguments().filter(|arg| !arg.is_global_set() && is_shown(arg)).collect();
        let mut headings: Vec<&str> = own.iter().map(|arg| heading(arg)).collect();
        headings.sort_by_key(|name| own.iter().position(|arg| heading(arg) == *name));
        headings.dedup();
        for name in headings {
            let _ = write!(text, "\n**{name}**\n\n");
            text.extend(own.iter().filter(|arg| heading(arg) == name).map(|arg| option(arg)));
        }
    }
    text
}

fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" })
}

fn is_shown(option: &Arg) -> bool {
    !option.is_hide_set() && !matches!(option.get_id().as_str(), "help" | "version")
}

fn option(arg: &Arg) -> String {
    let name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {arg}"),
        _ => arg.to_string(),
    };
    let mut text = format!("- `{name}`");
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, ", `{}`", variable.display());
    }
    let takes = arg.get_action().takes_values();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes && !arg.is_hide_default_value_set() && !defaults.is_empty() {
        let _ = write!(text, ", default `{}`", defaults.join(","));
    }
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs = help.split("\n\n");
    let _ = writeln!(text, "  \n  {}", paragraphs.next().unwrap_or_default());
    for paragraph in paragraphs {
        let _ = write!(text, "\n  {paragraph}\n");
    }
    let values = arg.get_possible_values();
    for value in values.iter().filter(|value| takes && !value.is_hide_set()) {
        let meaning = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        let _ = writeln!(text, "  - `{}`{meaning}", value.get_name());
    }
    text
}

/// The help's text as Markdown. Indented lines become a code block.
fn prose(help: &str) -> String {
    let mut text = "\n".to_owned();
    let mut block = false;
    for line in help.lines() {
        let inside = line.starts_with("  ") || block && line.is_empty();
        if inside && !block {
            text += "\n```\n";
        } else if block && !inside {
            text.truncate(text.trim_end().len());
            text += "\n```\n\n";
        }
        let _ = writeln!(text, "{}", if inside { line.strip_prefix("  ").unwrap_or(line) } else { line });
        block = inside;
    }
    if block { text + "```\n" } else { text }
}

#[test]
fn the_page_is_what_the_help_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let text = page(&mut with_variables(Cli::command()));
    golden::hold(&file, &text);
}
