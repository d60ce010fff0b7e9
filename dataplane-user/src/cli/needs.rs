//! Options that mean something beside another one alone. Who types one of them without the other is refused. A variable is no wish: it may be there for all verbs
//! and all agents of a machine, and means nothing where the other option is missing. clap's `requires` takes a variable for a wish.

use clap::{ArgMatches, Command, error::ErrorKind, parser::ValueSource};

/// Of a verb: an option, the option that it needs, and what is said where that one is missing.
const NEEDS: [(&str, &str, &str, &str); 5] = [
    (
        "agent",
        "kubeconfig",
        "kubernetes",
        "--kubeconfig says how --kubernetes reaches the API server; expected --kubernetes with it",
    ),
    (
        "agent",
        "api_server",
        "kubernetes",
        "--api-server says where --kubernetes finds the API server; expected --kubernetes with it",
    ),
    (
        "agent",
        "no_headless",
        "kubernetes",
        "--no-headless leaves out Services of --kubernetes; expected --kubernetes with it",
    ),
    (
        "crds",
        "kubeconfig",
        "apply",
        "--kubeconfig says how --apply reaches the API server; expected --apply with it",
    ),
    (
        "crds",
        "api_server",
        "apply",
        "--api-server says where --apply finds the API server; expected --apply with it",
    ),
];

/// Checks what was typed.
pub(super) fn check(matches: &ArgMatches, command: &mut Command) -> Result<(), clap::Error> {
    let Some((verb, given)) = matches.subcommand() else { return Ok(()) };
    let of_verb = NEEDS.iter().filter(|(of, ..)| *of == verb);
    for (_, option, needed, text) in of_verb {
        let is_typed = given.value_source(option) == Some(ValueSource::CommandLine);
        if is_typed && !given.get_flag(needed) {
            return Err(command.error(ErrorKind::MissingRequiredArgument, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::{args::Cli, golden};

    /// What is said of a command line. `variable`: the value of an option of the verb that is not typed.
    fn said(typed: &[&str], variable: Option<&str>) -> String {
        let mut command = Cli::command();
        if let Some(value) = variable {
            // As a variable would: clap knows it as a value that nobody typed.
            let value = value.to_owned();
            let of_all = |option: clap::Arg| match option.get_id().as_str() {
                "kubeconfig" => option.default_value(value.clone()),
                _ => option,
            };
            command = command.mut_subcommands(|verb| verb.mut_args(&of_all));
        }
        let matches = command.try_get_matches_from_mut([&["nodefence"], typed].concat()).unwrap();
        check(&matches, &mut command).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_means_nothing_alone_is_refused_where_it_was_typed() {
        let file = ["agent", "--cluster-file", "x"];
        let mut text = String::new();
        for (typed, wanted) in [
            (vec!["crds", "--kubeconfig", "y"], "expected --apply"),
            (vec!["crds", "--api-server", "y"], "expected --apply"),
            ([&file[..], &["--kubeconfig", "y"]].concat(), "expected --kubernetes"),
            ([&file[..], &["--api-server", "y"]].concat(), "expected --kubernetes"),
            ([&file[..], &["--no-headless"]].concat(), "expected --kubernetes"),
        ] {
            let said = said(&typed, None);
            assert!(said.contains(wanted), "{typed:?}: {said}");
            text += &format!("### nodefence {}\n{said}\n", typed.join(" "));
        }
        golden::check("usage-needs", &text);
        for typed in [
            vec!["crds", "--apply", "--kubeconfig", "y"],
            vec!["crds"],
            vec!["agent", "--kubernetes", "--kubeconfig", "y", "--no-headless"],
            file.to_vec(),
        ] {
            assert_eq!(said(&typed, None), "", "{typed:?}");
            assert_eq!(said(&typed, Some("z")), "", "{typed:?}");
        }
    }
}
