//! `nodes`: which nodes are listed, in which form, and which of them `--watch` prints again.

use std::{collections::BTreeMap, path::Path, thread, time::Duration};

use anyhow::Context as _;

use super::{
    args::{Format, NodesArgs},
    claims::all_text,
    exit::Exit,
    fault::not_found,
    output::{causes, columns, count, is_put, or_dash, print, say},
};
use crate::report::{ClaimState, Client, ClientError, Envelope, NodeAction, NodeList, NodeRow, Request};

/// How often `--watch` asks the agent.
const LOOK: Duration = Duration::from_secs(1);

/// Carries out `nodes`.
pub(super) fn nodes(socket: &Path, format: Format, args: &NodesArgs) -> anyhow::Result<Exit> {
    let rows = ask(socket)?;
    let unknown = unknown(&rows, args);
    if args.watch {
        // Programs get a line too and no object, since the command goes on.
        not_found(Format::Table, &unknown);
        return watch(socket, format, args, rows);
    }
    let items = rows.into_iter().filter(|row| is_wanted(row, args)).collect();
    let list = NodeList { items, not_found: unknown };
    not_found(format, &list.not_found);
    print(format, &list, |list| table(list, format, args.no_headers))?;
    Ok(if list.not_found.is_empty() { Exit::Ok } else { Exit::Unknown })
}

/// The list as text, for people.
pub(super) fn table(list: &NodeList, format: Format, no_headers: bool) -> String {
    let lines = lines(list.items.iter(), format);
    lines.into_iter().skip(usize::from(no_headers)).collect::<Vec<_>>().join("\n")
}

/// The text of `--watch` where the agent does not answer.
pub(super) fn away(error: ClientError) -> String {
    format!("nodefence: {}; it is waited for", causes(&anyhow::Error::new(error)))
}

fn ask(socket: &Path) -> Result<Vec<NodeRow>, ClientError> {
    Client::connect(socket)?.ask(&Request::Nodes)
}

fn is_wanted(row: &NodeRow, args: &NodesArgs) -> bool {
    let is_claimed = || row.claims.iter().any(|claim| claim.standing != ClaimState::Over);
    (args.names.is_empty() || args.names.contains(&row.name))
        && (!args.flagged || row.flag.is_some() || is_claimed())
}

/// The requested names that no node has.
fn unknown(rows: &[NodeRow], args: &NodesArgs) -> Vec<String> {
    let is_missing = |name: &&String| !rows.iter().any(|row| row.name == **name);
    args.names.iter().filter(is_missing).cloned().collect()
}

/// The line with the columns' names, where the format has one, and a line for each row.
fn lines<'a>(rows: impl Iterator<Item = &'a NodeRow>, format: Format) -> Vec<String> {
    let name = |row: &NodeRow| if row.own { format!("{} (own)", row.name) } else { row.name.clone() };
    let action = |row: &NodeRow| match row.exempt {
        0 => row.action.to_string(),
        exempt => format!("{}, {} exempt", row.action, count(exempt, "port")),
    };
    let text = match format {
        Format::Name => columns(["NAME"], rows.map(|row| [row.name.clone()])),
        Format::Wide => columns(
            ["NAME", "ADDRESSES", "ZONE", "POOL", "INDEX", "GENERATION", "BACKENDS", "ACTION", "FLAG"],
            rows.map(|row| {
                let addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
                [
                    name(row),
                    or_dash((!addresses.is_empty()).then(|| addresses.join(","))),
                    or_dash(row.zone.as_ref()),
                    or_dash(row.pool.as_ref()),
                    row.index.to_string(),
                    row.generation.to_string(),
                    row.backends.to_string(),
                    action(row),
                    or_dash(all_text(row)),
                ]
            }),
        ),
        Format::Table | Format::Json | Format::Yaml => columns(
            ["NAME", "ADDRESS", "ZONE", "INDEX", "BACKENDS", "ACTION", "FLAG"],
            rows.map(|row| {
                [
                    name(row),
                    or_dash(row.address.as_ref()),
                    or_dash(row.zone.as_ref()),
                    row.index.to_string(),
                    row.backends.to_string(),
                    action(row),
                    or_dash(all_text(row)),
                ]
            }),
        ),
    };
    // The format `name` has no line with the columns' names.
    text.lines().skip(usize::from(format == Format::Name)).map(str::to_owned).collect()
}

/// The rows that `--watch` has printed, by name.
#[derive(Default)]
pub(super) struct Watched {
    printed: BTreeMap<String, NodeRow>,
}

