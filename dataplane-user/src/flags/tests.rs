use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::*;
use crate::{
    cluster::NodeName,
    enforce::{
        Auto, Change, Claim, ClaimCause, ClaimSource, Enforcer, EnforcerSettings, Event, First, Input,
        LimitScope, NewClaim, Now, Output, Saved, Share, SharedPause, SharedSettings,
    },
    plan::Mode,
};

fn at(wall: i64, boot: u64) -> Now {
    Now { mono: 0, boot: Duration::from_secs(boot), wall: Timestamp::from_second(wall).unwrap() }
}

fn claim(source: ClaimSource, ends: Option<u64>) -> Claim {
    Claim {
        source,
        by: "root".into(),
        reason: "disk \"full\"\n".into(),
        evidence: None,
        since: Timestamp::from_nanosecond(1_000_000_000_007).unwrap(),
        raised: Duration::from_nanos(10_000_000_003),
        ends: ends.map(Duration::from_secs),
        until: None,
    }
}

fn first(seconds: u64) -> First {
    let since = Timestamp::from_nanosecond(900_000_000_003).unwrap();
    First { since, raised: Duration::from_secs(seconds) + Duration::from_nanos(7) }
}

/// Claims of each kind, none of which is over before a boot time of 60 s.
fn saved() -> Saved {
    let until = Some(Timestamp::from_second(2_000).unwrap());
    let hung = Claim { evidence: Some("12 answers owed".into()), ..claim(ClaimSource::Hung, Some(60)) };
    Saved {
        claims: vec![
            ("a".into(), claim(ClaimSource::Cli, None)),
            ("a".into(), Claim { until, ..claim(ClaimSource::File, Some(70)) }),
            ("b".into(), claim(object("one", ClaimCause::Operator, true), Some(60))),
            ("b".into(), claim(object("two", ClaimCause::External, false), Some(60))),
            ("b".into(), claim(ClaimSource::External("cloud".into()), Some(60))),
            ("b".into(), hung),
            (
                "c".into(),
                Claim {
                    ends: Some(Duration::from_nanos(60_000_000_001)),
                    ..claim(ClaimSource::Unreachable, None)
                },
            ),
        ],
        withheld: vec![
            (LimitScope::Whole, Duration::from_nanos(5_000_000_009)),
            (LimitScope::Zone("x".into()), Duration::from_secs(6)),
            (LimitScope::Pool("front".into()), Duration::from_secs(7)),
        ],
        gone: vec![
            ("b".into(), ClaimSource::External("cloud".into()), first(4)),
            ("d".into(), ClaimSource::Hung, first(5)),
        ],
        shared: Some(Arc::new(SharedSettings {
            off: true,
            mode: Mode::Observe,
            auto: Auto::Off,
            limit: Share { part: 2, of: 7 },
            pauses: vec![SharedPause {
                by: "ann".into(),
                reason: "move".into(),
                ends: Duration::from_nanos(70_000_000_001),
            }],
            opted_out: ["x".into()].into(),
        })),
    }
}

/// The second one is as an agent stored it that knew no UIDs.
fn object(name: &str, cause: ClaimCause, forced: bool) -> ClaimSource {
    ClaimSource::Object { name: name.into(), cause, forced, uid: (name == "one").then(|| "5f".into()) }
}

fn one() -> Saved {
    Saved { claims: vec![("a".into(), claim(ClaimSource::Cli, None))], ..Saved::default() }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// A file of version 1, from an agent that knew only the CLI's flags.
fn first_version(boot_id: &str) -> String {
    format!(
        r#"{{
  "version": 1,
  "boot_id": "{boot_id}",
  "flags": [
    {{ "node": "a", "reason": "disk", "since": "1970-01-01T00:16:40Z", "ends_boot_ms": 60500 }},
    {{ "node": "b", "reason": "", "since": "1970-01-01T00:16:41Z", "ends_boot_ms": null }},
    {{ "node": "c", "reason": "", "since": "1970-01-01T00:16:41Z", "ends_boot_ms": 20000 }}
  ]
}}
"#
    )
}

/// An agent that does not know the field `gone` writes files without it, and can read a file that has none.
#[test]
fn a_file_says_nothing_of_claims_that_are_gone_where_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    let without = Saved { gone: Vec::new(), ..saved() };
    store.save(&without).unwrap();
    assert!(!fs::read_to_string(store.path()).unwrap().contains("gone"));
    let adopted = store.adopt(at(1_000, 20)).unwrap();
    assert_eq!((adopted.saved, adopted.problem), (without, None));
}

