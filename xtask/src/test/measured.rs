//! The findings of a test's watchdog on the machine (`tests/src/watch.rs`), and the rule by which a failed test is run again.

use std::time::Duration;

use serde_json::Value;

/// The prefix of the watchdog's findings during a test.
const WATCHED: &str = "@@watched ";
/// The prefix of a figure that a test measured.
const FIGURE: &str = "@@figure ";
/// The text before a bound that a test missed, in the test's error.
const MISSED: &str = "(missed bound: ";
/// The text after the bound's milliseconds, if the stand-still was added to the bound.
const COUNTED: &str = " and what stood still)";

/// The watchdog's findings during a test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// The longest single stand-still of the machine or the guest: a gap of a ticking thread.
    pub(crate) stood_still: Duration,
    /// How long a thread of an agent was runnable and did not run. The thread that waited most counts.
    pub(crate) agent_waited: Duration,
}

/// A bound that a test missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Missed {
    pub(crate) bound: Duration,
    /// Whether the bound already includes the machine's stand-still. The stand-still then does not excuse the test a second time.
    pub(crate) counted: bool,
}

/// A figure that a test measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) test: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// The promised value, in the same unit.
    pub(crate) promised: Option<f64>,
    /// For a time: how long the machine stood still meanwhile, in the same unit.
    pub(crate) still: Option<f64>,
}

/// The content of one line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// The watchdog's findings during this test.
    Watched(String, Measured),
    Figure(Figure),
}

/// The content of a line, and the text before it.
pub(crate) fn read(line: &str) -> Option<(&str, Told)> {
    let watched = line.split_once(WATCHED).and_then(|(before, json)| {
        let value: Value = serde_json::from_str(json).ok()?;
        let time = |key: &str| value[key].as_u64().map(Duration::from_millis);
        let measured = Measured { stood_still: time("still_ms")?, agent_waited: time("waited_ms")? };
        Some((before, Told::Watched(value["test"].as_str()?.to_owned(), measured)))
    });
    watched.or_else(|| {
        let (before, json) = line.split_once(FIGURE)?;
        let value: Value = serde_json::from_str(json).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let figure = Figure {
            test: text("test")?,
            name: text("name")?,
            value: value["value"].as_f64()?,
            unit: text("unit")?,
            promised: value["promised"].as_f64(),
            still: value["still"].as_f64(),
        };
        Some((before, Told::Figure(figure)))
    })
}

/// Reads the bound that a test missed from the last error or panic that it printed. Of several bounds the longest counts.
pub(crate) fn missed(printed: &str) -> Option<Missed> {
    let begins_error = |line: &str| line.starts_with("Error: ") || line.contains(" panicked at ");
    let lines: Vec<&str> = printed.lines().collect();
    let error = lines.iter().rposition(|line| begins_error(line))?;
    let bound = |line: &&str| {
        let (number, rest) = line.rsplit_once(MISSED)?.1.split_once(" ms")?;
        let counted = rest.starts_with(COUNTED);
        let bound = Duration::from_millis(number.parse().ok()?);
        (counted || rest.starts_with(')')).then_some(Missed { bound, counted })
    };
    lines[error..].iter().filter_map(bound).max()
}

/// The reason to run a test again that missed a bound: a measured time exceeds that bound. `None` if there is no reason, and the test has failed.
/// With `makes_load` the tests themselves make the agent wait for a processor, so such a wait is no reason.
pub(crate) fn exceeds(measured: &Measured, missed: Missed, makes_load: bool) -> Option<String> {
    let Missed { bound, counted } = missed;
    let told = |what: &str, time: Duration| {
        let [time_seconds, bound_seconds] = [time, bound].map(|time| time.as_secs_f64());
        (time > bound)
            .then(|| format!("{what} {time_seconds:.1} s, and the bound that it missed is {bound_seconds} s"))
    };
    let waited = || {
        let waited = told("the agent waited for a processor", measured.agent_waited);
        waited.filter(|_| !makes_load)
    };
    let stood_still = told("the machine stood still", measured.stood_still).filter(|_| !counted);
    stood_still.or_else(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exceeds_the_bound_is_forgiven() {
        let measured = |still, waited| Measured {
            stood_still: Duration::from_millis(still),
            agent_waited: Duration::from_millis(waited),
        };
        let missed = |counted| Missed { bound: Duration::from_millis(500), counted };
        let counted = |measured, makes_load| exceeds(&measured, missed(true), makes_load);
        let exceeds = |measured, makes_load| exceeds(&measured, missed(false), makes_load);
        assert_eq!(exceeds(measured(500, 500), false), None);
        let still = exceeds(measured(2_300, 0), false).expect("forgiven");
        assert_eq!(still, "the machine stood still 2.3 s, and the bound that it missed is 0.5 s");
        let waited = exceeds(measured(0, 600), false).expect("forgiven");
        assert!(waited.starts_with("the agent waited for a processor 0.6 s"), "{waited}");
        assert_eq!(exceeds(measured(0, 600), true), None);
        assert!(exceeds(measured(600, 0), true).is_some());
        assert_eq!(counted(measured(2_300, 0), false), None, "it was added to the bound");
        assert!(counted(measured(2_300, 600), false).is_some_and(|why| why.starts_with("the agent waited")));
        assert_eq!(counted(measured(2_300, 600), true), None);
    }

    #[test]
    fn a_missed_bound_is_read_from_what_a_test_printed() {
        let printed = "connected\nError: the cut\n\nCaused by:\n    RSTs: 2s; promised are 1s (missed bound: 1000 ms)\n";
        let of = |milliseconds, counted| Some(Missed { bound: Duration::from_millis(milliseconds), counted });
        assert_eq!(missed(printed), of(1_000, false));
        assert_eq!(missed(&printed.replace(" ms)", " ms and what stood still)")), of(1_000, true));
        let twice = format!("{printed}{}", printed.replace("1000", "250"));
        assert_eq!(missed(&twice), of(250, false), "the last error counts");
        let panicked = "thread 'a' (7) panicked at tests/a.rs:1:1:\nlate (missed bound: 20 ms)\n";
        assert_eq!(missed(panicked), of(20, false));
        let logged = "a try was late (missed bound: 1000 ms)\nError: a kept flow was cut\n";
        assert_eq!(missed(logged), None, "it failed for something else");
        for other in [
            "",
            "Error: a kept flow was cut\n",
            "(missed bound: ms)",
            "(missed bound: 1000",
            "(missed bound: 1 ms",
        ] {
            assert_eq!(missed(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_line_of_the_watchdog_tells_nothing() {
        for line in
            ["", "test a ... ok", "@@watched {", "@@watched {\"test\":\"a\"}", "@@figure {\"test\":\"a\"}"]
        {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