impl Watched {
    /// The rows to print now: rows that are new or have changed, and once more rows that the arguments no longer select. A node that no longer
    /// exists has the action `gone`.
    fn changed(&mut self, rows: Vec<NodeRow>, args: &NodesArgs) -> Vec<NodeRow> {
        let mut before = std::mem::take(&mut self.printed);
        let mut changed = Vec::new();
        for row in rows {
            let was = before.remove(&row.name);
            let wanted = is_wanted(&row, args);
            let differs = was.as_ref().is_none_or(|was| timeless(was) != timeless(&row));
            if differs && (wanted || was.is_some()) {
                changed.push(row.clone());
            }
            if wanted {
                self.printed.insert(row.name.clone(), row);
            }
        }
        changed.extend(before.into_values().map(|row| NodeRow { action: NodeAction::Gone, ..row }));
        changed
    }

    /// The changed rows as text. The columns are as wide as all printed rows need.
    pub(super) fn text(&self, changed: &[NodeRow], format: Format, head: bool) -> anyhow::Result<String> {
        let lines = match format {
            Format::Json => {
                let line = |row| serde_json::to_string(&Envelope::new(row));
                changed.iter().map(line).collect::<Result<Vec<_>, _>>()?
            }
            Format::Yaml => {
                let document = |row: &NodeRow| {
                    serde_saphyr::to_string(&Envelope::new(row))
                        .map(|text| format!("---\n{}", text.trim_end()))
                };
                changed.iter().map(document).collect::<Result<Vec<_>, _>>()?
            }
            Format::Table | Format::Wide | Format::Name => {
                let lines = lines(changed.iter().chain(self.printed.values()), format);
                let heads = usize::from(format != Format::Name);
                let skipped = if head { 0 } else { heads };
                lines.into_iter().take(heads + changed.len()).skip(skipped).collect::<Vec<_>>()
            }
        };
        Ok(lines.into_iter().map(|line| line + "\n").collect())
    }
}

/// The row without the fields that change as time goes by.
fn timeless(row: &NodeRow) -> NodeRow {
    let mut row = row.clone();
    if let Some(flag) = &mut row.flag {
        flag.remaining_seconds = None;
        flag.until = None;
    }
    row.claims.iter_mut().for_each(|claim| claim.until = None);
    row
}