/// Older agents read and wrote these words of version 2.
#[test]
fn sources_stand_in_the_file_by_their_words() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    store.save(&saved()).unwrap();
    let text: serde_json::Value = serde_json::from_slice(&fs::read(store.path()).unwrap()).unwrap();
    let sources: Vec<_> =
        text["claims"].as_array().unwrap().iter().map(|claim| claim["source"].clone()).collect();
    let external = serde_json::json!({ "external": "cloud" });
    let object = |name, cause, forced| serde_json::json!({"object": name, "cause": cause, "forced": forced});
    let mut first = object("one", "operator", true);
    first["uid"] = "5f".into();
    let second = object("two", "external", false);
    let expected =
        ["cli".into(), "cluster-file".into(), first, second, external, "hung".into(), "unreachable".into()];
    assert_eq!(sources, expected);
}

/// Writes a file that the store must reject. Returns the reason.
fn rejected(store: &FlagStore, text: &str) -> String {
    fs::write(store.path(), text).unwrap();
    let adopted = store.adopt(at(1_000, 20)).unwrap();
    assert_eq!(adopted.saved, Saved::default());
    assert!(!store.path().exists());
    assert_eq!(fs::read_to_string(bad(store.path())).unwrap(), text);
    adopted.problem.unwrap()
}

fn bad(path: &Path) -> PathBuf {
    path.with_extension("json.bad")
}

#[test]
fn all_claims_survive_in_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    assert_eq!(store.adopt(at(1_000, 10)).unwrap().saved, Saved::default());
    store.save(&saved()).unwrap();
    // A wall clock that was set back meanwhile changes nothing.
    let adopted = store.adopt(at(1_000 - 86_400, 20)).unwrap();
    assert_eq!((adopted.saved, adopted.problem), (saved(), None));
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(store.path()).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_flag_that_is_over_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    let flag = ("z".into(), claim(ClaimSource::Cli, Some(60)));
    let with =
        |flags: &[(NodeName, Claim)]| Saved { claims: [&saved().claims[..], flags].concat(), ..saved() };
    store.save(&with(std::slice::from_ref(&flag))).unwrap();
    assert_eq!(store.adopt(at(1_000, 59)).unwrap().saved, with(&[flag]));
    // Other claims stay though they are over: the next agent drops automatic ones, and the source may still have its own.
    let over = at(1_000, 71);
    let left = store.adopt(over).unwrap().saved;
    assert_eq!(left, saved());
    assert!(left.claims[1..].iter().all(|(_, claim)| claim.ended(over)));
}

/// For some time after a limit withheld claims, only claims count that were first raised after that. A withheld claim that ended while no
/// agent ran and is raised again is as old as before.
#[test]
fn a_withheld_claim_that_ended_while_no_agent_ran_is_not_new_once_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    let withheld = claim(ClaimSource::Hung, Some(40));
    let scopes = vec![(LimitScope::Whole, Duration::from_secs(15))];
    let claims = vec![("b".into(), withheld.clone())];
    store.save(&Saved { claims, withheld: scopes, ..Saved::default() }).unwrap();
    let now = at(1_000, 60);
    let settings = EnforcerSettings {
        own: "a".into(),
        mode: Mode::Enforce,
        auto: Auto::Enforce,
        answer: crate::plan::Answer::Refuse,
        limit: Share::default(),
        max_view_age: None,
        force: false,
        shares: false,
    };
    let mut enforcer = Enforcer::bridge(Vec::new(), store.adopt(now).unwrap().saved, settings, None, now);
    enforcer.handle(Input::Tick, now);
    let raised = NewClaim {
        source: ClaimSource::Hung,
        by: "".into(),
        reason: "".into(),
        evidence: None,
        lasts: None,
        until: None,
    };
    let change = Change::Raise { claim: raised, force: false };
    enforcer.handle(Input::Claim { node: "b".into(), change, ticket: None }, now);
    let told_of = std::iter::from_fn(|| enforcer.poll()).find_map(|output| match output {
        Output::Record(Event::Raised(node, claim)) => Some((node, claim)),
        _ => None,
    });
    let (node, again) = told_of.unwrap();
    assert_eq!((node.as_str(), again.raised, again.since), ("b", withheld.raised, withheld.since));
}

