//! Draws `timeline.svg`: both runs, one above the other, on the same time axis.

use std::fmt::{Result as Format, Write as _};

use anyhow::Result;

use crate::{
    record::{Bucket, attempts, states},
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

// Colours that colour-blind readers can tell apart (Okabe and Ito's palette).
const SERVED: &str = "#56b4e9";
const REFUSED: &str = "#e69f00";
const STALLED: &str = "#c8391b";
const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const GRID: &str = "#e4e7eb";

pub(crate) fn render(without: &Run, with: &Run) -> Result<String> {
    let height = TOP + 2.0 * PANEL + 8.0;
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, 'Liberation Sans', sans-serif" font-size="13" fill="{INK}">"#
    )?;
    writeln!(svg, r#"<title>Request outcomes while a node hangs, without and with nodefence</title>"#)?;
    writeln!(svg, r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##)?;
    text(&mut svg, 24.0, 34.0, "A node hangs: what its clients see", r#"font-size="20" font-weight="bold""#)?;
    let subtitle = "Every process of node B is frozen, its kernel still accepts and acknowledges. Half of the clients are connected to node B, half to node C.";
    text(&mut svg, 24.0, 56.0, subtitle, &fill(FAINT))?;
    legend(&mut svg, 24.0, 82.0)?;
    panel(&mut svg, without, TOP)?;
    panel(&mut svg, with, TOP + PANEL)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn legend(svg: &mut String, x: f64, y: f64) -> Format {
    let entries = [
        (SERVED, "served", 100.0),
        (REFUSED, "reset or refused: the client knows at once", 320.0),
        (STALLED, "stalled: waiting for more than 250 ms", 0.0),
    ];
    let mut at = x;
    for (color, label, step) in entries {
        rect(svg, at, y - 11.0, 14.0, 14.0, color)?;
        text(svg, at + 21.0, y + 1.0, label, "")?;
        at += step;
    }
    Ok(())
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
    let area = top + HEAD;
    let strip = area + AREA + GAP;
    let bar = strip + STRIP + GAP;
    let bottom = bar + BAR;

    seconds(svg, run, area, bottom)?;
    let clients = states(run, &[Kind::KeepAlive, Kind::Udp]);
    stack(svg, run, &clients, area, AREA)?;
    let most = clients.iter().map(Bucket::total).max().unwrap_or(0);
    scale(svg, area, AREA, &most.to_string())?;
    label(svg, area + AREA / 2.0, &["keep-alive TCP", "and UDP clients"])?;

    let opened = attempts(run);
    stack(svg, run, &shares(&opened), strip, STRIP)?;
    if run.flagged.is_some() && opened.iter().any(|bucket| bucket.refused > 0) {
        let style = format!(r#"text-anchor="end" font-size="11" {}"#, fill(FAINT));
        let why = "still sent to node B by the proxy, and not elsewhere in time: refused at once, so that a retry gets node C";
        text(svg, LEFT + PLOT, strip + STRIP + 14.0, why, &style)?;
    }
    scale(svg, strip, STRIP, "100 %")?;
    label(svg, strip + STRIP / 2.0, &["new", "connections"])?;

    idle(svg, run, bar)?;
    label(svg, bar + BAR / 2.0, &["idle long poll"])?;

    mark(svg, x_of(run, 0.0), area, bottom, "node B freezes", "start")?;
    if let Some(flag) = run.flagged {
        mark(svg, x_of(run, flag), area, bottom, "nodefence flag node-b", "start")?;
    } else {
        text(
            svg,
            LEFT + PLOT,
            area - 8.0,
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

/// A part of a bucket.
type Part = fn(&Bucket) -> usize;

/// Draws a bar for each bucket, as one outline for each outcome. Served is at the bottom, refused above it, stalled on top.
fn stack(svg: &mut String, run: &Run, buckets: &[Bucket], top: f64, height: f64) -> Format {
    let most = buckets.iter().map(Bucket::total).max().unwrap_or(0).max(1) as f64;
    let step = PLOT / run.buckets() as f64;
    let layers: [(&str, Part, Part); 3] = [
        (SERVED, |_| 0, |bucket| bucket.served),
        (REFUSED, |bucket| bucket.served, |bucket| bucket.refused),
        (STALLED, |bucket| bucket.served + bucket.refused, |bucket| bucket.stalled),
    ];
    for (color, below, own) in layers {
        let mut path = String::new();
        let mut at = 0;
        while at < buckets.len() {
            // Equal neighbours become one rectangle, so that no seams are visible.
            let same =
                |other: &&Bucket| below(other) == below(&buckets[at]) && own(other) == own(&buckets[at]);
            let run_length = buckets[at..].iter().take_while(same).count();
            let from = below(&buckets[at]) as f64;
            let count = own(&buckets[at]) as f64;
            if count > 0.0 {
                let y = top + height * (1.0 - (from + count) / most);
                write!(
                    path,
                    "M{:.1} {y:.1}h{:.2}v{:.1}h-{:.2}z",
                    LEFT + at as f64 * step,
                    run_length as f64 * step,
                    height * count / most,
                    run_length as f64 * step
                )?;
            }
            at += run_length;
        }
        writeln!(svg, r#"<path d="{path}" fill="{color}" shape-rendering="crispEdges"/>"#)?;
    }
    Ok(())
}

/// The buckets as parts of a thousand, since the number of connections differs a little between buckets.
fn shares(buckets: &[Bucket]) -> Vec<Bucket> {
    let share = |count: usize, bucket: &Bucket| count * 1_000 / bucket.total().max(1);
    buckets
        .iter()
        .map(|bucket| Bucket {
            served: 1_000 - share(bucket.refused, bucket) - share(bucket.stalled, bucket),
            refused: share(bucket.refused, bucket),
            stalled: share(bucket.stalled, bucket),
        })
        .collect()
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

fn scale(svg: &mut String, top: f64, height: f64, most: &str) -> Format {
    writeln!(
        svg,
        r#"<path d="M{LEFT} {top}v{height}h{PLOT}" fill="none" stroke="{FAINT}" stroke-width="0.8"/>"#
    )?;
    let style = format!(r#"text-anchor="end" font-size="11" {}"#, fill(FAINT));
    text(svg, LEFT - 6.0, top + 9.0, most, &style)?;
    text(svg, LEFT - 6.0, top + height, "0", &style)
}

fn label(svg: &mut String, middle: f64, lines: &[&str]) -> Format {
    let start = middle - (lines.len() as f64 - 1.0) * 8.0 + 4.0;
    for (at, line) in lines.iter().enumerate() {
        text(svg, LEFT - 46.0, start + at as f64 * 16.0, line, r#"text-anchor="end""#)?;
    }
    Ok(())
}

fn mark(svg: &mut String, x: f64, top: f64, bottom: f64, label: &str, anchor: &str) -> Format {
    writeln!(
        svg,
        r#"<line x1="{x:.1}" y1="{}" x2="{x:.1}" y2="{bottom}" stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 3"/>"#,
        top - 20.0
    )?;
    text(svg, x + 5.0, top - 8.0, label, &format!(r#"text-anchor="{anchor}" font-weight="bold""#))
}

fn rect(svg: &mut String, x: f64, y: f64, width: f64, height: f64, color: &str) -> Format {
    writeln!(svg, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#)
}

fn text(svg: &mut String, x: f64, y: f64, text: &str, style: &str) -> Format {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" {style}>{text}</text>"#)
}

fn fill(color: &str) -> String {
    format!(r#"fill="{color}""#)
}
