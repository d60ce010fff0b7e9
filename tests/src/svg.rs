//! The shapes of the timelines of the demo and of the incident: bars of clients that are served, refused or stalled, on an axis of time.

use std::fmt::{Result, Write as _};

/// Colours that colour-blind readers can tell apart (Okabe and Ito's palette).
pub const SERVED: &str = "#56b4e9";
/// For what was reset or refused.
pub const REFUSED: &str = "#e69f00";
/// For what waits.
pub const STALLED: &str = "#c8391b";
/// For text and marks.
pub const INK: &str = "#1f2933";
/// For explanations and axes.
pub const FAINT: &str = "#7b8794";
/// For lines behind everything.
pub const GRID: &str = "#e4e7eb";

/// How many clients, or requests, were in each state in one bucket of time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Those that got their answers.
    pub served: usize,
    /// Those whose connection was reset or whose request was refused.
    pub refused: usize,
    /// Those that waited for long, or gave up.
    pub stalled: usize,
}

impl Bucket {
    /// All of them.
    pub fn total(&self) -> usize {
        self.served + self.refused + self.stalled
    }
}

/// The buckets as parts of a thousand, for where their totals differ a little. A bucket without anything stays empty.
pub fn shares(buckets: &[Bucket]) -> Vec<Bucket> {
    let share = |count: usize, bucket: &Bucket| count * 1_000 / bucket.total().max(1);
    let whole = |bucket: &Bucket| match bucket.total() {
        0 => Bucket::default(),
        _ => Bucket {
            served: 1_000 - share(bucket.refused, bucket) - share(bucket.stalled, bucket),
            refused: share(bucket.refused, bucket),
            stalled: share(bucket.stalled, bucket),
        },
    };
    buckets.iter().map(whole).collect()
}

/// A part of the picture.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// The left edge.
    pub left: f64,
    /// The upper edge.
    pub top: f64,
    /// The width, of all buckets together.
    pub width: f64,
    /// The height, of the fullest bucket.
    pub height: f64,
}

/// A part of a bucket.
type Part = fn(&Bucket) -> usize;

/// Begins a picture on a white ground.
///
/// # Errors
/// None: a text takes everything.
pub fn begin(svg: &mut String, width: f64, height: f64, title: &str) -> Result {
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="Helvetica, Arial, 'Liberation Sans', sans-serif" font-size="13" fill="{INK}">"#
    )?;
    writeln!(svg, r#"<title>{title}</title>"#)?;
    writeln!(svg, r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##)
}

/// Draws a bar for each bucket, as one outline for each state. Served is at the bottom, refused above it, stalled on top.
///
/// # Errors
/// None: a text takes everything.
pub fn stack(svg: &mut String, buckets: &[Bucket], area: Area) -> Result {
    let Area { left, top, width, height } = area;
    let most = buckets.iter().map(Bucket::total).max().unwrap_or(0).max(1) as f64;
    let step = width / buckets.len() as f64;
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
                    left + at as f64 * step,
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

/// Draws the axes at the left and at the bottom of an area, with the greatest number at the top.
///
/// # Errors
/// None: a text takes everything.
pub fn scale(svg: &mut String, area: Area, most: &str) -> Result {
    let Area { left, top, width, height } = area;
    writeln!(
        svg,
        r#"<path d="M{left} {top}v{height}h{width}" fill="none" stroke="{FAINT}" stroke-width="0.8"/>"#
    )?;
    let style = format!(r#"text-anchor="end" font-size="11" {}"#, fill(FAINT));
    text(svg, left - 6.0, top + 9.0, most, &style)?;
    text(svg, left - 6.0, top + height, "0", &style)
}

/// Writes lines at the left of an area, around its middle.
///
/// # Errors
/// None: a text takes everything.
pub fn label(svg: &mut String, area: Area, lines: &[&str]) -> Result {
    let start = area.top + area.height / 2.0 - (lines.len() as f64 - 1.0) * 8.0 + 4.0;
    for (at, line) in lines.iter().enumerate() {
        text(svg, area.left - 46.0, start + at as f64 * 16.0, line, r#"text-anchor="end""#)?;
    }
    Ok(())
}

/// Draws the legend in one line: each state's colour and words, and where the next one begins, from this one on.
///
/// # Errors
/// None: a text takes everything.
pub fn legend(svg: &mut String, left: f64, top: f64, entries: [(&str, &str, f64); 3]) -> Result {
    let mut at = left;
    for (color, words, step) in entries {
        rect(svg, at, top, 14.0, 14.0, color)?;
        text(svg, at + 21.0, top + 12.0, words, "")?;
        at += step;
    }
    Ok(())
}

/// Draws a dashed line from `top` to `bottom`, with a text at its upper end.
///
/// # Errors
/// None: a text takes everything.
pub fn mark(svg: &mut String, x: f64, top: f64, bottom: f64, label: &str, anchor: &str) -> Result {
    writeln!(
        svg,
        r#"<line x1="{x:.1}" y1="{}" x2="{x:.1}" y2="{bottom}" stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 3"/>"#,
        top - 20.0
    )?;
    text(svg, x + 5.0, top - 8.0, label, &format!(r#"text-anchor="{anchor}" font-weight="bold""#))
}

/// Draws a rectangle.
///
/// # Errors
/// None: a text takes everything.
pub fn rect(svg: &mut String, x: f64, y: f64, width: f64, height: f64, color: &str) -> Result {
    writeln!(svg, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#)
}

/// Writes a text.
///
/// # Errors
/// None: a text takes everything.
pub fn text(svg: &mut String, x: f64, y: f64, text: &str, style: &str) -> Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" {style}>{text}</text>"#)
}

/// The attribute of a colour.
pub fn fill(color: &str) -> String {
    format!(r#"fill="{color}""#)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area { left: 10.0, top: 20.0, width: 40.0, height: 100.0 };

    #[test]
    fn equal_neighbours_are_one_rectangle() {
        let served = Bucket { served: 4, ..Bucket::default() };
        let mixed = Bucket { served: 1, refused: 1, stalled: 2 };
        let mut svg = String::new();
        stack(&mut svg, &[served, served, mixed, Bucket::default()], AREA).expect("a text");
        let path = |color: &str, path: &str| {
            format!("<path d=\"{path}\" fill=\"{color}\" shape-rendering=\"crispEdges\"/>\n")
        };
        let expected = path(SERVED, "M10.0 20.0h20.00v100.0h-20.00zM30.0 95.0h10.00v25.0h-10.00z")
            + &path(REFUSED, "M30.0 70.0h10.00v25.0h-10.00z")
            + &path(STALLED, "M30.0 20.0h10.00v50.0h-10.00z");
        assert_eq!(svg, expected);
    }

    #[test]
    fn shares_are_parts_of_a_thousand() {
        let mixed = Bucket { served: 1, refused: 1, stalled: 1 };
        let expected = [Bucket { served: 334, refused: 333, stalled: 333 }, Bucket::default()];
        assert_eq!(shares(&[mixed, Bucket::default()]), expected);
    }
}
