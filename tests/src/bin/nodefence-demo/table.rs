//! The table at the end.

use crate::{
    record::{End, Kind, Request, stalled},
    run::Run,
};

/// What one run comes to.
pub(crate) struct Figures {
    /// Seconds that requests of the keep-alive, UDP and new-connection clients were stalled, summed over all.
    pub(crate) stalled_s: f64,
    /// The longest of them.
    pub(crate) longest_s: f64,
    /// Requests that were still stalled 500 ms after the flag, or when the run ended.
    pub(crate) left: usize,
    pub(crate) resets: usize,
    pub(crate) udp_refused: usize,
    /// Seconds from the flag until the idle client was freed.
    pub(crate) idle_freed_ms: Option<f64>,
    pub(crate) new_total: usize,
    pub(crate) new_stalled: usize,
    pub(crate) new_refused: usize,
}

pub(crate) fn figures(run: &Run) -> Figures {
    let of = |kind: Kind| run.requests.iter().filter(move |request| request.kind == kind);
    let waits: Vec<&Request> =
        run.requests.iter().filter(|request| request.kind != Kind::Idle && stalled(request)).collect();
    let length = |request: &&Request| (request.end.min(run.cut_short()) - request.start) / 1e3;
    let settled = run.flagged.map_or(run.cut_short() - 50.0, |at| at + 500.0);
    let idle = of(Kind::Idle).find(|request| matches!(request.how, End::Reset));
    let after_freeze = || of(Kind::New).filter(|request| request.start >= 0.0);
    Figures {
        stalled_s: waits.iter().map(length).sum(),
        longest_s: waits.iter().map(length).fold(0.0, f64::max),
        left: waits.iter().filter(|request| request.end > settled).count(),
        resets: of(Kind::KeepAlive).filter(|request| request.how == End::Reset).count(),
        udp_refused: of(Kind::Udp).filter(|request| request.how == End::Refused).count(),
        idle_freed_ms: idle.map(|request| request.end - run.flagged.unwrap_or(0.0)),
        new_total: after_freeze().count(),
        new_stalled: after_freeze().filter(|request| stalled(request)).count(),
        new_refused: after_freeze()
            .filter(|request| !stalled(request) && matches!(request.how, End::Reset | End::Refused))
            .count(),
    }
}

pub(crate) fn render(without: &Run, with: &Run) -> String {
    let (a, b) = (figures(without), figures(with));
    let idle = |figures: &Figures| match figures.idle_freed_ms {
        Some(ms) => format!("1 of 1, {ms:.0} ms after the flag"),
        None => "0 of 1".to_owned(),
    };
    let new = |figures: &Figures| {
        format!(
            "{} stalled, {} refused at once, of {}",
            figures.new_stalled, figures.new_refused, figures.new_total
        )
    };
    let rows = [
        ("".to_owned(), without.plan.name().to_owned(), with.plan.name().to_owned()),
        (
            "stalled requests, seconds in all".to_owned(),
            format!("{:.1} (cut short)", a.stalled_s),
            format!("{:.1}", b.stalled_s),
        ),
        (
            "longest wait of one request".to_owned(),
            format!("{:.1} s (cut short)", a.longest_s),
            format!("{:.1} s (hang to flag: {:.1} s)", b.longest_s, with.flagged.unwrap_or(0.0) / 1e3),
        ),
        ("requests stalled at the end".to_owned(), a.left.to_string(), b.left.to_string()),
        ("connections reset".to_owned(), a.resets.to_string(), b.resets.to_string()),
        ("UDP flows refused".to_owned(), a.udp_refused.to_string(), b.udp_refused.to_string()),
        ("idle clients freed".to_owned(), idle(&a), idle(&b)),
        ("new connections after the hang".to_owned(), new(&a), new(&b)),
    ];
    let width = |column: fn(&(String, String, String)) -> &String| {
        rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0)
    };
    let (first, second, third) = (width(|row| &row.0), width(|row| &row.1), width(|row| &row.2));
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        text += &format!("  {:<first$}   {:<second$}   {}\n", row.0, row.1, row.2);
        if at == 0 {
            text += &format!("  {}\n", "-".repeat(first + second + third + 6));
        }
    }
    text
}
