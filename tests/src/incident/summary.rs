//! The table of several scenarios, one row each.

use super::{
    judge::{Figures, Verdict},
    scenario::Scenario,
};

/// What came out of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// kube-proxy's mode.
    pub proxy: String,
    /// The scenario.
    pub scenario: Scenario,
    /// The figures of the run without a flag.
    pub stock: Figures,
    /// The figures of the run with a flag that counts.
    pub flagged: Figures,
    /// The verdict on it.
    pub verdict: Verdict,
    /// Why the runs before it do not count.
    pub again: Vec<String>,
}

impl Outcome {
    /// The scenario with kube-proxy's mode, in words.
    pub fn name(&self) -> String {
        format!("{}, {}", self.proxy, self.scenario.text())
    }

    /// The lines below the table: each broken promise, and each run that does not count.
    fn lines(&self) -> Vec<String> {
        let name = self.name();
        // A reason's first line says what stood still.
        let reasons = (1..).zip(&self.again);
        let again = reasons.map(|(run, reason)| {
            format!("AGAIN  {name}: run {run} does not count: {}", reason.lines().next().unwrap_or_default())
        });
        let broken = self.verdict.wrong().into_iter().flat_map(str::lines);
        let broken = broken.filter_map(|line| line.strip_prefix("broken: "));
        again.chain(broken.map(|promise| format!("BROKEN  {name}: {promise}"))).collect()
    }
}

/// A figure of the table.
type Cell = fn(&Figures) -> String;

/// The figures, each with its name.
const FIGURES: [(&str, Cell); 5] = [
    ("longest wait", |of| format!("{:.1} s", of.longest_wait)),
    ("new connections failed", |of| share(of.new.failed, of.new.total)),
    ("established reset", |of| format!("{} of {}", of.established.reset, of.established.on_frozen)),
    ("idle reset", |of| format!("{} of {}", of.idle.reset, of.idle.on_frozen)),
    ("datagrams lost", |of| {
        let both = [of.fixed_port, of.fresh_ports];
        share(both.iter().map(|one| one.lost).sum(), both.iter().map(|one| one.total).sum())
    }),
];

fn share(count: usize, total: usize) -> String {
    format!("{count} of {total}")
}

/// The table of all outcomes, and below it what is wrong.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut rows = vec![
        [String::new(), String::new()]
            .into_iter()
            .chain(FIGURES.iter().flat_map(|(name, _)| [(*name).to_owned(), String::new()]))
            .collect::<Vec<_>>(),
        ["kube-proxy", "scenario"]
            .into_iter()
            .chain(FIGURES.iter().flat_map(|_| ["stock", "ours"]))
            .map(str::to_owned)
            .chain(["promises".to_owned()])
            .collect(),
    ];
    rows.extend(outcomes.iter().map(|outcome| {
        let held = if outcome.verdict == Verdict::Held { "held" } else { "BROKEN" };
        let both = |cell: Cell| [cell(&outcome.stock), cell(&outcome.flagged)];
        [outcome.proxy.clone(), outcome.scenario.text().to_owned()]
            .into_iter()
            .chain(FIGURES.iter().flat_map(|(_, cell)| both(*cell)))
            .chain([held.to_owned()])
            .collect()
    }));
    let mut text = aligned(&rows);
    for line in outcomes.iter().flat_map(Outcome::lines) {
        text += &format!("\n  {line}");
    }
    text += if outcomes.iter().all(|outcome| outcome.verdict == Verdict::Held) {
        "\n  Each promise was held in each scenario.\n"
    } else {
        "\n"
    };
    text
}

/// The rows in columns. The first row's names each stand above two columns.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |text| text.chars().count());
    let mut widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().skip(1).map(|row| cell(row, column)).max().unwrap_or(0))
        .collect();
    // A name that is wider than its two columns widens the second one.
    for (column, name) in rows.first().into_iter().flatten().enumerate() {
        if let Some([one, other]) = widths.get_mut(column..column + 2) {
            *other = (*other).max(name.chars().count().saturating_sub(*one + 2));
        }
    }
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            // A name of the first row goes on into the empty cell behind it.
            let from: usize = widths.iter().take(column).map(|width| width + 2).sum();
            if !cell.is_empty() {
                line = format!("{line:<from$}{cell}");
            }
        }
        text += &format!("  {}\n", line.trim_end());
        if number == 1 {
            text += &format!("  {}\n", "-".repeat(widths.iter().map(|width| width + 2).sum::<usize>() - 2));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{
        judge::{
            judge,
            sample::{Sample, at},
        },
        record::{End, Kind},
    };

    fn outcome(proxy: &str, scenario: Scenario, run: Sample) -> Outcome {
        let run = run.run();
        Outcome {
            proxy: proxy.to_owned(),
            scenario,
            stock: Figures::of(&run),
            flagged: Figures::of(&run),
            verdict: judge(&run).expect("a run that proves something"),
            again: Vec::new(),
        }
    }

    #[test]
    fn each_scenario_has_a_row() {
        let outcomes = [
            outcome("ipvs", Scenario::Freeze, Sample::held()),
            outcome("nftables", Scenario::Off, Sample::held()),
        ];
        let text = table(&outcomes);
        let expected = "                                longest wait  new connections failed  established reset  idle reset      datagrams lost
  kube-proxy  scenario          stock  ours   stock     ours          stock   ours       stock   ours    stock     ours      promises
  -----------------------------------------------------------------------------------------------------------------------------------
  ipvs        node frozen       0.0 s  0.0 s  0 of 200  0 of 200      1 of 1  1 of 1     1 of 1  1 of 1  0 of 400  0 of 400  held
  nftables    node powered off  0.0 s  0.0 s  0 of 200  0 of 200      1 of 1  1 of 1     1 of 1  1 of 1  0 of 400  0 of 400  held

  Each promise was held in each scenario.
";
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn a_broken_promise_and_a_run_that_does_not_count_have_a_line_each() {
        let mut run = Sample::held();
        run.keep(1, 0, at(3_000), 2_600, End::Answered, Some("node-3"));
        run.add(Kind::New, 900, at(3_000), 5_000, End::TimedOut, None);
        let mut broken = outcome("ipvs", Scenario::Pods, run);
        broken.again = vec!["node-1 stood still for 2.1 s\nbroken: something\n".to_owned()];
        let text = table(&[broken, outcome("ipvs", Scenario::Off, Sample::held())]);
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("AGAIN")).collect();
        let expected = [
            "  AGAIN  ipvs, pods frozen, kubelet alive: run 1 does not count: node-1 stood still for 2.1 s",
            "  BROKEN  ipvs, pods frozen, kubelet alive: no client waits longer than 2 s: 2",
            "  BROKEN  ipvs, pods frozen, kubelet alive: no new connection times out: 1",
        ];
        assert_eq!(lines, expected);
        assert!(
            text.lines().any(|line| line.ends_with("  BROKEN")) && !text.contains("Each promise"),
            "{text}"
        );
    }
}
