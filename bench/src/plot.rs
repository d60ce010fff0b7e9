//! SVG pictures: bars with their spread, and curves. Only `save` has effects.
use std::{fmt::Write as _, path::Path};

use anyhow::Context as _;

use crate::{figure, stats::Summary};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 210.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 18.0;
const OURS: &str = "#1557b0";
/// Colours of the peers, in the order of their first mention. They differ in lightness too.
const PEERS: [&str; 6] = ["#9aa0a6", "#c58a2d", "#7a9a4a", "#b0593f", "#8b6fae", "#5b9aa0"];
const INK: &str = "#202124";
const FAINT: &str = "#5f6368";

/// One bar. It has no value if the result never came.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: Option<f64>,
    pub(crate) spread: Option<[f64; 2]>,
}

impl Bar {
    pub(crate) fn new(name: &str, summary: &Summary) -> Self {
        Self { name: name.into(), value: Some(summary.median), spread: Some([summary.min, summary.max]) }
    }
}

/// Bars that stand together.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) bars: Vec<Bar>,
}

/// A curve of points (x, y), in the order of x.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws horizontal bars, one group below the other. The line through a bar goes from the least to the greatest sample.
pub(crate) fn bars(path: &Path, title: &str, subtitle: &str, groups: Vec<Group>) -> anyhow::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let most = groups
        .iter()
        .flat_map(|group| &group.bars)
        .flat_map(|bar| [bar.value, bar.spread.map(|[_, greatest]| greatest)])
        .flatten()
        .fold(0.0, f64::max);
    let ticks = ticks(most);
    let end = ticks.last().copied().unwrap_or(1.0);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / end).min(1.0);
    let names = names(groups.iter().flat_map(|group| group.bars.iter().map(|bar| bar.name.clone())));
    let mut body = String::new();
    let mut y = 78.0;
    for group in &groups {
        text(&mut body, 20.0, y + 14.0, "start", 13.0, INK, true, &group.label);
        y += 24.0;
        for bar in &group.bars {
            let middle = y + BAR * 0.5;
            text(&mut body, LEFT - 8.0, middle + 4.0, "end", 12.0, INK, false, &bar.name);
            let Some(value) = bar.value else {
                text(&mut body, LEFT + 6.0, middle + 4.0, "start", 12.0, "#b3261e", true, "never");
                y += BAR + 4.0;
                continue;
            };
            rect(&mut body, LEFT, y, x(value) - LEFT, BAR, colour(&bar.name, &names));
            let mut label_at = x(value);
            if let Some([min, max]) = bar.spread {
                line(&mut body, [x(min), middle, x(max), middle], INK, 1.2);
                line(&mut body, [x(min), middle - 4.0, x(min), middle + 4.0], INK, 1.2);
                line(&mut body, [x(max), middle - 4.0, x(max), middle + 4.0], INK, 1.2);
                label_at = label_at.max(x(max));
            }
            let label = figure::show(figure::Value::Number(value));
            text(&mut body, label_at + 6.0, middle + 4.0, "start", 12.0, INK, false, &label);
            y += BAR + 4.0;
        }
        y += 10.0;
    }
    let mut grid = String::new();
    for tick in &ticks {
        line(&mut grid, [x(*tick), 74.0, x(*tick), y], "#e0e3e7", 1.0);
        let label = figure::show(figure::Value::Number(*tick));
        text(&mut grid, x(*tick), y + 16.0, "middle", 11.0, FAINT, false, &label);
    }
    save(path, title, subtitle, y + 34.0, &(grid + &body))
}

