//! The values that options accept, and the errors about other values.

use std::time::Duration;

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use crate::{
    cluster::reason_fits,
    enforce::Share,
    plan::{Mode, audit::Kind},
};

/// Whether the datapath cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Cut what goes to a flagged node.
    Enforce,
    /// Cut nothing; count what would have been cut.
    Observe,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Enforce => Self::Enforce,
            ModeArg::Observe => Self::Observe,
        }
    }
}

/// What a sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnswerArg {
    /// A RST or an ICMP port unreachable, so that it reconnects at once.
    Refuse,
    /// Nothing.
    Drop,
}

/// What the operator says of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyArg {
    /// Find out.
    Auto,
    /// It runs in IPVS mode.
    Ipvs,
    /// It runs in iptables mode.
    Iptables,
    /// It runs in nftables mode.
    Nftables,
    /// Its tables are not to be touched.
    None,
}

/// What is done about claims that no person made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AutoArg {
    /// They are shown.
    Off,
    /// What they would cut is counted.
    Observe,
    /// They are enforced as an operator's flags are, within the limit.
    Enforce,
}

/// Who restores IPVS where the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuardArg {
    /// A process that the agent starts.
    Child,
    /// `nodefence guard`, which is started apart.
    External,
}

/// Whether and how XDP is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpArg {
    /// Not at all.
    Off,
    /// By the driver.
    Native,
    /// By the stack; slows the healthy path.
    Generic,
}

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TcArg {
    /// tcx on Linux 6.6 and later, else clsact.
    Auto,
    /// clsact.
    Clsact,
}

/// How the agent logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Parses a kind of difference by its name.
pub(super) fn kind() -> impl TypedValueParser<Value = Kind> {
    let value = |kind: Kind| PossibleValue::new(kind.name()).help(kind.meaning());
    PossibleValuesParser::new(Kind::all().map(value))
        .try_map(|name| Kind::all().find(|kind| kind.name() == name).ok_or("no such kind"))
}

/// Parses the time after which a difference is a fault.
pub(super) fn patience(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "expected a number with its unit (s, m, h), as in 60s or 5m".to_owned())?;
    if time < Duration::from_secs(1) || time > Duration::from_secs(24 * 3_600) {
        return Err("between 1s and 24h: kube-proxy needs its time, and what is older is of no use".into());
    }
    Ok(time)
}

/// Parses how old a view may be. A view that is confirmed less often cuts nothing.
pub(super) fn view_age(text: &str) -> Result<Duration, String> {
    let age = humantime::parse_duration(text)
        .map_err(|_| "expected numbers with their units (s, m, h, d), as in 90s, 10m or 1h 30m".to_owned())?;
    if age < Duration::from_secs(1) || age > LONGEST_FLAG {
        return Err("between 1s and 3650d; without the option a view holds however old it is".into());
    }
    Ok(age)
}

/// Ten years. A longer time is surely a mistake.
const LONGEST_FLAG: Duration = Duration::from_secs(3_650 * 24 * 3_600);

/// How long a flag lasts. `None`: until `unflag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasts(pub Option<Duration>);

/// Parses how long a flag lasts. The shortest time is a second, since verdicts are renewed once a second.
pub(super) fn lasting(text: &str) -> Result<Lasts, String> {
    if text == "forever" {
        return Ok(Lasts(None));
    }
    let expected = "expected numbers with their units (s, m, h, d), as in 90s, 10m or 1h 30m, or `forever`";
    let lasts = humantime::parse_duration(text).map_err(|_| expected.to_owned())?;
    if lasts > LONGEST_FLAG {
        return Err("at most 3650d; with `forever` a flag holds until it is taken back".into());
    }
    if lasts < Duration::from_secs(1) {
        return Err("a flag lasts one second at least (to end it at once: `nodefence unflag NODE`)".into());
    }
    Ok(Lasts(Some(lasts)))
}

