//! The page of figures: the results of all benchmarks of one run, missed goals included.
use std::{fmt::Write as _, path::Path};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::figure::{self, Figure, show};

/// The benchmarks by name; each has a folder and, in it, a file of that name.
const BENCHMARKS: [(&str, &str); 4] = [
    ("datapath", "The data path: cost per packet, throughput, flag to cut, established flows"),
    ("ipvs", "New connections while endpoints hang, and large IPVS tables"),
    ("scale", "The agent in a large cluster"),
    ("kubernetes", "The agent beside a real API server with a large cluster"),
];

/// The results of one benchmark, and the machine on which it ran.
struct Run {
    title: &'static str,
    figures: Vec<Figure>,
    machine: Json,
}

/// Writes the page from `from`, which has a folder for each benchmark. Returns whether all goals are met.
///
/// # Errors
/// Fails if the files of a benchmark are missing or have no figures, or if the page cannot be written.
pub(crate) fn run(from: &Path, commit: &str, to: &Path) -> anyhow::Result<bool> {
    let runs = BENCHMARKS.iter().map(|(name, title)| {
        let folder = from.join(name);
        let figures: Vec<Figure> = read(&folder.join(format!("{name}.json")))?;
        ensure!(!figures.is_empty(), "{} holds no figure", folder.display());
        Ok(Run { title, figures, machine: read(&folder.join("machine.json"))? })
    });
    let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
    std::fs::write(to, page(&runs, commit)).with_context(|| format!("cannot write {}", to.display()))?;
    println!("{}", to.display());
    Ok(runs.iter().all(|run| figure::all_met(&run.figures)))
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no figures", path.display()))
}

fn page(runs: &[Run], commit: &str) -> String {
    let mut text =
        "# Benchmarks\n\nWritten by `cargo xtask bench --publish` from one run; edits are lost.\n".to_owned();
    text += "A goal is what the project promises. A peer is what is measured in the same rounds on the same machine.\n";
    text += "Values are medians unless the figure says otherwise; in brackets the least and the greatest sample.\n\n";
    if let Some(first) = runs.first() {
        text += &machine(&first.machine, commit);
    }
    text += &misses(runs);
    for run in runs {
        text += &section(run);
    }
    text
}

/// The table with machine and time of the run. Values that could not be read are left out.
fn machine(facts: &Json, commit: &str) -> String {
    let mut text = "| | |\n|---|---|\n".to_owned();
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!("| {name} | {} |\n", cell(&value));
        }
    };
    let word = |key: &str| facts[key].as_str().map(str::to_owned);
    let number = |key: &str| facts[key].as_u64().map(|number| number.to_string());
    let began = facts["unix_time"].as_i64().and_then(|seconds| Timestamp::from_second(seconds).ok());
    row("date", began.map(|began| began.to_string()));
    row("commit", Some(commit.to_owned()));
    row("kernel", word("kernel"));
    row("processor", word("cpu"));
    row("processors", number("cores"));
    row("memory", word("memory"));
    row("virtual machine", facts["virtual"].as_bool().map(|is| if is { "yes" } else { "no" }.to_owned()));
    row("frequency governor", word("governor"));
    row("load at the start", word("load_at_start"));
    row("build", word("build"));
    text + "\n"
}

/// The list of missed goals, which comes before all tables.
fn misses(runs: &[Run]) -> String {
    let figures = || runs.iter().flat_map(|run| &run.figures);
    let promised = figures().filter(|figure| figure.met.is_some()).count();
    let missed: Vec<&Figure> = figures().filter(|figure| figure.met == Some(false)).collect();
    let mut text = format!("**{} of {promised} goals are missed.**\n\n", missed.len());
    for figure in &missed {
        let goal = figure.goal.as_deref().unwrap_or_default();
        let reason = figure.note.as_deref().unwrap_or("The run itself gives no reason");
        let _ = writeln!(
            text,
            "- {}: {} {}; the goal is {goal}. {}",
            figure.figure,
            show(figure.ours),
            figure.unit,
            sentence(reason)
        );
    }
    if !missed.is_empty() {
        text += "\n[Missed goals](design/missed-goals.md) has profiles of where the time goes.\n\n";
    }
    text
}

