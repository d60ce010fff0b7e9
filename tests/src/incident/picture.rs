//! Draws both runs, one above the other, on the same time axis.

use std::fmt::{Result as Format, Write as _};

use anyhow::Result;

use super::{
    judge::Figures,
    observed::Run,
    plan::Way,
    record::Kind,
    timeline::{BUCKET_US, Span, attempts, established, idle},
};
use crate::svg::{
    Area, Bucket, FAINT, GRID, REFUSED, SERVED, STALLED, begin, fill, label, legend, mark, scale, shares,
    stack, text,
};

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 164.0;
const RIGHT: f64 = 30.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// Heights of the area of established clients, and of the strips below it.
const CLIENTS: f64 = 120.0;
const STRIP: f64 = 46.0;
const GAP: f64 = 20.0;
/// Space at the top of a panel for its name and the labels of the marks, and at its end for the seconds.
const HEAD: f64 = 58.0;
const FOOT: f64 = 52.0;
const PANEL: f64 = HEAD + CLIENTS + 3.0 * (GAP + STRIP) + FOOT;
const TOP: f64 = 104.0;

/// Draws the picture.
///
/// # Errors
/// None: a text takes everything.
pub(super) fn render(stock: &Run, flagged: &Run) -> Result<String> {
    let height = TOP + 2.0 * PANEL + 8.0;
    let mut svg = String::new();
    begin(
        &mut svg,
        WIDTH,
        height,
        "What clients see while a node of a real cluster hangs, stock and with nodefence",
    )?;
    let title = r#"font-size="20" font-weight="bold""#;
    text(&mut svg, 24.0, 34.0, "A node of a real cluster hangs: what its clients see", title)?;
    let scenario = flagged.facts.scenario;
    let subtitle = format!("{} Clients reach the servers through another node.", scenario.kernel());
    text(&mut svg, 24.0, 56.0, &subtitle, &fill(FAINT))?;
    let entries = [
        (SERVED, "answered", 110.0),
        (REFUSED, "reset or refused: the client knows at once", 320.0),
        (STALLED, "waits for more than 1 s, or gave up", 0.0),
    ];
    legend(&mut svg, 24.0, 71.0, entries)?;
    let span = Span::of([stock, flagged]);
    panel(&mut svg, stock, span, TOP)?;
    panel(&mut svg, flagged, span, TOP + PANEL)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The horizontal position of a moment, in seconds after the freeze.
fn x_of(span: Span, second: f64) -> f64 {
    let buckets = second * 1e6 / BUCKET_US as f64 - span.first as f64;
    LEFT + buckets / span.count as f64 * PLOT
}

fn panel(svg: &mut String, run: &Run, span: Span, top: f64) -> Format {
    let facts = &run.facts;
    let (number, name) = match facts.way {
        Way::Stock => (1, "Stock Kubernetes"),
        Way::Flagged => (2, "With nodefence, the node flagged"),
    };
    text(svg, 24.0, top + 20.0, &format!("{number}. {name}"), r#"font-size="16" font-weight="bold""#)?;
    text(svg, LEFT + 190.0, top + 20.0, &summary(run), &fill(FAINT))?;
    let of = |top: f64, height: f64| Area { left: LEFT, top, width: PLOT, height };
    let clients = of(top + HEAD, CLIENTS);
    let opened = of(clients.top + CLIENTS + GAP, STRIP);
    let datagrams = of(opened.top + STRIP + GAP, STRIP);
    let idles = of(datagrams.top + STRIP + GAP, STRIP);
    let bottom = idles.top + STRIP;

    seconds(svg, span, facts.scenario.moment(), clients.top, bottom)?;
    count(svg, &established(run, span), clients, &["established", "clients"])?;
    share(svg, &attempts(run, &[Kind::New], span), opened, &["new", "connections"])?;
    share(svg, &attempts(run, &[Kind::Udp, Kind::Fresh], span), datagrams, &["datagrams"])?;
    count(svg, &idle(run, span), idles, &["idle, to", facts.scenario.node()])?;

    let moment = |at: u64| x_of(span, facts.moments.after_freeze(at));
    mark(svg, x_of(span, 0.0), clients.top, bottom, "", "start")?;
    let frozen = format!("{}{}", facts.frozen, facts.scenario.begins());
    text(svg, x_of(span, 0.0) - 5.0, clients.top - 8.0, &frozen, r#"text-anchor="end" font-weight="bold""#)?;
    if facts.way == Way::Flagged {
        mark(svg, moment(facts.moments.flagged), clients.top, bottom, "is flagged", "start")?;
    }
    if !facts.scenario.comes_back() {
        return Ok(());
    }
    let back = if facts.way == Way::Flagged { "goes on, and is unflagged" } else { "goes on" };
    mark(svg, moment(facts.moments.thawed), clients.top, bottom, back, "start")
}

fn summary(run: &Run) -> String {
    let Figures { established, longest_wait, new, idle, .. } = Figures::of(run);
    format!(
        "longest wait {longest_wait:.1} s;  {} of {} established connections reset;  {} of {} new ones failed;  {} of {} idle ones reset",
        established.reset, established.on_frozen, new.failed, new.total, idle.reset, idle.on_frozen
    )
}

/// Draws numbers of clients.
fn count(svg: &mut String, buckets: &[Bucket], area: Area, name: &[&str]) -> Format {
    stack(svg, buckets, area)?;
    let most = buckets.iter().map(Bucket::total).max().unwrap_or(0);
    scale(svg, area, &most.to_string())?;
    label(svg, area, name)
}

/// Draws parts of all requests of a bucket.
fn share(svg: &mut String, buckets: &[Bucket], area: Area, name: &[&str]) -> Format {
    stack(svg, &shares(buckets), area)?;
    scale(svg, area, "100 %")?;
    label(svg, area, name)
}

fn seconds(svg: &mut String, span: Span, moment: &str, top: f64, bottom: f64) -> Format {
    let of = |buckets: i64| buckets as f64 * BUCKET_US as f64 / 1e6;
    let first = of(span.first).ceil() as i64;
    let last = of(span.first + span.count as i64).floor() as i64;
    // About twenty numbers, whatever the length.
    let step = [1, 2, 5, 10, 20].into_iter().find(|step| (last - first) / step <= 20).unwrap_or(60);
    for second in (first..=last).filter(|second| second % step == 0) {
        let x = x_of(span, second as f64);
        writeln!(svg, r#"<line x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{}" stroke="{GRID}"/>"#, bottom + 5.0)?;
        let style = format!(r#"text-anchor="middle" {}"#, fill(FAINT));
        text(svg, x, bottom + 20.0, &second.to_string(), &style)?;
    }
    let anchor = format!(r#"text-anchor="middle" {}"#, fill(FAINT));
    text(svg, LEFT + PLOT / 2.0, bottom + 38.0, &format!("seconds after the {moment}"), &anchor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{judge::sample::Sample, plan::Way, scenario::Scenario};

    #[test]
    fn the_picture_has_both_runs() {
        let mut stock = Sample::held();
        stock.facts().way = Way::Stock;
        let svg = render(&stock.run(), &Sample::held().run()).expect("a text");
        let times = |text: &str| svg.matches(text).count();
        assert_eq!((times("1. Stock"), times("2. With nodefence"), times("is flagged<")), (1, 1, 1));
        assert_eq!(times("1 of 1 established connections reset;  0 of 200 new ones failed"), 2);
        assert_eq!((times("node-2 freezes"), times("goes on<"), times("goes on, and")), (2, 1, 1));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_node_that_stays_off_does_not_go_on() {
        let off = |way: Way| {
            let mut run = Sample::held();
            run.facts().way = way;
            run.facts().scenario = Scenario::Off;
            run.run()
        };
        let svg = render(&off(Way::Stock), &off(Way::Flagged)).expect("a text");
        let times = |text: &str| svg.matches(text).count();
        assert_eq!((times("node-2 is off<"), times("goes on"), times("is flagged<")), (2, 0, 1));
        assert_eq!((times("seconds after the power-off"), times("freeze"), times("frozen")), (2, 0, 0));
    }
}