/// Parses the reason for a flag. Its length is limited, since it stands in one row of a table.
pub(super) fn reason(text: &str) -> Result<String, String> {
    reason_fits(text).map(|()| text.to_owned())
}

/// Parses the name by which a controller holds the Lease. The API server takes 128 characters of a name that begins with `nodefence-`.
pub(super) fn identity(text: &str) -> Result<String, String> {
    let fits = (1..=110).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned()).ok_or_else(|| "expected 1 to 110 printable ASCII characters".to_owned())
}

/// Parses a part of the nodes.
pub(super) fn share(text: &str) -> Result<Share, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let share =
        text.split_once('/').and_then(|(part, of)| Some(Share { part: number(part)?, of: number(of)? }));
    let Some(share) = share else {
        return Err("expected a part of the nodes as PART/OF in whole numbers, as in 1/3".into());
    };
    if share.part == 0 {
        return Err(
            "a limit is one node at least, so PART must be 1 or more (to cut none: --auto observe)".into()
        );
    }
    if share.part > share.of {
        return Err("expected a part of the nodes: PART must not be more than OF".into());
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::{
        cli::args::{AgentArgs, Cli, FlagArgs, Format, Verb},
        enforce::Auto,
    };

    fn agent(more: &[&str]) -> Result<AgentArgs, String> {
        let args = ["nodefence", "agent", "--cluster-file", "x", "--interface", "y"];
        match Cli::try_parse_from(args.iter().chain(more)).map(|cli| cli.verb) {
            Ok(Verb::Agent(args)) => Ok(*args),
            Ok(verb) => panic!("{verb:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_reason_is_short_and_its_flag_is_named() {
        let flag = |reason: &str| {
            let args = ["nodefence", "flag", "node-b", "--reason", reason];
            Cli::try_parse_from(args).map(drop).map_err(|error| error.to_string())
        };
        flag(&"ä".repeat(1_000)).unwrap();
        let error = flag(&"a".repeat(1_001)).unwrap_err();
        assert!(error.contains("--reason <TEXT>") && error.contains("1000 characters at most"), "{error}");
    }

    #[test]
    fn a_flag_ends_after_an_hour_unless_it_is_said() {
        let flag = |more: &[&str]| match Cli::try_parse_from([&["nodefence", "flag", "b"], more].concat()) {
            Ok(Cli { verb: Verb::Flag(FlagArgs { lasts, .. }), .. }) => Ok(lasts),
            Ok(cli) => panic!("{cli:?}"),
            Err(error) => Err(error.to_string()),
        };
        let of = |seconds| Ok(Lasts(Some(Duration::from_secs(seconds))));
        assert_eq!(flag(&[]), of(3_600));
        assert_eq!(flag(&["--for", "90s"]), of(90));
        assert_eq!(flag(&["--for", "forever"]), Ok(Lasts(None)));
        for (time, why) in [
            ("soon", "as in 90s, 10m or 1h 30m, or `forever`"),
            ("11y", "with `forever` a flag holds until it is taken back"),
            ("0s", "one second at least"),
        ] {
            let error = flag(&["--for", time]).unwrap_err();
            assert!(error.contains("'--for <TIME>'") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn devices_are_found_unless_they_are_named() {
        let parsed = |args: &[&str]| match Cli::try_parse_from(
            [&["nodefence", "agent", "--cluster-file", "x"], args].concat(),
        ) {
            Ok(Cli { verb: Verb::Agent(args), .. }) => Ok(args.interfaces),
            Ok(cli) => panic!("{cli:?}"),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(parsed(&[]), Ok(vec!["auto".to_owned()]));
        let named = ["eth0", "eth1", "auto"].map(str::to_owned).to_vec();
        assert_eq!(parsed(&["--interface", "eth0,eth1", "--interface", "auto"]), Ok(named));
        let error = parsed(&["--interface", "eth0,"]).unwrap_err();
        assert!(error.contains("--interface <NAME>"), "{error}");
    }

    #[test]
    fn which_nodes_and_flows_are_listed() {
        let parsed = |args: &str| {
            let words = ["nodefence"].into_iter().chain(args.split(' '));
            Cli::try_parse_from(words).and_then(Cli::checked).map_err(|error| error.to_string())
        };
        let cli = parsed("nodes b c --flagged -w --no-headers -o wide").unwrap();
        let Verb::Nodes(nodes) = cli.verb else { panic!("{:?}", cli.verb) };
        assert_eq!(nodes.names, ["b", "c"]);
        assert!(nodes.flagged && nodes.watch && nodes.no_headers && cli.output == Format::Wide);
        assert_eq!(parsed("nodes -o name").unwrap().output, Format::Name);
        assert!(parsed("flows -o name").unwrap_err().contains("-o name is for `nodes` alone"));
        assert_eq!(parsed("flows -o wide").unwrap().output, Format::Wide);
        for (args, why) in [
            ("flows --backend b", "expected ADDRESS or ADDRESS:PORT"),
            ("flows --protocol icmp", "`icmp` is no protocol: expected tcp, udp or sctp"),
            ("flows --limit 0", "--limit <N>"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn claims_that_no_person_made_are_observed_by_default_and_limited_to_a_third() {
        let args = agent(&[]).unwrap();
        assert_eq!((args.auto(), args.auto_limit()), (Auto::Observe, Share { part: 1, of: 3 }));
        assert_eq!(args.auto_limit(), Share::default());
        let args = agent(&["--auto", "enforce", "--auto-limit", "2/7"]).unwrap();
        assert_eq!((args.auto(), args.auto_limit()), (Auto::Enforce, Share { part: 2, of: 7 }));
        assert_eq!(agent(&["--auto", "off"]).unwrap().auto(), Auto::Off);
    }

    #[test]
    fn with_kubernetes_only_what_was_typed_holds_the_settings_back() {
        let of = |more: &[&str]| {
            let args = ["nodefence", "agent", "--kubernetes", "--node", "a", "--interface", "y"];
            let Ok(Verb::Agent(args)) = Cli::try_parse_from(args.iter().chain(more)).map(|cli| cli.verb)
            else {
                panic!("{more:?}")
            };
            (args.auto(), args.auto_limit())
        };
        assert_eq!(of(&[]), (Auto::Enforce, Share::ALL));
        assert_eq!(of(&["--auto", "observe"]), (Auto::Observe, Share::ALL));
        assert_eq!(of(&["--auto-limit", "1/4"]), (Auto::Enforce, Share { part: 1, of: 4 }));
    }

    #[test]
    fn what_is_wrong_with_a_value_is_said() {
        let wrong = |args: &[&str]| agent(args).map(drop).unwrap_err();
        let error = wrong(&["--auto", "maybe"]);
        assert!(
            error.contains("'maybe' for '--auto <AUTO>'") && error.contains("off, observe, enforce"),
            "{error}"
        );
        for text in ["", "3", "1/", "/3", "a/3", "1/3/5", "0.5/1", "-1/3", "1 / 3", "1/4294967296"] {
            let error = share(text).unwrap_err();
            assert!(error.ends_with("as PART/OF in whole numbers, as in 1/3"), "{text}: {error}");
        }
        for text in ["0/3", "0/0"] {
            assert!(share(text).unwrap_err().contains("PART must be 1 or more"), "{text}");
        }
        for text in ["4/3", "1/0"] {
            assert!(share(text).unwrap_err().contains("PART must not be more than OF"), "{text}");
        }
        assert_eq!(share("5/5"), Ok(Share { part: 5, of: 5 }));
        let error = wrong(&["--auto-limit", "4/3"]);
        assert!(
            error.contains("'4/3' for '--auto-limit <PART/OF>': expected a part of the nodes"),
            "{error}"
        );
    }
}