#[test]
fn flags_of_the_first_version_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    fs::write(store.path(), first_version(&boot_id())).unwrap();
    let adopted = store.adopt(at(2_000, 20)).unwrap();
    assert_eq!(adopted.problem, None);
    let flag = |reason: &str, since: i64, ends: Option<u64>| Claim {
        source: ClaimSource::Cli,
        by: "".into(),
        reason: reason.into(),
        evidence: None,
        since: Timestamp::from_second(since).unwrap(),
        raised: Duration::from_secs(20),
        ends: ends.map(Duration::from_millis),
        until: None,
    };
    let expected = vec![("a".into(), flag("disk", 1_000, Some(60_500))), ("b".into(), flag("", 1_001, None))];
    assert_eq!(adopted.saved, Saved { claims: expected, ..Saved::default() });
    // The next save writes the file in this version.
    store.save(&adopted.saved).unwrap();
    assert!(fs::read_to_string(store.path()).unwrap().contains("\"version\": 2"));
    assert_eq!(store.adopt(at(2_000, 20)).unwrap().saved, adopted.saved);
}

#[test]
fn a_file_that_cannot_be_believed_gives_no_flags_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    store.save(&one()).unwrap();
    let good = fs::read_to_string(store.path()).unwrap();
    let first = first_version(&boot_id());
    for (text, says) in [
        (String::new(), "is damaged: EOF"),
        (good[..good.len() / 2].to_owned(), "is damaged: EOF"),
        (good.replace("\"claims\"", "\"claimz\""), "is damaged: unknown field `claimz`"),
        (good.replace("\"ends_boot_ns\"", "\"ends\""), "is damaged: unknown field `ends`"),
        (good.replace("\"cli\"", "\"nobody\""), "is damaged: unknown source `nobody`"),
        (good.replace("\"version\": 2", "\"version\": 3"), "is of version 3, expected 2;"),
        (good.replace("\"version\": 2", "\"version\": 0"), "is of version 0, expected 2;"),
        // A later version may have any fields.
        ("{\"version\": 9, \"verdicts\": []}".to_owned(), "is of version 9, expected 2;"),
        (good.replace(&boot_id(), "another"), "is from before the machine booted;"),
        (first.replace("\"ends_boot_ms\"", "\"ends\""), "is damaged: unknown field `ends`"),
        (first_version("another"), "is from before the machine booted;"),
    ] {
        let problem = rejected(&store, &text);
        let path = store.path().display();
        assert!(problem.starts_with(&format!("flags file {path} {says}")), "{problem}");
        let kept = bad(store.path());
        let end = format!("; its flags are gone, flag again; kept as {}", kept.display());
        assert!(problem.ends_with(&end), "{problem}");
    }
    assert_eq!(store.adopt(at(1_000, 20)).unwrap().problem, None);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(&dir.path().join("missing"));
    let error = store.save(&Saved::default()).unwrap_err().to_string();
    assert!(error.contains("missing/flags.json"), "{error}");
}

#[test]
fn a_file_of_more_than_an_agent_writes_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    std::fs::write(store.path(), " ".repeat((16 << 20) + 1)).unwrap();
    store.check().unwrap();
    let adopted = store.adopt(at(1_000, 20)).unwrap();
    let problem = adopted.problem.unwrap();
    assert!(
        problem.contains("is damaged: 16777217 bytes; the limit is 16777216; its flags are gone"),
        "{problem}"
    );
    assert!(dir.path().join("flags.json.bad").exists() && adopted.saved == Saved::default());
}

/// The next agent would reject the file as damaged.
#[test]
fn what_could_not_be_read_again_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    store.save(&one()).unwrap();
    let long = Claim { reason: "x".repeat(16 << 20).into(), ..claim(ClaimSource::File, None) };
    let saved = Saved { claims: vec![("a".into(), long)], ..Saved::default() };
    let error = store.save(&saved).unwrap_err().to_string();
    assert!(error.ends_with("; the limit is 16777216"), "{error}");
    store.check().unwrap();
    assert_eq!(store.adopt(at(1_000, 20)).unwrap().saved, one());
}

#[test]
fn what_is_no_regular_file_is_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    store.check().unwrap();
    fs::create_dir(store.path()).unwrap();
    let refused = || store.check().unwrap_err().to_string();
    assert!(refused().contains("flags.json: is not a regular file"), "{}", refused());
    fs::remove_dir(store.path()).unwrap();
    nix::unistd::mkfifo(store.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused().contains("flags.json: is not a regular file"), "{}", refused());
    // Even a pipe that appeared after the check does not block.
    assert!(store.adopt(at(1_000, 10)).unwrap_err().to_string().contains("is not a regular file"));
    assert!(store.path().exists(), "what cannot be read at this moment stays");
    nix::unistd::mkfifo(&dir.path().join("flags.json.new"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    store.save(&Saved::default()).unwrap();
    store.check().unwrap();
    assert!(store.remove().unwrap() && !store.remove().unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