fn section(run: &Run) -> String {
    let mut text = format!("## {}\n\n", run.title);
    if let Some(guest) = run.machine.get("guest").filter(|guest| !guest.is_null()) {
        let kernel = guest["kernel"].as_str().unwrap_or("a kernel that was not told");
        text += &format!("Large IPVS tables: in a guest with {kernel}.\n\n");
    }
    text += "| figure | unit | nodefence | peers | ratio | goal | met |\n|---|---|---|---|---|---|---|\n";
    for figure in &run.figures {
        let peers: Vec<String> = figure
            .peers
            .iter()
            .map(|(name, value)| format!("{name}: {}{}", show(*value), spread(figure, name)))
            .collect();
        let met = match figure.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let cells = [
            figure.figure.clone(),
            figure.unit.clone().into_owned(),
            show(figure.ours) + &spread(figure, "ours"),
            peers.join("; "),
            figure.ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
            figure.goal.clone().unwrap_or_default(),
            met.to_owned(),
        ];
        text += &format!("| {} |\n", cells.map(|text| cell(&text)).join(" | "));
    }
    text.push('\n');
    for figure in run.figures.iter().filter(|figure| figure.met != Some(false)) {
        if let Some(note) = &figure.note {
            text += &format!("- {}: {}\n", figure.figure, sentence(note));
        }
    }
    text.push('\n');
    text
}

fn spread(figure: &Figure, name: &str) -> String {
    let spread = figure.spread.get(name);
    spread
        .map(|[least, greatest]| {
            let shown = |number: f64| show(figure::Value::Number(number));
            format!(" ({} to {})", shown(*least), shown(*greatest))
        })
        .unwrap_or_default()
}

/// The text of a cell, without the bars that would begin another cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn sentence(text: &str) -> String {
    let text = text.replace('\n', " ");
    if text.ends_with('.') { text } else { text + "." }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figure::Value;

    fn found() -> Run {
        let machine = json!({
            "kernel": "6.18.5", "cpu": "A | B", "cores": 2, "virtual": true, "governor": null,
            "unix_time": 1_795_000_000, "guest": { "kernel": "7.3.4" }
        });
        let figures = vec![
            Figure::new("held", "ns", Value::Number(12.3))
                .peer("nft", Value::Never)
                .goal("less", true)
                .note("a note"),
            Figure::new("missed", "%", Value::Number(97.0)).goal("at least 99 %", false).note("the cache"),
            Figure::new("unexplained", "s", Value::Never).goal("within 1 s", false),
            Figure::new("without a goal", "s", Value::Number(3.0)),
        ];
        Run { title: "A title", figures, machine }
    }

    #[test]
    fn a_page_has_all_figures_and_its_misses_first() {
        let page = page(&[found()], "abc1234");
        let expected = "**2 of 3 goals are missed.**\n\n\
            - missed: 97.0 %; the goal is at least 99 %. the cache.\n\
            - unexplained: never s; the goal is within 1 s. The run itself gives no reason.\n\n\
            [Missed goals](design/missed-goals.md) has profiles of where the time goes.\n\n\
            ## A title\n\n\
            Large IPVS tables: in a guest with 7.3.4.\n\n\
            | figure | unit | nodefence | peers | ratio | goal | met |\n|---|---|---|---|---|---|---|\n\
            | held | ns | 12.3 | nft: never |  | less | yes |\n\
            | missed | % | 97.0 |  |  | at least 99 % | **no** |\n\
            | unexplained | s | never |  |  | within 1 s | **no** |\n\
            | without a goal | s | 3.00 |  |  |  |  |\n\n\
            - held: a note.\n\n";
        let from = page.find("**2 of").expect("the misses");
        assert_eq!(&page[from..], expected);
        assert!(
            page.contains("| processor | A \\| B |\n") && page.contains("| commit | abc1234 |\n"),
            "{page}"
        );
        assert!(!page.contains("governor"), "what could not be read is left out: {page}");
    }

    #[test]
    fn a_benchmark_that_left_nothing_is_named() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let to = folder.path().join("page.md");
        let error = run(folder.path(), "abc", &to).expect_err("no figures");
        assert!(format!("{error:#}").contains("datapath/datapath.json"), "{error:#}");
        for (name, _) in BENCHMARKS {
            let place = folder.path().join(name);
            std::fs::create_dir(&place)?;
            let figures = if name == "scale" { Vec::new() } else { found().figures };
            figure::write(&place, &format!("{name}.json"), &figures, &found().machine)?;
        }
        let error = run(folder.path(), "abc", &to).expect_err("a benchmark without figures");
        assert!(format!("{error:#}").contains("scale holds no figure"), "{error:#}");
        let place = folder.path().join("scale");
        figure::write(&place, "scale.json", &found().figures[..1], &found().machine)?;
        assert!(!run(folder.path(), "abc", &to)?, "goals are missed");
        assert!(std::fs::read_to_string(&to)?.starts_with("# Benchmarks\n"));
        Ok(())
    }
}
