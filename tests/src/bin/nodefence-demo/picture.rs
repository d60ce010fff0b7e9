//! Draws `timeline.svg`: both runs, one above the other, on the same time axis.

use std::fmt::{Result as Format, Write as _};

use anyhow::Result;

use nodefence_tests::svg::{
    Area, Bucket, FAINT, GRID, INK, REFUSED, SERVED, STALLED, begin, fill, label, legend, mark, rect, scale,
    shares, stack, text,
};

use crate::{
    record::{attempts, states},
    request::{End, Kind},
    run::{Plan, Run},
    table::figures,
};

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 164.0;
const RIGHT: f64 = 30.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// Heights of the clients' area, of the new connections' strip and of the idle client's bar.
const AREA: f64 = 180.0;
const STRIP: f64 = 56.0;
const BAR: f64 = 18.0;
const GAP: f64 = 22.0;
/// Space at the top of a panel for its name and the labels of the marks.
const HEAD: f64 = 58.0;
const PANEL: f64 = HEAD + AREA + GAP + STRIP + GAP + BAR + 52.0;
const TOP: f64 = 104.0;

pub(crate) fn render(without: &Run, with: &Run) -> Result<String> {
    let height = TOP + 2.0 * PANEL + 8.0;
    let mut svg = String::new();
    begin(&mut svg, WIDTH, height, "Request outcomes while a node hangs, without and with nodefence")?;
    text(&mut svg, 24.0, 34.0, "A node hangs: what its clients see", r#"font-size="20" font-weight="bold""#)?;
    let subtitle = "Every process of node B is frozen, its kernel still accepts and acknowledges. Half of the clients are connected to node B, half to node C.";
    text(&mut svg, 24.0, 56.0, subtitle, &fill(FAINT))?;
    let entries = [
        (SERVED, "served", 100.0),
        (REFUSED, "reset or refused: the client knows at once", 320.0),
        (STALLED, "stalled: waiting for more than 250 ms", 0.0),
    ];
    legend(&mut svg, 24.0, 71.0, entries)?;
    panel(&mut svg, without, TOP)?;
    panel(&mut svg, with, TOP + PANEL)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The horizontal position of a time in milliseconds after the freeze.
fn x_of(run: &Run, ms: f64) -> f64 {
    let first = run.first_bucket() as f64 * 100.0;
    LEFT + (ms - first) / (run.buckets() as f64 * 100.0) * PLOT
}

fn panel(svg: &mut String, run: &Run, top: f64) -> Format {
    let (letter, name) = match run.plan {
        Plan::Without => ("1", "Without nodefence"),
        Plan::With => ("2", "With the node flagged"),
    };
    text(svg, 24.0, top + 20.0, &format!("{letter}. {name}"), r#"font-size="16" font-weight="bold""#)?;
    text(svg, LEFT + 120.0, top + 20.0, &summary(run), &fill(FAINT))?;
    let of = |top: f64, height: f64| Area { left: LEFT, top, width: PLOT, height };
    let area = of(top + HEAD, AREA);
    let strip = of(area.top + AREA + GAP, STRIP);
    let bar = of(strip.top + STRIP + GAP, BAR);
    let bottom = bar.top + BAR;

    seconds(svg, run, area.top, bottom)?;
    let clients = states(run, &[Kind::KeepAlive, Kind::Udp]);
    stack(svg, &clients, area)?;
    let most = clients.iter().map(Bucket::total).max().unwrap_or(0);
    scale(svg, area, &most.to_string())?;
    label(svg, area, &["keep-alive TCP", "and UDP clients"])?;

    let opened = attempts(run);
    stack(svg, &shares(&opened), strip)?;
    if run.flagged.is_some() && opened.iter().any(|bucket| bucket.refused > 0) {
        let style = format!(r#"text-anchor="end" font-size="11" {}"#, fill(FAINT));
        let why = "still sent to node B by the proxy, and not elsewhere in time: refused at once, so that a retry gets node C";
        text(svg, LEFT + PLOT, strip.top + STRIP + 14.0, why, &style)?;
    }
    scale(svg, strip, "100 %")?;
    label(svg, strip, &["new", "connections"])?;

    idle(svg, run, bar.top)?;
    label(svg, bar, &["idle long poll"])?;

    mark(svg, x_of(run, 0.0), area.top, bottom, "node B freezes", "start")?;
    if let Some(flag) = run.flagged {
        mark(svg, x_of(run, flag), area.top, bottom, "nodefence flag node-b", "start")?;
    } else {
        text(
            svg,
            LEFT + PLOT,
            area.top - 8.0,
            "cut short here: left alone, the stalled clients wait on for minutes",
            &format!(r#"text-anchor="end" {}"#, fill(STALLED)),
        )?;
    }
    Ok(())
}

fn summary(run: &Run) -> String {
    let figures = figures(run);
    let idle = match figures.idle_freed_ms {
        Some(ms) => format!("idle client freed {ms:.0} ms after the flag"),
        None => "idle client never freed".to_owned(),
    };
    let left = match (run.plan, figures.left, figures.left_from_before) {
        (Plan::With, left @ 1.., before) => {
            format!("{left} requests stalled at the end ({before} from before the flag)")
        }
        (_, left, _) => format!("{left} requests stalled at the end"),
    };
    let cut_short = if run.plan == Plan::Without { ", cut short" } else { "" };
    format!(
        "{:.0} s of stalled requests{cut_short};  {} connections reset;  {idle};  {left}",
        figures.stalled_s, figures.resets
    )
}

fn idle(svg: &mut String, run: &Run, y: f64) -> Format {
    let Some(request) = run.requests.iter().find(|request| request.kind == Kind::Idle) else { return Ok(()) };
    let end = request.end.min(run.ended);
    let zero = x_of(run, 0.0);
    let at = x_of(run, end);
    rect(svg, LEFT, y, zero - LEFT, BAR, SERVED)?;
    rect(svg, zero, y, at - zero, BAR, STALLED)?;
    text(svg, LEFT + 8.0, y + 13.0, "waits for news", r#"font-size="11""#)?;
    let inside = r##"font-size="11" fill="#ffffff""##;
    if request.how == End::Reset {
        text(svg, zero + 8.0, y + 13.0, "nobody will ever answer", inside)?;
        rect(svg, at, y, 6.0, BAR, REFUSED)?;
        text(
            svg,
            at + 14.0,
            y + 13.0,
            "reset without having sent anything: it can ask another backend",
            &fill(INK),
        )?;
    } else {
        text(svg, zero + 8.0, y + 13.0, "nobody will ever answer, and it does not know", inside)?;
    }
    Ok(())
}

fn seconds(svg: &mut String, run: &Run, top: f64, bottom: f64) -> Format {
    let first = run.first_bucket() / 10;
    let last = first + run.buckets() as i64 / 10;
    for second in first..=last {
        let x = x_of(run, second as f64 * 1e3);
        writeln!(svg, r#"<line x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{}" stroke="{GRID}"/>"#, bottom + 5.0)?;
        text(
            svg,
            x,
            bottom + 20.0,
            &second.to_string(),
            &format!(r#"text-anchor="middle" {}"#, fill(FAINT)),
        )?;
    }
    let middle = LEFT + PLOT / 2.0;
    let anchor = format!(r#"text-anchor="middle" {}"#, fill(FAINT));
    text(svg, middle, bottom + 38.0, "seconds after the freeze", &anchor)
}
