//! What was measured as figures with their goals. Pure.
use std::time::Duration;

use super::{
    client::{Spent, Who},
    measured::{All, Measured},
    sizes::LARGE,
};
use crate::{
    figure::{Figure, Value},
    stats::{Summary, summary},
};

/// Resident memory that the agent may have at rest and at its peak, in MiB. The kernel's maps are apart.
const AT_REST: f64 = 96.0;
const AT_PEAK: f64 = 160.0;
/// How many times as much as the informer the agent may take from the API server.
const AS_INFORMER: f64 = 1.1;

/// The figures of what was measured so far.
pub(super) fn of(all: &All) -> Vec<Figure> {
    let mut figures = Vec::new();
    let Some(ours) = all.of.get(&Who::Agent) else { return figures };
    let rest = all.rest.as_secs_f64();
    let minutes = rest / 60.0;
    let megabytes = |spent: &Spent| spent.from_server as f64 / 1e6;
    let kilobytes_a_minute = |spent: &Spent| spent.from_server as f64 / 1e3 / minutes;
    // The API server is never idle. A client that takes longer must not be charged for that.
    let nobody = all.of.get(&Who::Nobody).and_then(|nobody| nobody.rest);
    let idle = nobody.map_or(0.0, |nobody| nobody.server.as_secs_f64() / rest);
    let server = |spent: &Spent| milliseconds(spent.server) - milliseconds(spent.elapsed) * idle;
    let client = |spent: &Spent| milliseconds(spent.client);
    let lists = |measured: &Measured| measured.lists.clone();
    let restarts = |measured: &Measured| measured.restarts.clone();
    let quiet = |measured: &Measured| measured.rest.into_iter().collect::<Vec<_>>();

    if let Some(first) = ours.starts.first() {
        let informer = all.of.get(&Who::Informer).and_then(|informer| informer.starts.first());
        let mut figure =
            Figure::new("start, until it serves with all objects", "s", Value::Number(first.as_secs_f64()))
                .note("no goal; of the agent it includes loading the programs and writing all tables");
        if let Some(informer) = informer {
            figure = figure.peer(Who::Informer.name(), Value::Number(informer.as_secs_f64()));
        }
        figures.push(figure);
    }
    figures.extend(as_informer(beside(all, "first lists, from the API server", "MB", lists, megabytes)));
    figures.extend(as_informer(beside(
        all,
        "first lists, the API server's processor beyond rest",
        "ms",
        lists,
        server,
    )));
    figures.extend(beside(all, "first lists, the client's own processor", "ms", lists, client));
    figures.extend(beside(all, "rest, from the API server in a minute", "kB", quiet, kilobytes_a_minute));
    let a_minute = |spent: &Spent| milliseconds(spent.server) / minutes;
    figures.extend(beside(all, "rest, the API server's processor in a minute", "ms", quiet, a_minute));
    let share = |spent: &Spent| spent.client.as_secs_f64() / rest * 100.0;
    figures.extend(beside(all, "rest, the client's own processor", "% of one", quiet, share));
    figures.extend(as_informer(beside(all, "rolling restart, from the API server", "MB", restarts, megabytes)).map(
        |figure| {
            let text = format!("{LARGE} endpoints of one Service, one after the other: each is a change of a slice of 100");
            noted(figure, &text)
        },
    ));
    figures.extend(as_informer(beside(
        all,
        "rolling restart, the API server's processor beyond rest",
        "ms",
        restarts,
        server,
    )));
    figures.extend(beside(all, "rolling restart, the client's own processor", "ms", restarts, client));
    figures.extend(memory(all, ours));
    figures
}

/// Resident memory, and the lists that came anew.
fn memory(all: &All, ours: &Measured) -> Vec<Figure> {
    let mut figures = Vec::new();
    let at_rest = |name: &str, now: f64| {
        Figure::new(name, "MiB", Value::Number(now)).goal(format!("at most {AT_REST} MiB"), now <= AT_REST)
    };
    if let Some([now, peak]) = ours.memory {
        let mut figure = at_rest("rest, resident memory (VmRSS)", now)
            .peer("peak of the start (VmHWM)", Value::Number(peak))
            .note(format!(
                "{:.0} s after the start; without what the kernel's maps take",
                all.rest.as_secs_f64()
            ));
        if let Some([now, _]) = all.of.get(&Who::Informer).and_then(|informer| informer.memory) {
            figure = figure.peer(Who::Informer.name(), Value::Number(now));
        }
        figures.push(figure);
    }
    if let Some(anew) = &all.anew {
        let [now, peak] = anew.memory;
        let from_server = anew.from_server as f64 / 1e6;
        figures.push(
            Figure::new("lists after a 410, until all is there", "s", Value::Number(anew.took.as_secs_f64()))
                .note(format!(
                    "no goal; {from_server:.1} MB came; includes the pause of up to a minute before a failed watch is begun anew"
                )),
        );
        figures.push(
            Figure::new(
                "peak of resident memory, lists after a 410 included (VmHWM)",
                "MiB",
                Value::Number(peak),
            )
            .goal(format!("at most {AT_PEAK} MiB"), peak <= AT_PEAK),
        );
        figures.push(
            at_rest("rest after these lists, resident memory (VmRSS)", now)
                .note(format!("{:.0} s after them", all.rest.as_secs_f64())),
        );
    }
    figures
}