/// Prints changes until nobody reads them or the process ends. While the agent restarts, this waits for it.
fn watch(socket: &Path, format: Format, args: &NodesArgs, rows: Vec<NodeRow>) -> anyhow::Result<Exit> {
    let mut watched = Watched::default();
    let mut head = !args.no_headers;
    let mut news = Ok(rows);
    let mut is_away = false;
    loop {
        match news {
            Ok(rows) => {
                is_away = false;
                let changed = watched.changed(rows, args);
                let text = watched.text(&changed, format, head).context("cannot make text of the rows")?;
                head = false;
                if !is_put(text)? {
                    return Ok(Exit::Ok);
                }
            }
            Err(error) if !is_away => {
                is_away = true;
                say(&away(error));
            }
            Err(_) => {}
        }
        thread::sleep(LOOK);
        news = ask(socket);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(name: &str) -> Value {
        json!({
            "name": name, "address": "10.0.0.2", "addresses": ["10.0.0.2", "fd00::2"], "zone": "z1", "pool": null, "index": 1,
            "generation": 2, "backends": 3, "own": false, "action": "pass", "exempt": 0, "flag": null, "claims": []
        })
    }

    fn flagged(name: &str, left: u64) -> Value {
        let mut row = row(name);
        row["action"] = json!("refuse");
        row["flag"] = json!({
            "origin": "cli", "set_by": "nodefence flag", "by": "root", "reason": "", "since": "2026-01-01T00:00:00Z",
            "remaining_seconds": left, "until": format!("2026-01-01T00:00:{left:02}Z")
        });
        row
    }

    fn claimed(name: &str, standing: &str, until: u64) -> Value {
        let mut row = row(name);
        row["claims"] = json!([{
            "source": "hung", "cause": "hung", "by": "", "reason": "", "evidence": null, "since": "2026-01-01T00:00:00Z",
            "until": format!("2026-01-01T00:00:{until:02}Z"), "standing": standing, "withheld_by": []
        }]);
        row
    }

    fn rows<const N: usize>(rows: [Value; N]) -> Vec<NodeRow> {
        serde_json::from_value(rows.to_vec().into()).expect("rows")
    }

    fn wanted(names: &[&str], flagged: bool) -> NodesArgs {
        NodesArgs {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            flagged,
            ..NodesArgs::default()
        }
    }

    #[test]
    fn nodes_are_listed_by_name_and_by_flag() {
        let all = rows([row("a"), flagged("b", 5), claimed("c", "observed", 5), claimed("d", "over", 5)]);
        let listed = |args: &NodesArgs| {
            let rows = all.iter().filter(|row| is_wanted(row, args));
            rows.map(|row| row.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(listed(&wanted(&[], false)), "a b c d");
        assert_eq!(listed(&wanted(&["d", "z", "a"], false)), "a d");
        assert_eq!(listed(&wanted(&[], true)), "b c");
        assert_eq!(listed(&wanted(&["a", "b"], true)), "b");
        assert_eq!(unknown(&all, &wanted(&["d", "z", "a"], false)), ["z"]);
        assert!(unknown(&all, &wanted(&[], true)).is_empty());
    }

    #[test]
    fn each_format_has_its_columns() {
        let mut own = row("node-a");
        own["own"] = json!(true);
        let mut exempt = flagged("b", 59);
        exempt["exempt"] = json!(2);
        let rows = rows([own, exempt]);
        let text = |format| lines(rows.iter(), format).join("\n");
        assert_eq!(
            text(Format::Table),
            "NAME          ADDRESS   ZONE  INDEX  BACKENDS  ACTION                  FLAG\n\
             node-a (own)  10.0.0.2  z1    1      3         pass                    -\n\
             b             10.0.0.2  z1    1      3         refuse, 2 ports exempt  flagged by root, 59s left"
        );
        assert_eq!(
            text(Format::Wide),
            "NAME          ADDRESSES         ZONE  POOL  INDEX  GENERATION  BACKENDS  ACTION                  FLAG\n\
             node-a (own)  10.0.0.2,fd00::2  z1    -     1      2           3         pass                    -\n\
             b             10.0.0.2,fd00::2  z1    -     1      2           3         refuse, 2 ports exempt  flagged by root, 59s left"
        );
        assert_eq!(text(Format::Name), "node-a\nb");
    }

    #[test]
    fn a_row_is_printed_again_when_it_changes() {
        let mut watched = Watched::default();
        let mut told = |args: &NodesArgs, now: Vec<NodeRow>| {
            let changed = watched.changed(now, args);
            changed.iter().map(|row| format!("{} {}", row.name, row.action)).collect::<Vec<_>>().join(", ")
        };
        let all = wanted(&[], false);
        assert_eq!(told(&all, rows([row("a"), claimed("b", "observed", 5)])), "a pass, b pass");
        // Neither passing time nor a renewed claim is a change.
        assert_eq!(told(&all, rows([row("a"), claimed("b", "observed", 9)])), "");
        assert_eq!(told(&all, rows([flagged("a", 9), claimed("b", "observed", 9)])), "a refuse");
        assert_eq!(told(&all, rows([flagged("a", 8), claimed("b", "over", 9)])), "b pass");
        assert_eq!(told(&all, rows([flagged("a", 7)])), "b gone");
        assert_eq!(told(&all, rows([flagged("a", 6), row("b")])), "b pass");
        // A node that is no longer flagged is printed once more.
        let only = wanted(&[], true);
        assert_eq!(told(&only, rows([flagged("a", 5), row("b")])), "");
        assert_eq!(told(&only, rows([row("a"), row("b")])), "a pass");
        assert_eq!(told(&only, rows([row("a"), flagged("b", 5)])), "b refuse");
    }

    #[test]
    fn what_is_watched_keeps_its_columns() {
        let mut watched = Watched::default();
        let args = wanted(&[], false);
        let mut text = |format, head, now: Vec<NodeRow>| {
            let changed = watched.changed(now, &args);
            watched.text(&changed, format, head).unwrap()
        };
        assert_eq!(
            text(Format::Table, true, rows([row("a-long-name"), row("b")])),
            "NAME         ADDRESS   ZONE  INDEX  BACKENDS  ACTION  FLAG\n\
             a-long-name  10.0.0.2  z1    1      3         pass    -\n\
             b            10.0.0.2  z1    1      3         pass    -\n"
        );
        assert_eq!(
            text(Format::Table, false, rows([row("a-long-name"), flagged("b", 9)])),
            "b            10.0.0.2  z1    1      3         refuse  flagged by root, 9s left\n"
        );
        assert_eq!(text(Format::Table, false, rows([row("a-long-name"), flagged("b", 8)])), "");
        let json = text(Format::Json, false, rows([row("a-long-name"), row("b")]));
        assert_eq!(json.lines().count(), 1);
        let read: NodeRow = serde_json::from_str(&json).unwrap();
        assert_eq!((read.name.as_str(), read.flag), ("b", None));
        let yaml = text(Format::Yaml, false, rows([flagged("a-long-name", 5), row("b")]));
        assert!(
            yaml.starts_with("---\nschema_version: 1\nkind: Node\nname: a-long-name\n")
                && yaml.ends_with('\n'),
            "{yaml}"
        );
        assert_eq!(text(Format::Name, false, rows([flagged("a-long-name", 5)])), "b\n");
    }
}
