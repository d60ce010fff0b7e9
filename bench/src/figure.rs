//! A result of a benchmark: a figure, its peers and its goal. Only `write` has effects.
use std::{borrow::Cow, collections::BTreeMap, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize, de::Error as _};

use crate::stats::Summary;

/// A measured value. [`Value::Never`]: the result did not come within the cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Number(f64),
    Never,
}

impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_f64(round(*number)),
            Self::Never => serializer.serialize_str("never"),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Told {
            Number(f64),
            Text(String),
        }
        match Told::deserialize(deserializer)? {
            Told::Number(number) => Ok(Self::Number(number)),
            Told::Text(text) if text == "never" => Ok(Self::Never),
            Told::Text(text) => Err(D::Error::custom(format!("expected a number or `never`, not `{text}`"))),
        }
    }
}

/// Rounds to four significant digits: the machine's noise leaves no more.
fn round(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10_f64.powi(3 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

/// One object of `datapath.json`, `ipvs.json`, `kubernetes.json` or `scale.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) figure: String,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) ours: Value,
    pub(crate) peers: BTreeMap<String, Value>,
    /// The ratio that `goal` bounds; the goal's text says of which quantities.
    pub(crate) ratio: Option<f64>,
    /// `None` if there is no goal for the figure.
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
    /// Least and greatest sample, by name (`ours` and the peers).
    pub(crate) spread: BTreeMap<String, [f64; 2]>,
    /// For a missed goal: by how much and why. Otherwise notes that the reader needs.
    pub(crate) note: Option<String>,
}

impl Figure {
    pub(crate) fn new(figure: impl Into<String>, unit: impl Into<Cow<'static, str>>, ours: Value) -> Self {
        Self {
            figure: figure.into(),
            unit: unit.into(),
            ours,
            peers: BTreeMap::new(),
            ratio: None,
            goal: None,
            met: None,
            spread: BTreeMap::new(),
            note: None,
        }
    }

    pub(crate) fn of(figure: impl Into<String>, unit: impl Into<Cow<'static, str>>, ours: &Summary) -> Self {
        let mut made = Self::new(figure, unit, Value::Number(ours.median));
        made.spread.insert("ours".into(), [round(ours.min), round(ours.max)]);
        made
    }

    pub(crate) fn peer(mut self, name: &str, value: Value) -> Self {
        self.peers.insert(name.into(), value);
        self
    }

    pub(crate) fn peer_of(mut self, name: &str, summary: &Summary) -> Self {
        self.spread.insert(name.into(), [round(summary.min), round(summary.max)]);
        self.peer(name, Value::Number(summary.median))
    }

    pub(crate) fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(round(ratio));
        self
    }

    pub(crate) fn goal(mut self, goal: impl Into<String>, met: bool) -> Self {
        self.goal = Some(goal.into());
        self.met = Some(met);
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// Whether no goal is missed.
pub(crate) fn all_met(figures: &[Figure]) -> bool {
    figures.iter().all(|figure| figure.met != Some(false))
}

/// Writes into `out` the figures as `name`, and `machine.json`, which says where and how they were taken.
pub(crate) fn write(
    out: &Path,
    name: &str,
    figures: &[Figure],
    machine: &serde_json::Value,
) -> anyhow::Result<()> {
    let store = |name: &str, text: String| {
        let path = out.join(name);
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    };
    store(name, serde_json::to_string_pretty(figures)?)?;
    store("machine.json", serde_json::to_string_pretty(machine)?)
}

/// The figures as a table with a line for each, and the notes below it.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header(["figure", "unit", "ours", "peers", "ratio", "goal", "met"]);
    for figure in figures {
        let peers: Vec<String> =
            figure.peers.iter().map(|(name, value)| format!("{name} {}", show(*value))).collect();
        table.add_row([
            figure.figure.clone(),
            figure.unit.clone().into_owned(),
            show(figure.ours),
            peers.join("\n"),
            figure.ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
            figure.goal.clone().unwrap_or_default(),
            match figure.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            }
            .to_owned(),
        ]);
    }
    let mut text = table.to_string();
    for figure in figures {
        if let Some(note) = &figure.note {
            text += &format!("\n{}: {note}", figure.figure);
        }
    }
    text
}

/// A value in the form that people read.
pub(crate) fn show(value: Value) -> String {
    match value {
        Value::Never => "never".into(),
        Value::Number(0.0) => "0".into(),
        Value::Number(n) if n.abs() >= 100_000.0 => format!("{:.0}k", n / 1000.0),
        Value::Number(n) if n.abs() >= 100.0 => format!("{n:.0}"),
        Value::Number(n) if n.abs() >= 10.0 => format!("{n:.1}"),
        Value::Number(n) => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_keeps_the_agreed_shape() {
        let figure = Figure::new("d established flows", "s", Value::Number(0.412_345))
            .peer("conntrack -D", Value::Never)
            .ratio(1.0)
            .goal("within 1 s", true);
        let json = serde_json::to_value(&figure).expect("plain data");
        assert_eq!(json["figure"], "d established flows");
        assert_eq!(json["unit"], "s");
        assert_eq!(json["ours"], 0.4123);
        assert_eq!(json["peers"]["conntrack -D"], "never");
        assert_eq!(json["ratio"], 1.0);
        assert_eq!(json["goal"], "within 1 s");
        assert_eq!(json["met"], true);
    }

    #[test]
    fn what_was_written_is_read_again() -> serde_json::Result<()> {
        let figure =
            Figure::new("x", "ms", Value::Number(1.5)).peer("other", Value::Never).goal("less", false);
        let text = serde_json::to_string(&figure)?;
        let read: Figure = serde_json::from_str(&text)?;
        assert_eq!(serde_json::to_string(&read)?, text);
        assert!(serde_json::from_str::<Value>("\"soon\"").is_err());
        Ok(())
    }

    #[test]
    fn rounding_keeps_four_digits() {
        assert_eq!(round(123_456.0), 123_500.0);
        assert_eq!(round(0.000_123_456), 0.000_123_5);
        assert_eq!(round(0.0), 0.0);
    }
}
