//! The table of two runs, for the terminal and for the docs.

use super::{
    judge::{Attempts, Datagrams, Established, Figures},
    observed::{Restored, Run},
    scenario::Scenario,
};

/// A row: name, stock, with nodefence.
type Row = [String; 3];

/// The rows, the first of which is the head.
fn rows(stock: &Run, flagged: &Run) -> Vec<Row> {
    let both = [stock, flagged];
    let figures = both.map(Figures::of);
    let row = |name: &str, cell: &dyn Fn(&Figures) -> String| {
        let [one, other] = figures.each_ref().map(cell);
        [name.to_owned(), one, other]
    };
    let of_runs = |name: &str, cell: &dyn Fn(&Run) -> String| {
        let [one, other] = both.map(cell);
        [name.to_owned(), one, other]
    };
    let scenario = flagged.facts.scenario;
    let length = match scenario {
        Scenario::Freeze | Scenario::NoApi => "the node was frozen for",
        Scenario::Pods => "the pods were frozen for",
        Scenario::Off => "the node was off, and stays so, for",
    };
    let to_node = |connections: &str| format!("{connections} connections to {}", scenario.node());
    let mut rows = vec![
        of_runs("", &|run| run.facts.way.name().to_owned()),
        of_runs(length, &|run| format!("{:.0} s", run.facts.moments.after_freeze(run.facts.moments.thawed))),
        row("longest wait for an answer", &|of| format!("{:.1} s", of.longest_wait)),
        row("waits longer than 2 s", &|of| of.long_waits.to_string()),
        row(&to_node("established"), &|of| established(of.established)),
        row(&to_node("idle"), &|of| {
            let last = of.idle.last.map(|last| format!(", the last {last:.2} s after the flag"));
            format!("{} of {} reset{}", of.idle.reset, of.idle.on_frozen, last.unwrap_or_default())
        }),
        row("new connections that failed", &|of| share(of.new.failed, of.new.total)),
        row("- at once", &|of| of.new.at_once.to_string()),
        row("- by the client's limit of 5 s", &|of| of.new.timed_out.to_string()),
        row("- the last one", &|of| last_failed(&of.new, scenario)),
        row("new connections with a second SYN", &|of| of.new.second_syn.to_string()),
        row("datagrams of one port that were lost", &|of| lost(of.fixed_port)),
        row("- longest time without an answer", &|of| format!("{:.1} s", of.silence)),
        row("datagrams of a port each that were lost", &|of| lost(of.fresh_ports)),
        row("connections to other nodes that ended", &|of| of.others_ended.to_string()),
    ];
    if both.iter().any(|run| run.facts.restored != Restored::NoIpvs) {
        rows.push(of_runs("IPVS's table afterwards", &|run| match &run.facts.restored {
            Restored::NoIpvs => "not in use".to_owned(),
            Restored::StaysOff => "not compared: the node stays off".to_owned(),
            Restored::After { .. } => "as before".to_owned(),
            Restored::Differs { lines } => format!("{} rows differ", lines.len()),
        }));
    }
    rows.push(row("longest stand-still of clients or a guest", &|of| format!("{:.2} s", of.still)));
    rows
}

/// What the figures count.
fn caption(flagged: &Run) -> String {
    let moments = flagged.facts.moments;
    let from = moments.after_freeze(moments.judged());
    let (moment, node) = (flagged.facts.scenario.moment(), flagged.facts.scenario.node());
    format!(
        "Counted from {from:.1} s after the {moment}, which is 1 s after the flag, to the end of the run. Connections to {node} are those that led there at the {moment}."
    )
}

fn established(of: Established) -> String {
    let mut text = format!("{} of {} reset", of.reset, of.on_frozen);
    if of.ended > 0 {
        text += &format!(", {} ended otherwise", of.ended);
    }
    if of.never > 0 {
        text += &format!(", {} never told", of.never);
    }
    text
}

