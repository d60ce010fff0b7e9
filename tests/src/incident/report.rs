//! The report of two runs: the verdict, the table and the picture, in a folder and in the docs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::{
    judge::{Promise, Verdict, judge, shows_the_fault},
    observed::{Restored, Run},
    picture,
    plan::Way,
    table,
};

/// The lines of a page between which the figures stand.
const BEGIN: &str = "<!-- figures of a run: begin -->";
const END: &str = "<!-- figures of a run: end -->";

/// The report of two runs.
#[derive(Clone, Debug)]
pub struct Report {
    /// The verdict on the run with a flag.
    pub verdict: Verdict,
    /// The table, and below it what is wrong.
    pub text: String,
}

/// Judges two runs, and writes `table.txt` and `timeline.svg` into a folder.
///
/// # Errors
/// Fails if a file cannot be written, or if one of the runs proves nothing.
pub(super) fn write(folder: &Path, stock: &Run, flagged: &Run) -> Result<Report> {
    shows_the_fault(stock)?;
    let verdict = judge(flagged)?;
    let mut text = table::plain(stock, flagged);
    text.push('\n');
    match &verdict {
        Verdict::Held => text += &promises_held(flagged, ""),
        Verdict::Broken(wrong) => text += &format!("{}{wrong}", promises_held(flagged, wrong)),
        Verdict::StoodStill(wrong) => text += &format!("This run does not count: {wrong}"),
    }
    save(&folder.join("table.txt"), &text)?;
    save(&folder.join("timeline.svg"), &picture::render(stock, flagged)?)?;
    Ok(Report { verdict, text })
}

/// A line for each promise that the run could break, and that is not among the broken ones.
fn promises_held(run: &Run, wrong: &str) -> String {
    let is_broken = |promise: &Promise| wrong.contains(&format!("broken: {}: ", promise.text()));
    let is_compared = |promise: &Promise| {
        *promise != Promise::Restored || !matches!(run.facts.restored, Restored::NoIpvs | Restored::StaysOff)
    };
    Promise::ALL
        .iter()
        .filter(|promise| is_compared(promise) && !is_broken(promise))
        .map(|promise| format!("held: {}\n", promise.text()))
        .collect()
}

/// Reads two runs from a folder, and reports them anew.
///
/// # Errors
/// Fails if the folder has no two runs, or as [`super::Incident::report`] does.
pub fn again(folder: &Path) -> Result<Report> {
    write(folder, &Run::read(folder, Way::Stock)?, &Run::read(folder, Way::Flagged)?)
}

/// Writes the table of the two runs in a folder between the marks of a page of the docs, and their picture as a file of its own. `link` is the picture's path
/// as seen from the page.
///
/// # Errors
/// Fails if the folder has no two runs, if the run with a flag broke a promise, or if the page lacks a mark.
pub fn publish(folder: &Path, page: &Path, picture: &Path, link: &str) -> Result<()> {
    let report = again(folder)?;
    ensure!(report.verdict == Verdict::Held, "a run that broke promises is not published:\n{}", report.text);
    let stock = Run::read(folder, Way::Stock)?;
    let flagged = Run::read(folder, Way::Flagged)?;
    let text = fs::read_to_string(page).with_context(|| format!("read {}", page.display()))?;
    let figures =
        format!("{}\n![The clients of both runs over time]({link})\n", table::markdown(&stock, &flagged));
    save(page, &between_marks(&text, &figures).with_context(|| page.display().to_string())?)?;
    save(picture, &picture::render(&stock, &flagged)?)
}

/// The page with other figures.
fn between_marks(page: &str, figures: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("no line `{BEGIN}`"))?;
    let (_, after) =
        rest.split_once(END).with_context(|| format!("no line `{END}` behind the other mark"))?;
    Ok(format!("{before}{BEGIN}\n\n{figures}\n{END}{after}"))
}

fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{
        judge::sample::{Sample, at},
        record::{End, Kind},
    };

    fn stock() -> Run {
        let mut stock = Sample::held();
        stock.facts().way = Way::Stock;
        stock.records().retain(|record| record.kind != Kind::Keep);
        stock.keep(0, 0, at(-400), 5, End::Answered, Some("node-2"));
        stock.keep(0, 0, at(100), 11_000, End::Answered, Some("node-2"));
        stock.add(Kind::New, 900, at(4_500), 5_000, End::TimedOut, None);
        stock.run()
    }

    #[test]
    fn figures_replace_those_of_an_earlier_run() {
        let page = format!("# A page\n\n{BEGIN}\n\nold\n\n{END}\n\nThe rest.\n");
        let expected = format!("# A page\n\n{BEGIN}\n\nnew\n\n{END}\n\nThe rest.\n");
        assert_eq!(between_marks(&page, "new\n").expect("both marks"), expected);
        let error = between_marks(&format!("{END}{BEGIN}"), "new").expect_err("no end").to_string();
        assert!(error.contains("no line `<!-- figures of a run: end -->` behind"), "{error}");
    }

    #[test]
    fn a_promise_that_nobody_looked_at_is_not_named_as_held() {
        let line = format!("held: {}\n", Promise::Restored.text());
        for (restored, is_named) in
            [(Restored::NoIpvs, false), (Restored::StaysOff, false), (Restored::After { seconds: 1.0 }, true)]
        {
            let mut sample = Sample::held();
            sample.facts().restored = restored;
            assert_eq!(promises_held(&sample.run(), "").contains(&line), is_named);
        }
    }

    #[test]
    fn a_run_that_holds_is_published_and_one_that_does_not_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let at_path = |name: &str| folder.path().join(name);
        fs::write(at_path("page.md"), format!("{BEGIN}{END}\n")).expect("written");
        stock().write(folder.path()).expect("written");
        Sample::held().run().write(folder.path()).expect("written");
        let publish =
            || publish(folder.path(), &at_path("page.md"), &at_path("cluster.svg"), "../cluster.svg");
        publish().expect("published");
        let page = fs::read_to_string(at_path("page.md")).expect("the page");
        assert!(
            page.contains("| new connections that failed | 1 of 201 (0.5 %) | 0 of 200 (0.0 %) |"),
            "{page}"
        );
        assert!(page.contains("](../cluster.svg)"), "{page}");
        assert!(
            fs::read_to_string(at_path("cluster.svg")).expect("the picture").contains("2. With nodefence")
        );

        let mut broken = Sample::held();
        broken.keep(0, 1, at(3_000), 2_600, End::Answered, Some("node-3"));
        broken.run().write(folder.path()).expect("written");
        let error = publish().expect_err("a promise was broken").to_string();
        assert!(error.contains("broken: no client waits longer than 2 s: 1"), "{error}");
        let table = fs::read_to_string(at_path("table.txt")).expect("the table");
        assert!(table.contains("  Keep client 0 on node-3: sent 3.000 s after the freeze"), "{table}");
    }
}