/// One quantity of all clients. `None` if the agent was not measured.
fn beside(
    all: &All,
    name: &str,
    unit: &'static str,
    part: impl Fn(&Measured) -> Vec<Spent>,
    quantity: impl Fn(&Spent) -> f64,
) -> Option<Figure> {
    let of = |who| -> Option<Summary> {
        let samples: Vec<f64> = part(all.of.get(&who)?).iter().map(&quantity).collect();
        summary(&samples)
    };
    let mut figure = Figure::of(name, unit, &of(Who::Agent)?);
    for who in [Who::Nobody, Who::KubeProxy, Who::Informer] {
        // Nobody gets bytes or has a process.
        if let Some(summary) = of(who).filter(|summary| summary.max > 0.0) {
            figure = figure.peer_of(who.name(), &summary);
        }
    }
    if let Some(Value::Number(proxy)) = figure.peers.get(Who::KubeProxy.name()).copied()
        && let Value::Number(ours) = figure.ours
    {
        figure = noted(figure, &format!("{:.2} times kube-proxy's", ours / proxy));
    }
    Some(figure)
}

/// Adds a sentence to a figure's note.
fn noted(figure: Figure, text: &str) -> Figure {
    let note = match &figure.note {
        Some(note) => format!("{text}; {note}"),
        None => text.to_owned(),
    };
    figure.note(note)
}

/// Adds the goal that holds beside the informer, if that was measured.
fn as_informer(figure: Option<Figure>) -> Option<Figure> {
    let figure = figure?;
    let (Some(Value::Number(informer)), Value::Number(ours)) =
        (figure.peers.get(Who::Informer.name()).copied(), figure.ours)
    else {
        return Some(figure);
    };
    let ratio = ours / informer;
    Some(
        figure.ratio(ratio).goal(format!("at most {AS_INFORMER} times the informer's"), ratio <= AS_INFORMER),
    )
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(from_server: u64, milliseconds: u64) -> Spent {
        let time = Duration::from_millis(milliseconds);
        let elapsed = Duration::from_secs(2);
        Spent { from_server, server: time, client: time, elapsed, ..Spent::default() }
    }

    fn measured(bytes: u64) -> Measured {
        Measured {
            starts: vec![Duration::from_secs(7)],
            lists: vec![spent(bytes, 100), spent(bytes + 2, 300)],
            restarts: vec![spent(bytes, 50)],
            rest: Some(spent(3_000, 20)),
            memory: Some([90.0, 150.0]),
        }
    }

    fn find<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
        figures.iter().find(|figure| figure.figure.starts_with(name)).expect(name)
    }

    #[test]
    fn the_informer_is_what_the_agent_is_held_against() {
        let mut all = All { rest: Duration::from_secs(30), ..All::default() };
        all.of.insert(Who::KubeProxy, measured(500_000));
        all.of.insert(Who::Informer, measured(1_000_000));
        for (bytes, met) in [(1_090_000, true), (1_110_000, false)] {
            all.of.insert(Who::Agent, measured(bytes));
            let figures = of(&all);
            let lists = find(&figures, "first lists, from");
            assert_eq!(lists.met, Some(met), "{lists:?}");
            assert!(
                lists.note.as_ref().is_some_and(|note| note.ends_with("times kube-proxy's")),
                "{lists:?}"
            );
        }
        let figures = of(&all);
        assert_eq!(find(&figures, "first lists, the API").ours, Value::Number(200.0), "the median");
        assert_eq!(find(&figures, "rest, from").ours, Value::Number(6.0), "of a minute");
        assert_eq!(find(&figures, "rest, from").met, None);
        // At rest the API server uses 15 ms in 30 s, and a list took 2 s.
        all.of.insert(Who::Nobody, Measured { rest: Some(spent(0, 15)), ..Measured::default() });
        assert_eq!(
            find(&of(&all), "first lists, the API").ours,
            Value::Number(199.0),
            "without what it uses anyhow"
        );
    }

    #[test]
    fn memory_has_bounds_of_its_own() {
        let mut all = All { rest: Duration::from_secs(60), ..All::default() };
        all.of.insert(Who::Agent, measured(1));
        for (memory, met) in [([95.0, 159.0], [true, true]), ([97.0, 161.0], [false, false])] {
            all.anew = Some(super::super::measured::Anew { took: Duration::ZERO, from_server: 1, memory });
            let figures = of(&all);
            let found = [find(&figures, "rest after these"), find(&figures, "peak of")];
            assert_eq!(found.map(|figure| figure.met), met.map(Some));
        }
        // Without peers nothing is compared.
        assert_eq!(find(&of(&all), "first lists, from").met, None);
    }

    #[test]
    fn without_the_agent_there_is_nothing_to_tell() {
        let mut all = All::default();
        all.of.insert(Who::Informer, measured(1));
        assert!(of(&all).is_empty());
    }
}