fn share(count: usize, total: usize) -> String {
    format!("{count} of {total} ({:.1} %)", count as f64 * 100.0 / total.max(1) as f64)
}

fn lost(datagrams: Datagrams) -> String {
    share(datagrams.lost, datagrams.total)
}

fn last_failed(new: &Attempts, scenario: Scenario) -> String {
    let moment = scenario.moment();
    new.last_failed.map_or_else(|| "none".to_owned(), |last| format!("begun {last:.1} s after the {moment}"))
}

/// The table for the terminal.
pub(super) fn plain(stock: &Run, flagged: &Run) -> String {
    let rows = rows(stock, flagged);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for (at, [name, one, other]) in rows.iter().enumerate() {
        let line = format!("{name:<0$}   {one:<1$}   {other}", widths[0], widths[1]);
        text += &format!("  {}\n", line.trim_end());
        if at == 0 {
            text += &format!("  {}\n", "-".repeat(widths.iter().sum::<usize>() + 6));
        }
    }
    format!("{text}\n  {}\n", caption(flagged))
}

/// The table for the docs.
pub(super) fn markdown(stock: &Run, flagged: &Run) -> String {
    let mut text = String::new();
    for (at, row) in rows(stock, flagged).iter().enumerate() {
        text += &format!("| {} |\n", row.join(" | "));
        if at == 0 {
            text += "|---|---|---|\n";
        }
    }
    format!("{text}\n{}\n", caption(flagged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{
        judge::sample::{Sample, at},
        plan::Way,
        record::{End, Kind},
    };

    #[test]
    fn stock_stands_beside_ours() {
        let mut stock = Sample::held();
        stock.facts().way = Way::Stock;
        stock.keep(1, 0, at(3_000), 7_000, End::Answered, Some("node-3"));
        for client in 900..940 {
            stock.add(Kind::New, client, at(4_500), 5_000, End::TimedOut, None).syns_again = 1;
        }
        let stock = stock.run();
        let ours = Sample::held().run();
        let text = plain(&stock, &ours);
        let cells = |name: &str| {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)).expect(name);
            line.split("   ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(cells("longest wait"), ["for an answer", "7.0 s", "0.0 s"]);
        let reset = "1 of 1 reset, the last 0.30 s after the flag";
        assert_eq!(cells("idle connections to the frozen node"), [reset, reset]);
        assert_eq!(cells("new connections that failed"), ["40 of 240 (16.7 %)", "0 of 200 (0.0 %)"]);
        assert_eq!(cells("- by the client's limit of 5 s"), ["40", "0"]);
        assert_eq!(cells("- the last one"), ["begun 4.5 s after the freeze", "none"]);
        assert_eq!(cells("established connections to the frozen node"), ["1 of 1 reset", "1 of 1 reset"]);
        assert!(text.contains("Counted from 2.0 s after the freeze"), "{text}");
        let docs = markdown(&stock, &ours);
        assert!(docs.starts_with(
            "|  | stock | with nodefence |\n|---|---|---|\n| the node was frozen for | 10 s | 10 s |\n"
        ));
        assert!(docs.contains("| new connections with a second SYN | 40 | 0 |\n"));
    }

    #[test]
    fn a_node_that_stays_off_is_called_so() {
        let off = || {
            let mut run = Sample::held();
            run.facts().scenario = Scenario::Off;
            run.facts().restored = Restored::StaysOff;
            run.run()
        };
        let docs = markdown(&off(), &off());
        for row in [
            "| the node was off, and stays so, for | 10 s | 10 s |\n",
            "| established connections to the node that is off | 1 of 1 reset | 1 of 1 reset |\n",
            "| IPVS's table afterwards | not compared: the node stays off | not compared: the node stays off |\n",
        ] {
            assert!(docs.contains(row), "{row}{docs}");
        }
        assert!(
            docs.contains("Counted from 2.0 s after the power-off, ") && !docs.contains("froze"),
            "{docs}"
        );
    }
}
