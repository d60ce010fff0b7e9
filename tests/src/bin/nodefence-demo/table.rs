//! The table that is printed at the end.

use crate::{
    record::{stalled, stalled_at},
    request::{End, Kind, Request},
    run::Run,
};

/// The sums of one run.
pub(crate) struct Figures {
    /// The sum of the lengths of all stalled requests of the keep-alive, UDP and new-connection clients, in seconds.
    pub(crate) stalled_s: f64,
    /// The length of the longest stalled request, in seconds.
    pub(crate) longest_s: f64,
    /// Requests that were stalled when the run ended.
    pub(crate) left: usize,
    /// Requests that were stalled when the run ended and began before the flag.
    pub(crate) left_from_before: usize,
    /// Requests that began after the flag and stalled at any time.
    pub(crate) begun_after: usize,
    pub(crate) resets: usize,
    pub(crate) udp_refused: usize,
    /// Milliseconds from the flag to the reset of the idle client.
    pub(crate) idle_freed_ms: Option<f64>,
    pub(crate) new_total: usize,
    pub(crate) new_stalled: usize,
    pub(crate) new_refused: usize,
}

pub(crate) fn figures(run: &Run) -> Figures {
    let of = |kind: Kind| run.requests.iter().filter(move |request| request.kind == kind);
    let waits: Vec<&Request> =
        run.requests.iter().filter(|request| request.kind != Kind::Idle && stalled(request)).collect();
    let length = |request: &&Request| (request.end.min(run.ended) - request.start) / 1e3;
    let left: Vec<&&Request> = waits.iter().filter(|request| stalled_at(request, run.ended)).collect();
    let before_flag = |request: &Request| run.flagged.is_none_or(|at| request.start < at);
    let idle = of(Kind::Idle).find(|request| matches!(request.how, End::Reset));
    let after_freeze = || of(Kind::New).filter(|request| request.start >= 0.0);
    Figures {
        stalled_s: waits.iter().map(length).sum(),
        longest_s: waits.iter().map(length).fold(0.0, f64::max),
        left: left.len(),
        left_from_before: left.iter().filter(|request| before_flag(request)).count(),
        begun_after: waits.iter().filter(|request| !before_flag(request)).count(),
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
    let first_run = figures(without);
    let second_run = figures(with);
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
            format!("{:.1} (cut short)", first_run.stalled_s),
            format!("{:.1}", second_run.stalled_s),
        ),
        (
            "longest wait of one request".to_owned(),
            format!("{:.1} s (cut short)", first_run.longest_s),
            format!(
                "{:.1} s (the flag came {:.1} s after the hang)",
                second_run.longest_s,
                with.flagged.unwrap_or(0.0) / 1e3
            ),
        ),
        (
            "requests stalled when the run ended".to_owned(),
            first_run.left.to_string(),
            match second_run.left {
                0 => "0".to_owned(),
                left => format!("{left}, {} of them begun before the flag", second_run.left_from_before),
            },
        ),
        (
            "stalled requests begun after the flag".to_owned(),
            "-".to_owned(),
            second_run.begun_after.to_string(),
        ),
        ("connections reset".to_owned(), first_run.resets.to_string(), second_run.resets.to_string()),
        (
            "datagrams refused".to_owned(),
            first_run.udp_refused.to_string(),
            second_run.udp_refused.to_string(),
        ),
        ("idle clients freed".to_owned(), idle(&first_run), idle(&second_run)),
        ("new connections after the hang".to_owned(), new(&first_run), new(&second_run)),
    ];
    let width = |column: fn(&(String, String, String)) -> &String| {
        rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0)
    };
    let first = width(|row| &row.0);
    let second = width(|row| &row.1);
    let third = width(|row| &row.2);
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        text += &format!("  {:<first$}   {:<second$}   {}\n", row.0, row.1, row.2);
        if at == 0 {
            text += &format!("  {}\n", "-".repeat(first + second + third + 6));
        }
    }
    text += &format!(
        "\n  stalled: waited for more than {} ms. Node A's rules still choose node B now and then, as kube-proxy's would: with the\n  \
         node flagged what they send there goes to node C instead, and is refused at once where nobody else is left.\n",
        crate::record::STALL.as_millis()
    );
    text
}