/// Draws curves. Both axes are linear and begin at 0.
pub(crate) fn curves(
    path: &Path,
    title: &str,
    subtitle: &str,
    [x_label, y_label]: [&str; 2],
    curves: &[Curve],
) -> anyhow::Result<()> {
    let most = |pick: fn(&(f64, f64)) -> f64| {
        curves.iter().flat_map(|curve| &curve.points).map(pick).fold(0.0, f64::max)
    };
    let x_ticks = ticks(most(|point| point.0));
    let y_ticks = ticks(most(|point| point.1));
    let x_end = x_ticks.last().copied().unwrap_or(1.0);
    let y_end = y_ticks.last().copied().unwrap_or(1.0);
    let left = 80.0;
    let top = 100.0;
    let bottom = 440.0;
    let x = |value: f64| left + (WIDTH - left - 40.0) * value / x_end;
    let y = |value: f64| bottom - (bottom - top) * value / y_end;
    let mut body = String::new();
    for tick in &x_ticks {
        line(&mut body, [x(*tick), top, x(*tick), bottom], "#e0e3e7", 1.0);
        let label = figure::show(figure::Value::Number(*tick));
        text(&mut body, x(*tick), bottom + 17.0, "middle", 11.0, FAINT, false, &label);
    }
    for tick in &y_ticks {
        line(&mut body, [left, y(*tick), WIDTH - 40.0, y(*tick)], "#e0e3e7", 1.0);
        let label = figure::show(figure::Value::Number(*tick));
        text(&mut body, left - 8.0, y(*tick) + 4.0, "end", 11.0, FAINT, false, &label);
    }
    text(&mut body, (left + WIDTH - 40.0) / 2.0, bottom + 38.0, "middle", 12.0, INK, false, x_label);
    text(&mut body, 20.0, 86.0, "start", 12.0, INK, false, y_label);
    let names = names(curves.iter().map(|curve| curve.name.clone()));
    let mut legend_at = left + 90.0;
    for curve in curves {
        let colour = colour(&curve.name, &names);
        let points: Vec<String> =
            curve.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let _ = writeln!(
            body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2.2"/>"#,
            points.join(" ")
        );
        rect(&mut body, legend_at, 76.0, 14.0, 10.0, colour);
        text(&mut body, legend_at + 19.0, 86.0, "start", 12.0, INK, false, &curve.name);
        legend_at += 34.0 + 7.0 * curve.name.len() as f64;
    }
    save(path, title, subtitle, bottom + 56.0, &body)
}

/// The ticks of an axis: round steps from 0 to the first one that is not below `most`.
fn ticks(most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .iter()
        .map(|round| round * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let count = (most / step).ceil() as u32;
    (0..=count).map(|number| f64::from(number) * step).collect()
}

fn names(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all {
        if !ours(&name) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn ours(name: &str) -> bool {
    name.starts_with("nodefence")
}

fn colour(name: &str, names: &[String]) -> &'static str {
    match names.iter().position(|known| known == name) {
        Some(at) if !ours(name) => PEERS[at % PEERS.len()],
        _ => OURS,
    }
}

fn rect(svg: &mut String, x: f64, y: f64, width: f64, height: f64, fill: &str) {
    let width = width.max(0.5);
    let _ = writeln!(
        svg,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
    );
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4], stroke: &str, width: f64) {
    let _ = writeln!(
        svg,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="{width}"/>"#
    );
}

#[expect(clippy::too_many_arguments, reason = "the attributes of one SVG element, in its order")]
fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: f64, fill: &str, bold: bool, text: &str) {
    let weight = if bold { "600" } else { "400" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}">{text}</text>"#
    );
}

fn save(path: &Path, title: &str, subtitle: &str, height: f64, body: &str) -> anyhow::Result<()> {
    let mut head = String::new();
    text(&mut head, 20.0, 30.0, "start", 18.0, INK, true, title);
    text(&mut head, 20.0, 52.0, "start", 12.0, FAINT, false, subtitle);
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n{head}{body}</svg>\n"
    );
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        assert_eq!(ticks(97.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        assert!(ticks(0.93).last().is_some_and(|end| *end >= 0.93));
    }

    #[test]
    fn a_name_keeps_its_colour_and_ours_stands_out() {
        let names = names(["bare", "nodefence", "nft"].map(String::from).into_iter());
        assert_eq!(colour("nodefence", &names), OURS);
        assert_ne!(colour("bare", &names), colour("nft", &names));
    }

    #[test]
    fn markup_in_labels_is_escaped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plot.svg");
        let bar = Bar { name: "a<b & c".into(), value: None, spread: None };
        bars(&path, "t", "s", vec![Group { label: "g".into(), bars: vec![bar] }]).expect("written");
        let svg = std::fs::read_to_string(path).expect("there");
        assert!(svg.contains("a&lt;b &amp; c") && svg.contains("never"));
    }
}
