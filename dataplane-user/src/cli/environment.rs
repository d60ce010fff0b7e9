//! The environment variables of the options: every option has one.

use std::{env, ffi::OsString};

use clap::{
    Arg, ArgAction, Command,
    builder::BoolishValueParser,
    error::{ContextKind, ContextValue},
};

/// The variables for the node's name. Pods get it in NODE_NAME by convention.
const NODE: [&str; 2] = ["NODEFENCE_NODE", "NODE_NAME"];

/// Options of several verbs that mean the same for each.
const SHARED: [&str; 5] = ["api-server", "kubeconfig", "log-format", "pin-dir", "pod-uid"];

/// Gives each option that the help shows its variable.
pub(super) fn with_variables(command: Command) -> Command {
    let command = command.mut_args(|option| with_variable(option, None));
    command.mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        verb.mut_args(|option| with_variable(option, Some(&name)))
    })
}

fn with_variable(option: Arg, verb: Option<&str>) -> Arg {
    let Some(name) = option.get_long().filter(|_| !option.is_hide_set()).map(|long| variable(verb, long))
    else {
        return option;
    };
    let name =
        if name == NODE[0] && is_empty(NODE[0]) && !is_empty(NODE[1]) { NODE[1].to_owned() } else { name };
    // An empty variable, which is usual in unit files, means no value. clap would take it for a value.
    if env::var_os(&name).is_some() && is_empty(&name) {
        return option;
    }
    let option = option.env(name).hide_env_values(true);
    if matches!(option.get_action(), ArgAction::SetTrue) {
        option.value_parser(BoolishValueParser::new())
    } else {
        option
    }
}

fn is_empty(name: &str) -> bool {
    env::var_os(name).is_none_or(|value| value.is_empty())
}

/// The name of an option's variable. The variable of a verb's own option bears the verb's name: in a pod with `NODEFENCE_FORCE` for the
/// agent, `nodefence flag` must not set unwise flags. Variables of the agent's options, and of options that mean the same for all verbs,
/// do not bear it.
fn variable(verb: Option<&str>, long: &str) -> String {
    let own = verb.filter(|verb| *verb != "agent" && !SHARED.contains(&long));
    let words = ["nodefence"].into_iter().chain(own).chain([long]).collect::<Vec<_>>();
    words.join("_").replace('-', "_").to_uppercase()
}

/// The sentence that names the variable as the origin of a value.
pub(super) fn of_variable(name: &str) -> String {
    format!("This value is that of the environment's variable {name}.")
}

/// The variable that caused an error. The error names the option, which the user has not typed.
pub(super) fn blamed(error: &clap::Error, command: &Command, typed: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let long = option.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let verb = typed.iter().skip(1).find_map(|word| command.find_subcommand(word));
    let mut options = verb.into_iter().flat_map(|verb| verb.get_arguments()).chain(command.get_arguments());
    let option = options.find(|option| option.get_long() == Some(long))?;
    let is_typed = typed.iter().skip(1).filter_map(|word| word.to_str()).any(|word| {
        let by_long = word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(long));
        let short = word.strip_prefix('-').and_then(|word| word.chars().next());
        by_long || short.is_some() && short == option.get_short()
    });
    let name = option.get_env()?.to_str()?;
    (!is_typed && !is_empty(name)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn a_verb_s_own_option_bears_its_name() {
        for (verb, long, name) in [
            (None, "run-dir", "NODEFENCE_RUN_DIR"),
            (Some("agent"), "cluster-file", "NODEFENCE_CLUSTER_FILE"),
            (Some("agent"), "force", "NODEFENCE_FORCE"),
            (Some("flag"), "force", "NODEFENCE_FLAG_FORCE"),
            (Some("log-level"), "for", "NODEFENCE_LOG_LEVEL_FOR"),
            (Some("guard"), "pin-dir", "NODEFENCE_PIN_DIR"),
            (Some("crds"), "apply", "NODEFENCE_CRDS_APPLY"),
            (Some("crds"), "kubeconfig", "NODEFENCE_KUBECONFIG"),
        ] {
            assert_eq!(variable(verb, long), name);
        }
    }

    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let command = with_variables(Cli::command());
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let verbs = command.get_subcommands().map(|verb| (Some(verb.get_name()), verb));
        for (verb, command) in verbs.chain([(None, &command)]) {
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let Some(long) = option.get_long() else { continue };
                let name = option.get_env().and_then(|name| name.to_str()).map(str::to_owned);
                assert_eq!(name.as_deref(), Some(&*variable(verb, long)), "--{long}");
                *names.entry(name.unwrap()).or_default() += 1;
            }
        }
        assert!(names.len() > 30, "{names:?}");
        names.retain(|_, count| *count > 1);
        let shared = ["API_SERVER", "KUBECONFIG", "LOG_FORMAT", "PIN_DIR", "POD_UID"];
        let shared = shared.map(|name| format!("NODEFENCE_{name}"));
        assert_eq!(names.into_keys().collect::<Vec<_>>(), shared);
    }
}
