use serde_json::{Value, json};

use super::*;
use crate::report::sample::{changed, two_flagged};

fn text(status: Status, format: Format) -> String {
    super::status(&status.into(), format)
}

/// The number of lines of `-o wide`, which was once the only form of `status`.
fn of_before(status: &Status) -> usize {
    status_wide::lines(status).len()
}

/// With its first line the text has at most a third of the lines of `-o wide`.
#[test]
fn it_takes_a_third_of_the_lines() {
    for status in [changed(|_| ()), two_flagged()] {
        let before = of_before(&status);
        let text = text(status, Format::Table);
        assert!(3 * text.lines().count() <= before, "more than a third of {before}:\n{text}");
    }
}

#[test]
fn it_is_short() {
    let well = changed(|_| ());
    assert_eq!(of_before(&well), 12);
    assert_eq!(
        text(well, Format::Table),
        "OK: no node is cut\n\
         Agent           node-a (nodefence 0.1.0, process 7, since 2026-01-01T00:00:00Z): enforce, answer refuse; kube-proxy: datapath only (--proxy says so)\n\
         View            /c.yaml: 2 nodes, 1 backend, 0 Services with 0 endpoints; number 1, read 2s ago\n\
         Devices         eth0 (tcx); they cover 1 of 1 backend\n"
    );
    let flagged = two_flagged();
    assert_eq!(of_before(&flagged), 23);
    assert_eq!(
        text(flagged, Format::Table),
        "OK: 2 nodes are cut\n\
         Agent           node-a (nodefence 0.1.0, process 7, since 2026-01-01T00:00:00Z): enforce, answer refuse; kube-proxy: ipvs (kube-proxy says so)\n\
         View            /c.yaml: 2 nodes, 1 backend, 0 Services with 0 endpoints; number 1, read 2s ago\n\
         Devices         eth0 (tcx); they cover 1 of 1 backend\n\
         Flagged         node-b: refuse, since 2026-01-01T00:00:00Z, until 2026-01-01T00:10:00Z, IPVS drained 10 of 12, challenged 4 of 4 flows; flagged by root, 10m left: disk\n\
         Flagged         node-c: refuse, since 2026-01-01T00:00:00Z, 1 port exempt, IPVS drained 11 of 11 and exempts 1 service, challenged 8 of 8 flows; flagged by root until unflagged: disk\n"
    );
}

#[test]
fn warnings_stand_above_and_are_not_said_again() {
    let all = |status: &mut Value| {
        status["interfaces"][0]["error"] = json!("no \u{1b}room");
        status["cluster"]["error"] = json!("one");
        status["ipvs"]["note"] = json!("two");
        status["log_lines_lost"] = json!(8);
    };
    let above = "DEGRADED: 3 warnings: NF09, NF21, NF27; since the agent began: NF31\n  \
                   NF09  the cluster file was not taken, the last good view holds: one\n  \
                   NF21  eth0: no \\u{1b}room\n  \
                   NF27  two\n  \
                   NF31  8 lines were lost since the agent began: they came faster than they could be written\n";
    for format in [Format::Table, Format::Wide] {
        let before = text(changed(|_| ()), format);
        let (_, below) = before.split_once('\n').expect("a first line");
        assert_eq!(text(changed(all), format), format!("{above}{below}"));
    }
}

#[test]
fn a_device_that_has_something_to_say_has_a_line_more() {
    let text = text(
        changed(|status| {
            status["interfaces"][0]["bridge"] = json!("br0");
            status["interfaces"][0]["xdp"] = json!({"state": "generic", "reason": null});
            status["covered"] = json!(null);
        }),
        Format::Table,
    );
    let expected = "Devices         eth0 (tcx, XDP generic); not covered: 0 backends\n                \
                    eth0: port of the bridge br0: what pods and guests on its ports send to a backend is switched there, and not cut\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn what_few_nodes_have_has_lines_of_its_own() {
    let lines = |change: &dyn Fn(&mut Value)| {
        let before = text(changed(|_| ()), Format::Table);
        let now = text(changed(change), Format::Table);
        let new = now.lines().filter(|line| !before.lines().any(|was| was == *line));
        new.map(str::to_owned).collect::<Vec<_>>()
    };
    let by = json!({"by": "user 7", "at": "2026-01-01T00:00:00Z"});
    let level = |status: &mut Value| {
        status["log_level"] = json!({"started": "info", "set": "debug", "changed": by});
    };
    assert_eq!(
        lines(&level),
        ["Log level       set to debug by user 7 at 2026-01-01T00:00:00Z; started with info"]
    );
    let enforced = |status: &mut Value| {
        status["mode_set"] = json!({"started": "observe", "set": "enforce", "changed": by});
    };
    assert_eq!(
        lines(&enforced),
        ["                set to enforce by user 7 at 2026-01-01T00:00:00Z; started with observe"]
    );
    let forced = |status: &mut Value| {
        status["replacement"] = json!({"product": "Cilium", "device": "cilium_host", "beside": "forced", "why": "it is there", "remedy": "-"});
    };
    assert_eq!(lines(&forced), ["                it is there"]);
    let unrescued = |status: &mut Value| status["rescue"]["idle"] = json!("how it forwards is not known");
    let refused = "Rescue          none, new connections are refused: how it forwards is not known";
    assert_eq!(lines(&unrescued), [refused]);
    let restored = |status: &mut Value| {
        status["ipvs"]["nodes"] =
            json!({"node-b": DrainRow { drained: 2, waiting: 1, ..DrainRow::default() }});
        status["stale"] = json!({"node-b": crate::report::StaleRow::default()});
    };
    assert_eq!(lines(&restored), ["Restored        node-b: IPVS drained 2 of 3"]);
    let unknown = |status: &mut Value| {
        status["flagged_unknown"] = json!({"node-b": {
            "origin": "cli", "set_by": "nodefence flag", "by": "root", "reason": "disk", "since": "2026-01-01T00:00:00Z",
            "remaining_seconds": null, "until": null
        }});
    };
    let line = "Flagged         node-b (not in the cluster file): flagged by root until unflagged: disk";
    assert_eq!(lines(&unknown), [line]);
}

#[test]
fn what_was_deleted_and_observed_is_told_of_its_node() {
    let mut status = two_flagged();
    let row =
        crate::report::StaleRow { datagrams: 2, tcp: 3, affinity: 1, by_filter: 4, ..Default::default() };
    status.stale.insert("node-b".into(), row);
    status.ipvs.nodes.insert("node-b".into(), DrainRow { planned: 5, ..DrainRow::default() });
    let text = text(status, Format::Table);
    let part = ", IPVS would drain 5, challenged 4 of 4 flows, stale entries deleted: 6, and the matches of 4 filters; flagged by";
    assert!(text.contains(part), "{text}");
}

#[test]
fn what_stands_is_a_finding() {
    let exit = |change: &dyn Fn(&mut Value)| check(&Health::of(&changed(change)));
    assert_eq!(exit(&|_| {}), Exit::Ok);
    assert_eq!(exit(&|status| status["flags_problem"] = json!("is damaged")), Exit::Findings);
    let once = |status: &mut Value| {
        status["log_lines_lost"] = json!(8);
        status["dataplane"]["differed"] = json!(1);
    };
    assert_eq!(exit(&once), Exit::Ok);
    // A mode that somebody set to observe is no finding.
    assert_eq!(exit(&|status| status["mode"] = json!("observe")), Exit::Ok);
}
